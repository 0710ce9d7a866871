"""Snapshots: an image as records, whole files or none, the transfer between nodes, and when they are written."""

from __future__ import annotations

import errno
from collections.abc import Callable
from random import Random
from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odradek.data_plane.metadata_snapshots import FileSnapshotStore
from odradek.env.ports import DiskError, DiskFull, Env
from odradek.metadata_quorum.features import BOOTSTRAP_FEATURES
from odradek.metadata_quorum.image.image_builder import ImageBuilder
from odradek.metadata_quorum.image.image_records import records_of
from odradek.metadata_quorum.image.metadata_image import MetadataImage
from odradek.metadata_quorum.ports import MetadataLogCorrupt, OffsetAndEpoch, StoredSnapshot
from odradek.metadata_quorum.raft.core_state import RaftConfig
from odradek.metadata_quorum.raft.voters import ReplicaKey, Voter, VoterSet
from odradek.metadata_quorum.replica.checkpoint_files import open_snapshot, snapshot_chunks, snapshot_name
from odradek.metadata_quorum.replica.driver_protocol import QuorumSettings
from odradek.metadata_quorum.replica.snapshot_transfer import (
    LeaderView,
    answer_fetch_snapshot,
    fetch_snapshot,
)
from odradek.metadata_quorum.replica.snapshots import SnapshotSettings, Snapshotter, write_snapshot
from odradek.wire.batches.batch_header import HEADER, HEADER_SIZE, parse_header, seal
from odradek.wire.codec import decode, encode
from odradek.wire.errors import ErrorCode, KafkaError
from odradek.wire.messages import metadata_records as records
from odradek.wire.messages.control_records import KRaftVersionRecord
from odradek.wire.messages.fetch_snapshot import (
    FetchSnapshotRequest,
    FetchSnapshotRequestPartitionSnapshot,
    FetchSnapshotRequestTopicSnapshot,
    FetchSnapshotResponse,
    SnapshotId,
)
from odradek.wire.structure import Message
from sim.machine.disk import SimDisk
from sim.machine.disk_files import PowerCut
from sim.machine.world import World
from testkit.by_hand import KeptLog
from tests.quorum.test_image import random_history
from tests.quorum.voters.node_parts import CLUSTER_ID
from tests.schedule import examples

END = OffsetAndEpoch(7, 3)
ME = ReplicaKey(2, b"directory-of-two")
VOTERS = VoterSet.of([Voter(ReplicaKey(1, b"directory-of-one"), (("CONTROLLER", "one", 9093),))])


def replay(*messages: Message, offset: int = 0, epoch: int = 3) -> MetadataImage:
    builder = ImageBuilder(MetadataImage.empty(CLUSTER_ID))
    for at, message in enumerate(messages, offset):
        builder.replay(at, message, epoch)
    return builder.build()[0]


def image_of(topics: int) -> MetadataImage:
    """Make an image of topics. With 6 topics it ends at END."""
    history: list[Message] = [records.FeatureLevelRecord(*BOOTSTRAP_FEATURES.copy().popitem())]
    history += [records.TopicRecord(f"t{number}", number.to_bytes(16, "big")) for number in range(topics)]
    return replay(*history)


def image_in(stored: StoredSnapshot | None) -> MetadataImage:
    assert stored is not None
    builder = ImageBuilder(MetadataImage.empty(CLUSTER_ID))
    for record in stored.contents.records:
        builder.replay(stored.end_offset - 1, record, stored.epoch)
    builder.advance(stored.end_offset - 1, stored.epoch)
    return builder.build()[0]


async def write(env: Env, image: MetadataImage, path: str = "/a") -> FileSnapshotStore:
    store = FileSnapshotStore(env.open_dir(path, create=True))
    await write_snapshot(
        image,
        store,
        control_records=[KRaftVersionRecord(0, 1), VOTERS.to_record()],
        timestamp_ms=5,
        last_contained_log_timestamp=4,
        workers=env.workers,
    )
    return store


def in_world(main: Callable[[Env], Any], seed: int = 1) -> None:
    world = World(seed)

    async def run() -> None:
        await world.start("n1", main).ended.wait()

    world.run(run)


