"""The patterns and topic names that are tried on Apache Kafka and on our matcher."""

from __future__ import annotations

__all__ = ["NAMES", "PATTERNS"]

NAMES: tuple[str, ...] = (
    "a", "aa", "aaa", "aaaa", "A", "AA", "aA", "Aa", "b", "ab", "abb", "aab", "abc", "ABC", "aBc", "ac", "abcabc",
    "0", "1", "12", "123", "2026", "a1", "a-1", "a.1", "1a", "-", "--", "_", "__", "...", "a.b", "a.b.c", "a-b",
    ".a", "a.", "-a", "a-", "orders", "Orders", "ORDERS", "orders-eu", "orders-us", "orders.eu.v1",
    "orders.eu.v2", "orders_dlq", "payments", "foo", "foobar", "foo.bar", "foo-bar", "bar", "x41", "K", "k", "s", "S", "z9.Z-_",
    "d", "w", "n", "t", "u0061", "E", "Q", "Qa", "p", "L", "a" * 60,
)  # fmt: skip
"""Legal names of topics: letters and digits of ASCII, `.`, `_` and `-`."""

_PLAIN = (
    "a", "abc", "orders", "a.b", r"a\.b", "a-b", "a_b", ".", "..", "...", ".*", ".+", ".?", "^a", "a$", "^a$", "^", "$", "^$",
    "^^a$$", "a^", "$a", "^.*$", "(^a$)", "(?:^a)$", "a|b", "a|", "|a", "|", "a||b", "(a|b)", "(a|b)*", "(a|b)c", "orders.*",
    r"orders\..*", "orders[.]eu.*", ".*-eu", "foo|foo.bar", "foo(bar)?", "(foo|bar)+", "()", "(a)(b)", "((a))", "(?:a)",
    "a b", " a", "a ", "a\n", "\ta", "á", "π", "日本", "K", "a\u0301",
)  # fmt: skip
_REPEATED = (
    "a*", "a+", "a?", "a*?", "a+?", "a??", "a{2}", "a{2,}", "a{2,3}", "a{,3}", "a{0}", "a{0,}", "a{3,2}", "a{", "a{}", "a{a}",
    "a{1", "a{1,", "a{-1}", "a{2}?", "a{60}", "a{1000}", "a{1001}", "a{2}{3}", "(a{2}){3}", "(a{30}){30}", "(a{100}){11}",
    "((a{10}){10}){10}", "((a{10}){10}){11}", "a**", "a*+", "a++", "a?+", "a{2}+", "a+*", "*", "+", "?", "*a", "(*)", "(+a)",
    "{2}", "^*", "$*", "^+a", "(?:)*", "(a*)*", "(a+)+", "(a|a)*", r"\b*a", "x{0}a",
)  # fmt: skip
_CLASSES = (
    "[abc]", "[a-c]+", "[^a]", "[^a-z]+", "[a-z0-9]+", "[A-Za-z]+", "[a-]", "[-a]", "[a-c-e]", "[c-a]", "[]", "[]a]", "[^]a]",
    "[^]", "[a", "a]", "]", "[[]", "[a[b]", r"[\]a]", r"[\-a]", r"[.]", r"[\.a]", "[[:alpha:]]+", "[[:digit:]]+", "[[:alnum:]]+",
    "[[:upper:]]+", "[[:lower:]]+", "[[:word:]]+", "[[:punct:]]+", "[[:space:]]", "[[:xdigit:]]+", "[[:^alpha:]]+", "[[:foo:]]",
    "[:alpha:]+", "[[:alpha:][:digit:]]+", "[[=a=]]", "[[.a.]]", r"\d", r"\d+", r"\D+", r"\w+", r"\W+", r"\s", r"\S+", r"[\d]+",
    r"[\w.]+", r"[^\d]+", r"[\D]+", r"[a-\d]", r"[\d-z]+", "[a&&b]", "[a-z&&[^b]]", "[a-z--b]", r"[\b]", "[ -~]+", "[!-/]+",
    "[^\\n]+", "[\u00e1]", "[α-ω]", "[a-z]{2}-[a-z]{2}",
)  # fmt: skip
_UNICODE = (
    r"\pL", r"\pL+", r"\p{L}+", r"\p{Lu}+", r"\p{Ll}+", r"\P{L}+", r"\p{^L}+", r"\pN+", r"\p{Nd}+", r"\p{Greek}", r"\p{Latin}+",
    r"\p{IsLatin}+", r"\p{Alphabetic}+", r"\p{Foo}", r"\p{", r"\p", r"\pQ", r"\p{Any}+", r"[\pL]+", r"[\p{Lu}\d]+", r"[^\pL]+",
    r"\p{Alpha}+", r"\p{Punct}+", r"\p{ASCII}+", r"\p{javaLowerCase}+", r"\X", r"\pP", r"\p{Pc}", r"\p{Pd}+", r"\p{S}",
    r"\p{lu}", r"\p{latin}+", r"\p{Cn}", r"\p{LC}+",
)  # fmt: skip
_ESCAPES = (
    r"\a", r"\t", r"\n", r"\.", r"\-", r"\_", r"\/", r"\"", r"\x41", r"\x4", r"\x{41}", r"\x{110000}", r"\x{}", r"\xg1", r"\101",
    r"\0", r"\060", r"\1", r"(a)\1", r"\8", r"\9a", r"\u0061", r"\U00000061", r"\cA", r"\e", r"\f", r"\v", r"\h", r"\R", r"\N",
    r"\i", r"\m", r"\y", r"\Qa.b\E", r"\Qa.b", r"a\Q\E", r"\Q\E", r"\Qa\Eb", r"\E", r"a\E", r"\Q.*\E.*", "\\", "a\\", r"\\", r"\ ",
    r"\Aa", r"\Aa\z", r"a\z", r"a\Z", r"\ba", r"a\b", r"\Ba", r"a\Bb", r"\b", r"\B", r"a\b.\bb", r"\Ga", r"\C", r"\C+", r"\K", r"\<a",
)  # fmt: skip
_GROUPS = (
    "(?i)abc", "(?i)ORDERS", "(?i:a)b", "(?i)k", "(?i)s", "(?i)[k]", "(?-i)a", "(?i-s)a.b", "(?s).*", "(?m)^a$", "(?m)a$", "(?U)a+",
    "(?U)a+?", "(?x)a b", "(?a)a", "(?u)a", "(?im)A", "(?ii)a", "(?i-)a", "(?-)a", "(?)a", "(?i", "(?i)", "a(?i)b", "(a(?i)b)c",
    "(?P<n>a)", "(?P<n>a)(?P<n>b)", "(?<n>a)", "(?'n'a)", "(?P=n)", "(?P<n>a)(?P=n)", "(?P<>a)", "(?P<1>a)", "(?P<n-m>a)", "(?P<n",
    "(?P<é>a)", "(?<n>a)(?<n>b)", "(?=a)a", "(?!a)b", "(?<=a)b", "(?<!a)b", "(?>a)", "(?#note)a", "(?|a|b)", "(?R)", "(?1)",
    "(?:a", "(a", "a)", ")", "(", "(?", "(?:", "(?:)", "a(?", "((a)", "(a))", "(" * 200 + "a" + ")" * 200,
    "(" * 1100 + "a" + ")" * 1100,
)  # fmt: skip
_LONG = (
    "a?" * 60 + "a" * 60,
    "|".join(f"orders-{number}" for number in range(300)) + "|orders-eu",
    "(a|aa|aaa)*b?",
    "(.*)(.*)(.*)",
)
PATTERNS: tuple[str, ...] = (
    *_PLAIN, *_REPEATED, *_CLASSES, *_UNICODE, *_ESCAPES, *_GROUPS, *_LONG,
)  # fmt: skip
