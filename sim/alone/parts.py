"""The parts of the product that can be simulated without the rest, and how many schedules of each a campaign runs per
seed. The recovery of a quorum whose voters lose their disks is a scenario of a whole cluster. It runs beside them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from random import Random

import attrs

from sim.alone import raft_alone, replication_alone, silence_alone
from sim.alone.consumers import commits_alone, consumers_alone, positions_alone
from sim.alone.groups import groups_alone
from sim.alone.logs import logs_alone
from sim.alone.quorum import moved_voters, quorum_alone
from sim.alone.transactions import transactions_alone
from sim.history import SafetyViolation
from sim.knobs.knob_table import draw_knobs
from sim.knobs.turning import turned
from sim.machine.world import Liveness
from sim.scenarios.recovery_scenario import RecoveryScenario


def _recover(seed: int) -> object:
    return RecoveryScenario(seed).run()


PARTS: Mapping[str, Callable[[int], object]] = {
    "raft": raft_alone.run,
    "quorum": quorum_alone.run,
    "moved": moved_voters.run,
    "logs": logs_alone.run,
    "replication": replication_alone.run,
    "groups": groups_alone.run,
    "consumers": consumers_alone.run,
    "commits": commits_alone.run,
    "positions": positions_alone.run,
    "transactions": transactions_alone.run,
    "silence": silence_alone.run,
    "recovery": _recover,
}
"""The function that runs one schedule from a seed, by the name of the part in `python -m sim --alone PART`."""
SCHEDULES: Mapping[str, int] = {
    "raft": 16,
    "quorum": 10,
    "moved": 4,
    "logs": 10,
    "replication": 32,
    "groups": 24,
    "consumers": 16,
    "commits": 16,
    "positions": 16,
    "transactions": 16,
    "silence": 2,
    "recovery": 1,
}
"""How many schedules of each part a campaign runs per seed. All schedules of a seed take about 6 s of CPU time; the
run of the cluster takes about 10 s.
"""
RARE: Mapping[str, int] = {"recovery": 8}
"""The parts that a campaign runs only for one seed in so many, because a schedule takes about 5 s."""

__all__ = ["PARTS", "SCHEDULES", "FailedSchedule", "knobs_of", "run_part", "run_schedules", "schedules_of"]


@attrs.frozen
class FailedSchedule:
    """A failed schedule of one part. `verdict` is `safety`, `liveness` or `crash`."""

    part: str
    seed: int
    verdict: str
    message: str

    @property
    def command(self) -> str:
        """The shell command that repeats the schedule."""
        return f"python -m sim --alone {self.part} --seed {self.seed}"


def knobs_of(part: str, seed: int) -> dict[str, int]:
    """Draw tuning constants for a schedule from its seed. Return, by name, only the constants that differ from their
    defaults.
    """
    return draw_knobs(Random(f"{seed}/knobs of {part}"))


def run_part(part: str, seed: int, knobs: Mapping[str, int] | None = None) -> object:
    """Run one schedule, and return counts of its events, each with a name. Tuning constants are drawn from the seed,
    unless `knobs` gives them.
    """
    with turned(knobs_of(part, seed) if knobs is None else knobs):
        return PARTS[part](seed)


def schedules_of(seed: int) -> Iterator[tuple[str, int]]:
    """Yield (part, schedule seed) for each schedule that a campaign runs for `seed`. Different seeds never share a
    schedule.
    """
    for part, count in SCHEDULES.items():
        if seed % RARE.get(part, 1):
            continue
        for each in range(count):
            yield part, seed * count + each


def run_schedules(seed: int) -> FailedSchedule | None:
    """Run all schedules that belong to a seed. Return the first that fails; None if all pass."""
    for part, each in schedules_of(seed):
        try:
            run_part(part, each)
        except Liveness as error:
            return FailedSchedule(part, each, "liveness", str(error))
        except SafetyViolation as error:
            return FailedSchedule(part, each, "safety", str(error))
        except Exception as error:  # noqa: BLE001 - any other exception counts as a crash of the product
            return FailedSchedule(part, each, "crash", f"{type(error).__name__}: {error}")
    return None
