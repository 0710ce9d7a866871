"""The points at which a function in a worker may be held up. In production nothing happens; the simulator switches
to the loop. PURE.

A thread may lose the interpreter anywhere. A function in a worker calls `pause()` where that matters: between two
reads of state that the loop may change, or between two files. It holds no lock there.
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
