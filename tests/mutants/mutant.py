"""Mutants, and the search for them: a driver runs seeds until one fails with the bug and passes without it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager

import attrs

from tests.mutants.form.change import changed
from tests.mutants.form.normal import normal_text
from tests.mutants.form.seals import Seals
from tests.mutants.patching import replaced

Driver = Callable[[int], str]
"""Runs a seed. Returns a line about the failure, or an empty text."""
CAMPAIGN = "campaign"
"""The driver that runs a seed as a campaign does, with the options that the seed draws."""
AREAS = {
    "odradek.metadata_quorum.raft": "raft",
    "odradek.metadata_quorum.controller": "controller",
    "odradek.metadata_quorum.image": "controller",
    "odradek.metadata_quorum.quotas": "quotas",
    "odradek.metadata_quorum.recovery": "recoveries",
    "odradek.operations.recovery": "recoveries",
    "odradek.metadata_quorum": "quorum driver",
    "odradek.data_plane.log.cleaning": "cleaner",
    "odradek.data_plane.log": "log",
    "odradek.data_plane.coordination": "groups",
    "odradek.data_plane.groups": "groups",
    "odradek.data_plane.transactions": "transactions",
    "odradek.data_plane": "replication",
    "odradek.client": "client",
    "odradek.security": "security",
    "odradek.node.entrances": "security",
    "odradek.node.connections.charging": "quotas",
    "odradek.node.connections.listeners_charging": "quotas",
    "odradek.node": "replication",
}
"""Areas, by the first package with which a function's module begins."""


@attrs.frozen
class Mutant:
    """A bug: `change` is made to `function` (`form/change.py`); `also` are further functions and their changes.

    `history` says what the bug breaks, and its origin or its harm. `driver` is aimed at it and shows it within
    `seeds_max` seeds. `aimed_only` says why campaigns need not find it.
    """

    name: str
    history: str
    function: str
    change: str
    driver: str = CAMPAIGN
    seeds_max: int = 20
    aimed_only: str = ""
    unseen: str = ""
    """The reason why no driver finds the bug, and why it stays in the list all the same."""
    also: tuple[tuple[str, str], ...] = ()
    is_blind: bool = False
    """True if the bug was planted by an author who had read no checker."""

    @property
    def changes(self) -> tuple[tuple[str, str], ...]:
        """All changed functions, each with its change."""
        return ((self.function, self.change), *self.also)

    def bodies(self) -> dict[str, str]:
        """Return the functions' sources with the bug. Raises `Misfit` if a change does not fit its function."""
        return {function: changed(normal_text(function), change) for function, change in self.changes}

    @contextmanager
    def planted(self) -> Iterator[None]:
        """Run the block with the bug."""
        with ExitStack() as stack:
            for function, body in self.bodies().items():
                stack.enter_context(replaced(function, body))
            yield

    def check_seals(self, seals: Seals) -> None:
        """Raise `Stale` if a function has changed since its review, or `KeyError` if it was never reviewed."""
        for function, _ in self.changes:
            seals[self.name, function].check()

    def seal_keys(self) -> list[tuple[str, str, str]]:
        """Return the area, the function and the mutant's name for each of its seals."""
        return [(self.area, function, self.name) for function, _ in self.changes]

    def __str__(self) -> str:
        return self.name

    @property
    def area(self) -> str:
        """The part of the product that has the bug."""
        return next(area for package, area in AREAS.items() if self.function.startswith(package))


@attrs.frozen
class Search:
    """The outcome of a search. `seeds` is the number of seeds that ran, and `seed` the last of them if it found the
    bug. `cpu_seconds` is the time of the runs with the bug.
    """

    mutant: Mutant
    driver: str
    seed: int | None
    seeds: int
    verdict: str
    cpu_seconds: float

    def line(self) -> str:
        """Return `NAME found seed=N seeds=K`, or `NAME MISSED`."""
        if self.seed is None:
            return f"{self.mutant.name} MISSED seeds={self.seeds} ({self.verdict})"
        return f"{self.mutant.name} found seed={self.seed} seeds={self.seeds}"


def search(mutant: Mutant, drivers: Mapping[str, Driver], *, seeds_max: int | None = None) -> Search:
    """Run seeds of the mutant's driver until one fails. The same seed must pass without the bug."""
    run = drivers[mutant.driver]
    why, used, seeds = "no seed has failed", 0.0, 0
    for seed in range(mutant.seeds_max if seeds_max is None else seeds_max):
        seeds += 1
        began = time.process_time()
        with mutant.planted():
            verdict = run(seed)
        used += time.process_time() - began
        if not verdict:
            continue
        sound = run(seed)
        if not sound:
            return Search(mutant, mutant.driver, seed, seeds, verdict, used)
        why = f"seed {seed} fails without the bug, too: {sound}"
    return Search(mutant, mutant.driver, None, seeds, why, used)
