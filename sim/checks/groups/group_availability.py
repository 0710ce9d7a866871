"""Check of liveness for groups: a group that could be stable must become stable in time. PURE.

* **Rebalance.** Suppose that the coordinator leads its partition and is fit. Suppose that all in-sync replicas and
  their links to the coordinator are fit, too, and that there are at least `min.insync.replicas` of them. Then no
  phase of a rebalance takes longer than the rebalance timeout, whatever members do.
* **Members.** Suppose in addition that the group's members, all brokers, and the links between them have not
  changed. Then the group is stable after the longest session and one rebalance. All brokers count, since a member
  may still wait for an answer of an earlier coordinator.
* **Consumer groups.** Within the same time, each partition of a group with the consumer protocol has an owner, and
  all members have the group's epoch.

A group without members is checked only if its members should exist for the whole workload. Once everything is read,
no group is checked, since the members close.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

import attrs

from odradek.data_plane.groups.classic_group import GroupPhase
from sim.checks.bounds import GroupTimeouts
from sim.checks.fitness import NEVER
from sim.checks.outages import Outage, Outages, Server

if TYPE_CHECKING:
    from odradek.data_plane.groups.classic_group import ClassicGroup
    from odradek.data_plane.groups.consumers.consumer_group import ConsumerGroup
    from sim.checks.fitness import Fitness

__all__ = ["GroupAvailability", "GroupTerms"]


@attrs.frozen(eq=False)
class GroupTerms:
    """A group of the workload that is checked. `hosts` are the machines of its members."""

    group: str
    hosts: Sequence[str]
    timeouts: GroupTimeouts
    is_over: Callable[[], bool]
    """True once everything is read. From then on the group's members close."""
    stays: bool
    """True if the group should have members for the whole workload."""


class Coordinators(Protocol):
    """The part of `Availability` that finds a group's coordinator."""

    brokers: Sequence[str]

    def coordinator_of(self, group: str) -> Server | None:
        """Return the process that leads a group's partition of `__consumer_offsets`; None if there is none."""

    def in_sync_since(self, server: Server) -> float:
        """Return the virtual time since which all in-sync replicas of the coordinator's partition, and their links,
        have been fit.
        """


@attrs.define(eq=False)
class _Seen:
    """The state of a group at the last call of `look`."""

    state: object = None
    members: object = None
    members_changed: float = 0.0
    phase: Outage | None = None
    unstable: Outage | None = None


class GroupAvailability:
    """The check that the groups named by `watch` become stable in time."""

    def __init__(self, coordinators: Coordinators, fitness: Fitness, outages: Outages) -> None:
        self._coordinators = coordinators
        self._world = outages.world
        self._fitness = fitness
        self._outages = outages
        self._seen: dict[str, tuple[GroupTerms, _Seen]] = {}

    def watch(self, terms: GroupTerms) -> None:
        """Check this group from now on."""
        self._seen[terms.group] = (terms, _Seen())

    def look(self) -> None:
        """Check all groups. Raises `Liveness`."""
        for name, (terms, seen) in self._seen.items():
            self._note_members(terms, seen)
            server = self._coordinators.coordinator_of(name)
            if server is None or not self._look_at(terms, seen, server):
                seen.phase = seen.unstable = seen.state = None

    def _note_members(self, terms: GroupTerms, seen: _Seen) -> None:
        machines = self._world.machines
        members = [
            (host, machines[host].env, machines[host].env.alive, machines[host].env.stopped)  # type: ignore[union-attr]
            for host in terms.hosts
            if host in machines and machines[host].env is not None
        ]
        if members != seen.members:
            seen.members, seen.members_changed = members, self._world.now

    def _look_at(self, terms: GroupTerms, seen: _Seen, server: Server) -> bool:
        """Check a group. Return False if the group is stable, or if its coordinator cannot serve it."""
        shard = server.broker.groups.shards.get(server.key.partition)
        if shard is None or shard.is_loading or not shard.partition.has_min_isr:
            return False
        consumers = shard.newest_state.consumers.get(terms.group)
        if consumers is not None:
            return self._look_at_consumers(terms, seen, server, consumers)
        group = shard.machine.membership.groups.get(terms.group)
        is_empty = group is None or group.phase in (GroupPhase.EMPTY, GroupPhase.DEAD)
        if (group is not None and group.phase is GroupPhase.STABLE) or (is_empty and not terms.stays):
            return False
        now = self._world.now
        state = (shard, group and group.phase, group and group.generation)
        if seen.phase is None or seen.state != state:
            seen.phase, seen.state = Outage(now, "rebalance"), state
        if seen.unstable is None:
            seen.unstable = Outage(now, "members")
        since = max(server.since, self._coordinators.in_sync_since(server))
        if since == NEVER:
            return True
        if group is not None and not is_empty:
            self._judge_phase(terms, group, seen.phase, since)
        self._judge_members(terms, seen, seen.unstable, since)
        return True

    def _look_at_consumers(
        self, terms: GroupTerms, seen: _Seen, server: Server, group: ConsumerGroup
    ) -> bool:
        """Check a group with the consumer protocol: each member has the newest epoch, and each partition an owner."""
        topics = server.broker.newest.image.topics
        unowned = [
            (name, index)
            for name in sorted(
                {*group.topic_counts, *(each for some in group.resolved.values() for each in some.topics)}
            )
            if name in topics
            for index in topics[name].partitions
            if (topics[name].topic_id, index) not in group.owners
        ]
        old = [each for each, member in sorted(group.members.items()) if member.epoch < group.epoch]
        seen.phase = seen.state = None
        if not group.members or not (unowned or old):
            return False
        if seen.unstable is None:
            seen.unstable = Outage(self._world.now, "members")
        since = max(server.since, self._coordinators.in_sync_since(server))
        if since != NEVER:
            self._judge_members(terms, seen, seen.unstable, since)
        return True

    def _judge_phase(self, terms: GroupTerms, group: ClassicGroup, outage: Outage, since: float) -> None:
        what = f"the group {terms.group} is in the phase {group.phase.value}"
        self._outages.judge("group", outage, since, what, "its coordinator and all in sync", terms.timeouts)

    def _judge_members(self, terms: GroupTerms, seen: _Seen, outage: Outage, since: float) -> None:
        fitness = self._fitness
        latest = max(since, seen.members_changed)
        for broker in self._coordinators.brokers:
            latest = max(latest, fitness.changed(broker))
            for host in terms.hosts:
                if fitness.is_cut(host, broker):
                    return
                latest = max(latest, fitness.link_changed(host, broker))
        if not terms.is_over():
            what = f"the group {terms.group} is not stable"
            could = f"{', '.join(terms.hosts)} and all brokers are as they were"
            self._outages.judge("group", outage, latest, what, could, terms.timeouts)
