"""Workload: classic consumer groups whose members start, end, pause and return; each is a process of
`member.py`. PORTED.

Each slot of a group is a machine on which one member after another runs, each for some seconds. A member closes,
crashes or is paused. A paused member resumes without noticing the pause, which may have been longer than its session.
After the workload has ended, a last member runs on each machine and reads to the end.
"""

from __future__ import annotations

from functools import partial
from random import Random

from odradek.client.consumer.group_calls import Coordinator
from odradek.client.core.client_config import ClientConfig
from odradek.client.shells.aio import AsyncClient
from odradek.env.ports import Event
from sim.checks.bounds import GroupTimeouts
from sim.checks.groups.group_availability import GroupTerms
from sim.checks.groups.group_promises import GroupPromises
from sim.load.consumers.lives import AWAY_SECONDS_MAX, live_out
from sim.load.consumers.member import MemberLife
from sim.load.consumers.member_plan import CALM, GroupPlan, MemberPlan
from sim.load.workload import REQUEST_SECONDS, Workload

GROUPS = ("crowd-1", "crowd-2")
SESSION_MS_DEFAULT = 6000
"""The default of Kafka's `group.min.session.timeout.ms`."""
STALL_SESSIONS = (0.1, 1.1, 3.0)
"""Limits of the duration of pauses, in multiples of the shortest session. A pause lasts between the first and the
second, or between the second and the third.
"""
REBALANCE_SESSIONS = 2
"""`max.poll.interval.ms` in multiples of the shortest session. A rebalance waits that long for a paused member."""
REBALANCE_MS_MIN = 4000
COMMITS_SECONDS = 10 * REQUEST_SECONDS

__all__ = ["GROUPS", "Crowd", "slots"]


def slots(seed: int) -> tuple[str, ...]:
    """List the machines of all members of all groups, for a seed."""
    return tuple(name for group in GROUPS for name in _slots(group, _plan(seed, group)))


def _plan(seed: int, group: str) -> GroupPlan:
    return GroupPlan.draw(Random(f"{seed}/{group}"))


def _slots(group: str, plan: GroupPlan) -> list[str]:
    return [f"{group}-member-{number}" for number in range(1, plan.members + 1)]


class Crowd:
    """One classic consumer group. `start` starts the members. Call `check` once they have read everything."""

    def __init__(self, load: Workload, group: str, session_ms: int) -> None:
        """`session_ms` is the shortest session timeout that the brokers accept."""
        self._load = load
        self._session_ms = session_ms
        self._group = group
        self._plan = _plan(load.world.seed, group)
        self.promises = GroupPromises(group, load.history, session_ms / 1000)
        load.positions[group] = self.promises.progress
        self.lives = 0

    @property
    def _rebalance_ms(self) -> int:
        return max(REBALANCE_MS_MIN, REBALANCE_SESSIONS * self._session_ms)

    @property
    def terms(self) -> GroupTerms:
        """The group for `GroupAvailability`, with the longest timeouts of its members."""
        session = max(SESSION_MS_DEFAULT, 2 * self._session_ms) / 1000
        timeouts = GroupTimeouts(session, self._rebalance_ms / 1000, REQUEST_SECONDS)
        return GroupTerms(self._group, _slots(self._group, self._plan), timeouts, self._is_read, stays=False)

    def _is_read(self) -> bool:
        progress = self.promises.progress
        return self._load.reader_is_done({key: progress.get(key, 0) for key in self._load.partitions})

    def start(self) -> dict[str, Event]:
        """Start a task for each slot. Return an event for each slot; it is set when the slot's last member has read
        everything.
        """
        names = _slots(self._group, self._plan)
        return {name: self._load.world.spawn(self._live, name) for name in names}

    async def _live(self, slot: str) -> None:
        load = self._load
        world, random = load.world, Random(f"{load.world.seed}/{slot}")
        instance = slot if random.random() < self._plan.static else None
        number = 0
        while not load.is_over:
            number += 1
            await self._one_life(
                slot, f"{slot}.{number}", instance, MemberPlan.draw(random, self._session_ms), random
            )
            await world.sleep(random.uniform(0.0, AWAY_SECONDS_MAX))
        life = MemberLife(load, self.promises, f"{slot}.last", instance, CALM)
        self.lives += 1
        await world.start_program(slot, partial(life.main, settings=self._settings())).ended.wait()

    async def _one_life(
        self, slot: str, name: str, instance: str | None, plan: MemberPlan, random: Random
    ) -> None:
        life = MemberLife(self._load, self.promises, name, instance, plan)
        self.lives += 1

        def draw_stall() -> float:
            least, session, most = (times * self._session_ms / 1000 for times in STALL_SESSIONS)
            return random.choice((random.uniform(least, session), random.uniform(session, most)))

        await live_out(
            self._load.world,
            slot,
            life,
            self._settings(),
            end=plan.end,
            life_seconds=plan.life_seconds,
            draw_stall=draw_stall,
            random=random,
        )
        self.promises.gone(name)

    def _settings(self) -> dict[str, str]:
        load = self._load
        return {
            "bootstrap.servers": ",".join(f"{host}:{port}" for host, port in load.bootstrap),
            "group.id": self._group,
            "auto.offset.reset": "earliest",
            "partition.assignment.strategy": self._plan.assignor,
            "max.poll.interval.ms": str(self._rebalance_ms),
            "request.timeout.ms": str(int(load.request_seconds * 1000)),
        }

    async def check(self, name: str) -> None:
        """Check that all records were read, and the group's committed offsets. Raises `SafetyViolation`."""
        load = self._load
        self.promises.check()
        client = AsyncClient(
            load.world.node_env(name),
            load.world.tasks,
            load.bootstrap,
            ClientConfig(client_id=name, request_timeout=REQUEST_SECONDS, fail_fast=False),
        )
        coordinator = Coordinator(client.core, self._group)
        asked = load.world.now
        deadline = client.core.now + COMMITS_SECONDS
        found = await client.run(coordinator.committed(load.partitions, deadline=deadline))
        self.promises.check_commits(
            {key: None if each is None else each.offset for key, each in found.items()}, asked
        )
        client.close()
