"""A model of ACL decisions, which evaluates rule by rule (KIP-11, KIP-290). PURE.

A rule is a tuple in the order of the record's fields: resource type, name, pattern type, principal, host,
operation, permission.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

__all__ = ["Rule", "is_permitted"]

Rule: TypeAlias = tuple[int, str, int, str, str, int, int]

PREFIXED = 4
DENY = 2
ALL = 2
READ, WRITE, DELETE, ALTER, DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS = 3, 4, 6, 7, 8, 10, 11
ANY_NAME = ANY_HOST = "*"
ANY_PRINCIPAL = "User:*"
_IMPLYING = {DESCRIBE: (READ, WRITE, DELETE, ALTER), DESCRIBE_CONFIGS: (ALTER_CONFIGS,)}
"""For each operation in this table, the other operations that imply it. A user who may perform any of these operations
may also perform the implied operation. A denial of an operation implies no other denial.
"""


def is_permitted(
    rules: Iterable[Rule], principal: str, host: str, operation: int, resource_type: int, name: str
) -> bool:
    """True if some rule allows an operation on a resource, and none denies it."""
    allowed = False
    for kind, pattern_name, pattern, of, at, about, permission in rules:
        if kind != resource_type or of not in (principal, ANY_PRINCIPAL) or at not in (host, ANY_HOST):
            continue
        if not (name.startswith(pattern_name) if pattern == PREFIXED else pattern_name in (name, ANY_NAME)):
            continue
        if about in (operation, ALL):
            if permission == DENY:
                return False
            allowed = True
        elif permission != DENY and about in _IMPLYING.get(operation, ()):
            allowed = True
    return allowed
