"""The points at which a worker's function may be held up: nothing in production, a switch to the loop in the simulator. PURE.

A thread may lose the interpreter anywhere. A function that runs in a worker says by `pause()` where that matters. Such
places are between two looks at what the loop may change meanwhile, or between two files. It holds no lock there.
"""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["at_pauses", "pause"]

_act: Callable[[], None] | None = None


def pause() -> None:
    """Let the loop go on here, in the simulator alone."""
    if _act is not None:
        _act()


def at_pauses(act: Callable[[], None] | None) -> None:
    """Set the call that each pause makes from now on; None: nothing."""
    global _act
    _act = act
