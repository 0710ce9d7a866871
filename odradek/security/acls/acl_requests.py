"""Rules of CreateAcls, DeleteAcls and DescribeAcls: the form of a new ACL, and the ACLs that a filter matches. PURE."""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum

import attrs

from odradek.security.acls.rules import (
    ANY_NAME,
    CLUSTER_NAME,
    Acl,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from odradek.wire.errors import ErrorCode, KafkaError
from odradek.wire.messages.create_acls import AclCreation
from odradek.wire.messages.delete_acls import DeleteAclsFilter
from odradek.wire.messages.describe_acls import DescribeAclsRequest

__all__ = ["AclFilter", "checked_acl", "has_unknown"]


def _invalid(text: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, text)


def is_known(kind: type[IntEnum], number: int) -> bool:
    """True if a number belongs to a member of the enum other than UNKNOWN."""
    return number in kind.__members__.values() and number != 0


def has_unknown(creation: AclCreation) -> bool:
    """True if a part of an ACL has the number 0, which means UNKNOWN. Such a request closes its connection."""
    return not (
        creation.resource_type
        and creation.resource_pattern_type
        and creation.operation
        and creation.permission_type
    )


def checked_acl(creation: AclCreation) -> Acl:
    """Check the ACL that a client wants to create, and return it. Raises `KafkaError` INVALID_REQUEST with Kafka's
    words.
    """
    kind, name = creation.resource_type, creation.resource_name
    if kind == ResourceType.CLUSTER and name != CLUSTER_NAME:
        raise _invalid(f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}")
    if not name:
        raise _invalid("Invalid empty resource name")
    if not is_known(ResourceType, kind) or kind == ResourceType.ANY:
        raise _invalid(f"Invalid resourceType {_name(ResourceType, kind)}")
    pattern = creation.resource_pattern_type
    if pattern not in (PatternType.LITERAL, PatternType.PREFIXED):
        raise _invalid(f"Invalid patternType {_name(PatternType, pattern)}")
    operation = creation.operation
    if not is_known(Operation, operation) or operation == Operation.ANY:
        raise _invalid(f"Invalid operation {_name(Operation, operation)}")
    permission = creation.permission_type
    if permission not in (Permission.DENY, Permission.ALLOW):
        raise _invalid(f"Invalid permissionType {_name(Permission, permission)}")
    if ":" not in creation.principal:
        raise _invalid(
            f"Could not parse principal from `{creation.principal}` (no colon is present separating the "
            "principal type from the principal name)"
        )
    return Acl(kind, name, pattern, creation.principal, creation.host, operation, permission)


def _name(kind: type[IntEnum], number: int) -> str:
    return kind(number).name if number in kind.__members__.values() else "UNKNOWN"


@attrs.frozen
class AclFilter:
    """A filter of ACLs in a request; None and ANY match everything."""

    resource_type: int
    resource_name: str | None
    pattern_type: int
    principal: str | None
    host: str | None
    operation: int
    permission_type: int

    @classmethod
    def of(cls, each: DeleteAclsFilter | DescribeAclsRequest) -> AclFilter:
        """Make a filter from a filter of DeleteAcls, or from a DescribeAcls request, which has the same fields."""
        return cls(
            each.resource_type_filter,
            each.resource_name_filter,
            each.pattern_type_filter,
            each.principal_filter,
            each.host_filter,
            each.operation,
            each.permission_type,
        )

    @property
    def has_unknown(self) -> bool:
        """True if a part of the filter has the number 0, which means UNKNOWN."""
        return not (self.resource_type and self.pattern_type and self.operation and self.permission_type)

    def check(self) -> None:
        """Raise `KafkaError` INVALID_REQUEST if a number in the filter has no meaning. DeleteAcls answers with this
        error.
        """
        if not (is_known(ResourceType, self.resource_type) and is_known(PatternType, self.pattern_type)):
            raise _invalid("Unknown patternFilter.")
        if not (is_known(Operation, self.operation) and is_known(Permission, self.permission_type)):
            raise _invalid("Unknown entryFilter.")

    def matcher(self) -> Callable[[Acl], bool]:
        """Make a function that returns whether an ACL matches the filter (`AclBindingFilter.matches`)."""
        is_any_kind, kind = self.resource_type == ResourceType.ANY, int(self.resource_type)
        is_any_operation, operation = self.operation == Operation.ANY, int(self.operation)
        is_any_permission, permission = self.permission_type == Permission.ANY, int(self.permission_type)
        principal, host, names = self.principal, self.host, self._names

        def matches(acl: Acl) -> bool:
            return (
                (is_any_kind or acl.resource_type == kind)
                and (principal is None or acl.principal == principal)
                and (host is None or acl.host == host)
                and (is_any_operation or acl.operation == operation)
                and (is_any_permission or acl.permission_type == permission)
                and names(acl)
            )

        return matches

    def _names(self, acl: Acl) -> bool:
        """True if the filter's name and pattern type match the ACL's resource (`ResourcePatternFilter.matches`)."""
        name, pattern = self.resource_name, self.pattern_type
        if pattern not in (PatternType.ANY, PatternType.MATCH, acl.pattern_type):
            return False
        if name is None:
            return True
        if pattern != PatternType.MATCH or acl.pattern_type == pattern:
            return name == acl.resource_name
        if acl.pattern_type == PatternType.LITERAL:
            return acl.resource_name in (name, ANY_NAME)
        return name.startswith(acl.resource_name)
