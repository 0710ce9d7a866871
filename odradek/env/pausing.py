"""Marks the points at which a function in a worker may be delayed. In production they have no effect; the simulator
runs the loop there. PURE.

A thread may lose the interpreter anywhere. A function in a worker calls `pause()` where that matters: between two
reads of state that the loop may change, or between two files. It must hold no lock there.
"""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["at_pauses", "pause"]

_act: Callable[[], None] | None = None


def pause() -> None:
    """Let the simulator run the loop here, before the worker continues. It does nothing in production."""
    if _act is not None:
        _act()


def at_pauses(act: Callable[[], None] | None) -> None:
    """Set the function that each `pause()` calls from now on; None for no function."""
    global _act
    _act = act
