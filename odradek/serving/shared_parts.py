"""Empty parts that many answers share: a list without elements, an unknown leader. PURE.

They are mutable, as all parts of messages are, and must never be changed: a change would show in the answers to all
clients. Tests and the simulator poison requests; there, `assert_unchanged` runs after each frame.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any, TypeVar

T = TypeVar("T")

_SHARED: list[tuple[Any, Any]] = []
"""Each part, and its value when it was shared."""


def shared(part: T) -> T:
    """Watch a part from now on, and return it. Only for constants of modules, because it is watched for ever."""
    _SHARED.append((part, deepcopy(part)))
    return part


def assert_unchanged() -> None:
    """Raise `AssertionError` if a shared part has changed."""
    for part, was in _SHARED:
        if part != was:
            raise AssertionError(f"answers share the part {was!r}, and one of them changed it to {part!r}")
