"""JAAS lines in Kafka's syntax: values, refusals, and errors without passwords."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.security.jaas import MalformedJaas, parse_jaas

MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"


@pytest.mark.parametrize(
    ("line", "options"),
    [
        (f"{MODULE} required;", {}),
        (f'{MODULE} REQUIRED username="a" password="b" ;', {"username": "a", "password": "b"}),
        (f"{MODULE} optional username='a' password=b;", {"username": "a", "password": "b"}),
        (f'  {MODULE}\n  required\n  user_a="x"\n  user_b="y";\n', {"user_a": "x", "user_b": "y"}),
        (f'{MODULE} required password="say \\"hi\\" \\\\ ;=";', {"password": 'say "hi" \\ ;='}),
        (f'{MODULE} required password="\\101\\t\\7z\\60";', {"password": "A\t\x07z0"}),
        (f'{MODULE} required /* a note */ username="a"; // the end', {"username": "a"}),
        (f'{MODULE} required username="//no comment" password="/* nor */";', None),
        (f'{MODULE} required username="jürgen" password="пароль";', None),
        (f'{MODULE} required username="" password="";', {"username": "", "password": ""}),
        (f'{MODULE} required username="a" username="b";', {"username": "b"}),
        (f"{MODULE} required user_dot.name-x='1';", {"user_dot.name-x": "1"}),
    ],
)
def test_a_line_is_read_as_kafka_reads_it(line: str, options: dict[str, str] | None) -> None:
    """A line is parsed as Kafka parses it: quotes, escapes, comments, and flags in any case."""
    found = parse_jaas(line)
    assert found.module == MODULE
    if options is not None:
        assert dict(found.options) == options


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("", "with a semicolon"),
        (";", "with a semicolon"),
        (MODULE, "with a semicolon"),
        (f"{MODULE};", "with a semicolon"),
        (f'{MODULE} required password="hunter2"', "with a semicolon"),
        (f'{MODULE} needed password="hunter2";', "must be one of"),
        (f'{MODULE} password="hunter2";', "must be one of"),
        (f"{MODULE} required password hunter2;", "options must have the form"),
        (f"{MODULE} required password=;", "options must have the form"),
        (f'{MODULE} required ="hunter2";', "options must have the form"),
        (f"{MODULE} required password = = hunter2;", "options must have the form"),
        (f'{MODULE} required password="hunter2;', "not closed"),
        (f'{MODULE} required password="hunter2"; {MODULE} required;', "one login module"),
        (f'{MODULE} required password="hunter2";;', "one login module"),
        ("= required password='hunter2';", "the class"),
    ],
)
def test_a_broken_line_is_refused_without_its_secrets(line: str, reason: str) -> None:
    """A malformed line is refused. The error says what was expected, and contains no secret."""
    with pytest.raises(MalformedJaas, match=reason) as caught:
        parse_jaas(line)
    assert "hunter2" not in str(caught.value)
    assert "\n" not in str(caught.value)


@given(st.text(max_size=60))
def test_any_password_comes_back(password: str) -> None:
    """Any password can be quoted by escaping backslashes and quotes."""
    quoted = password.replace("\\", "\\\\").replace('"', '\\"')
    assert parse_jaas(f'{MODULE} required password="{quoted}";').password == password


@given(st.text(alphabet="ab=;\"'\\ /*\n7", max_size=40))
def test_any_text_is_read_or_refused(text: str) -> None:
    """Any text is parsed or raises MalformedJaas, and no other exception."""
    try:
        assert isinstance(parse_jaas(text).module, str)
    except MalformedJaas:
        return
