"""Empty parts that many answers share: a list without elements, a leader that is unknown. PURE.

They are mutable, as all parts of messages are, and must never be changed: what one request wrote into them would stand
in everybody's answers. Where requests are poisoned (tests and the simulator) each frame is followed by `assert_unchanged`.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any, TypeVar

T = TypeVar("T")

_SHARED: list[tuple[Any, Any]] = []
"""Each part, and what it was."""


def shared(part: T) -> T:
    """The part, from now on watched. For constants of modules alone: it is watched for ever."""
    _SHARED.append((part, deepcopy(part)))
    return part


def assert_unchanged() -> None:
    """Raise `AssertionError` if a shared part is not what it was."""
    for part, was in _SHARED:
        if part != was:
            raise AssertionError(f"answers share {was!r}, and one of them has made {part!r} of it")
