"""Schedules for a group coordinator, drawn from a seed: its state machine and its log on a partition with three
replicas. PURE.

The partition is simulated as in `sim.alone.replication_alone`: replicas on simulated disks with small segments, late
fetches, crashes, power losses, elections, truncation. Each broker has a `GroupCoordinator`, which starts a shard and
loads the log when the broker becomes the leader. Dynamic and static members join, sync, commit, fetch, stall and
leave. Sessions and offsets expire (`group_clients.py`). In some schedules the topic is deleted and created anew.

`group_checks.py` checks every answer. At the end all faults are healed. Then all members must join one generation,
and a coordinator must return all acknowledged commits.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

import attrs

from odradek.data_plane.groups.coordinator import Shard
from odradek.data_plane.groups.group_settings import GroupSettings
from sim.alone.coordinator_run import CoordinatorRun, draw_partition
from sim.alone.groups.group_checks import GroupPromises
from sim.alone.groups.group_clients import LONERS_GROUP, MEMBERS_GROUP, SESSION_MS, TOPIC, Clients
from sim.alone.groups.group_host import GroupHost
from sim.alone.replication_alone import ReplicationPlan
from sim.alone.replication_broker import START_MS, Broker
from sim.history import SafetyViolation

__all__ = ["GroupsPlan", "run"]

STEPS_DEFAULT = 700
SETTLE_ROUNDS_MAX = 1500
_WEIGHTS: Mapping[str, tuple[float, ...]] = {
    "fetch": (8.0, 14.0),
    "answer": (8.0, 14.0),
    "learn": (2.0, 6.0),
    "act": (12.0, 20.0),
    "deliver": (24.0, 40.0),
    "work": (4.0, 12.0),
    "decide": (2.0, 4.0),
    "time": (1.0, 3.0),
    "forget": (0.0, 0.5, 1.0),
    "lose": (0.0, 0.5),
    "crash": (0.0, 0.3, 0.6),
    "power": (0.0, 0.3, 0.6),
    "stop": (0.0, 0.3),
    "start": (2.0,),
    "elect": (0.0, 0.3, 1.0),
    "fence": (0.0, 0.3),
    "sync": (0.0, 1.0),
    "cut": (0.0, 0.3),
    "delete": (0.0, 0.0, 0.3),
}


@attrs.frozen
class GroupsPlan:
    """Parameters of a schedule. The plan of the offsets partition includes the weights of all steps. `static` is the
    number of static members, `retention_ms` the retention of offsets. With `deletes_topics` the topic is deleted and created
    anew now and then.
    """

    partition: ReplicationPlan
    static: int = 0
    retention_ms: int = 1 << 40
    deletes_topics: bool = False

    @classmethod
    def draw(cls, random: Random, steps: int = STEPS_DEFAULT) -> GroupsPlan:
        """Draw a plan. Independently of the others, each kind of step is rare, common or absent (swarm testing)."""
        partition = draw_partition(random, steps, _WEIGHTS)
        return cls(partition, random.choice((0, 0, 1, 2)), random.choice((2000, 10_000, 1 << 40)))


def run(seed: int, plan: GroupsPlan | None = None) -> Mapping[str, int]:
    """Run one schedule, and return counts of its events, each with a name. Raises `SafetyViolation`, and the product's
    exceptions.
    """
    random = Random(f"{seed}/groups")
    # The deletions of topics are drawn apart, so that schedules without them stay as they were.
    topics = Random(f"{seed}/deleted topics")
    if plan is None:
        plan = attrs.evolve(GroupsPlan.draw(random), deletes_topics=topics.random() < 0.3)
    return _Run(plan, random, topics).run()


class _Run(CoordinatorRun[GroupHost]):
    """One run of a schedule: brokers with group coordinators, and the clients of these coordinators."""

    def __init__(self, plan: GroupsPlan, random: Random, topics: Random) -> None:
        self._groups_plan = plan
        self._topics = topics
        self._forgetful: list[Shard] = []
        """The coordinators that were loading when the topic was deleted."""
        self._settings = GroupSettings(
            session_timeout_ms_min=SESSION_MS,
            initial_rebalance_delay_ms=300,
            new_member_join_timeout_ms=10_000,
            offsets_retention_ms=plan.retention_ms,
            offsets_retention_check_interval_ms=1000,
        )
        super().__init__(plan.partition, random)
        assert isinstance(self._promises, GroupPromises)
        self._group_promises = self._promises
        self._clients = Clients(random, self._group_promises, self._hosts, plan.static)

    def _new_promises(self) -> GroupPromises:
        plan = self._groups_plan
        return GroupPromises(self.plan.min_isr, plan.retention_ms, lambda: START_MS + self.now_ms)

    def _told(self) -> Mapping[str, int]:
        return {
            "acknowledged": self._group_promises.commits,
            "loads": self._group_promises.loads,
            "forgotten": self._group_promises.forgotten,
            "epochs": self._controller.state.leader_epoch,
            "deaths": self.deaths,
        }

    def _new_host(self, node: Broker) -> GroupHost:
        return GroupHost(node, self._settings, lambda: self.now_ms)

    # -- steps ----------------------------------------------------------------------------------------------------

    def _act(self) -> None:
        self._clients.act()

    def _deliver(self) -> None:
        self._clients.deliver_one()

    def _forget(self) -> None:
        """Lose a random message, or let a random client stop waiting for its answer."""
        if self.random.random() < 0.5:
            self._clients.lose_one()
        else:
            self._clients.time_out()

    def _delete(self) -> None:
        self._clients.delete_offset()

    def _work_at(self, host: GroupHost) -> None:
        shard = host.shard
        was_loading = shard is not None and shard.is_loading
        if self._groups_plan.deletes_topics and self._topics.random() < (0.1 if was_loading else 0.01):
            self._delete_topic()
        super()._work_at(host)
        if was_loading and host.shard is shard and shard is not None and not shard.is_loading:
            if shard in self._forgetful:
                self._group_promises.has_forgotten(host)
            self._group_promises.loaded(host)

    def _delete_topic(self) -> None:
        """Delete the topic of all offsets, and create it anew at once."""
        self._clients.forgive_all()
        for host in self._hosts.values():
            shard = host.shard
            if shard is None:
                continue
            shard.forget_topics(frozenset({TOPIC}))
            self._group_promises.wrote(host)
            if shard.is_loading:
                self._forgetful.append(shard)
            else:
                self._group_promises.has_forgotten(host)

    def _time(self) -> None:
        super()._time()
        for host in list(self._hosts.values()):
            host.timers.fire_due(host.clock.monotonic())
            self._group_promises.wrote(host)

    # -- the end of a schedule ------------------------------------------------------------------------------------

    def _heal(self) -> None:
        """Heal the replicas. Then step until all members are in one generation. Raise `SafetyViolation` if they never
        are.
        """
        super()._heal()
        self._clients.revive()
        for round_number in range(SETTLE_ROUNDS_MAX):
            for host in list(self._hosts.values()):
                self._work_at(host)
                host.timers.fire_due(host.clock.monotonic())
            for _ in range(4):
                self._clients.act()
                self._clients.deliver_oldest()
                self._clients.deliver_oldest()
            self._replicate()
            self.now_ms += 50
            if round_number % 100 == 99:
                self._clients.give_up_all()
            if self._clients.are_settled and self._leads():
                break
        else:
            told = [
                (each.name, each.member_id, each.generation, each.is_in) for each in self._clients.members
            ]
            raise SafetyViolation(f"the members do not come together in a healed cluster: {told}")
        self._replicate_all()

    def _leader(self) -> GroupHost:
        return self._hosts[self._controller.state.leader]

    def _leads(self) -> bool:
        """True if the coordinator of the partition's leader has loaded the log."""
        shard = self._leader().shard
        return shard is not None and not shard.is_loading

    def _replicate_all(self) -> None:
        """Let all replicas fetch all records, then fetch and check the offsets of both groups."""
        for _ in range(20):
            self._replicate()
        for group_id in (MEMBERS_GROUP, LONERS_GROUP):
            self._clients.read_at_last(self._leader(), group_id)
