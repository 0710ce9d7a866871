"""Schedules for the positions of one consumer, drawn from a seed: leaders change, and logs are cut and filled again
(KIP-320). PURE.

The client's consumer runs as it is, with `Positions`, its fetches and its metadata. The brokers are a plain model
(`positions_log.py`). The schedule decides when requests and answers arrive, and when connections break.

Laws
----
* A record that follows another one without a notice has the next offset, and the same log before it.
* The notice of a cut is `TruncationDetected`. With a reset policy it is a step back, or a position that is looked up.
* There is a notice only after a cut.
* In a healed cluster the consumer gets the last record.

KIP-320 asks a leader only for the end of one epoch: that of the last record that was read. Some cuts stay hidden, if the
new log lacks this epoch. Its earlier epochs then reach up to the position. The first law leaves out that case.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from random import Random

import attrs

from odradek.client.consumer.consumer_machine import ConsumerMachine
from odradek.client.consumer.consumer_types import (
    OffsetAndMetadata,
    OffsetsOutOfRange,
    TruncationDetected,
)
from odradek.client.core.client_keys import ConsumerSettings
from sim.alone.consumers.loose_core import LooseCore
from sim.alone.consumers.positions_log import KEY, LoggedRecord, PlainPartition
from sim.history import SafetyViolation
from sim.machine.world import Liveness

__all__ = ["PositionsPlan", "run"]

STEPS_DEFAULT = 300
SETTLE_ROUNDS_MAX = 600
_WEIGHTS: Mapping[str, tuple[float, ...]] = {
    "arrive": (10.0, 20.0),
    "answer": (10.0, 20.0),
    "time": (3.0, 8.0),
    "poll": (5.0, 15.0),
    "append": (2.0, 6.0),
    "elect": (0.3, 1.0, 3.0),
    "spread": (1.0, 4.0, 8.0),
    "seek": (0.0, 0.3),
    "break": (0.0, 0.5, 2.0),
}


@attrs.frozen
class PositionsPlan:
    """Parameters of a schedule. `policy` is the value of `auto.offset.reset`."""

    weights: Mapping[str, float]
    policy: str = "none"
    poll_records: int = 1
    """The value of `max.poll.records`."""
    hint_chance: float = 0.0
    """The share of refused fetches whose answer names the leader (KIP-951)."""
    steps: int = STEPS_DEFAULT

    @classmethod
    def draw(cls, random: Random) -> PositionsPlan:
        """Draw a plan. Independently of the others, each kind of step is rare, common or absent (swarm testing)."""
        return cls(
            {name: random.choice(weights) for name, weights in _WEIGHTS.items()},
            random.choice(("none", "earliest", "latest")),
            random.choice((1, 2, 100)),
            random.choice((0.0, 0.5)),
        )


@cache
def _settings(policy: str, poll_records: int) -> ConsumerSettings:
    return ConsumerSettings.from_properties(
        {
            "bootstrap.servers": "broker:9092",
            "auto.offset.reset": policy,
            "max.poll.records": poll_records,
            "metadata.max.age.ms": 3000,
            "fetch.max.wait.ms": 100,
            "request.timeout.ms": 2000,
        }
    )


def run(seed: int, plan: PositionsPlan | None = None) -> Mapping[str, int]:
    """Run one schedule, and return counts of its events, each with a name. Raises `SafetyViolation`, `Liveness`, and
    the product's exceptions.
    """
    random = Random(f"{seed}/positions")
    return _Run(PositionsPlan.draw(random) if plan is None else plan, random).run()


class _Run:
    """One run of a schedule."""

    def __init__(self, plan: PositionsPlan, random: Random) -> None:
        self.plan = plan
        self.random = random
        self._core = LooseCore(random)
        self._partition = PlainPartition(random, plan.hint_chance)
        self._machine = ConsumerMachine(self._core, _settings(plan.policy, plan.poll_records), lambda: 0)
        self._machine.assign_manually([KEY])
        self._machine.seek(KEY, 0, -1)
        self._running = [self._core.start(each, 0.0) for each in self._machine.background()]
        self._last: LoggedRecord | None = None
        """The record that the consumer returned last; None after a notice."""
        self.records = 0
        self.notices = 0
        self._steps: Mapping[str, Callable[[], None]] = {
            "arrive": self._arrive,
            "answer": self._answer,
            "time": self._time,
            "poll": self._poll,
            "append": self._partition.append,
            "elect": self._partition.elect,
            "spread": self._partition.spread,
            "seek": self._seek_back,
            "break": self._break,
        }

    def run(self) -> Mapping[str, int]:
        """Run the schedule, and then heal the brokers."""
        names, weights = list(self.plan.weights), list(self.plan.weights.values())
        for name in self.random.choices(names, weights, k=self.plan.steps):
            self._steps[name]()
            self._see_reset()
        self._heal()
        return {
            "records": self.records,
            "notices": self.notices,
            "elections": self._partition.elections,
            "cuts": self._partition.cuts,
        }

    # -- steps ----------------------------------------------------------------------------------------------------

    def _arrive(self) -> None:
        waiting = self._core.next_arrivals()
        if waiting:
            self._partition.handle(self.random.choice(waiting))

    def _answer(self) -> None:
        answered = self._core.next_answers()
        if answered:
            self._core.deliver(self.random.choice(answered))

    def _time(self) -> None:
        self._core.tick(self._core.now + self.random.choice((0.02, 0.1, 0.1, 0.3, 1.0)))

    def _break(self) -> None:
        """Break a connection with requests under way."""
        found = self._core.connections()
        if found:
            self._core.break_connection(self.random.choice(found))

    def _seek_back(self) -> None:
        """Seek to a record that was read before, as from a stored position with its leader epoch."""
        last = self._last
        for _ in range(self.random.randint(1, 4)):
            if last is not None:
                last = last.former
        if last is not None:
            self._last = last
            self._machine.seek(KEY, last.offset + 1, last.epoch)

    def _poll(self) -> None:
        """Take records as the application does, and check them. After a notice of a cut, seek as the notice says."""
        waiting = self._core.start(self._machine.wait(0.0), self._core.now)
        if waiting.done:
            waiting.result()
        else:
            self._core.abandon(waiting)
        try:
            found = self._machine.take(self._core.now, self._take_values, waited=True)
        except TruncationDetected as error:
            self._notice(f"a cut is reported at {error.position}")
            self._seek(error.diverging)
        except OffsetsOutOfRange as error:
            self._notice(f"offsets are out of range: {error}")
            self._seek(None)
        else:
            for each in found:
                self._check(self._partition.records[each])
        self._core.tick(self._core.now)
        for task in self._running:
            if task.done:
                task.result()
                raise AssertionError("a background operation of the consumer has stopped")

    def _take_values(self) -> list[bytes]:
        return [each.value for each in self._machine.delivery.take_records(self.plan.poll_records)]

    def _seek(self, diverging: OffsetAndMetadata | None) -> None:
        self._last = None
        if diverging is None:
            self._machine.seek(KEY, 0, -1)
        else:
            self._machine.seek(KEY, diverging.offset, diverging.leader_epoch)

    # -- laws -----------------------------------------------------------------------------------------------------

    def _notice(self, text: str) -> None:
        self.notices += 1
        if not self._partition.cuts:
            raise SafetyViolation(f"no log was ever cut, but {text}")

    def _see_reset(self) -> None:
        """Take it for a notice if the consumer has dropped its position, to look up another by the reset policy."""
        if self._last is not None and KEY not in self._machine.positions():
            self._notice("the consumer resets its position")
            self._last = None

    def _check(self, record: LoggedRecord) -> None:
        """Check a record that the consumer returns, by the record before it."""
        last, self._last = self._last, record
        self.records += 1
        if last is None or record.former is last:
            return
        if self.plan.policy != "none" and record.offset <= last.offset:
            self._notice(f"the consumer goes back from {last.offset} to {record.offset}")
        elif record.offset != last.offset + 1:
            raise SafetyViolation(f"offset {record.offset} follows {last.offset}")
        elif record.former is None or record.former.epoch > last.epoch:
            raise SafetyViolation(
                f"offset {record.offset} of epoch {record.epoch} follows a record of epoch {last.epoch} that was cut"
            )

    # -- the end of a schedule ------------------------------------------------------------------------------------

    def _heal(self) -> None:
        """Heal the brokers. Then the consumer must get the last record."""
        self._partition.heal()
        newest = self._partition.leader.log[-1]
        for round_number in range(SETTLE_ROUNDS_MAX):
            if round_number % 100 == 99:
                # With the policy `latest` the consumer may have skipped the last record.
                self._partition.heal()
                newest = self._partition.leader.log[-1]
            for sent in self._core.next_arrivals():
                self._partition.handle(sent)
            for sent in self._core.next_answers():
                self._core.deliver(sent)
            self._see_reset()
            self._poll()
            self._core.tick(self._core.now + 0.05)
            if self._last is newest:
                return
        raise Liveness(f"the consumer does not get offset {newest.offset} in a healed cluster")
