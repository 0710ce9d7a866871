"""Disks hang or are full, in a simulated cluster: replicas on sound disks lead meanwhile, and no record is lost."""

from __future__ import annotations

import errno
from collections.abc import Awaitable, Callable, Mapping
from typing import cast

import pytest

from odradek.client.errors import ClientError
from odradek.data_plane.broker import Broker
from odradek.data_plane.log.directory.checkpoints import CLEAN_SHUTDOWN_FILE
from odradek.data_plane.log.directory.log_dir import LogDir
from odradek.metadata_quorum.image.metadata_image import PartitionImage
from odradek.serving.disk_troubles import (
    DEMOTED_LOG_DIRS,
    TROUBLED_LOG_DIRS,
    Trouble,
    demoted_text,
    parse_troubles,
)
from odradek.wire.config_resources import RESOURCE_BROKER
from odradek.wire.errors import ErrorCode, KafkaError
from odradek.wire.messages.assign_replicas_to_dirs import (
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsRequestDirectoryData,
    AssignReplicasToDirsRequestPartitionData,
    AssignReplicasToDirsRequestTopicData,
)
from odradek.wire.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreateTopicsRequest,
)
from odradek.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from odradek.wire.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from odradek.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from odradek.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from sim.machine.cluster_members import SETTINGS, Cluster, Shape
from sim.machine.members import Member
from sim.machine.sim_env import SimWorkers
from sim.machine.weather import Weather
from sim.machine.world import World
from tests.log.support import batch

START_SECONDS = 60.0
PATIENCE_SECONDS = 120.0
HANG_SECONDS = 90.0


