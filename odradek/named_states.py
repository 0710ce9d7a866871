"""Named states of the product. The code for a rare case marks it by a name, and simulations count how often
each name is marked. PURE.

Rare cases are, for example, a late answer, a torn batch, or a vote of an earlier epoch. The code that handles
a rare case marks it by a call such as `reached("raft.late_answer_dropped")`. Each name is used at one place.
`sim/census/states.py` has a row for each name, which says how the state is reached.

In production `reached` is an empty function. `reached` is not a port of the environment, so that state
machines can call it, too. Within `counting`, the code object of `reached` is replaced by the code of a
function that counts. So counting also works in modules that have imported `reached` by name.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

_counted: list[dict[str, int]] = []
"""The counts of the `counting` contexts that are open now, from the outermost to the innermost."""

__all__ = ["counting", "reached"]


def reached(name: str) -> None:
    """Mark that the state `name` was reached. Within `counting` this call is counted; in production nothing
    happens.
    """


def _count(name: str) -> None:
    for counts in _counted:
        counts[name] = counts.get(name, 0) + 1


_NOTHING, _COUNT = reached.__code__, _count.__code__


@contextmanager
def counting(counts: dict[str, int]) -> Iterator[None]:
    """Count the named states that this process reaches within the block, in `counts` by name.

    Blocks can be nested. An outer block also counts the states of an inner one.
    """
    _counted.append(counts)
    reached.__code__ = _COUNT
    try:
        yield
    finally:
        _counted.pop()
        if not _counted:
            reached.__code__ = _NOTHING
