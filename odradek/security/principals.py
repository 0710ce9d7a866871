"""The principal of a certificate: Kafka's `ssl.principal.mapping.rules` over its distinguished name (KIP-371). PURE.

The name has Java's format (RFC 2253): `CN=alice,OU=people,O=Acme`. The first rule that matches decides:
`RULE:PATTERN/REPLACEMENT/[LU]` with `$1` for groups, or `DEFAULT`, which keeps the name unchanged
(`distinguished_names.py`). Patterns run in RE2, whose time is limited for any certificate.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, TypeAlias

import attrs
import re2

__all__ = ["MalformedRule", "PrincipalRules"]

_RULE = re.compile(r"\s*(?:(DEFAULT)|RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?))\s*(?:,|\Z)", re.DOTALL)
_QUIET = re2.Options()
_QUIET.log_errors = False
_GROUP = re.compile(r"\$(?:([0-9]+)|\{([A-Za-z][A-Za-z0-9]*)\})|\\(.)|\$", re.DOTALL)


class MalformedRule(ValueError):
    """Raised if a text is not a list of mapping rules."""


_Part: TypeAlias = str | int
"""A piece of a replacement: text, or the number of a group."""


@attrs.frozen
class _Rule:
    """One rule. If `pattern` is None, it keeps the name as it is."""

    pattern: Any
    """A compiled pattern of the library re2, which has no type annotations."""
    replacement: tuple[_Part, ...] = ()
    case: str = ""

    def apply(self, name: str) -> str | None:
        if self.pattern is None:
            return name
        if self.pattern.fullmatch(name) is None:
            return None
        # As in Java's `replaceAll`, each match is replaced, also an empty one at the end.
        found, end = [], 0
        for match in self.pattern.finditer(name):
            found.append(name[end : match.start()])
            found += [each if isinstance(each, str) else match[each] or "" for each in self.replacement]
            end = match.end()
        text = "".join(found) + name[end:]
        return text.lower() if self.case == "L" else text.upper() if self.case == "U" else text


@attrs.frozen
class PrincipalRules:
    """The principal mapping rules of one listener."""

    rules: tuple[_Rule, ...] = (_Rule(None),)

    @classmethod
    def parse(cls, text: str) -> PrincipalRules:
        """Parse the rules of a listener. Raises `MalformedRule`."""
        return cls(tuple(_parsed(text)))

    def principal(self, name: str) -> str | None:
        """Map a certificate's distinguished name to `User:NAME`; None where no rule matches."""
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
                "the value must be DEFAULT or RULE:PATTERN/REPLACEMENT/[LU], or several of these, "
                "separated by commas"
            )
        position = match.end()
        if match[1] is not None:
            yield _Rule(None)
            continue
        try:
            pattern = re2.compile(match[2], _QUIET)
        except re2.error as error:
            raise MalformedRule(f"the pattern {match[2]!r} is not a regular expression: {error}") from None
        yield _Rule(pattern, tuple(_parts(match[3], pattern)), match[4])


def _parts(replacement: str, pattern: Any) -> Iterator[_Part]:
    """Yield the parts of a rule's replacement text, by Java's syntax. Raises `MalformedRule`."""
    end = 0
    for match in _GROUP.finditer(replacement):
        yield replacement[end : match.start()]
        end = match.end()
        if match[3] is not None:
            yield match[3]
        elif match[2] is not None:
            if match[2] not in pattern.groupindex:
                raise MalformedRule(f"the pattern {pattern.pattern!r} has no group {match[2]!r}")
            yield pattern.groupindex[match[2]]
        elif match[1] is not None:
            yield from _numbered(match[1], pattern)
        else:
            raise MalformedRule(f"the replacement {replacement!r} has a single $: write \\\\$")
    yield replacement[end:]


def _numbered(digits: str, pattern: Any) -> Iterator[_Part]:
    """Yield a reference to a group from the digits after `$`, then the remaining text. As in Java, a digit belongs to
    the number only if the pattern has a group of the resulting number. Raises `MalformedRule`.
    """
    count = 1
    while count < len(digits) and int(digits[: count + 1]) <= pattern.groups:
        count += 1
    if int(digits[:count]) <= pattern.groups:
        yield int(digits[:count])
        yield digits[count:]
    elif pattern.groups:
        yield f"${digits}"
    else:
        raise MalformedRule(
            f"the pattern {pattern.pattern!r} has no groups, but its replacement names a group"
        )
