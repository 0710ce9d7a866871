"""Schedules for a group coordinator with the consumer protocol, drawn from a seed; members use both protocols. PURE.

The offsets partition, its brokers and their faults are the same as in `sim.alone.groups.groups_alone`. Topics are
created and get more partitions. Simulated workers match patterns of topics and compute target assignments; the
schedule decides when they advance. At the end all faults are healed. Then each partition to which a member subscribes
must have exactly one owner.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

import attrs

from odradek.data_plane.groups.group_settings import GroupSettings
from sim.alone.consumers.classic_client import ClassicMember
from sim.alone.consumers.consumer_checks import FIRST_PARTITIONS, FIRST_TOPIC, ConsumerPromises
from sim.alone.consumers.consumer_clients import GROUP, ConsumerClients, ConsumerMember
from sim.alone.consumers.consumer_host import ConsumerHost
from sim.alone.coordinator_run import CoordinatorRun, draw_partition
from sim.alone.groups.group_host import GroupHost
from sim.alone.replication_alone import ReplicationPlan
from sim.alone.replication_broker import Broker
from sim.history import SafetyViolation
from sim.knobs.turning import turned
from sim.machine.world import Liveness

__all__ = ["ConsumersPlan", "run"]

RUNS = "data_plane.groups.consumers.target_runs"
STEPS_DEFAULT = 1500
SETTLE_ROUNDS_MAX = 2500
SESSION_MS = 2000
SESSION_SLACK_MS = 3000
PARTITIONS_MAX = 6
_WEIGHTS: Mapping[str, tuple[float, ...]] = {
    "fetch": (8.0, 14.0),
    "answer": (8.0, 14.0),
    "learn": (2.0, 6.0),
    "act": (16.0, 30.0),
    "deliver": (32.0, 60.0),
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
    "topics": (0.0, 0.2, 0.5),
    "see": (1.0, 3.0),
}


@attrs.frozen
class ConsumersPlan:
    """Parameters of a schedule: the numbers of members, and the plan of the offsets partition. The plan includes the
    weights of all steps.
    """

    partition: ReplicationPlan
    consumers: int = 3
    classic: int = 0
    static: int = 0
    """How many members of the consumer protocol have a `group.instance.id`."""
    interval_ms: int = 0
    """The value of `group.consumer.assignment.interval.ms`."""
    late: int = 0
    """How many steps the members of the consumer protocol wait before they join. So the group may begin as a classic
    group.
    """
    policy: str = "bidirectional"
    inline_units: int = 300
    """`INLINE_UNITS_MAX` of `target_runs`: larger target assignments are computed by a worker."""
    part_units: int = 600
    """`PART_UNITS` of `target_runs`: larger target assignments are written in parts of this size."""
    restart_chance: float = 0.0
    """The share of a static member's steps in which its process restarts."""

    @classmethod
    def draw(cls, random: Random, steps: int = STEPS_DEFAULT) -> ConsumersPlan:
        """Draw a plan. Independently of the others, each kind of step is rare, common or absent (swarm testing)."""
        return cls(
            draw_partition(random, steps, _WEIGHTS),
            random.choice((2, 3, 3, 4)),
            random.choice((0, 0, 1, 2)),
            random.choice((0, 0, 1, 2)),
            random.choice((0, 200, 1000)),
            random.choice((0, 0, 15, 30)),
            random.choice(("bidirectional", "bidirectional", "upgrade")),
            random.choice((300, 0, 8)),
            random.choice((600, 1, 4)),
            random.choice((0.0, 0.0, 0.15)),
        )


def run(seed: int, plan: ConsumersPlan | None = None) -> Mapping[str, int]:
    """Run one schedule, and return counts of its events, each with a name. Raises `SafetyViolation`, `Liveness`, and
    the product's exceptions.
    """
    random = Random(f"{seed}/consumers")
    plan = ConsumersPlan.draw(random) if plan is None else plan
    with turned({f"{RUNS}.INLINE_UNITS_MAX": plan.inline_units, f"{RUNS}.PART_UNITS": plan.part_units}):
        return _Run(plan, random).run()


