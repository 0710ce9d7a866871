"""Workload: a group with members of both protocols (KIP-848) that start, end, pause and return; their polls,
errors and late commits. PORTED.

Each slot is a machine on which one member after another runs, each for some seconds, as in `crowd`. A member is the
product's own consumer. The seed draws the protocol of each member, so the group migrates in both directions. After
the workload has ended, a last member with the consumer protocol runs on each machine and reads to the end.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from random import Random

import attrs

from odradek.client.consumer.consumer_types import OffsetAndMetadata, SubscriptionPattern
from odradek.client.consumer.group_calls import Coordinator, Member
from odradek.client.core.client_config import ClientConfig
from odradek.client.errors import ClientError
from odradek.client.shells.aio import AsyncClient
from odradek.client.shells.aio_consumer import AsyncConsumer
from odradek.env.ports import Env, Event, TaskGroup
from odradek.wire.batches.batch_errors import CorruptBatch
from odradek.wire.errors import KafkaError
from odradek.wire.topic_partition import TopicPartition
from sim.checks.bounds import GroupTimeouts
from sim.checks.groups.group_availability import GroupTerms
from sim.checks.groups.herd_promises import HerdPromises
from sim.history import SafetyViolation, Told
from sim.load.attachments import must_be_whole
from sim.load.consumers.lives import AWAY_SECONDS_MAX, live_out
from sim.load.consumers.watched_commits import WatchedCommits
from sim.load.workload import FETCH_BYTES_MAX, REQUEST_SECONDS, ROT_SECONDS, Workload

GROUP = "herd"
SLOTS = ("herd-1", "herd-2", "herd-3")
LEAVE_SECONDS = 5.0
POLL_SECONDS = 0.5
LATE_SECONDS = 3.0
STALL_SECONDS = (0.1, 6.0)
REBALANCE_MS = 6000
SESSION_SECONDS = 6.0
COMMITS_SECONDS = 10 * REQUEST_SECONDS
ENDS = ("close", "close", "die", "stall")

__all__ = ["GROUP", "SLOTS", "Herd"]


@attrs.frozen
class HerdPlan:
    """The settings of one member, from its start to its end."""

    protocol: str
    has_pattern: bool
    assignor: str
    auto_commit: bool
    commit_share: float
    late_share: float
    end: str
    life_seconds: float

    @classmethod
    def draw(cls, random: Random, classic_share: float) -> HerdPlan:
        """Draw settings. `classic_share` is the probability of the classic protocol."""
        return cls(
            "classic" if random.random() < classic_share else "consumer",
            random.random() < 0.3,
            random.choice(("uniform", "range")),
            random.random() < 0.4,
            random.choice((0.2, 1.0)),
            random.choice((0.0, 0.5)),
            random.choice(ENDS),
            random.uniform(1.0, 8.0),
        )


CALM = HerdPlan("consumer", False, "uniform", False, 1.0, 0.0, "close", 0.0)


class Herd:
    """One consumer group with members of both protocols. `start` starts the members. Call `check` once they have read
    everything.
    """

    def __init__(self, load: Workload) -> None:
        self._load = load
        self.promises = HerdPromises(GROUP, load.history)
        load.positions[GROUP] = self.promises.progress
        random = Random(f"{load.world.seed}/{GROUP}")
        self._classic_share = random.choice((0.0, 0.0, 0.3, 0.5))
        self._static_share = random.choice((0.0, 0.5))
        self.lives = 0

    @property
    def terms(self) -> GroupTerms:
        """The group for `GroupAvailability`. The group's members may leave and return."""
        timeouts = GroupTimeouts(SESSION_SECONDS, REBALANCE_MS / 1000, REQUEST_SECONDS)
        return GroupTerms(GROUP, SLOTS, timeouts, self._is_read, stays=False)

    def _is_read(self) -> bool:
        progress = self.promises.progress
        return self._load.reader_is_done({key: progress.get(key, 0) for key in self._load.partitions})

    def start(self) -> dict[str, Event]:
        """Start a task for each slot. Return an event for each slot; it is set when the slot's last member has read
        everything.
        """
        return {slot: self._load.world.spawn(self._live, slot) for slot in SLOTS}

    async def _live(self, slot: str) -> None:
        load = self._load
        world, random = load.world, Random(f"{load.world.seed}/{slot}")
        instance = slot if random.random() < self._static_share else None
        number = 0
        while not load.is_over:
            number += 1
            plan = HerdPlan.draw(random, self._classic_share)
            await self._one_life(slot, f"{slot}.{number}", instance, plan, random)
            await world.sleep(random.uniform(0.0, AWAY_SECONDS_MAX))
        life = HerdLife(load, self.promises, f"{slot}.last", instance, CALM)
        self.lives += 1
        await world.start_program(slot, partial(life.main, settings=self._settings())).ended.wait()

    async def _one_life(
        self, slot: str, name: str, instance: str | None, plan: HerdPlan, random: Random
    ) -> None:
        life = HerdLife(self._load, self.promises, name, instance, plan)
        self.lives += 1
        await live_out(
            self._load.world,
            slot,
            life,
            self._settings(),
            end=plan.end,
            life_seconds=plan.life_seconds,
            draw_stall=partial(random.uniform, *STALL_SECONDS),
            random=random,
        )
        self.promises.gone(name)

    def _settings(self) -> dict[str, str]:
        load = self._load
        return {
            "bootstrap.servers": ",".join(f"{host}:{port}" for host, port in load.bootstrap),
            "group.id": GROUP,
            "auto.offset.reset": "earliest",
            "max.poll.interval.ms": str(REBALANCE_MS),
            "fetch.max.bytes": str(FETCH_BYTES_MAX),
            "request.timeout.ms": str(int(load.request_seconds * 1000)),
        }

    def figures(self) -> dict[str, int]:
        """Count the members, the partitions that moved to another member, and the late commits."""
        promises = self.promises
        return {
            "herd_lives": self.lives,
            "hand_overs": promises.hand_overs,
            "herd_late_commits": promises.refused_late,
        }

    async def check(self, name: str) -> None:
        """Check that all records were read, and that acknowledged commits are kept. Raises `SafetyViolation`."""
        load = self._load
        self.promises.check()
        client = AsyncClient(
            load.world.node_env(name),
            load.world.tasks,
            load.bootstrap,
            ClientConfig(client_id=name, request_timeout=REQUEST_SECONDS, fail_fast=False),
        )
        coordinator = Coordinator(client.core, GROUP)
        deadline = client.core.now + COMMITS_SECONDS
        found = await client.run(coordinator.committed(load.partitions, deadline=deadline))
        self.promises.check_commits(
            {key: None if each is None else each.offset for key, each in found.items()}
        )
        client.close()