class Troubled:
    """Three brokers and a topic `t` of one partition, first led by broker 1; a client that writes to the leader."""

    def __init__(
        self, *, log_dirs: int = 2, settings: Mapping[str, str] | None = None, seed: int = 7
    ) -> None:
        self.world = World(seed, Weather())
        shape = Shape(3, 1, log_dirs, settings={**SETTINGS, **(settings or {})})
        self.cluster = Cluster(self.world, shape)
        self.acknowledged: list[int] = []

    def play(
        self, script: Callable[[Troubled], Awaitable[None]], replicas: tuple[int, ...] = (1, 2, 3)
    ) -> None:
        async def main() -> None:
            self.cluster.format()
            for member in self.cluster.members:
                member.launch()
            await self.whole(START_SECONDS)
            assignment = [CreatableReplicaAssignment(0, list(replicas))]
            topic = CreatableTopic("t", -1, -1, assignment, [])
            await self.cluster.observer.request(CreateTopicsRequest([topic], 10_000, False))
            self.cluster.topics.append("t")
            await self.whole(START_SECONDS)
            await self.until(lambda: all(map(self.knows_the_directory, replicas)), writing=False)
            await script(self)
            for member in self.cluster.members:
                if member.is_up():
                    await member.kill("all")

        self.world.run(main, virtual_seconds_max=2000.0)

    async def whole(self, seconds: float) -> None:
        assert await self.cluster.wait_until_whole(seconds) is None

    # --- looking

    def member(self, node_id: int) -> Member:
        return self.cluster.brokers[node_id - 1]

    def broker(self, node_id: int) -> Broker:
        node = self.member(node_id).node
        assert node is not None
        assert node.broker is not None
        return node.broker

    def seen_by(self, node_id: int) -> PartitionImage:
        """Return the partition as one broker's metadata has it."""
        image = self.broker(node_id).image.partition("t", 0)
        assert image is not None
        return image

    def disk(self, node_id: int) -> LogDir:
        """Return the directory of a broker's replica."""
        owner = self.broker(node_id).partition("t", 0).log.owner
        assert isinstance(owner, LogDir)
        return owner

    def knows_the_directory(self, node_id: int) -> bool:
        """True if the metadata has the directory of the replica, which a broker reports soon after it creates the log."""
        return self.seen_by(node_id).directory_of(node_id) == self.disk(node_id).directory_id

    def told_troubles(self, node_id: int, seen_by: int) -> list[Trouble]:
        text = self.broker(seen_by).image.broker_configs(node_id).get(TROUBLED_LOG_DIRS, "")
        return [each.trouble for each in parse_troubles(text)]

    def is_online(self, node_id: int, seen_by: int) -> bool:
        """True if the metadata of `seen_by` has the replica's directory online."""
        known = self.broker(seen_by).image.brokers[node_id]
        return self.disk(node_id).directory_id in known.log_dirs

    # --- doing

    def hang(self, node_id: int, seconds: float) -> None:
        """Make the replica's device hang for this time, except for calls on the event loop."""
        workers = cast("SimWorkers", self.disk(node_id).context.workers)
        workers.hangs_until = self.world.now + seconds

    def silence(self, node_id: int, seconds: float) -> None:
        """Make the replica's device hang for this time, also for calls on the event loop."""
        self.silence_disk(node_id, self.disk(node_id), seconds)

    def silence_disk(self, node_id: int, disk: LogDir, seconds: float) -> None:
        """Make one device of a broker hang for this time, also for calls on the event loop."""
        workers = cast("SimWorkers", disk.context.workers)
        workers.hangs_until = self.world.now + seconds
        self.world.silence(self.member(node_id).name, disk.path, seconds)

    async def write(self, size: int = 0) -> ErrorCode:
        """Write one batch with acks=all to the leader that broker 2 knows; return the error code.

        `size` is that of the value.
        """
        leader = self.seen_by(2).leader
        topic_id = self.broker(2).image.topics["t"].topic_id
        data = PartitionProduceData(0, bytes(batch(value=bytes(size)) if size else self.batch()))
        request = ProduceRequest(None, -1, 2000, [TopicProduceData("t", topic_id, [data])])
        try:
            answer = await self.cluster.observer.request(request, node=leader, timeout_ms=4000)
        except (KafkaError, ClientError):
            return ErrorCode.NETWORK_EXCEPTION
        partition = answer.responses[0].partition_responses[0]
        if not partition.error_code:
            self.acknowledged.append(partition.base_offset)
        return ErrorCode(partition.error_code)

    def batch(self) -> bytearray:
        """Make the batch that `write` sends by default."""
        return batch()

    async def until(self, condition: Callable[[], bool], *, writing: bool = True) -> None:
        deadline = self.world.now + PATIENCE_SECONDS
        while not condition():
            assert self.world.now < deadline, "the condition did not hold in time"
            if writing:
                await self.write()
            await self.world.sleep(0.25)

    async def prefer(self) -> None:
        """Elect the first replica as the leader, if it may lead."""
        topics = [TopicPartitions("t", [0])]
        await self.cluster.observer.request(ElectLeadersRequest(0, topics, 5000))

    async def demote(self, node_id: int, value: str | None) -> None:
        """Set or delete a broker's list of demoted directories."""
        config = AlterableConfig(DEMOTED_LOG_DIRS, int(value is None), value)
        resources = [AlterConfigsResource(RESOURCE_BROKER, str(node_id), [config])]
        request = IncrementalAlterConfigsRequest(resources, False)
        answer = await self.cluster.observer.request(request, node=node_id)
        assert [each.error_code for each in answer.responses] == [0]

    async def check_nothing_is_lost(self) -> None:
        """Check that all acknowledged records have different offsets below the leader's high watermark.

        A new leader knows the high watermark only after its followers have fetched.
        """
        assert len(set(self.acknowledged)) == len(self.acknowledged) > 0
        leader = self.broker(self.seen_by(2).leader).partition("t", 0)
        assert max(self.acknowledged) < leader.log.log_end_offset
        await self.until(lambda: max(self.acknowledged) < leader.log.high_watermark, writing=False)


def test_a_hung_disk_hands_over_and_comes_back() -> None:
    """After 15 s with a hung disk, another replica leads and this one leaves the ISR. When the disk answers, it catches
    up and may lead again, with the same process and log."""

    async def script(case: Troubled) -> None:
        assert await case.write() == ErrorCode.NONE
        log = case.broker(1).partition("t", 0).log
        case.hang(1, HANG_SECONDS)
        await case.until(lambda: case.seen_by(2).leader != 1)
        assert set(case.seen_by(2).isr) >= {2, 3}
        await case.until(lambda: case.seen_by(2).isr == (2, 3) and not case.is_online(1, 2))
        await case.until(lambda: case.told_troubles(1, 2) == [Trouble.HUNG])
        assert len(case.broker(2).image.brokers[1].log_dirs) == 1, "the other directory must stay in service"
        assert not case.broker(2).image.brokers[1].fenced
        before = len(case.acknowledged)
        assert await case.write() == ErrorCode.NONE
        assert len(case.acknowledged) > before
        epoch = case.broker(2).image.brokers[1].epoch
        await case.until(lambda: case.is_online(1, 2) and sorted(case.seen_by(2).isr) == [1, 2, 3])
        await case.until(lambda: case.told_troubles(1, 2) == [])
        assert case.broker(2).image.brokers[1].epoch == epoch
        await case.prefer()
        await case.until(lambda: case.seen_by(2).leader == case.seen_by(1).leader == 1)
        assert await case.write() == ErrorCode.NONE
        assert case.broker(1).partition("t", 0).log is log
        await case.check_nothing_is_lost()
        await case.whole(START_SECONDS)

    Troubled().play(script)


