"""Named states of the product: each rare turn that a defence takes says its name, and simulated worlds count them. PURE.

A defence is code for a case that seldom arises: an answer that comes too late, a torn batch, a vote of an earlier
epoch. `reached("raft.late_answer_dropped")` stands where it acts. Each name stands at one place, and has a row in
`sim/census/states.py` that says what reaches it.

In production `reached` is an empty function. State machines lack an environment, so the function is
no port. While `counting` lasts, it counts: its code is exchanged, so everything that has imported it by name counts as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

_counted: list[dict[str, int]] = []
"""The counts of the contexts that are open. The innermost counts."""

__all__ = ["counting", "reached"]


def reached(name: str) -> None:
    """Do nothing in production; within `counting`, count that the state `name` was reached."""


def _count(name: str) -> None:
    counts = _counted[-1]
    counts[name] = counts.get(name, 0) + 1


_NOTHING, _COUNT = reached.__code__, _count.__code__


@contextmanager
def counting(counts: dict[str, int]) -> Iterator[None]:
    """Add the states that this process reaches to `counts`, by name, while the context lasts.

    Contexts nest: a world in a world counts for itself.
    """
    _counted.append(counts)
    reached.__code__ = _COUNT
    try:
        yield
    finally:
        _counted.pop()
        if not _counted:
            reached.__code__ = _NOTHING
