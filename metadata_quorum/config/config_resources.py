"""Types of resources that have configurations, and the operations of IncrementalAlterConfigs."""

from __future__ import annotations

from enum import IntEnum


class Operation(IntEnum):
    """An operation of IncrementalAlterConfigs on one key. APPEND and SUBTRACT are for lists."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


def parse_node_id(name: str) -> int | None:
    """Parse a node id as Java does. Returns None if the text is no integer."""
    digits = name[1:] if name[:1] in ("+", "-") else name
    if not digits.isascii() or not digits.isdecimal() or len(digits) > 10:
        return None
    number = int(name)
    return number if -(1 << 31) <= number < 1 << 31 else None
