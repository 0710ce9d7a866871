"""A failing run made smaller: options are removed one by one as long as it still fails in the same way. PURE.

Greedy, after delta debugging (Zeller, 2002): each step of `RunOptions.simpler` is tried, and kept if the failure
stays. A step that removed the failure is not tried again: it rarely depends on other steps, and each try costs a run.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs

from sim.options import RunOptions

TRIES_MAX = 40

__all__ = ["Shrinking", "shrink"]


@attrs.frozen
class Shrinking:
    """`options` fail as the first ones did; `taken_away` are the names of the steps, `runs` the number of attempts."""

    options: RunOptions
    taken_away: tuple[str, ...]
    runs: int


def shrink(
    options: RunOptions, still_fails: Callable[[RunOptions], bool], tries_max: int = TRIES_MAX
) -> Shrinking:
    """Remove the options that the failure does not need."""
    taken: list[str] = []
    needed: dict[str, None] = {}
    runs = 0
    while runs < tries_max:
        step = next(((name, each) for name, each in options.simpler() if name not in needed), None)
        if step is None:
            break
        name, simpler = step
        runs += 1
        if still_fails(simpler):
            options = simpler
            taken.append(name)
        else:
            needed[name] = None
    return Shrinking(options, tuple(taken), runs)
