"""Parses JAAS lines in Kafka's configurations: `CLASS FLAG name="value" ...;`. PURE.

Only the names of Kafka's own classes are accepted. The options `username` and `password` are for a client. With
`user_NAME="PASSWORD"` a server lists the users that may log in by PLAIN.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import attrs

__all__ = ["JaasLine", "MalformedJaas", "parse_jaas"]

_FLAGS = ("required", "requisite", "sufficient", "optional")
_GAP = re.compile(r"(?:\s|//[^\n\r]*|/\*.*?\*/)*", re.DOTALL)
"""Spaces and comments, as Java's tokenizer skips them."""
_TOKEN = re.compile(r'(?:"((?:[^"\\]|\\.)*)"|\'((?:[^\'\\]|\\.)*)\'|([=;])|([^\s=;"\']+))', re.DOTALL)
_ESCAPE = re.compile(r"\\([0-3][0-7]{0,2}|[4-7][0-7]?|.)", re.DOTALL)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "a": "\a", "v": "\v"}
_USER = "user_"


class MalformedJaas(ValueError):
    """Raised if a text is not a JAAS line. The message never shows the line, which has passwords."""


@attrs.frozen
class JaasLine:
    """One login module and its options."""

    module: str
    options: Mapping[str, str] = attrs.field(repr=False)

    @property
    def username(self) -> str | None:
        return self.options.get("username")

    @property
    def password(self) -> str | None:
        return self.options.get("password")

    @property
    def is_of_token(self) -> bool:
        """True if the user name is the id of a delegation token (`tokenauth="true"`)."""
        return self.options.get("tokenauth", "").lower() == "true"

    @property
    def users(self) -> Mapping[str, str]:
        """Passwords by user (`user_NAME="PASSWORD"`)."""
        return {
            key.removeprefix(_USER): value for key, value in self.options.items() if key.startswith(_USER)
        }


def parse_jaas(text: str) -> JaasLine:
    """Parse one login module and its options. Raises `MalformedJaas`."""
    tokens = [*_tokens(text)]
    if (";", True) in tokens[:-1]:
        raise MalformedJaas("the value must name one login module, with one semicolon at its end")
    if len(tokens) < 3 or tokens[-1] != (";", True):
        raise MalformedJaas(
            'the value must have the form CLASS required name="value" ...; with a semicolon at its end'
        )
    (module, is_mark), (flag, _) = tokens[:2]
    if is_mark or not module:
        raise MalformedJaas("the value must begin with the class of a login module")
    if flag.lower() not in _FLAGS:
        raise MalformedJaas(f"the word after the class must be one of {', '.join(_FLAGS)}")
    options: dict[str, str] = {}
    rest = tokens[2:-1]
    if len(rest) % 3:
        raise MalformedJaas('the options must have the form name="value"')
    for (name, is_no_name), equals, (value, is_mark) in zip(rest[::3], rest[1::3], rest[2::3], strict=True):
        if is_no_name or equals != ("=", True) or is_mark:
            raise MalformedJaas('the options must have the form name="value"')
        options[name] = value
    return JaasLine(module, options)


def _tokens(text: str) -> Iterator[tuple[str, bool]]:
    """Yield the words of a JAAS line, and for each whether it is a punctuation mark (= or ;)."""
    text = text.strip()
    position = _after_gap(text, 0)
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise MalformedJaas("a quotation mark is not closed")
        position = _after_gap(text, match.end())
        double, single, mark, word = match.groups()
        if mark is not None:
            yield mark, True
        elif word is not None:
            yield word, False
        else:
            yield (
                _ESCAPE.sub(_unescaped, double if double is not None else single),
                False,
            )


def _unescaped(match: re.Match[str]) -> str:
    if match[1][0] in "01234567":
        return chr(int(match[1], 8))
    return _ESCAPES.get(match[1], match[1])


def _after_gap(text: str, position: int) -> int:
    gap = _GAP.match(text, position)
    assert gap is not None, "the pattern must match at least an empty text"
    return gap.end()
