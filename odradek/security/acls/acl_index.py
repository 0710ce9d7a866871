"""An index of all ACLs of a cluster by resource and client, which decides what a client may do. PURE.

Theory of operation
-------------------
An index is an immutable value. The cost of the next index depends only on the changes, and a batch of changes copies
each table once. So a request that makes 10,000 rules about one resource takes linear time. A worker may use an old
index while the event loop uses the next one.

* **Rules of a resource** are found by its type, pattern and name, and within these by principal and host. A name is
  looked up literally, as `*`, and by each of its prefixes whose length occurs among the prefixed rules of that type.
* **A decision** looks up at most four pairs for each of these resources: the client's principal or `User:*`, with its
  address or `*`. A pair has one rule for each operation and permission. So rules about other clients cost nothing.
* **Permissions of a client** are found by type, operation, principal and host, to answer whether the client may do
  something to any resource at all. The index remembers these answers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import attrs

from odradek.security.acls.acl_requests import AclFilter
from odradek.security.acls.rules import (
    ANY_HOST,
    ANY_NAME,
    ANY_PRINCIPAL,
    SUPPORTED,
    Acl,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from odradek.serving.layered_map import LayeredMap

__all__ = ["AclIndex", "Found", "clients_of"]

_IMPLIED_BY: Mapping[int, frozenset[int]] = {
    Operation.DESCRIBE: frozenset(
        (Operation.DESCRIBE, Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER)
    ),
    Operation.DESCRIBE_CONFIGS: frozenset((Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS)),
}
"""For an operation, the operations that imply it: a rule that allows one of them also allows this operation. A rule
that denies an operation denies no other operation.
"""
PROBE_NAME = "hardcode"
"""The name of a fictitious resource, with which Kafka tests the default decision
(`Authorizer.authorizeByResourceType`).
"""
ANSWERS_MAX = 10_000
"""The maximum number of answers about "any resource" that one index remembers. If there are more, all answers
are forgotten.
"""

_Resource: TypeAlias = tuple[int, bool, str]
"""Resource type, whether the name is a prefix, and the name."""
_Client: TypeAlias = tuple[str, str]
"""Principal and host; each may be the wildcard (`ANY_PRINCIPAL`, `ANY_HOST`)."""
_Group: TypeAlias = Mapping[_Client, tuple[Acl, ...]]
"""The rules about one resource, by client."""
_Right: TypeAlias = tuple[int, int, str, str]
"""Type of resource, operation, principal and host."""


@attrs.frozen
class Found:
    """The rule that decides whether a client may do something. `rule` is None if no rule applies to this client."""

    rule: Acl | None
    has_rules: bool
    """True if the resource has any rule, even about other clients."""


class AclIndex:
    """The ACLs of one metadata image: an immutable value. `changed` makes the next index."""

    __slots__ = ("_answers", "_count", "_groups", "_lengths", "_permissions")

    def __init__(self) -> None:
        self._count = 0
        self._groups: LayeredMap[_Resource, _Group] = LayeredMap()
        self._lengths: Mapping[int, Mapping[int, int]] = {}
        """For each resource type, the lengths of prefixes in rules, and how many resources have a prefix of that
        length.
        """
        self._permissions: LayeredMap[_Right, Mapping[_Resource, Acl]] = LayeredMap()
        """For each right, the resources on which it is permitted, each with one rule that permits it."""
        self._answers: dict[_Right, tuple[Acl | None]] = {}

    def __len__(self) -> int:
        return self._count

    @classmethod
    def of(cls, acls: Mapping[bytes, Acl]) -> AclIndex:
        """Build the index of these ACLs."""
        return cls().changed({}, acls)

    def changed(self, before: Mapping[bytes, Acl], changes: Mapping[bytes, Acl | None]) -> AclIndex:
        """Make the next index: `changes` has the changed ACLs by id, None for a removed ACL. `before` has the ACLs of
        this index by id.
        """
        gone = [before[acl_id] for acl_id in changes if acl_id in before]
        new = [acl for acl in changes.values() if acl is not None]
        made = AclIndex()
        made._count = self._count + len(new) - len(gone)
        touched = _touched(gone, new)
        groups = {resource: self._group(resource, clients) for resource, clients in touched.items()}
        made._groups = self._groups.changed({each: group or None for each, group in groups.items()})
        made._lengths = self._counted(groups)
        made._permissions = self._permitting([*gone, *new], made._groups)
        return made

    def _group(self, resource: _Resource, clients: Mapping[_Client, tuple[list[Acl], list[Acl]]]) -> _Group:
        """Return the rules about a resource after changes. `clients` has the (removed, added) rules by client."""
        group: dict[_Client, tuple[Acl, ...]] = dict(self._groups.get(resource, {}))
        for client, (gone, new) in clients.items():
            rules = [*group.pop(client, ()), *new]
            for acl in gone:
                rules.remove(acl)
            if rules:
                group[client] = tuple(rules)
        return group

    def _counted(self, groups: Mapping[_Resource, _Group]) -> Mapping[int, Mapping[int, int]]:
        """Return new counts of prefix lengths (as `_lengths`) after the rules of these resources have changed."""
        lengths: dict[int, dict[int, int]] = {}
        for resource, group in groups.items():
            kind, is_prefix, name = resource
            change = bool(group) - (resource in self._groups)
            if is_prefix and change:
                counts = lengths.get(kind)
                if counts is None:
                    counts = lengths[kind] = dict(self._lengths.get(kind, {}))
                counts[len(name)] = counts.get(len(name), 0) + change
        for kind, counts in lengths.items():
            lengths[kind] = {length: count for length, count in sorted(counts.items()) if count}
        return {**self._lengths, **lengths} if lengths else self._lengths

    def _permitting(
        self, acls: list[Acl], groups: Mapping[_Resource, _Group]
    ) -> LayeredMap[_Right, Mapping[_Resource, Acl]]:
        """Return the permissions by right (as `_permissions`) after these ACLs were added or removed."""
        changed: dict[_Right, dict[_Resource, Acl]] = {}
        for acl in acls:
            if acl.permission_type != Permission.DENY:
                right = (acl.resource_type, acl.operation, acl.principal, acl.host)
                permissions = changed.get(right)
                if permissions is None:
                    permissions = changed[right] = dict(self._permissions.get(right, _NONE))
                resource = _resource_of(acl)
                group = groups.get(resource)
                if group is not None and acl in group.get((acl.principal, acl.host), ()):
                    permissions[resource] = acl
                else:
                    permissions.pop(resource, None)
        return self._permissions.changed({right: some or None for right, some in changed.items()})

    def _about(self, kind: int, name: str) -> list[_Group]:
        """Find the rules about a resource under each name that covers it: its own, `*`, and its prefixes."""
        find = self._groups.get
        found = [find((kind, False, name)), find((kind, False, ANY_NAME)) if name != ANY_NAME else None]
        for length in self._lengths.get(kind, ()):
            if length > len(name):
                break
            found.append(find((kind, True, name[:length])))
        return [group for group in found if group is not None]

    def find(self, principal: str, host: str, operation: int, resource_type: int, name: str) -> Found:
        """Find the rule that decides whether a client may perform the operation on a resource. A denial
        overrides any permission.
        """
        return Found(*self.look_up(clients_of(principal, host), operation, resource_type, name))

    def look_up(
        self, clients: tuple[_Client, ...], operation: int, resource_type: int, name: str
    ) -> tuple[Acl | None, bool]:
        """Decide as `find` does, but return a tuple: the rule, and whether the resource has any rule. `clients` comes
        from `clients_of`.
        """
        allowing: Acl | None = None
        groups = self._about(resource_type, name)
        for group in groups:
            find = group.get
            for client in clients:
                for acl in find(client, ()):
                    if acl.permission_type == Permission.DENY:
                        if acl.operation in (operation, Operation.ALL):
                            return acl, True
                    elif allowing is None and permits(acl, operation):
                        allowing = acl
        return allowing, bool(groups)

    def candidates(self, asked: AclFilter) -> list[Acl] | None:
        """List the ACLs whose resource name fits a filter; return None for a filter without a name."""
        name = asked.resource_name
        if name is None:
            return None
        kinds = list(SUPPORTED) if asked.resource_type == ResourceType.ANY else [asked.resource_type]
        groups: list[_Group] = []
        for kind in kinds:
            if asked.pattern_type == PatternType.MATCH:
                groups += self._about(kind, name)
            else:
                found = (self._groups.get((kind, is_prefix, name)) for is_prefix in (False, True))
                groups += (group for group in found if group is not None)
        return [acl for group in groups for rules in group.values() for acl in rules]

    def find_any(self, principal: str, host: str, operation: int, resource_type: int) -> Acl | None:
        """Find a rule that permits the operation on some resource of this type, unless denials cancel the whole rule
        (KIP-679).
        """
        question = (resource_type, operation, principal, host)
        known = self._answers.get(question)
        if known is None:
            known = (self._search_any(principal, host, operation, resource_type),)
            if len(self._answers) >= ANSWERS_MAX:
                self._answers.clear()
            self._answers[question] = known
        return known[0]

    def _search_any(self, principal: str, host: str, operation: int, kind: int) -> Acl | None:
        clients = clients_of(principal, host)
        operations = (operation, Operation.ALL)
        if self._is_denied((kind, False, ANY_NAME), clients, operations):
            return None
        for each in operations:
            for client in clients:
                permissions: Mapping[_Resource, Acl]
                permissions = self._permissions.get((kind, each, *client), _NONE)
                for resource, acl in permissions.items():
                    if not self._is_covered(resource, clients, operations):
                        return acl
        return None

    def _is_covered(
        self, resource: _Resource, clients: tuple[_Client, ...], operations: tuple[int, ...]
    ) -> bool:
        """True if a denial covers this name or prefix. The caller has already checked for a denial of the literal
        `*`.
        """
        kind, is_prefix, name = resource
        if not is_prefix and name == ANY_NAME:
            return False
        if not is_prefix and self._is_denied(resource, clients, operations):
            return True
        return any(
            self._is_denied((kind, True, name[:length]), clients, operations)
            for length in self._lengths.get(kind, ())
            if length <= len(name)
        )

    def _is_denied(
        self, resource: _Resource, clients: tuple[_Client, ...], operations: tuple[int, ...]
    ) -> bool:
        """True if a rule about exactly this name or prefix denies one of the operations."""
        group = self._groups.get(resource)
        return group is not None and any(
            acl.permission_type == Permission.DENY and acl.operation in operations
            for client in clients
            for acl in group.get(client, ())
        )


_NONE: Mapping[_Resource, Acl] = {}


def _resource_of(acl: Acl) -> _Resource:
    return acl.resource_type, acl.pattern_type == PatternType.PREFIXED, acl.resource_name


def clients_of(principal: str, host: str) -> tuple[_Client, ...]:
    """List the four pairs of principal and host, with wildcards, under which the rules about a client are found."""
    return (principal, host), (principal, ANY_HOST), (ANY_PRINCIPAL, host), (ANY_PRINCIPAL, ANY_HOST)


def _touched(gone: list[Acl], new: list[Acl]) -> dict[_Resource, dict[_Client, tuple[list[Acl], list[Acl]]]]:
    """Sort removed and added ACLs by resource and client, into pairs (removed, added)."""
    touched: dict[_Resource, dict[_Client, tuple[list[Acl], list[Acl]]]] = {}
    for is_new, acls in enumerate((gone, new)):
        for acl in acls:
            clients = touched.setdefault(_resource_of(acl), {})
            pair = clients.get((acl.principal, acl.host))
            if pair is None:
                pair = clients[acl.principal, acl.host] = ([], [])
            pair[is_new].append(acl)
    return touched


def permits(acl: Acl, operation: int) -> bool:
    """True if a permission covers an operation, directly or by implication."""
    return (
        acl.operation == operation
        or acl.operation == Operation.ALL
        or acl.operation in _IMPLIED_BY.get(operation, ())
    )