# -- images as records ------------------------------------------------------------------------------------------------


@given(st.randoms(use_true_random=False), st.integers(1, 120))
@settings(max_examples=examples(100), deadline=None)
def test_the_records_of_an_image_give_it_back(random: Random, length: int) -> None:
    """An image is written as records and replayed. The result is equal, whatever the history was."""
    image = replay(*random_history(random, length))
    again = replay(*records_of(image))
    assert attrs.evolve(again, offset=image.offset, epoch=image.epoch) == image
    encoded = [encode(record, record.VALID_VERSIONS[1]) for record in records_of(again)]
    assert encoded == [encode(record, record.VALID_VERSIONS[1]) for record in records_of(image)]


def test_every_field_of_brokers_controllers_and_partitions_is_kept() -> None:
    """Fields that random histories leave at their defaults are kept in a snapshot."""
    listener = records.BrokerEndpoint("PLAINTEXT", "b1", 9092, 0)
    image = replay(
        records.FeatureLevelRecord("group.version", 1),
        records.FeatureLevelRecord("metadata.version", 30),
        records.RegisterBrokerRecord(
            broker_id=1,
            incarnation_id=b"i" * 16,
            broker_epoch=2,
            end_points=[listener],
            features=[records.BrokerFeature("metadata.version", 7, 30)],
            rack="r",
            fenced=False,
            in_controlled_shutdown=True,
            log_dirs=[b"a" * 16, b"b" * 16],
            cordoned_log_dirs=[b"b" * 16],
        ),
        records.RegisterControllerRecord(
            controller_id=3,
            incarnation_id=b"c" * 16,
            end_points=[records.ControllerEndpoint("CONTROLLER", "c3", 9093, 0)],
            features=[records.ControllerFeature("kraft.version", 0, 1)],
        ),
        records.TopicRecord("t", b"t" * 16),
        records.PartitionRecord(
            partition_id=0,
            topic_id=b"t" * 16,
            replicas=[1, 2, 3],
            isr=[1],
            removing_replicas=[2],
            adding_replicas=[3],
            leader=1,
            leader_recovery_state=1,
            leader_epoch=5,
            partition_epoch=6,
            directories=[b"a" * 16, b"b" * 16, b"c" * 16],
            eligible_leader_replicas=[2],
            last_known_elr=[3],
        ),
        records.ConfigRecord(4, "", "log.retention.ms", "7"),
        records.ProducerIdsRecord(1, 2, 4000),
    )
    found = list(records_of(image))
    assert attrs.evolve(replay(*found), offset=image.offset) == image
    assert [type(record).__name__ for record in found[:3]] == [
        "FeatureLevelRecord",
        "FeatureLevelRecord",
        "RegisterBrokerRecord",
    ]
    assert isinstance(found[0], records.FeatureLevelRecord)
    assert found[0].name == "metadata.version"


# -- files ------------------------------------------------------------------------------------------------------------


def test_a_snapshot_is_there_whole_or_not_at_all() -> None:
    """The power is cut at each operation of writing a second snapshot.

    The newest complete snapshot is the first or the second.
    """
    first, second = image_of(1), image_of(6)
    for number in range(1, 40):
        world = World(1)
        disk = world.machine("n1").disk
        finished: list[bool] = []

        async def main(
            env: Env, disk: SimDisk = disk, number: int = number, finished: list[bool] = finished
        ) -> None:
            await write(env, first)
            disk.crash_at(disk.operation_count + number)
            store = await write(env, second)
            store.delete_older()
            finished.append(True)

        async def run(world: World = world, main: Any = main) -> None:
            await world.start("n1", main).ended.wait()

        world.run(run)
        disk.crash("random")
        directory = disk.open_dir("/a")
        store = FileSnapshotStore(directory)
        store.remove_drafts()
        stored = store.newest()
        assert image_in(stored) in ((second,) if finished else (first, second))
        assert len(directory.list()) <= 2
        if finished:
            assert number > 5
            return
    raise AssertionError("writing a snapshot was not complete after 39 operations")


