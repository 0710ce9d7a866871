"""Named states of the product: code for rare cases marks them by name, and simulated worlds count them. PURE.

Such code handles an answer that comes too late, a torn batch, a vote of an earlier epoch. It calls
`reached("raft.late_answer_dropped")`, for example. Each name is used at one place, and has a row in
`sim/census/states.py` that says how the state is reached.

In production `reached` is an empty function. The function is not in an environment's ports, so that state machines
can call it. Within `counting` it counts: its code object is replaced, so modules that have imported the function by
name count as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

_counted: list[dict[str, int]] = []
"""The counts of the open `counting` contexts, from the outermost to the innermost."""

__all__ = ["counting", "reached"]


def reached(name: str) -> None:
    """Do nothing in production; within `counting`, count that the state `name` was reached."""


def _count(name: str) -> None:
    for counts in _counted:
        counts[name] = counts.get(name, 0) + 1


_NOTHING, _COUNT = reached.__code__, _count.__code__


@contextmanager
def counting(counts: dict[str, int]) -> Iterator[None]:
    """Add the states that this process reaches to `counts`, by name, while the context lasts.

    Contexts nest: the outer context counts the states of the inner one as well.
    """
    _counted.append(counts)
    reached.__code__ = _COUNT
    try:
        yield
    finally:
        _counted.pop()
        if not _counted:
            reached.__code__ = _NOTHING
