"""Counts of how many runs have reached each named state, and the states that they should have reached. PURE."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

import attrs

from sim.census.states import CERTAIN, DRIVEN, STATES, UNREACHABLE

CERTAIN_SEEDS = 40
"""The number of seeds after which each certain state must have been reached. Two idle cores run more than 40 seeds in
ten minutes.
"""
CERTAIN_SHARE = 0.5
"""A state may be marked as certain if at least this share of the seeds reaches it.

Suppose that each of 50 certain states is reached by only half this share. Then the probability that 40 seeds miss one
of them is below 1 : 1,000.
"""
ALL_SEEDS = 2000
"""The number of seeds after which each state must have been reached, unless the state is in `DRIVEN` or
`UNREACHABLE`.
"""
SELDOM_SHARE = 0.02
NAMES_ON_SCREEN_MAX = 12

__all__ = ["ALL_SEEDS", "CERTAIN_SEEDS", "CERTAIN_SHARE", "Counted", "Tally", "report_of", "screen_of"]


class Counted(Protocol):
    """The part of a run's outcome that is counted. It says how often the cluster reached each state, and how often
    schedules of single parts reached it.
    """

    @property
    def states(self) -> Mapping[str, int]: ...

    @property
    def alone_states(self) -> Mapping[str, int]: ...


@attrs.define
class Tally:
    """Counts of the seeds that reached each state: in the cluster, in schedules of single parts, or in at least one of
    the two.
    """

    seeds: int = 0
    by_cluster: dict[str, int] = attrs.Factory(dict)
    by_parts: dict[str, int] = attrs.Factory(dict)
    by_either: dict[str, int] = attrs.Factory(dict)
    times: dict[str, int] = attrs.Factory(dict)
    """How often all runs together reached each state."""

    @classmethod
    def of(cls, outcomes: Iterable[Counted]) -> Tally:
        """Count the given runs."""
        tally = cls()
        for outcome in outcomes:
            tally.add(outcome)
        return tally

    def add(self, outcome: Counted) -> None:
        """Count one run. A name that is no longer in the table is ignored."""
        self.seeds += 1
        either: dict[str, None] = {}
        for counts, states in ((self.by_cluster, outcome.states), (self.by_parts, outcome.alone_states)):
            for name, times in states.items():
                if name in STATES:
                    counts[name] = counts.get(name, 0) + 1
                    self.times[name] = self.times.get(name, 0) + times
                    either[name] = None
        for name in either:
            self.by_either[name] = self.by_either.get(name, 0) + 1

    def missing(self) -> list[str]:
        """List the states that no run has reached, in the order of the table."""
        return [name for name in STATES if name not in self.by_either]

    def certain_missing(self) -> list[str]:
        """List the certain states that no run has reached; empty while there are fewer than `CERTAIN_SEEDS` seeds."""
        return [name for name in self.missing() if name in CERTAIN] if self.seeds >= CERTAIN_SEEDS else []

    def unexplained(self) -> list[str]:
        """List the unreached states that are neither in `DRIVEN` nor in `UNREACHABLE`."""
        return [name for name in self.missing() if name not in DRIVEN and name not in UNREACHABLE]

    def may_be_certain(self) -> list[str]:
        """List the states that enough seeds have reached to mark them as certain."""
        return [name for name in STATES if self.by_either.get(name, 0) >= CERTAIN_SHARE * self.seeds > 0]

    def seldom(self) -> list[tuple[str, int]]:
        """List the states that at most 2 % of the seeds have reached, each with the number of seeds, rarest first."""
        most = max(1, int(SELDOM_SHARE * self.seeds))
        found = [(name, seeds) for name, seeds in self.by_either.items() if seeds <= most]
        return sorted(found, key=lambda each: (each[1], each[0]))


def screen_of(tally: Tally) -> list[str]:
    """Format the lines about named states that a campaign prints at its end."""
    seldom = [f"{name} {seeds}" for name, seeds in tally.seldom()]
    unexplained = tally.unexplained()
    lines = [
        f"states:   {len(tally.by_either)} of {len(STATES)} named states reached; seldom: {_some(seldom)}",
        f"missing:  {len(unexplained)} without a driver or a reason: {_some(unexplained)}",
    ]
    if missed := tally.certain_missing():
        lines.append(
            f"certain:  {len(missed)} that {tally.seeds} seeds should have reached: " + ", ".join(missed)
        )
    return lines


def report_of(tally: Tally) -> list[str]:
    """Write the section of a report with all states, rarest first, in Markdown."""
    rows = sorted(STATES, key=lambda name: (tally.by_either.get(name, 0), name))
    return [
        f"Seeds that reached each of {len(STATES)} named states of the product, of {tally.seeds}.",
        "",
        "| state | seeds | times | by clusters | by parts alone | mark | what reaches it |",
        "| --- | ---: | ---: | ---: | ---: | --- | --- |",
        *(
            f"| {name} | {tally.by_either.get(name, 0)} | {tally.times.get(name, 0)} "
            f"| {tally.by_cluster.get(name, 0)} | {tally.by_parts.get(name, 0)} "
            f"| {_mark(name)} | {STATES[name]} |"
            for name in rows
        ),
    ]


def _mark(name: str) -> str:
    if name in CERTAIN:
        return "certain"
    return "driven" if name in DRIVEN else "unreachable" if name in UNREACHABLE else ""


def _some(names: list[str]) -> str:
    more = len(names) - NAMES_ON_SCREEN_MAX
    return ", ".join(names[:NAMES_ON_SCREEN_MAX]) + (f" and {more} more" if more > 0 else "") or "none"