def test_a_disk_that_is_silent_is_suspected_by_the_first_write() -> None:
    """The first write to a silent disk makes its logs refuse writes at once, before the disk counts as hung. Later it
    recovers."""

    async def script(case: Troubled) -> None:
        assert await case.write() == ErrorCode.NONE
        disk, log = case.disk(1), case.broker(1).partition("t", 0).log
        case.silence(1, HANG_SECONDS)
        before = log.log_end_offset
        assert await case.write() == ErrorCode.KAFKA_STORAGE_ERROR
        assert disk.is_suspected
        assert disk.is_stalled
        assert disk.trouble is None
        assert log.log_end_offset == before
        await case.until(lambda: case.seen_by(2).leader != 1)
        assert await case.write() == ErrorCode.NONE
        await case.until(lambda: sorted(case.seen_by(2).isr) == [1, 2, 3])
        assert not disk.is_suspected
        assert not disk.is_stalled
        assert case.broker(1).partition("t", 0).log is log
        await case.check_nothing_is_lost()

    Troubled().play(script)


def test_a_node_stops_beside_a_disk_that_is_silent() -> None:
    """A node stops although one disk is silent. The other directory is marked clean and unlocked; no record is lost."""

    async def script(case: Troubled) -> None:
        assert await case.write() == ErrorCode.NONE
        member, silent = case.member(1), case.disk(1).path
        other = next(path for path in member.config.log_dirs if path != silent)
        case.silence(1, 10 * HANG_SECONDS)
        await case.until(lambda: case.disk(1).is_stalled)
        began, disk = case.world.now, case.world.machine(member.name).disk
        member.ask_to_stop()
        await case.until(lambda: disk.open_dir(other).exists(CLEAN_SHUTDOWN_FILE))
        await case.until(lambda: disk.open_dir(other)._folder("lock").locked_by is None)
        assert CLEAN_SHUTDOWN_FILE not in disk.in_cache(silent)
        assert case.world.now < began + HANG_SECONDS
        await member.kill("all")
        await case.world.sleep(10 * HANG_SECONDS)
        member.launch()
        await case.until(lambda: sorted(case.seen_by(2).isr) == [1, 2, 3])
        await case.check_nothing_is_lost()

    Troubled().play(script)


def test_a_disk_that_is_silent_for_a_moment_keeps_its_leaderships() -> None:
    """A disk that is silent only for a moment keeps its leaders, and serves within a second of its answer."""

    async def script(case: Troubled) -> None:
        assert await case.write() == ErrorCode.NONE
        case.silence(1, 3.0)
        assert await case.write() == ErrorCode.KAFKA_STORAGE_ERROR
        await case.until(lambda: not case.disk(1).is_stalled)
        assert await case.write() == ErrorCode.NONE
        assert (case.seen_by(2).leader, case.seen_by(2).leader_epoch) == (1, 0)

    Troubled().play(script)


@pytest.mark.parametrize("adopts", [True, False])
def test_a_blank_disk_in_the_place_of_another(adopts: bool) -> None:
    """A blank disk replaces another. With the adoption policy its replica is fetched anew; else the directory stays
    offline."""

    async def script(case: Troubled) -> None:
        for _ in range(20):
            assert await case.write() == ErrorCode.NONE
        member, root = case.member(1), case.disk(1).path
        await member.kill("all")
        await case.until(lambda: case.seen_by(2).isr == (2, 3))
        case.world.machine(member.name).disk.replace(root)
        member.disk_is_bad = not adopts
        member.launch()
        if not adopts:
            await case.until(lambda: member.node is not None and member.node.broker is not None)
            await case.world.sleep(20.0)
            assert case.seen_by(2).isr == (2, 3)
            assert list(case.broker(1).placement.unavailable) == [root]
            return
        await case.until(lambda: sorted(case.seen_by(2).isr) == [1, 2, 3])
        assert not case.broker(1).placement.unavailable
        log, leading = case.broker(1).partition("t", 0).log, case.broker(2).partition("t", 0).log
        assert (log.log_start_offset, log.high_watermark) == (0, leading.high_watermark)
        await case.check_nothing_is_lost()

    settings = {"cordoned.log.dirs": "/data", "odradek.log.dir.adopt.blank": str(adopts).lower()}
    Troubled(settings=settings).play(script)


