"""A classic member's process in `crowd.py`: its polls and their errors, commits, seeks, and what its rebalance
listener records. The group's checks record everything that the member receives. PORTED.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Mapping, Sequence
from random import Random

from odradek.client.consumer.consumer_types import ConsumerRecord, OffsetAndMetadata
from odradek.client.consumer.group_calls import Member
from odradek.client.consumer.group_membership import GroupMembership, MembershipState
from odradek.client.errors import ClientError
from odradek.client.shells.aio_consumer import AsyncConsumer
from odradek.env.ports import Env, TaskGroup
from odradek.wire.batches.batch_errors import CorruptBatch
from odradek.wire.errors import KafkaError
from odradek.wire.topic_partition import TopicPartition
from sim.checks.groups.group_promises import GroupPromises
from sim.history import Told
from sim.load.attachments import must_be_whole
from sim.load.consumers.member_plan import MemberPlan
from sim.load.consumers.watched_commits import WatchedCommits
from sim.load.workload import ROT_SECONDS, Workload

POLL_SECONDS = 0.5
FINAL_SECONDS = 0.2
"""How long a member rests after an error that every further call raises at once, as after FENCED_INSTANCE_ID."""
TURNS_AFTER_RETURN = 4
CLOSE_SECONDS = 5.0
LATE_SECONDS = 3.0
LOOK_UP_SECONDS = 3.0
OLD_MS_MAX = 20_000
BACK_MAX = 50

__all__ = ["MemberLife"]


class MemberLife:
    """Reads the partitions that the group assigns to it, until it is stopped. This object is also the rebalance
    listener of the consumer.
    """

    def __init__(
        self, load: Workload, promises: GroupPromises, name: str, instance: str | None, plan: MemberPlan
    ) -> None:
        self._load = load
        self._promises = promises
        self._name = name
        self._instance = instance
        self._plan = plan
        self._random = Random(f"{load.world.seed}/{name}")
        self._moved: set[TopicPartition] = set()
        self._identity: Member | None = None
        """The member's identity in the latest generation with an assignment."""
        self._former: Member | None = None
        """The member's identity in an earlier generation, for a commit that must be rejected."""
        self.is_over = False
        """If set to True, the member closes and the process ends."""

    async def main(self, env: Env, tasks: TaskGroup, settings: Mapping[str, str]) -> None:
        """Run the member until it is stopped or everything is read, then leave the group."""
        static = {} if self._instance is None else {"group.instance.id": self._instance}
        self._consumer = consumer = AsyncConsumer(
            env, tasks, {**settings, "client.id": self._name, **self._plan.settings, **static}
        )
        machine = consumer._machine
        assert isinstance(machine.membership, GroupMembership)
        assert machine.coordinator is not None
        self._membership: GroupMembership = machine.membership
        self._coordinator = machine.coordinator
        world = self._load.world
        self._watched = WatchedCommits(world, self._promises, self._name, machine.core, machine.coordinator)
        consumer.subscribe(list(self._load.topics), listener=self)
        while not (self.is_over or self._load.reader_is_done(self._progress())):
            await self._try(env, self._turn(env))
        if self._plan.end == "unsubscribe":
            await self._try(env, consumer.unsubscribe())
            consumer.subscribe(list(self._load.topics), listener=self)
            for _ in range(TURNS_AFTER_RETURN):
                await self._try(env, self._turn(env))
        await consumer.close(CLOSE_SECONDS)

    async def _try(self, env: Env, doing: Awaitable[None]) -> None:
        """Await `doing`. Record errors that the cluster returns, instead of raising them."""
        world = self._load.world
        began = world.now
        try:
            await doing
        except (KafkaError, ClientError) as error:
            world.trace.record(world.now, self._name, "group", error)
            if isinstance(error.__cause__, CorruptBatch):
                await env.clock.sleep_until(env.clock.monotonic() + ROT_SECONDS)
            elif world.now == began:
                # The error is final, so each further call raises it at once. No virtual time would ever pass.
                await env.clock.sleep_until(env.clock.monotonic() + FINAL_SECONDS)

    def _progress(self) -> dict[TopicPartition, int]:
        return {key: self._promises.progress.get(key, 0) for key in self._load.partitions}

    async def _turn(self, env: Env) -> None:
        """Poll once, check the records, and perhaps commit or seek."""
        plan, random, consumer = self._plan, self._random, self._consumer
        began = self._load.world.now
        self._moved.clear()
        records = await consumer.poll(POLL_SECONDS)
        self._take(records, began)
        if self._membership.state is MembershipState.STABLE and self._membership.is_member:
            self._owns(consumer.assignment())
        if records and not plan.auto_commit and random.random() < plan.commit_share:
            if plan.waits:
                await consumer.commit()
            else:
                consumer.commit_soon()
        if records and random.random() < plan.seek_share:
            await self._seek()
        if self._former is not None and random.random() < plan.late_share:
            await self._commit_late()
        if plan.rest_seconds:
            await env.clock.sleep_until(env.clock.monotonic() + random.uniform(0.0, plan.rest_seconds))

    def _take(self, records: Sequence[ConsumerRecord], began: float) -> None:
        load = self._load
        told: list[Told] = []
        for record in records:
            key = TopicPartition(record.topic, record.partition)
            value = record.value or b""
            must_be_whole(f"{self._name}: {key} {record.offset}", record.key, value, record.headers)
            told.append(Told(key, record.offset, value, began))
        self._promises.handed(self._name, told, load.world.now)
        load.history.see(self._name, told, load.world.now, rebalanced=sorted(self._moved))

    async def _seek(self) -> None:
        """Seek back in a random partition: to its beginning, by some records, or to a timestamp."""
        random, consumer = self._random, self._consumer
        known = [key for key in sorted(consumer.assignment()) if self._promises.has_begun(self._name, key)]
        if not known or self._load.ends is not None:
            return
        key = random.choice(known)
        position = await consumer.position(key)
        target = random.choice((0, max(0, position - random.randint(1, BACK_MAX))))
        if key in self._load.history.deleted_below:
            return
        if random.random() < 0.5:
            moment = self._load.world.node_env(self._name).clock.wall_ms() - random.randint(0, OLD_MS_MAX)
            found = await consumer.offsets_for_times({key: max(0, moment)}, LOOK_UP_SECONDS)
            at = found[key]
            if at is None or at.offset > position:
                return
            target = at.offset
        if key in consumer.assignment() and self._promises.has_begun(self._name, key):
            consumer.seek(key, target)
            self._promises.seeks(self._name, key, target)
            self._moved.add(key)

    async def _commit_late(self) -> None:
        """Commit as a member of an earlier generation. `GroupPromises` checks that the coordinator rejects that."""
        former, self._former = self._former, None
        assert former is not None
        offsets = {self._random.choice(self._load.partitions): OffsetAndMetadata(0)}
        deadline = self._consumer.client.core.now + LATE_SECONDS
        await self._consumer.client.run(
            self._coordinator.commit(offsets, former, deadline=deadline, topic_ids={})
        )

    # Rebalance listener

    @property
    def _owner(self) -> str:
        return self._name if self._instance is None else self._instance

    def _owns(self, keys: Iterable[TopicPartition]) -> None:
        identity = self._membership.member
        if self._identity is not None and self._identity.generation < identity.generation:
            self._former = self._identity
        self._identity = identity
        self._promises.owns(
            self._name,
            identity.generation,
            sorted(keys),
            self._load.world.now,
            owner=self._owner,
            asked=self._watched.syncs.get(identity.generation),
        )

    def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
        """Record the ownership of these partitions."""
        now = self._load.world.now
        self._moved |= set(partitions)
        if self._membership.state is MembershipState.ADOPTING and self._membership.is_member:
            self._owns(self._consumer.assignment())
        self._promises.begins(self._name, partitions, now)

    def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
        """Record that this member gives up these partitions, and has owned them until now."""
        if self._membership.state is MembershipState.ADOPTING and self._membership.is_member:
            self._owns(partitions)
        self.on_partitions_lost(partitions)

    def on_partitions_lost(self, partitions: list[TopicPartition]) -> None:
        """Called when the member has lost these partitions."""
        self._moved |= set(partitions)
        self._promises.ends(self._name, partitions)
