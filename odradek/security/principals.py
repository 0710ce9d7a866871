"""The principal of a certificate: Kafka's `ssl.principal.mapping.rules` over its distinguished name (KIP-371). PURE.

The name comes as Java prints it (RFC 2253): `CN=alice,OU=people,O=Acme`. The first rule that matches decides:
`RULE:PATTERN/REPLACEMENT/[LU]` with `$1` for groups, or `DEFAULT`, the name as it is. Patterns run in RE2, whose time is
bounded whatever a stranger's certificate says.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import attrs
import re2

__all__ = ["MalformedRule", "PrincipalRules"]

_RULE = re.compile(r"\s*(?:(DEFAULT)|RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?))\s*(?:,|\Z)")
_GROUP = re.compile(r"\$([0-9])|\\(.)")


class MalformedRule(ValueError):
    """The text is no list of mapping rules."""


@attrs.frozen
class _Rule:
    """One rule; `pattern` None: the name as it is."""

    pattern: object | None
    replacement: str = ""
    case: str = ""

    def apply(self, name: str) -> str | None:
        if self.pattern is None:
            return name
        match = self.pattern.fullmatch(name)  # type: ignore[attr-defined]  # re2 has no types
        if match is None:
            return None
        groups = (match[0], *match.groups())

        def group(found: re.Match[str]) -> str:
            if found[2] is not None:
                return found[2]
            number = int(found[1])
            return (groups[number] or "") if number < len(groups) else ""

        text = _GROUP.sub(group, self.replacement)
        return text.lower() if self.case == "L" else text.upper() if self.case == "U" else text


@attrs.frozen
class PrincipalRules:
    """The rules of one listener."""

    rules: tuple[_Rule, ...] = (_Rule(None),)

    @classmethod
    def parse(cls, text: str) -> PrincipalRules:
        """Raises `MalformedRule`."""
        return cls(tuple(_parsed(text)))

    def principal(self, name: str) -> str | None:
        """`User:NAME` of a certificate's distinguished name; None where no rule matches."""
        for rule in self.rules:
            found = rule.apply(name)
            if found is not None:
                return f"User:{found}"
        return None


def _parsed(text: str) -> Iterator[_Rule]:
    position = 0
    while position < len(text):
        match = _RULE.match(text, position)
        if match is None:
            raise MalformedRule(
                "expected DEFAULT or RULE:PATTERN/REPLACEMENT/[LU], several separated by commas"
            )
        position = match.end()
        if match[1] is not None:
            yield _Rule(None)
            continue
        try:
            yield _Rule(re2.compile(match[2]), match[3], match[4])
        except re2.error as error:
            raise MalformedRule(f"the pattern {match[2]!r} is not one: {error}") from None