class _Run(CoordinatorRun[ConsumerHost]):
    """One run of a schedule: brokers with group coordinators, and the clients of these coordinators."""

    def __init__(self, plan: ConsumersPlan, random: Random) -> None:
        self._consumers_plan = plan
        self._settings = GroupSettings(
            session_timeout_ms_min=SESSION_MS,
            initial_rebalance_delay_ms=300,
            new_member_join_timeout_ms=10_000,
            consumer_session_timeout_ms=SESSION_MS,
            consumer_assignment_interval_ms=plan.interval_ms,
            migration_policy=plan.policy,
        )
        self._counts = {FIRST_TOPIC: FIRST_PARTITIONS}
        self._metadata_offset = 1
        self._loaded_ms: dict[int, tuple[object, int]] = {}
        """The present coordinator shard of each broker id, and the time in ms when it was first seen loaded."""
        super().__init__(plan.partition, random)
        assert isinstance(self._promises, ConsumerPromises)
        self._consumer_promises = self._promises
        clients = self._clients = ConsumerClients(
            random, self._consumer_promises, self._hosts, lambda: self.now_ms, self._is_newest
        )
        for each in range(plan.consumers):
            instance_id = f"i{each}" if each < plan.static else None
            clients.add(ConsumerMember(clients, f"m{each}", instance_id))
        for each in range(plan.classic):
            clients.add(ClassicMember(clients, f"k{each}", None))
        if plan.static:
            clients.add(ConsumerMember(clients, "m0again", "i0"))
        for member in clients.members:
            if isinstance(member, ConsumerMember):
                member.restart_chance = plan.restart_chance
                if plan.classic:
                    member.stalls = plan.late

    def _new_promises(self) -> ConsumerPromises:
        return ConsumerPromises(self.plan.min_isr, GROUP)

    def _is_newest(self, host: GroupHost) -> bool:
        return host.broker.node_id == self._controller.state.leader

    def _told(self) -> Mapping[str, int]:
        return {
            "acknowledged": self._consumer_promises.commits,
            "handed over": self._consumer_promises.handed_over,
            "migrations": self._consumer_promises.migrations,
            "loads": self._consumer_promises.loads,
            "deaths": self.deaths,
        }

    def _new_host(self, node: Broker) -> ConsumerHost:
        host = ConsumerHost(node, self._settings, lambda: self.now_ms)
        host.see(self._counts, self._metadata_offset)
        return host

    # -- steps ----------------------------------------------------------------------------------------------------

    def _act(self) -> None:
        self._clients.act()

    def _deliver(self) -> None:
        self._clients.deliver_one()
        self._run_woken()

    def _answer(self) -> None:
        super()._answer()
        self._run_woken()

    def _run_woken(self) -> None:
        for host in list(self._hosts.values()):
            host.run_woken()

    def _forget(self) -> None:
        """Lose a random message, or let a random client stop waiting for its answer."""
        if self.random.random() < 0.5:
            self._clients.lose_one()
        else:
            self._clients.time_out()

    def _topics(self) -> None:
        """Create a topic, or add a partition to it."""
        name = self.random.choice(("t", "u"))
        self._counts[name] = min(self._counts.get(name, 1) + 1, PARTITIONS_MAX)
        self._metadata_offset += 1

    def _see(self) -> None:
        """Update the metadata of a random broker to the present topics."""
        if self._hosts:
            self.random.choice(list(self._hosts.values())).see(self._counts, self._metadata_offset)

    def _work_at(self, host: ConsumerHost) -> None:
        shard = host.shard
        was_loading = shard is not None and shard.is_loading
        super()._work_at(host)
        self._consumer_promises.wrote(host)
        if was_loading and host.shard is shard and shard is not None and not shard.is_loading:
            self._loaded_ms[host.broker.node_id] = (shard, self.now_ms)
            self._consumer_promises.loaded(host)

    def _time(self) -> None:
        super()._time()
        for host in list(self._hosts.values()):
            host.timers.fire_due(host.clock.monotonic())
            self._consumer_promises.wrote(host)
            self._check_sessions(host)

    def _check_sessions(self, host: ConsumerHost) -> None:
        """Check that a coordinator has removed every member whose last request is older than the session timeout."""
        shard, since = self._loaded_ms.get(host.broker.node_id, (None, 0))
        present = host.shard
        if present is None or present is not shard or present.is_loading:
            return
        group = present.newest_state.consumers.get(GROUP)
        for member_id in () if group is None else sorted(group.members):
            heard = max(self._clients.heard_ms(member_id, present), since)
            if self.now_ms > heard + SESSION_MS + SESSION_SLACK_MS:
                raise SafetyViolation(
                    f"{host.broker.node_id} keeps {member_id}, silent for {self.now_ms - heard} ms"
                )

    # -- the end of a schedule ------------------------------------------------------------------------------------

    def _heal(self) -> None:
        """Heal the replicas. Then step until the group has settled. Raise `Liveness` if the group does not settle."""
        super()._heal()
        self._clients.become_steady()
        for round_number in range(SETTLE_ROUNDS_MAX):
            for host in list(self._hosts.values()):
                host.see(self._counts, self._metadata_offset)
                self._work_at(host)
                host.timers.fire_due(host.clock.monotonic())
            for _ in range(4):
                self._clients.act()
                self._clients.deliver_oldest()
                self._clients.deliver_oldest()
            self._replicate()
            self._run_woken()
            self.now_ms += 50
            if round_number % 100 == 99:
                self._clients.give_up_all()
            if self._is_settled():
                break
        else:
            raise Liveness(f"the group does not settle in a healed cluster: {self._in_words()}")
        for _ in range(20):
            self._replicate()

    def _is_settled(self) -> bool:
        """True if each partition to which a member subscribes has one owner, and every member has finished its
        rebalance.
        """
        members = [each for each in self._clients.members if not each.is_replaced]
        topics = frozenset().union(*(each.topics for each in members))
        wanted = sorted((name, index) for name in topics for index in range(self._counts.get(name, 0)))
        held = sorted(tuple(at) for each in members for at in each.holder.held)
        return held == wanted and all(each.is_settled for each in members)

    def _in_words(self) -> object:
        return [
            (each.name, each.epoch, each.is_settled, sorted(each.topics), sorted(each.holder.held))
            for each in self._clients.members
        ], self._counts
