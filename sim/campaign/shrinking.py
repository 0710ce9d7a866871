"""Minimisation of a failing run: options are removed one by one as long as the run still fails in the same way. PURE.

The search is greedy, after delta debugging (Zeller, 2002): each step of `RunOptions.simpler` is tried, and kept if the
failure remains. A step that made the failure disappear is not tried again: its effect rarely depends on other steps,
while each try costs a run.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs

from sim.options import RunOptions

TRIES_MAX = 40

__all__ = ["Shrinking", "shrink"]


@attrs.frozen
class Shrinking:
    """The smallest options with which the run still fails in the same way. `taken_away` names the steps that led to
    these options.
    """

    options: RunOptions
    taken_away: tuple[str, ...]
    runs: int


def shrink(
    options: RunOptions, still_fails: Callable[[RunOptions], bool], tries_max: int = TRIES_MAX
) -> Shrinking:
    """Remove options as long as the failure remains, with at most `tries_max` runs."""
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