class HerdLife:
    """One run of a member's process, with the product's own consumer. This object is also the consumer's rebalance
    listener.
    """

    def __init__(
        self, load: Workload, promises: HerdPromises, name: str, instance: str | None, plan: HerdPlan
    ) -> None:
        self._load = load
        self._promises = promises
        self._name = name
        self._instance = instance
        self._plan = plan
        self._random = Random(f"{load.world.seed}/{name}")
        self._moved: set[TopicPartition] = set()
        self._former: dict[TopicPartition, Member] = {}
        """Partitions that this member has lost, with its member identity at that time."""
        self.is_over = False
        """If set to True, the member closes and the process ends."""

    async def main(self, env: Env, tasks: TaskGroup, settings: Mapping[str, str]) -> None:
        """Run the member until it is stopped or everything is read, then leave the group."""
        plan = self._plan
        own = {
            "client.id": self._name,
            "group.protocol": plan.protocol,
            "enable.auto.commit": str(plan.auto_commit).lower(),
            "auto.commit.interval.ms": "500",
            **({} if self._instance is None else {"group.instance.id": self._instance}),
        }
        if plan.protocol == "consumer":
            own["group.remote.assignor"] = plan.assignor
        else:
            own |= {"session.timeout.ms": "6000", "heartbeat.interval.ms": "500"}
        self._consumer = consumer = AsyncConsumer(env, tasks, {**settings, **own})
        machine = consumer._machine
        assert machine.membership is not None
        assert machine.coordinator is not None
        self._membership, self._coordinator = machine.membership, machine.coordinator
        watched = WatchedCommits(
            self._load.world, self._promises, self._name, machine.core, machine.coordinator
        )
        self._commit_unwatched = watched.sound
        consumer.subscribe(self._subscription(), listener=self)
        while not (self.is_over or self._load.reader_is_done(self._progress())):
            await self._try(env)
        await consumer.close(LEAVE_SECONDS)

    def _subscription(self) -> list[str] | SubscriptionPattern:
        topics = list(self._load.topics)
        if self._plan.has_pattern and self._plan.protocol == "consumer":
            return SubscriptionPattern("|".join(map(re.escape, topics)))
        return topics

    async def _try(self, env: Env) -> None:
        """Poll once and handle the records. If the cluster returns an error, record the error and pause."""
        world = self._load.world
        try:
            await self._turn()
        except (KafkaError, ClientError) as error:
            world.trace.record(world.now, self._name, "group", error)
            pause = ROT_SECONDS if isinstance(error.__cause__, CorruptBatch) else POLL_SECONDS
            await env.clock.sleep_until(env.clock.monotonic() + pause)

    def _progress(self) -> dict[TopicPartition, int]:
        return {key: self._promises.progress.get(key, 0) for key in self._load.partitions}

    async def _turn(self) -> None:
        plan, random, consumer, load = self._plan, self._random, self._consumer, self._load
        began = load.world.now
        self._moved.clear()
        told: list[Told] = []
        for record in await consumer.poll(POLL_SECONDS):
            key = TopicPartition(record.topic, record.partition)
            value = record.value or b""
            must_be_whole(f"{self._name}: {key} {record.offset}", record.key, value, record.headers)
            told.append(Told(key, record.offset, value, began))
        self._promises.handed(self._name, told, load.world.now)
        load.history.see(self._name, told, load.world.now, rebalanced=sorted(self._moved))
        if told and not plan.auto_commit and random.random() < plan.commit_share:
            await consumer.commit()
        if self._former and random.random() < plan.late_share:
            await self._commit_late()

    async def _commit_late(self) -> None:
        """Commit an offset of a lost partition with the former member epoch, after another member has begun to read
        that partition. The coordinator must reject this commit.
        """
        key = self._random.choice(sorted(self._former))
        former = self._former.pop(key)
        if (
            not self._promises.has_begun_after(self._name, key)
            or self._membership.generation <= former.generation
        ):
            return
        commit = self._promises.commits_late(self._name, {key: 0})
        deadline = self._consumer.client.core.now + LATE_SECONDS
        sent = self._commit_unwatched({key: OffsetAndMetadata(0)}, former, deadline=deadline, topic_ids={})
        try:
            await self._consumer.client.run(sent)
        except (KafkaError, ClientError) as error:
            self._promises.refused(commit, self._load.world.now, repr(error), certain=False)
            return
        try:
            self._promises.committed(commit, self._load.world.now)
        except SafetyViolation as error:
            self._load.world.refute(error)

    # Rebalance listener

    def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
        """Called when these partitions are assigned to the member."""
        self._moved |= set(partitions)
        for key in partitions:
            self._former.pop(key, None)
        self._promises.begins(self._name, partitions, self._load.world.now)

    def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
        """Called when the member must give these partitions up."""
        if self._membership.is_member and self._plan.protocol == "consumer":
            self._former |= dict.fromkeys(partitions, self._membership.member)
        self.on_partitions_lost(partitions)

    def on_partitions_lost(self, partitions: list[TopicPartition]) -> None:
        """Called when the member has lost these partitions."""
        self._moved |= set(partitions)
        self._promises.ends(self._name, partitions)
