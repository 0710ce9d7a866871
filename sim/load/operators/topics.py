"""An operator that creates a topic, writes to it, adds partitions, deletes records, deletes the topic and creates it
again. PORTED.

Each topic from its creation to its deletion is called a life of the name. At the end a topic has the id and the
partitions that were last acknowledged. It has every record that was acknowledged since its creation, except deleted
records. Records of an earlier life, and records that were acknowledged as deleted, are absent. If an answer about a
creation or deletion is missing, the name is no longer used.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import attrs

from odradek.client.admin import NewTopic, create_partitions, create_topics, delete_topics
from odradek.client.admin.admin_logs import delete_records
from odradek.client.core.partition_offsets import EARLIEST, LATEST, list_offsets
from odradek.client.errors import ClientError
from odradek.wire.errors import KafkaError
from odradek.wire.topic_partition import TopicPartition
from sim.history import SafetyViolation
from sim.load.fetching import FetchConfig, Fetcher
from sim.load.operators.duty import CALL_SECONDS, Duty, Possible, Site
from sim.load.producing import ProduceConfig, Producing, RecordToSend

NAMES_MAX = 6
PARTITIONS_MAX = 4
READ_SECONDS_MAX = 60.0

__all__ = ["Life", "Name", "Topics"]


@attrs.define
class Life:
    """A topic from its creation to its deletion."""

    topic_id: bytes
    partitions: Possible[int]
    acknowledged: dict[TopicPartition, dict[int, bytes]] = attrs.Factory(dict)
    """The value of each acknowledged record, by partition and offset."""
    deleted_below: dict[TopicPartition, int] = attrs.Factory(dict)
    """For each partition, the log start offset that DeleteRecords has acknowledged."""
    asked_below: dict[TopicPartition, int] = attrs.Factory(dict)
    """For each partition, the offset below which records may have been deleted, because a client has requested it."""
    configs: Mapping[str, str] = attrs.Factory(dict)
    """The configuration with which the topic was created."""


@attrs.define
class Name:
    """A topic name, the present topic with this name, and the ids of earlier topics with this name."""

    name: str
    life: Life | None = None
    lives: int = 0
    before: dict[bytes, bytes] = attrs.Factory(dict)
    """For each record value of a deleted topic, the id of the topic in which the record was acknowledged."""
    gone: list[bytes] = attrs.Factory(list)
    """Ids of deleted topics."""
    is_known: bool = True
    """True if every creation and deletion was answered."""


class Topics(Duty):
    """An operator that creates, writes and deletes its own topics, one after another."""

    prefix = "remade"
    """The prefix of the operator's topic names."""
    reset_to: int | None = None
    """The offset at which the final reading continues if the records at its position have been removed. None if
    missing records are an error.
    """

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self._names = [Name(f"{self.prefix}-1")]
        self._serial = 0
        self._producing = Producing(
            self.client.core,
            ProduceConfig(batch_bytes_max=self.random.choice((300, 4096)), auto_create=False),
        )

    @property
    def lives(self) -> int:
        """The number of topics that were created."""
        return sum(each.lives for each in self._names)

    async def step(self) -> None:
        name = self._names[-1]
        if not name.is_known:
            if len(self._names) >= NAMES_MAX:
                return
            name = Name(f"{self.prefix}-{len(self._names) + 1}")
            self._names.append(name)
        if name.life is None:
            await self._make(name)
            return
        draw = self.random.random()
        if draw < 0.5:
            await self._write(name.name, name.life)
        elif draw < 0.65:
            await self._trim(name.name, name.life)
        elif draw < 0.8:
            await self._grow(name.name, name.life)
        else:
            await self._delete(name, name.life)

    async def _make(self, name: Name) -> None:
        count = self.random.choice((1, 2))
        configs = self.configs_of_next_life()
        wanted = NewTopic(name.name, count, self.site.replicas, configs)
        name.is_known = False
        (made,) = await self.client.run(create_topics(self.client.core, [wanted], timeout=CALL_SECONDS))
        if made.error is not None:
            raise made.error
        topic_id = made.topic_id
        if topic_id == bytes(16) and self.site.cluster.shape.older:
            topic_id = await self._id_of(name)  # Before version 7, CreateTopics does not return the id.
        if topic_id in (bytes(16), *name.gone):
            raise SafetyViolation(f"{name.name} was made anew with the id {topic_id.hex()}")
        name.is_known = True
        name.lives += 1
        name.life = Life(topic_id, Possible(wanted.partitions), configs=configs)

    def configs_of_next_life(self) -> dict[str, str]:
        """Return the configuration of the next topic."""
        return {"min.insync.replicas": "1"}

    def key_of(self, serial: int) -> bytes | None:
        """Return the key of the record with this serial number, or None."""
        return None

    async def _id_of(self, name: Name) -> bytes:
        """Return the id of a topic that was just created: the first id that a broker reports, except ids of deleted
        topics.
        """
        while True:
            known = await self.client.metadata([name.name])
            there = known.topics.get(name.name)
            if there is not None and there.topic_id not in name.gone:
                return there.topic_id
            await self.world.sleep(0.1)

    async def _delete(self, name: Name, life: Life) -> None:
        name.is_known = False
        ((_, error),) = await self.client.run(
            delete_topics(self.client.core, [name.name], timeout=CALL_SECONDS)
        )
        if error is not None:
            raise error
        name.is_known = True
        name.life = None
        name.gone.append(life.topic_id)
        for values in life.acknowledged.values():
            name.before.update(dict.fromkeys(values.values(), life.topic_id))

    async def _grow(self, name: str, life: Life) -> None:
        known = await self.client.metadata([name])
        count = len(known.topic(name).partitions) + 1
        if count > PARTITIONS_MAX:
            return
        try:
            ((_, error),) = await self.client.run(
                create_partitions(self.client.core, {name: count}, timeout=CALL_SECONDS)
            )
        except ClientError:
            life.partitions.ask(count)
            raise
        if error is not None:
            life.partitions.ask(count)
            raise error
        life.partitions.acknowledge(count)

    async def _write(self, name: str, life: Life) -> None:
        known = await self.client.metadata([name])
        if known.topic(name).topic_id != life.topic_id:
            return  # The broker that answered does not know the new topic yet.
        count = len(known.topic(name).partitions)
        # The records need the present time, since retention removes records with old timestamps.
        now_ms = self.world.node_env(self.site.name).clock.wall_ms()
        partition, records = self.random.randrange(count), []
        for _ in range(self.random.choice((1, 5, 20))):
            self._serial += 1
            value = b"%s:%d:%s" % (self.site.name.encode(), self._serial, life.topic_id.hex().encode())
            record_key = self.key_of(self._serial)
            records.append(RecordToSend(name, value, record_key, partition=partition, timestamp_ms=now_ms))
        key = TopicPartition(name, partition)
        there = life.acknowledged.setdefault(key, {})
        for delivery in await self.client.run(self._producing.produce(records, timeout=CALL_SECONDS)):
            if delivery.error is None and delivery.base_offset >= 0:
                for offset, index in enumerate(delivery.indexes, delivery.base_offset):
                    there[offset] = records[index].value or b""

    async def _trim(self, name: str, life: Life) -> None:
        kept = [(key, offset) for key, values in life.acknowledged.items() for offset in values]
        if not kept:
            return
        key, offset = self.random.choice(kept)
        life.asked_below[key] = max(offset, life.asked_below.get(key, 0))
        trimming = delete_records(self.client.core, {key: offset}, timeout=CALL_SECONDS)
        deleted = (await self.client.run(trimming))[key]
        if deleted.error is not None:
            raise deleted.error
        life.deleted_below[key] = max(offset, life.deleted_below.get(key, 0))

    # -- final checks ------------------------------------------------------------------------------

    async def check(self) -> None:
        for name in self._names:
            if name.is_known:
                await self.must_hold(partial(self._wrong_life, name))
                if name.life is not None:
                    await self._check_records(name, name.life)

    async def _wrong_life(self, name: Name) -> str | None:
        known = await self.client.metadata()
        there = known.topics.get(name.name)
        if there is None or name.life is None:
            return None if there is None and name.life is None else f"{name.name}: {there} is there"
        if there.topic_id != name.life.topic_id:
            return f"{name.name} has the id {there.topic_id.hex()}, not {name.life.topic_id.hex()}"
        if not name.life.partitions.allows(len(there.partitions)):
            return f"{name.name} has {len(there.partitions)} partitions, not {name.life.partitions}"
        return None

    async def _check_records(self, name: Name, life: Life) -> None:
        known = await self.client.metadata([name.name])
        keys = [TopicPartition(name.name, index) for index in sorted(known.topic(name.name).partitions)]
        starts = await self.offsets(keys, EARLIEST)
        ends = await self.offsets(keys, LATEST)
        there = await self._read(starts, ends)
        for key in keys:
            self.check_partition(name, life, key, starts[key], there[key])

    def check_partition(
        self, name: Name, life: Life, key: TopicPartition, start: int, values: Mapping[int, bytes]
    ) -> None:
        """Check the records of a partition, by offset. Raises `SafetyViolation`."""
        if not life.deleted_below.get(key, 0) <= start <= life.asked_below.get(key, 0):
            raise SafetyViolation(
                f"{key} begins at {start}: the records below {life.deleted_below.get(key, 0)} were deleted, "
                f"and the deletion of those below {life.asked_below.get(key, 0)} was requested"
            )
        self.check_values(name, key, values)
        for offset, value in life.acknowledged.get(key, {}).items():
            if offset >= start and values.get(offset) != value:
                raise SafetyViolation(
                    f"{key}: {value!r} was acknowledged at {offset}, {values.get(offset)!r} is there"
                )

    @staticmethod
    def check_values(name: Name, key: TopicPartition, values: Mapping[int, bytes]) -> None:
        """Check that no record of an earlier topic with this name is present. Raises `SafetyViolation`."""
        for offset, value in values.items():
            if value in name.before:
                raise SafetyViolation(f"{key}: {value!r} of a deleted topic is at {offset} of the new one")

    async def offsets(self, keys: list[TopicPartition], moment: int) -> dict[TopicPartition, int]:
        asked = list_offsets(self.client.core, dict.fromkeys(keys, moment), timeout=READ_SECONDS_MAX)
        return {key: listed.offset for key, listed in (await self.client.run(asked)).items()}

    async def _read(
        self, starts: dict[TopicPartition, int], ends: dict[TopicPartition, int]
    ) -> dict[TopicPartition, dict[int, bytes]]:
        fetcher = Fetcher(self.client.core, FetchConfig(reset_to=self.reset_to))
        found: dict[TopicPartition, dict[int, bytes]] = {key: {} for key in starts}
        for key, start in starts.items():
            fetcher.assign(*key, start)
        deadline = self.world.now + READ_SECONDS_MAX
        while any(fetcher.positions[key] < end for key, end in ends.items()):
            if self.world.now >= deadline:
                raise SafetyViolation(f"{self.site.name}: {fetcher.positions} do not come to {ends}")
            try:
                polled = await self.client.run(fetcher.poll(timeout=1.0))
            except (KafkaError, ClientError) as error:
                self.world.trace.record(self.world.now, self.site.name, "poll", error)
                continue
            for each in polled:
                values = found[TopicPartition(each.topic, each.partition)]
                values.update((record.offset, record.value or b"") for record in each.records())
        return found