@pytest.mark.parametrize("cut", [1, 75, 200])
def test_a_draft_that_is_not_whole_is_refused_and_removed(cut: int) -> None:
    """A draft that lacks its end is refused, and its file is removed."""

    async def main(env: Env) -> None:
        store = await write(env, image_of(6))
        whole, _ = store.read(END, 0, 1 << 20)
        draft = store.begin(OffsetAndEpoch(9, 3))
        draft.append(whole[:-cut])
        with pytest.raises(MetadataLogCorrupt):
            draft.finish()
        draft.discard()
        assert store.ends() == [END]
        assert env.open_dir("/a").list() == [snapshot_name(END.offset, END.epoch)]

    in_world(main)


@pytest.mark.parametrize("count", [-1, 1000, 2**31 - 1])
def test_a_snapshot_that_counts_more_records_than_it_has_bytes_for_is_refused(count: int) -> None:
    """A damaged header claims more records than the snapshot has. It is refused before memory is allocated for them."""
    chunks = list(snapshot_chunks([records.FeatureLevelRecord("a", 1)], epoch=0, timestamp_ms=1))
    damaged = (
        bytearray(HEADER.pack(*parse_header(chunks[1])._replace(record_count=count)))
        + chunks[1][HEADER_SIZE:]
    )
    seal(damaged)
    chunks[1] = damaged
    with pytest.raises(MetadataLogCorrupt, match=f"claims {count} records"):
        open_snapshot(b"".join(chunks), source="snapshot")


def test_a_full_disk_leaves_no_draft() -> None:
    """The disk is full while a snapshot is written. Its draft is removed, and the older snapshot remains."""
    world = World(1)
    disk = world.machine("n1").disk

    async def main(env: Env) -> None:
        store = await write(env, image_of(1))
        disk.fail_at(disk.operation_count + 3, 28)
        with pytest.raises(DiskFull):
            await write(env, image_of(6))
        assert [end.offset for end in store.ends()] == [2]
        assert len(env.open_dir("/a").list()) == 1

    async def run() -> None:
        await world.start("n1", main).ended.wait()

    world.run(run)


@pytest.mark.parametrize("is_fetched", [False, True], ids=["written here", "fetched"])
def test_the_draft_of_a_failed_snapshot_is_removed_by_a_worker(is_fetched: bool) -> None:
    """A draft is removed by a worker: a device that hangs at that moment would stop the event loop."""
    world = World(1)
    disk = world.machine("n1").disk
    removed: list[bool] = []

    def look(operation: str, path: str, position: int, count: int) -> None:
        if operation == "remove" and path.endswith(".part"):
            removed.append(disk.is_off_loop)

    async def main(env: Env) -> None:
        store = await write(env, image_of(1))
        disk.on_operation = look
        if is_fetched:
            with pytest.raises(KafkaError):
                await load(
                    env, Channel(store, spoil=lambda response, count: refuse(response)), store.ends()[0]
                )
        else:
            disk.fail_at(disk.operation_count + 3, errno.ENOSPC)
            with pytest.raises(DiskFull):
                await write(env, image_of(6))

    async def run() -> None:
        await world.start("n1", main).ended.wait()

    world.run(run)
    assert removed == [True]


def refuse(response: FetchSnapshotResponse) -> None:
    response.error_code = ErrorCode.SNAPSHOT_NOT_FOUND


# -- from one node to another -----------------------------------------------------------------------------------------

LEADER = LeaderView(1, CLUSTER_ID, 5, 1, ("one", 9093))


@attrs.define
class Channel:
    """A channel to a leader that sends a few bytes at a time, encoded as on the wire."""

    store: FileSnapshotStore
    leader: LeaderView = LEADER
    chunk_bytes: int = 100
    spoil: Callable[[FetchSnapshotResponse, int], None] = lambda response, count: None
    requests: int = 0

    async def request(self, message: Any, deadline: float, *, version: int | None = None) -> Any:
        self.requests += 1
        message.max_bytes = min(message.max_bytes, self.chunk_bytes)
        received = decode(FetchSnapshotRequest, 1, encode(message, 1))
        answer = answer_fetch_snapshot(received, self.store, self.leader)
        response = decode(FetchSnapshotResponse, 1, encode(answer.response, 1))
        self.spoil(response, self.requests)
        return response