def test_a_topic_that_is_deleted_while_its_disk_is_silent_goes_when_it_answers() -> None:
    """A topic is deleted while its disk is silent. Its directory is renamed and removed when the disk answers."""

    async def script(case: Troubled) -> None:
        assert await case.write() == ErrorCode.NONE
        root, disk = case.disk(1).path, case.world.machine("node-1").disk
        log_dir = case.disk(1)
        case.silence(1, HANG_SECONDS)
        assert await case.write() == ErrorCode.KAFKA_STORAGE_ERROR
        await case.cluster.observer.request(DeleteTopicsRequest([DeleteTopicState("t", bytes(16))], [], 9000))
        await case.until(lambda: "t" not in case.broker(1).image.topics, writing=False)
        await case.world.sleep(5.0)
        assert disk.contents(f"{root}/t-0"), "the log must stay until the disk answers"
        await case.until(lambda: not log_dir.is_stalled, writing=False)
        await case.until(lambda: not disk.contents(f"{root}/t-0"), writing=False)

    # The metadata log is on another directory, so the broker learns of the deletion.
    Troubled(settings={"cordoned.log.dirs": "/data"}).play(script)


def test_the_only_disk_of_a_broker_hangs() -> None:
    """If a broker's only disk hangs, the broker asks to be fenced. When the disk answers, it asks to be unfenced. The
    broker epoch stays."""

    async def script(case: Troubled) -> None:
        assert await case.write() == ErrorCode.NONE
        epoch = case.broker(2).image.brokers[1].epoch
        case.hang(1, HANG_SECONDS)
        await case.until(lambda: case.broker(2).image.brokers[1].fenced)
        assert case.seen_by(2).isr == (2, 3)
        assert await case.write() == ErrorCode.NONE
        await case.until(lambda: sorted(case.seen_by(2).isr) == [1, 2, 3])
        assert case.broker(2).image.brokers[1].epoch == epoch
        await case.check_nothing_is_lost()

    Troubled(log_dirs=1, settings={"broker.session.timeout.ms": "300000"}).play(script)


def test_nobody_else_is_in_sync() -> None:
    """If a partition's only replica is on a hung disk, the replica stays leader, and serves when the disk answers."""

    async def script(case: Troubled) -> None:
        assert case.seen_by(2).isr == (1,)
        case.hang(1, HANG_SECONDS)
        await case.until(lambda: case.told_troubles(1, 2) == [Trouble.HUNG], writing=False)
        await case.world.sleep(30.0)
        assert case.seen_by(2).leader == 1
        assert case.is_online(1, 2)
        await case.until(lambda: len(case.acknowledged) > 0)
        assert case.seen_by(2).leader_epoch == 0

    Troubled(settings={"min.insync.replicas": "1"}).play(script, (1,))


def test_a_full_disk_hands_over_and_comes_back() -> None:
    """After 5 s with a full disk, another in-sync replica leads; until then clients get KAFKA_STORAGE_ERROR. With room
    again, the first may lead."""

    async def script(case: Troubled) -> None:
        assert await case.write() == ErrorCode.NONE
        disk = case.world.machine("node-1").disk
        path = f"{case.disk(1).path}/t-0"
        disk.fail_next(errno.ENOSPC, operation="append", path_part=path, times=10**9)
        assert await case.write() == ErrorCode.KAFKA_STORAGE_ERROR
        began = case.world.now
        await case.until(lambda: case.seen_by(2).leader != 1)
        assert case.world.now - began >= 4.0, "a disk must keep its leaders for the first seconds"
        assert set(case.seen_by(2).isr) >= {2, 3}
        assert case.told_troubles(1, 2) == [Trouble.FULL]
        assert case.is_online(1, 2)
        assert await case.write() == ErrorCode.NONE
        await case.until(lambda: case.seen_by(2).isr == (2, 3))
        await case.until(lambda: bool(case.broker(2).image.brokers[1].cordoned_log_dirs))
        await case.prefer()
        assert case.seen_by(2).leader != 1
        disk.forget_faults()
        await case.until(lambda: sorted(case.seen_by(2).isr) == [1, 2, 3])
        await case.until(lambda: case.told_troubles(1, 2) == [])
        await case.until(lambda: not case.broker(2).image.brokers[1].cordoned_log_dirs)
        await case.prefer()
        await case.until(lambda: case.seen_by(2).leader == case.seen_by(1).leader == 1)
        assert await case.write() == ErrorCode.NONE
        await case.check_nothing_is_lost()

    Troubled(settings={"replica.lag.time.max.ms": "5000"}).play(script)


