"""One ACL, and Kafka's numbers for its parts (KIP-11, KIP-290). PURE."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from types import MappingProxyType

import attrs

__all__ = [
    "ANY_HOST",
    "ANY_NAME",
    "ANY_PRINCIPAL",
    "CLUSTER_NAME",
    "SUPPORTED",
    "Acl",
    "Operation",
    "PatternType",
    "Permission",
    "ResourceType",
    "check_supported",
    "operation_named",
]

CLUSTER_NAME = "kafka-cluster"
"""The only resource of the type CLUSTER."""
ANY_NAME = "*"
"""The name of literal rules that apply to every resource of their type."""
ANY_PRINCIPAL = "User:*"
ANY_HOST = "*"


class ResourceType(IntEnum):
    """Types of resources. UNKNOWN and ANY occur only in filters."""

    UNKNOWN = 0
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class Operation(IntEnum):
    """Operations on resources. UNKNOWN and ANY occur only in filters."""

    UNKNOWN = 0
    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class PatternType(IntEnum):
    """Pattern types of names. UNKNOWN, ANY and MATCH occur only in filters."""

    UNKNOWN = 0
    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class Permission(IntEnum):
    """The effect of a rule: it denies or allows. UNKNOWN and ANY occur only in filters."""

    UNKNOWN = 0
    ANY = 1
    DENY = 2
    ALLOW = 3


SUPPORTED: Mapping[int, tuple[Operation, ...]] = MappingProxyType(
    {
        ResourceType.TOPIC: (
            *(Operation.READ, Operation.WRITE, Operation.CREATE, Operation.DELETE, Operation.ALTER),
            *(Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS),
        ),
        ResourceType.GROUP: (
            *(Operation.READ, Operation.DELETE, Operation.DESCRIBE),
            *(Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS),
        ),
        ResourceType.CLUSTER: (
            *(Operation.CREATE, Operation.ALTER, Operation.DESCRIBE, Operation.CLUSTER_ACTION),
            *(Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS, Operation.IDEMPOTENT_WRITE),
        ),
        ResourceType.TRANSACTIONAL_ID: (Operation.WRITE, Operation.DESCRIBE, Operation.TWO_PHASE_COMMIT),
        ResourceType.DELEGATION_TOKEN: (Operation.DESCRIBE,),
        ResourceType.USER: (Operation.CREATE_TOKENS, Operation.DESCRIBE_TOKENS),
    }
)
"""The operations that are possible on each type of resource (`AclEntry.supportedOperations`)."""


def operation_named(text: str) -> Operation:
    """Return the operation with this name, such as `describe-configs`. Case and the kind of dash have no
    meaning. Raises `ValueError` with the known names.
    """
    known = {_spelled(each): each for each in Operation if each > Operation.ANY}
    name = text.lower().replace("_", "-")
    if name not in known:
        raise ValueError(f"{text} is unknown: expected one of {', '.join(known)}")
    return known[name]


def check_supported(resource_type: int, operation: int) -> None:
    """Raise `ValueError` if resources of this type do not have the operation; the error lists the possible ones."""
    supported = SUPPORTED[resource_type]
    if operation != Operation.ALL and operation not in supported:
        raise ValueError(
            f"a {ResourceType(resource_type).name.lower()} has no operation {Operation(operation).name.lower()}; "
            f"possible operations are {', '.join(map(_spelled, supported))} and all"
        )


def _spelled(operation: Operation) -> str:
    return operation.name.lower().replace("_", "-")


@attrs.frozen
class Acl:
    """One rule. Types, operations and permissions are Kafka's numbers."""

    resource_type: int
    resource_name: str
    pattern_type: int
    principal: str
    host: str
    operation: int
    permission_type: int

    def __str__(self) -> str:
        """Return the rule as a sentence for operators."""
        name = "*" if self.resource_name == ANY_NAME else f"'{self.resource_name}'"
        pattern = "prefixed " if self.pattern_type == PatternType.PREFIXED else ""
        return (
            f"{_named(Permission, self.permission_type)} {self.principal} from host {self.host}:"
            f" {_named(Operation, self.operation)} on {pattern}{_named(ResourceType, self.resource_type)} {name}"
        )


def _named(kind: type[IntEnum], number: int) -> str:
    try:
        return kind(number).name
    except ValueError:
        return str(number)
