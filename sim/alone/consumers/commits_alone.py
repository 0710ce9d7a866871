"""Schedules for the commits of one group member, drawn from a seed: partitions come and go, and answers are late or lost.
PURE.

The client's `Commits`, its membership of either protocol and its `Rebalances` run as they are. The coordinator is a
plain model with its laws (`commits_group.py`). The schedule decides when requests and answers arrive, which commits
fail, when connections break, and when the member is thrown out. At the end all faults are healed. Then the member gets
its partitions, all commits end, and a last commit succeeds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random

import attrs

from sim.alone.consumers.commits_client import PROTOCOLS, LoneMember, settings_of
from sim.alone.consumers.commits_group import PlainGroup
from sim.alone.consumers.commits_protocols import ClassicGroup, NewGroup
from sim.alone.consumers.loose_core import LooseCore
from sim.machine.world import Liveness

__all__ = ["CommitsPlan", "run"]

STEPS_DEFAULT = 400
SETTLE_ROUNDS_MAX = 600
_WEIGHTS: Mapping[str, tuple[float, ...]] = {
    "arrive": (10.0, 20.0),
    "answer": (10.0, 20.0),
    "time": (4.0, 10.0),
    "poll": (10.0, 20.0),
    "read": (4.0, 8.0),
    "commit": (2.0, 8.0),
    "rebalance": (0.2, 1.0, 2.0),
    "advance": (2.0, 5.0),
    "others": (2.0,),
    "throw": (0.0, 0.2, 0.8),
    "break": (0.0, 0.5, 2.0),
}


@attrs.frozen
class CommitsPlan:
    """Parameters of a schedule. `protocol` is an assignor of the classic protocol, or "consumer"."""

    weights: Mapping[str, float]
    protocol: str = "cooperative-sticky"
    auto_commit: bool = True
    trouble_chance: float = 0.0
    """The share of commits, and of offsets in them, that the coordinator refuses without a reason in the group."""
    steps: int = STEPS_DEFAULT

    @classmethod
    def draw(cls, random: Random) -> CommitsPlan:
        """Draw a plan. Independently of the others, each kind of step is rare, common or absent (swarm testing)."""
        return cls(
            {name: random.choice(weights) for name, weights in _WEIGHTS.items()},
            random.choice(PROTOCOLS),
            random.random() < 0.6,
            random.choice((0.0, 0.1, 0.3)),
        )


def run(seed: int, plan: CommitsPlan | None = None) -> Mapping[str, int]:
    """Run one schedule, and return counts of its events, each with a name. Raises `SafetyViolation`, `Liveness`, and
    the product's exceptions.
    """
    random = Random(f"{seed}/commits")
    return _Run(CommitsPlan.draw(random) if plan is None else plan, random).run()


class _Run:
    """One run of a schedule."""

    def __init__(self, plan: CommitsPlan, random: Random) -> None:
        self.plan = plan
        self.random = random
        self._core = LooseCore(random)
        self._group: PlainGroup = (
            NewGroup(random, plan.trouble_chance)
            if plan.protocol == "consumer"
            else ClassicGroup(random, plan.trouble_chance, plan.protocol)
        )
        settings = settings_of(plan.protocol, plan.auto_commit)
        self._member = LoneMember(random, self._core, self._group, settings)
        self._steps: Mapping[str, Callable[[], None]] = {
            "arrive": self._arrive,
            "answer": self._answer,
            "time": self._time,
            "poll": self._member.poll,
            "read": self._member.read,
            "commit": self._member.commit_some,
            "rebalance": self._group.rebalance,
            "advance": self._advance,
            "others": self._group.let_others_commit,
            "throw": self._group.throw_out,
            "break": self._break,
        }

    def run(self) -> Mapping[str, int]:
        """Run the schedule, and then heal the group."""
        names, weights = list(self.plan.weights), list(self.plan.weights.values())
        for name in self.random.choices(names, weights, k=self.plan.steps):
            self._steps[name]()
            self._member.check()
        self._heal()
        return {
            "accepted": self._group.accepted,
            "refused": self._group.refused,
            "thrown out": self._group.thrown_out,
            "succeeded": self._member.succeeded,
            "failed": self._member.failed,
            "rebalances": self._member.membership.rebalances,
        }

    # -- steps ----------------------------------------------------------------------------------------------------

    def _arrive(self) -> None:
        waiting = self._core.next_arrivals()
        if waiting:
            self._group.handle(self.random.choice(waiting))

    def _answer(self) -> None:
        answered = self._core.next_answers()
        if answered:
            self._member.deliver(self.random.choice(answered))

    def _time(self) -> None:
        self._core.tick(self._core.now + self.random.choice((0.02, 0.1, 0.1, 0.3, 1.0)))

    def _advance(self) -> None:
        """Advance the group's rebalance. The other members wait for the client most of the time."""
        group = self._group
        if isinstance(group, ClassicGroup) and group.awaits_client and self.random.random() < 0.8:
            return
        group.advance()

    def _break(self) -> None:
        """Break a connection with requests under way."""
        found = self._core.connections()
        if found:
            self._core.break_connection(self.random.choice(found))

    # -- the end of a schedule ------------------------------------------------------------------------------------

    def _heal(self) -> None:
        """Heal the group. Then the client must get its partitions, and a last commit must succeed."""
        self._group.trouble_chance = 0.0
        self._settle("the member does not get its partitions")
        closing = self._member.close(30.0)
        began = self._core.now
        self._settle("commits do not end", lambda: closing.done)
        if self._core.now > began + 10.0:
            raise Liveness(f"the commits of a healed group took {self._core.now - began:.1f} s")
        self._member.read()
        self._member.read()
        offsets = self._member.positions(None)
        last = self._member.commit(offsets)
        self._settle("the last commit does not end")
        last.task.result()
        self._group.check_success(offsets)

    def _settle(self, complaint: str, is_done: Callable[[], bool] = lambda: True) -> None:
        """Step without faults until the group has settled. Raise `Liveness` if it does not settle."""
        for _ in range(SETTLE_ROUNDS_MAX):
            for sent in self._core.next_arrivals():
                self._group.handle(sent)
            for sent in self._core.next_answers():
                self._member.deliver(sent)
            self._member.poll()
            if not (isinstance(self._group, ClassicGroup) and self._group.awaits_client):
                self._group.advance()
            self._core.tick(self._core.now + 0.05)
            self._member.check()
            if self._group.is_settled() and self._member.is_idle and self._has_all() and is_done():
                return
        raise Liveness(f"{complaint} in a healed group")

    def _has_all(self) -> bool:
        return sorted(self._member.subscription.partitions) == sorted(self._group.ours)