def test_a_disk_that_gets_slow_is_told_and_serves_on() -> None:
    """A disk counts as slow when syncs take far longer than before. It keeps serving, and later counts as normal
    again."""

    async def script(case: Troubled) -> None:
        disk, name = case.disk(1), case.member(1).name
        for _ in range(40):
            assert await case.write() == ErrorCode.NONE
        assert disk.latency.count > 20
        assert not disk.latency.is_slow
        factor = 0.5 / disk.latency.usual_seconds
        case.world.slow_down(name, max(20.0, factor))
        leader = case.seen_by(2).leader
        await case.until(lambda: disk.latency.is_slow)
        assert disk.offline_reason is None
        assert case.seen_by(2).leader == leader
        case.world.slow_down(name, 1.0)
        await case.until(lambda: not disk.latency.is_slow)
        await case.check_nothing_is_lost()

    Troubled(settings={"log.flush.interval.messages": "1"}).play(script)


def test_a_demoted_disk_hands_over_and_may_lead_again() -> None:
    """A demoted disk gives up its leaders, but its replicas stay in the ISR. This survives a restart and can be
    undone."""

    async def script(case: Troubled) -> None:
        assert await case.write() == ErrorCode.NONE
        await case.demote(1, demoted_text([case.disk(1).path]))
        await case.until(lambda: case.seen_by(2).leader != 1)
        await case.until(lambda: case.told_troubles(1, 2) == [Trouble.DEMOTED])
        assert sorted(case.seen_by(2).isr) == [1, 2, 3]
        await case.member(1).kill("all")
        await case.member(1).start()
        await case.until(lambda: sorted(case.seen_by(2).isr) == [1, 2, 3])
        await case.prefer()
        assert case.seen_by(2).leader != 1
        assert case.told_troubles(1, 2) == [Trouble.DEMOTED]
        await case.demote(1, None)
        await case.until(lambda: case.told_troubles(1, 2) == [])
        await case.prefer()
        await case.until(lambda: case.seen_by(2).leader == 1)
        await case.check_nothing_is_lost()

    Troubled().play(script)


def test_a_machine_without_room_for_anything() -> None:
    """A leader's only disk is so full that not even new metadata can be written. Another replica leads, and the broker
    returns when there is room."""

    async def script(case: Troubled) -> None:
        assert await case.write() == ErrorCode.NONE
        disk = case.world.machine("node-1").disk
        disk.capacity_bytes = disk.used_bytes
        await case.until(lambda: case.seen_by(2).leader != 1)
        assert await case.write() == ErrorCode.NONE
        disk.capacity_bytes = None
        await case.until(lambda: sorted(case.seen_by(2).isr) == [1, 2, 3] and not case.told_troubles(1, 2))
        await case.check_nothing_is_lost()

    Troubled(log_dirs=1).play(script)


def test_what_a_former_life_listed_is_taken_back() -> None:
    """A broker dies with a full disk and restarts with room. Its old trouble entry is removed, and it may lead
    again."""

    async def script(case: Troubled) -> None:
        disk = case.world.machine("node-1").disk
        path = f"{case.disk(1).path}/t-0"
        disk.fail_next(errno.ENOSPC, operation="append", path_part=path, times=10**9)
        await case.until(lambda: case.told_troubles(1, 2) == [Trouble.FULL])
        await case.member(1).kill("all")
        disk.forget_faults()
        await case.member(1).start()
        await case.until(lambda: case.told_troubles(1, 2) == [])
        await case.until(lambda: sorted(case.seen_by(2).isr) == [1, 2, 3])
        await case.prefer()
        await case.until(lambda: case.seen_by(2).leader == 1)

    Troubled().play(script)


def test_an_old_word_about_a_directory_is_corrected() -> None:
    """A late request assigns a replica to the wrong directory. The broker soon corrects the metadata."""

    async def script(case: Troubled) -> None:
        broker = case.broker(1)
        assert case.seen_by(2).directory_of(1) == case.disk(1).directory_id
        other = next(each.directory_id for each in broker.log_dirs if each is not case.disk(1))
        before = case.seen_by(2).partition_epoch
        topic_id = broker.image.topics["t"].topic_id
        topics = [
            AssignReplicasToDirsRequestTopicData(topic_id, [AssignReplicasToDirsRequestPartitionData(0)])
        ]
        late = AssignReplicasToDirsRequest(
            1,
            broker.image.brokers[1].epoch,
            [AssignReplicasToDirsRequestDirectoryData(other, topics)],
        )
        await broker.controller.request(late, case.world.now + 10.0)
        await case.until(
            lambda: (
                case.seen_by(2).partition_epoch > before
                and case.seen_by(2).directory_of(1) == case.disk(1).directory_id
            )
        )

    Troubled().play(script)
