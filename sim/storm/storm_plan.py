"""The plan of a storm, drawn from a seed: its duration, and the kinds of trouble in it. PURE."""

from __future__ import annotations

from random import Random

import attrs

KINDS = ("deaths", "deaths", "links", "pauses", "clocks", "slow", "operator")
RARE_KINDS = ("full", "wipes", "voters")
MORE_KINDS = (
    "narrow",
    "closed",
    "forgotten",
    "slow_machines",
    "drift",
    "configurations",
    "hang",
    "dying",
    "rot",
)
"""Kinds of trouble that a separate random generator draws, in `StormPlan.with_more`."""
MORE_PROBABILITY = 0.3
AGED_HOURS = (1.0, 1.4)
AGED_PACE = 100.0


@attrs.frozen
class StormPlan:
    """The plan of a storm. It lasts for `seconds`, and has one task for each item of `kinds`. With `power`, machines
    may lose power. The pauses between troubles are multiplied by `pace`.
    """

    seconds: float
    kinds: tuple[str, ...]
    power: bool = True
    pace: float = 1.0

    @classmethod
    def draw(cls, random: Random, seconds: float | None = None) -> StormPlan:
        drawn = random.uniform(10.0, 40.0)
        kinds = tuple(kind for kind in KINDS if random.random() < 0.6)
        kinds += tuple(kind for kind in RARE_KINDS if random.random() < 0.35)
        return cls(drawn if seconds is None else seconds, kinds or ("deaths",), random.random() < 0.7)

    def aged(self, random: Random) -> StormPlan:
        """Return a copy with the same amount of trouble spread over hours."""
        hours = random.uniform(*AGED_HOURS)
        return attrs.evolve(self, seconds=3600.0 * hours, pace=AGED_PACE)

    def with_more(self, random: Random) -> StormPlan:
        """Return a copy with some of `MORE_KINDS` added."""
        more = tuple(kind for kind in MORE_KINDS if random.random() < MORE_PROBABILITY)
        return attrs.evolve(self, kinds=self.kinds + more)
