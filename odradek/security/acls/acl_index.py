"""All ACLs of a cluster, found by the resource that they are about, and the decision that they give. PURE.

Literal rules are found by their type and name. Prefixed rules are found by each beginning of the name whose length
occurs among the prefixes of that type. So a decision costs a few lookups, however many ACLs there are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import attrs

from odradek.security.acls.rules import (
    ANY_HOST,
    ANY_NAME,
    ANY_PRINCIPAL,
    Acl,
    Operation,
    PatternType,
    Permission,
)

__all__ = ["AclIndex", "Found"]

_IMPLIED_BY: Mapping[int, frozenset[int]] = {
    Operation.DESCRIBE: frozenset(
        (Operation.DESCRIBE, Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER)
    ),
    Operation.DESCRIBE_CONFIGS: frozenset((Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS)),
}
"""Operations whose permission permits another one; a denial implies nothing."""
PROBE_NAME = "hardcode"
"""Kafka's name of a resource by which it asks for the default (`Authorizer.authorizeByResourceType`)."""


@attrs.frozen
class Found:
    """The decisive rule for a question, if there is one."""

    rule: Acl | None
    has_rules: bool
    """True if any rule is about the resource, for whomever."""


class AclIndex:
    """ACLs by id, and by what they are about. Changed in place by `replace`.

    A worker may look while the loop changes it: a group of rules is replaced, and never changed.
    """

    def __init__(self) -> None:
        self._acls: dict[bytes, Acl] = {}
        self._literal: dict[tuple[int, str], dict[bytes, Acl]] = {}
        self._prefixed: dict[tuple[int, str], dict[bytes, Acl]] = {}
        self._lengths: dict[int, dict[int, int]] = {}
        """For each resource type, the lengths of prefixes and how many resources have each."""

    def __len__(self) -> int:
        return len(self._acls)

    @classmethod
    def of(cls, acls: Mapping[bytes, Acl]) -> AclIndex:
        """The index of these ACLs. Nobody looks while it is made, so groups of rules grow in place."""
        index = cls()
        index._acls.update(acls)
        for acl_id, acl in acls.items():
            key = (acl.resource_type, acl.resource_name)
            if acl.pattern_type != PatternType.PREFIXED:
                index._literal.setdefault(key, {})[acl_id] = acl
                continue
            if key not in index._prefixed:
                index._count(key, 1)
            index._prefixed.setdefault(key, {})[acl_id] = acl
        return index

    def replace(self, acl_id: bytes, acl: Acl | None) -> None:
        """Put an ACL in, or take out what has this id (None)."""
        before = self._acls.pop(acl_id, None)
        if before is not None:
            self._take_out(acl_id, before)
        if acl is not None:
            self._acls[acl_id] = acl
            self._put_in(acl_id, acl)

    def _put_in(self, acl_id: bytes, acl: Acl) -> None:
        key = (acl.resource_type, acl.resource_name)
        if acl.pattern_type == PatternType.PREFIXED:
            if key not in self._prefixed:
                self._prefixed[key] = {}
                self._count(key, 1)
            self._prefixed[key] = {**self._prefixed[key], acl_id: acl}
        else:
            self._literal[key] = {**self._literal.get(key, {}), acl_id: acl}

    def _count(self, key: tuple[int, str], change: int) -> None:
        """Count a prefix that came or went."""
        lengths = dict(self._lengths.get(key[0], {}))
        lengths[len(key[1])] = lengths.get(len(key[1]), 0) + change
        if not lengths[len(key[1])]:
            del lengths[len(key[1])]
        self._lengths[key[0]] = lengths

    def _take_out(self, acl_id: bytes, acl: Acl) -> None:
        key = (acl.resource_type, acl.resource_name)
        table = self._prefixed if acl.pattern_type == PatternType.PREFIXED else self._literal
        left = {other: rule for other, rule in table[key].items() if other != acl_id}
        if left:
            table[key] = left
            return
        del table[key]
        if table is self._prefixed:
            self._count(key, -1)

    def about(self, resource_type: int, name: str) -> Iterator[Acl]:
        """The rules about a resource, whomever they are for."""
        yield from self._literal.get((resource_type, name), {}).values()
        if name != ANY_NAME:
            yield from self._literal.get((resource_type, ANY_NAME), {}).values()
        for length in self._lengths.get(resource_type, ()):
            if length <= len(name):
                yield from self._prefixed.get((resource_type, name[:length]), {}).values()

    def find(self, principal: str, host: str, operation: int, resource_type: int, name: str) -> Found:
        """The rule that decides. A denial wins over any permission."""
        allowing: Acl | None = None
        has_rules = False
        for acl in self.about(resource_type, name):
            has_rules = True
            if not is_for(acl, principal, host):
                continue
            if acl.permission_type == Permission.DENY:
                if acl.operation in (operation, Operation.ALL):
                    return Found(acl, True)
            elif allowing is None and permits(acl, operation):
                allowing = acl
        return Found(allowing, has_rules)

    def find_any(self, principal: str, host: str, operation: int, resource_type: int) -> Acl | None:
        """A permission for some resource of this type that no denial covers wholly (KIP-679)."""
        mine = [
            acl
            for acl in list(self._acls.values())
            if acl.resource_type == resource_type
            and acl.operation in (operation, Operation.ALL)
            and is_for(acl, principal, host)
        ]
        denied = [acl for acl in mine if acl.permission_type == Permission.DENY]
        literals = {acl.resource_name for acl in denied if acl.pattern_type != PatternType.PREFIXED}
        if ANY_NAME in literals:
            return None
        prefixes = {acl.resource_name for acl in denied if acl.pattern_type == PatternType.PREFIXED}
        for acl in mine:
            if acl.permission_type == Permission.DENY:
                continue
            name = acl.resource_name
            is_literal = acl.pattern_type != PatternType.PREFIXED
            if is_literal and name == ANY_NAME:
                return acl
            if not (is_literal and name in literals) and not _has_prefix(name, prefixes):
                return acl
        return None


def is_for(acl: Acl, principal: str, host: str) -> bool:
    """True if a rule is about this principal at this host."""
    return acl.principal in (principal, ANY_PRINCIPAL) and acl.host in (host, ANY_HOST)


def permits(acl: Acl, operation: int) -> bool:
    """True if a permission covers an operation, by itself or by implication."""
    return (
        acl.operation == operation
        or acl.operation == Operation.ALL
        or acl.operation in _IMPLIED_BY.get(operation, ())
    )


def _has_prefix(name: str, prefixes: Iterable[str]) -> bool:
    return any(name.startswith(prefix) for prefix in prefixes)
