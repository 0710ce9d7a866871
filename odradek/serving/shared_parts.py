"""Constant parts that many answers share, such as an empty list or an unknown leader. PURE.

They are mutable, as all parts of messages are, but must never be changed, because a change would affect answers to
all clients. Tests and the simulator call `assert_unchanged` after each frame (`run_node(poison=True)`).
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any, TypeVar

T = TypeVar("T")

_SHARED: list[tuple[Any, Any]] = []
"""Each shared part, with a copy of its value when it was registered."""


def shared(part: T) -> T:
    """Register a part as shared, and return it. Use this only for constants of modules, because a part stays
    registered for ever.
    """
    _SHARED.append((part, deepcopy(part)))
    return part


def assert_unchanged() -> None:
    """Raise `AssertionError` if a shared part has changed."""
    for part, was in _SHARED:
        if part != was:
            raise AssertionError(f"answers share the part {was!r}, and one of them changed it to {part!r}")