async def load(env: Env, channel: Channel, end: OffsetAndEpoch = END, epoch: int = 5) -> StoredSnapshot:
    return await fetch_snapshot(
        env,
        QuorumSettings(ME, CLUSTER_ID, RaftConfig(request_timeout_seconds=1.0)),
        channel,
        FileSnapshotStore(env.open_dir("/b", create=True)),
        end,
        epoch,
        lambda: None,
    )


def test_a_snapshot_arrives_as_it_was_sent() -> None:
    """A snapshot is fetched in chunks that are not aligned to batches (KIP-630). The copy equals the original file."""

    async def main(env: Env) -> None:
        image = image_of(6)
        channel = Channel(await write(env, image))
        stored = await load(env, channel)
        assert stored.end == END
        assert image_in(stored) == image
        assert [type(each).__name__ for each in stored.contents.control_records] == [
            "KRaftVersionRecord",
            "VotersRecord",
        ]
        name = snapshot_name(END.offset, END.epoch)
        assert env.open_dir("/a").read_bytes(name) == env.open_dir("/b").read_bytes(name)
        assert channel.requests == -(-env.open_dir("/a").file_size(name) // 100)

    in_world(main)


def _cut(response: FetchSnapshotResponse, count: int) -> None:
    response.topics[0].partitions[0].unaligned_records = b""


def _other_bytes(response: FetchSnapshotResponse, count: int) -> None:
    response.topics[0].partitions[0].unaligned_records = bytes(100)


def _elsewhere(response: FetchSnapshotResponse, count: int) -> None:
    response.topics[0].partitions[0].position += count


def _another(response: FetchSnapshotResponse, count: int) -> None:
    response.topics[0].partitions[0].snapshot_id.end_offset += 1


def _too_much(response: FetchSnapshotResponse, count: int) -> None:
    response.topics[0].partitions[0].size = 99


def _nothing(response: FetchSnapshotResponse, count: int) -> None:
    response.topics = []


def _gone(response: FetchSnapshotResponse, count: int) -> None:
    response.topics[0].partitions[0].error_code = ErrorCode.SNAPSHOT_NOT_FOUND


@pytest.mark.parametrize(
    ("spoil", "code"),
    [
        (_cut, ErrorCode.CORRUPT_MESSAGE),
        (_other_bytes, ErrorCode.CORRUPT_MESSAGE),
        (_elsewhere, ErrorCode.CORRUPT_MESSAGE),
        (_another, ErrorCode.CORRUPT_MESSAGE),
        (_too_much, ErrorCode.CORRUPT_MESSAGE),
        (_nothing, ErrorCode.CORRUPT_MESSAGE),
        (_gone, ErrorCode.SNAPSHOT_NOT_FOUND),
    ],
)
def test_nothing_is_left_of_a_snapshot_that_did_not_arrive(spoil: Any, code: ErrorCode) -> None:
    """A leader stops, or sends nonsense, in the middle of a snapshot. The follower keeps nothing of it."""

    async def main(env: Env) -> None:
        channel = Channel(
            await write(env, image_of(6)),
            spoil=lambda response, count: spoil(response, count) if count > 1 else None,
        )
        with pytest.raises(KafkaError) as caught:
            await load(env, channel)
        assert caught.value.code is code
        assert env.open_dir("/b").list() == []

    in_world(main)


def ask(
    *,
    cluster_id: str | None = CLUSTER_ID,
    topic: str = "__cluster_metadata",
    partition: int = 0,
    epoch: int = 5,
    end: OffsetAndEpoch = END,
    position: int = 0,
) -> FetchSnapshotRequest:
    asked = FetchSnapshotRequestPartitionSnapshot(
        partition, epoch, SnapshotId(end.offset, end.epoch), position, ME.directory_id
    )
    return FetchSnapshotRequest(cluster_id, 2, 1 << 30, [FetchSnapshotRequestTopicSnapshot(topic, [asked])])


def test_a_snapshot_that_is_removed_while_it_is_served_is_not_found() -> None:
    """A snapshot is removed while it is served. The answer is SNAPSHOT_NOT_FOUND.

    A lack of descriptors (EMFILE) gives KAFKA_STORAGE_ERROR. Neither error marks the disk as failed.
    """
    world = World(1)
    disk = world.machine("n1").disk

    async def main(env: Env) -> None:
        store = await write(env, image_of(1))
        (end,) = store.ends()
        for number, code in (
            (errno.ENOENT, ErrorCode.SNAPSHOT_NOT_FOUND),
            (errno.EMFILE, ErrorCode.KAFKA_STORAGE_ERROR),
        ):
            disk.fail_next(number, operation="read", path_part=".checkpoint")
            answer = answer_fetch_snapshot(ask(end=end), store, LEADER)
            assert answer.response.topics[0].partitions[0].error_code == code

    async def run() -> None:
        await world.start("n1", main).ended.wait()

    world.run(run)


@pytest.mark.parametrize(
    ("request_", "leader_id", "top", "inner"),
    [
        (ask(cluster_id="other", epoch=4), 1, ErrorCode.INCONSISTENT_CLUSTER_ID, None),
        (ask(topic="a", epoch=4), 1, ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (ask(partition=1), 1, ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (ask(epoch=4), 3, ErrorCode.NONE, ErrorCode.FENCED_LEADER_EPOCH),
        (ask(epoch=6), 1, ErrorCode.NONE, ErrorCode.UNKNOWN_LEADER_EPOCH),
        (ask(), 3, ErrorCode.NONE, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (ask(), None, ErrorCode.NONE, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (ask(end=OffsetAndEpoch(8, 3)), 1, ErrorCode.NONE, ErrorCode.SNAPSHOT_NOT_FOUND),
        (ask(end=OffsetAndEpoch(0, 0)), 1, ErrorCode.NONE, ErrorCode.SNAPSHOT_NOT_FOUND),
        (ask(position=-1), 1, ErrorCode.NONE, ErrorCode.POSITION_OUT_OF_RANGE),
        (ask(position=1 << 30), 1, ErrorCode.NONE, ErrorCode.POSITION_OUT_OF_RANGE),
        (ask(cluster_id=None), 1, ErrorCode.NONE, ErrorCode.NONE),
    ],
)
def test_refusals_come_in_kafkas_order(
    request_: FetchSnapshotRequest, leader_id: int | None, top: ErrorCode, inner: ErrorCode | None
) -> None:
    """FetchSnapshot checks cluster, partition, epoch, leadership, snapshot and position, in this order.

    A refusal names the leader if the partition is known.
    """

    async def main(env: Env) -> None:
        store = await write(env, image_of(6))
        bootstrap = store.begin(OffsetAndEpoch(0, 0))
        bootstrap.append(store.read(END, 0, 1 << 20)[0])
        bootstrap.finish()
        answer = answer_fetch_snapshot(request_, store, attrs.evolve(LEADER, leader_id=leader_id))
        assert answer.response.error_code == top
        found = [partition for topic in answer.response.topics for partition in topic.partitions]
        assert [partition.error_code for partition in found] == ([] if inner is None else [inner])
        if found and inner is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            told = found[0].current_leader
            assert (told.leader_id, told.leader_epoch) == (-1 if leader_id is None else leader_id, 5)
        assert (answer.served == ME) == (inner is ErrorCode.NONE)

    in_world(main)


# -- when -------------------------------------------------------------------------------------------------------------


class Watched:
    """A snapshotter over the simulated disk, with the snapshots and failures that it reports."""

    def __init__(self, env: Env, settings: SnapshotSettings) -> None:
        self.store = FileSnapshotStore(env.open_dir("/a", create=True))
        self.written: list[OffsetAndEpoch] = []
        self.wrote = env.event()
        self.env = env
        self.snapshotter = Snapshotter(
            env,
            self.store,
            settings,
            control_records_below=lambda offset: [KRaftVersionRecord(0, 1), VOTERS.to_record()],
            written=self._note,
            logger=KeptLog(),
        )

    def _note(self, end: OffsetAndEpoch) -> None:
        self.written.append(end)
        self.wrote.set()

    async def next(self) -> None:
        await self.wrote.wait()
        self.wrote = self.env.event()


def test_a_snapshot_is_due_by_bytes_and_ends_where_the_last_image_of_the_turn_does() -> None:
    """A snapshot is written after `metadata.log.max.record.bytes.between.snapshots`.

    It contains the last image that was noted in that turn of the loop.
    """
    world = World(1)

    async def main(env: Env) -> None:
        watched = Watched(env, SnapshotSettings(1000, 0))
        world.tasks.start_soon(watched.snapshotter.run)
        for topics in range(1, 5):
            watched.snapshotter.note(image_of(topics), 300, topics)
        watched.snapshotter.note(image_of(5), 0, 5)
        await watched.next()
        assert watched.written == [OffsetAndEpoch(6, 3)]
        assert image_in(watched.store.newest()) == image_of(5)
        assert watched.snapshotter.statistics() == {
            "snapshots": 1,
            "bytes_since_snapshot": 0,
            "last_snapshot_offset": 6,
        }
        watched.snapshotter.note(image_of(5), 1000, 5)
        watched.snapshotter.note(image_of(6), 0, 6)
        await watched.next()
        assert watched.written[1:] == [END]

    world.run(lambda: world.start("n1", main).ended.wait())


def test_a_snapshot_is_due_by_time_only_when_something_has_changed() -> None:
    """A snapshot's age is checked when something is committed, as in Kafka.

    The limit is `metadata.log.max.snapshot.interval.ms`.
    """
    world = World(1)

    async def main(env: Env) -> None:
        watched = Watched(env, SnapshotSettings(1 << 40, 60_000))
        world.tasks.start_soon(watched.snapshotter.run)
        watched.snapshotter.note(image_of(1), 10, 1)
        await env.clock.sleep_until(env.clock.monotonic() + 61)
        assert watched.written == []
        watched.snapshotter.note(image_of(2), 10, 2)
        await watched.next()
        assert watched.written == [OffsetAndEpoch(3, 3)]
        await env.clock.sleep_until(env.clock.monotonic() + 61)
        watched.snapshotter.note(image_of(2), 10, 2)
        await env.clock.sleep_until(env.clock.monotonic() + 1)
        assert watched.written == [OffsetAndEpoch(3, 3)]

    world.run(lambda: world.start("n1", main).ended.wait())


@pytest.mark.reaches("quorum.no_room_for_snapshot")
def test_a_full_disk_is_waited_for_and_a_broken_one_is_not() -> None:
    """A snapshot fails on a full disk, and is written later. On a failed disk the task ends, and so does the node."""
    world = World(1)
    disk = world.machine("n1").disk

    async def main(env: Env) -> None:
        watched = Watched(env, SnapshotSettings(100, 0))
        disk.fail_at(disk.operation_count + 3, 28)
        world.tasks.start_soon(watched.snapshotter.run)
        watched.snapshotter.note(image_of(1), 100, 1)
        await env.clock.sleep_until(env.clock.monotonic() + 120)
        assert watched.written == []
        watched.snapshotter.note(image_of(2), 1, 2)
        await watched.next()
        assert watched.written == [OffsetAndEpoch(3, 3)]
        disk.fail_at(disk.operation_count + 3, 5)
        broken = Watched(env, SnapshotSettings(100, 0))
        broken.snapshotter.note(image_of(3), 100, 3)
        with pytest.raises(DiskError):
            await broken.snapshotter.run()

    world.run(lambda: world.start("n1", main).ended.wait())


def test_a_power_cut_is_no_clean_up() -> None:
    """A node dies while it writes a snapshot. The draft remains on the disk, and the next start removes it."""
    disk = SimDisk()
    store = FileSnapshotStore(disk.open_dir("/a", create=True))
    draft = store.begin(END)
    disk.crash_at(disk.operation_count + 1)
    with pytest.raises(PowerCut):
        draft.append(b"x")
    disk.crash("all")
    directory = disk.open_dir("/a")
    assert len(directory.list()) <= 1
    FileSnapshotStore(directory).remove_drafts()
    assert directory.list() == []
