"""Marks the points at which a function in a worker may be delayed. In production these points have no effect.
In the simulator, other work of the event loop runs at these points. PURE.

A thread may lose the interpreter anywhere. A function in a worker calls `pause()` where such a delay matters.
For example, a delay matters between two reads of state that the loop may change, or between work on two
files. The function must hold no lock at that point.
"""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["at_pauses", "pause"]

_act: Callable[[], None] | None = None


def pause() -> None:
    """Let the simulator run the event loop before the worker continues. In production, do nothing."""
    if _act is not None:
        _act()


def at_pauses(act: Callable[[], None] | None) -> None:
    """Set the function that each `pause()` calls from now on; None for no function."""
    global _act
    _act = act
