"""The publisher turns the committed log into images.

It publishes whole transactions only, and each image once and in order.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from odradek.env.ports import Env
from odradek.metadata_quorum.image.metadata_image import MetadataDelta, MetadataImage
from odradek.metadata_quorum.ports import Snapshot, StoredSnapshot
from odradek.metadata_quorum.replica.metadata_batches import (
    batch_of_control_records,
    batch_of_values,
    encode_values,
)
from odradek.metadata_quorum.replica.publisher import MetadataPublisher, difference
from odradek.metadata_quorum.replica.turns import Turns
from odradek.wire.messages.control_records import LeaderChangeMessage
from odradek.wire.messages.metadata_records import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    ConfigRecord,
    EndTransactionRecord,
    FeatureLevelRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RemoveTopicRecord,
    TopicRecord,
)
from odradek.wire.structure import Message
from sim.machine.weather import Weather
from sim.machine.world import World

CLUSTER_ID = "cluster"


class Log:
    """A log in memory, whose batches are all committed."""

    def __init__(self) -> None:
        self.batches: list[tuple[int, bytes]] = []
        self.end_offset = 0

    def append(self, records: Sequence[Message], epoch: int = 1, *, control: bool = False) -> None:
        if control:
            data = batch_of_control_records(records, self.end_offset, epoch, 1)
        else:
            data = batch_of_values(encode_values(records), self.end_offset, epoch, 1)
        self.batches.append((self.end_offset, bytes(data)))
        self.end_offset += len(records)

    def read(self, offset: int, bytes_max: int) -> bytes:
        """Read the batch that contains `offset`. Only one batch is returned, so that there are many reads."""
        found = [data for base, data in self.batches if base <= offset]
        return found[-1]


def play(script: Callable[[Log, MetadataPublisher, list[Any]], Awaitable[None]]) -> None:
    world = World(1, Weather())

    async def main(env: Env) -> None:
        log = Log()
        publisher = MetadataPublisher(CLUSTER_ID, log.read, Turns(env.event), env.workers)
        seen: list[Any] = []
        publisher.subscribe(lambda image, delta: seen.append((image, delta)))
        await script(log, publisher, seen)

    async def run() -> None:
        await world.start("n1", main).ended.wait()

    world.run(run)


def id_of(name: str) -> bytes:
    return name.encode().ljust(16, b"-")


def topic(name: str, leader: int = 1) -> list[Message]:
    topic_id = id_of(name)
    return [
        TopicRecord(name, topic_id),
        PartitionRecord(0, topic_id, [1, 2], [1, 2], leader=leader, leader_epoch=0, partition_epoch=0),
    ]


def test_each_read_is_an_image_and_control_records_only_move_the_offset() -> None:
    """Observers see every image once and in order.

    Control records only advance the offset, and nothing above the high watermark is read.
    """

    async def script(log: Log, publisher: MetadataPublisher, seen: list[Any]) -> None:
        log.append([LeaderChangeMessage(0, 1)], control=True)
        log.append([FeatureLevelRecord("metadata.version", 30)])
        log.append(topic("a"))
        log.append(topic("b"))
        await publisher.replay(4)
        assert [image.offset for image, _ in seen] == [0, 1, 3]
        assert set(publisher.image.topics) == {"a"}
        await publisher.replay(log.end_offset)
        assert [delta.created_topics for _, delta in seen] == [(), (), ("a",), ("b",)]
        assert publisher.next_offset == log.end_offset

    play(script)


@pytest.mark.reaches("quorum.image_waits_for_transaction")
def test_a_transaction_becomes_visible_as_a_whole() -> None:
    """Records between BeginTransaction and EndTransaction become visible together (KIP-868).

    Aborted records never become visible.
    """

    async def script(log: Log, publisher: MetadataPublisher, seen: list[Any]) -> None:
        log.append([BeginTransactionRecord("many topics"), *topic("a")])
        log.append(topic("b"))
        await publisher.replay(log.end_offset)
        assert publisher.in_transaction
        assert seen == []
        log.append([*topic("c"), EndTransactionRecord()])
        await publisher.replay(log.end_offset)
        assert not publisher.in_transaction
        assert [set(image.topics) for image, _ in seen] == [{"a", "b", "c"}]
        log.append([BeginTransactionRecord("never"), *topic("d")])
        log.append([AbortTransactionRecord("a new leader")], 2)
        await publisher.replay(log.end_offset)
        assert set(publisher.image.topics) == {"a", "b", "c"}

    play(script)


def test_a_snapshot_takes_the_place_of_what_was_not_replayed() -> None:
    """A snapshot replaces records that were not replayed.

    Observers get one image with its difference, and the log continues after it.
    """

    async def script(log: Log, publisher: MetadataPublisher, seen: list[Any]) -> None:
        log.append([*topic("kept"), *topic("gone"), *topic("changed")])
        await publisher.replay(log.end_offset)
        records = (*topic("kept"), *topic("changed", leader=2), *topic("new"))
        await publisher.load(StoredSnapshot(100, 3, Snapshot(1, (), records)))
        image, delta = seen[-1]
        assert (image.offset, image.epoch, publisher.next_offset) == (99, 3, 100)
        assert set(image.topics) == {"kept", "changed", "new"}
        assert [each.name for each in delta.deleted_topics.values()] == ["gone"]
        assert dict(delta.changed_topics) == {"changed": (0,), "new": (0,)}
        assert delta.created_topics == ("new",)
        log.end_offset = 100
        log.append([RemoveTopicRecord(id_of("kept"))], 3)
        await publisher.replay(log.end_offset)
        assert set(publisher.image.topics) == {"changed", "new"}

    play(script)


def test_the_difference_to_nothing_is_everything() -> None:
    """The difference between an image and the empty one lists everything, as `MetadataDelta.everything` does."""

    async def script(log: Log, publisher: MetadataPublisher, seen: list[Any]) -> None:
        log.append([FeatureLevelRecord("metadata.version", 30), *topic("a"), ConfigRecord(2, "a", "k", "v")])
        log.append([PartitionChangeRecord(0, id_of("a"), leader=2)])
        await publisher.replay(log.end_offset)
        image: MetadataImage = publisher.image
        assert difference(MetadataImage.empty(CLUSTER_ID), image) == MetadataDelta.everything(image)
        assert difference(image, image).is_empty

    play(script)
