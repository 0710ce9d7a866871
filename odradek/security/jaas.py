"""JAAS lines as Kafka's configurations have them: `CLASS FLAG name="value" ...;`. PURE.

Only classes of Kafka's own are known, by name. Of their options, `username` and `password` are the client's. With
`user_NAME="PASSWORD"` a server names those whom it lets in by PLAIN.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import attrs

__all__ = ["JaasLine", "MalformedJaas", "parse_jaas"]

_FLAGS = ("required", "requisite", "sufficient", "optional")
_TOKEN = re.compile(r'\s*(?:"((?:[^"\\]|\\.)*)"|\'((?:[^\'\\]|\\.)*)\'|([=;])|([^\s=;"\']+))', re.DOTALL)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}
_USER = "user_"


class MalformedJaas(ValueError):
    """The text is no JAAS line. The message never shows the line, which has passwords."""


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
        """True if the user is a delegation token (`tokenauth="true"`)."""
        return self.options.get("tokenauth", "").lower() == "true"

    @property
    def users(self) -> Mapping[str, str]:
        """Passwords by user (`user_NAME="PASSWORD"`)."""
        return {
            key.removeprefix(_USER): value for key, value in self.options.items() if key.startswith(_USER)
        }


def parse_jaas(text: str) -> JaasLine:
    """Raises `MalformedJaas`."""
    tokens = [*_tokens(text)]
    if len(tokens) < 3 or tokens[-1] != (";", True):
        raise MalformedJaas('expected CLASS required name="value" ...; with a semicolon at its end')
    (module, _), (flag, _) = tokens[:2]
    if flag.lower() not in _FLAGS:
        raise MalformedJaas(f"the word after the class must be one of {', '.join(_FLAGS)}")
    options: dict[str, str] = {}
    rest = tokens[2:-1]
    if len(rest) % 3:
        raise MalformedJaas('expected options of the form name="value"')
    for (name, _), equals, (value, is_mark) in zip(rest[::3], rest[1::3], rest[2::3], strict=True):
        if equals != ("=", True) or is_mark:
            raise MalformedJaas('expected options of the form name="value"')
        options[name] = value
    return JaasLine(module, options)


def _tokens(text: str) -> Iterator[tuple[str, bool]]:
    """Words, and whether each is a mark (= or ;) rather than a value."""
    text, position = text.strip(), 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise MalformedJaas("a quotation mark has no partner")
        position = match.end()
        double, single, mark, word = match.groups()
        if mark is not None:
            yield mark, True
        elif word is not None:
            yield word, False
        else:
            yield (
                re.sub(r"\\(.)", _unescaped, double if double is not None else single, flags=re.DOTALL),
                False,
            )


def _unescaped(match: re.Match[str]) -> str:
    return _ESCAPES.get(match[1], match[1])
