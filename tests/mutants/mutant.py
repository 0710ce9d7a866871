"""Mutants, and how they are looked for: a driver runs seeds until one fails with the bug and passes without it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import attrs

from tests.mutants.patching import patched

Driver = Callable[[int], str]
"""Runs a seed; how it failed, in a line, or nothing."""


@attrs.frozen
class Mutant:
    """A bug of history. `old` is replaced by `new` in `function`, which `driver` shows in at most `seeds_max` seeds."""

    name: str
    history: str
    function: str
    old: str
    new: str
    driver: str
    seeds_max: int

    def __str__(self) -> str:
        return self.name


@attrs.frozen
class Search:
    """The outcome of a search. `seeds` were run, the last of them is `seed` when something was found."""

    mutant: Mutant
    seed: int | None
    seeds: int
    verdict: str
    real_seconds: float

    def line(self) -> str:
        """`NAME found seed=N seeds=K`, or `NAME MISSED`."""
        if self.seed is None:
            return f"{self.mutant.name} MISSED seeds={self.seeds} ({self.verdict})"
        return f"{self.mutant.name} found seed={self.seed} seeds={self.seeds}"


def search(
    mutant: Mutant, drivers: Mapping[str, Driver], *, first_seed: int = 0, seeds_max: int | None = None
) -> Search:
    """Run seeds with the bug until one fails; the same seed must pass without it."""
    run = drivers[mutant.driver]
    began = time.monotonic()
    most = mutant.seeds_max if seeds_max is None else seeds_max
    why = "no seed has failed"
    for count, seed in enumerate(range(first_seed, first_seed + most), 1):
        with patched(mutant.function, mutant.old, mutant.new):
            verdict = run(seed)
        if not verdict:
            continue
        sound = run(seed)
        if not sound:
            return Search(mutant, seed, count, verdict, time.monotonic() - began)
        why = f"seed {seed} fails without the bug, too: {sound}"
    return Search(mutant, None, most, why, time.monotonic() - began)
