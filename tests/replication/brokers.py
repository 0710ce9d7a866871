"""Three simulated brokers that replicate one topic, and a controller in memory that a script drives.

The controller has only the rules of KRaft that matter here: partition epochs, AlterPartition with broker epochs, and
election from the ISR. A broker that restarts uncleanly leaves the ISR. Images reach each broker in order, each after
its own delay.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

import attrs
import structlog
import trio

from odradek.data_plane.broker import Broker
from odradek.data_plane.broker_settings import BrokerSettings
from odradek.data_plane.groups.group_settings import GroupSettings
from odradek.data_plane.handlers.build import build_table
from odradek.data_plane.log.directory.log_dir import LogDir, LogDirContext
from odradek.data_plane.replication.partition import Partition
from odradek.data_plane.transactions.transactions_topic import TransactionSettings
from odradek.env.ports import ConnectionLost, Env, TaskGroup
from odradek.metadata_quorum.config.effective_config import BrokerConfigLayers
from odradek.metadata_quorum.controller.controller import Controller as ProductController
from odradek.metadata_quorum.controller.controller_settings import ControllerSettings
from odradek.metadata_quorum.features import ELIGIBLE_LEADER_REPLICAS, REPLICA_LOG_INFO
from odradek.metadata_quorum.image.image_builder import merge_partition
from odradek.metadata_quorum.image.metadata_image import (
    LOST_DIRECTORY,
    BrokerImage,
    ControllerImage,
    FeatureRange,
    ListenerImage,
    MetadataDelta,
    MetadataImage,
    PartitionImage,
    TopicImage,
)
from odradek.metadata_quorum.replica.peers import PeerConnections
from odradek.metadata_quorum.state_machine import DecisionContext
from odradek.serving.layered_map import LayeredMap
from odradek.wire.batches.batch_header import iter_batches
from odradek.wire.batches.records import records
from odradek.wire.config_resources import RESOURCE_BROKER, RESOURCE_TOPIC
from odradek.wire.errors import ErrorCode, KafkaError
from odradek.wire.messages.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    AlterPartitionResponsePartitionData,
    AlterPartitionResponseTopicData,
)
from odradek.wire.messages.assign_replicas_to_dirs import (
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsResponse,
)
from odradek.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from odradek.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from odradek.wire.messages.metadata_records import PartitionChangeRecord
from odradek.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from sim.machine.disk import Keep
from sim.machine.weather import Weather
from sim.machine.world import World
from testkit.virtual import CLUSTER_ID, DATA, format_disks, serve_table
from tests.log.support import batch

TOPIC, TOPIC_ID = "t", bytes(range(1, 17))
PORT = 9092
LAG_MS_MAX = 2000
NODES = (1, 2, 3)
PATIENCE_SECONDS = 60.0


def host(node_id: int) -> str:
    return f"node-{node_id}"


REPORTS = (FeatureRange(REPLICA_LOG_INFO, 0, 1),)
"""The features of nodes that report the ends of their logs, so that a controller can choose among replicas without a
leader."""


class Controller:
    """The state of the cluster, and its delivery to the brokers."""

    def __init__(self, replicas: tuple[int, ...], partitions: int, min_isr: int) -> None:
        self.brokers: dict[int, BrokerImage] = {}
        self.partitions = {
            index: PartitionImage(-1, 0, 0, replicas, replicas, (bytes(16),) * len(replicas))
            for index in range(partitions)
        }
        self.min_isr = min_isr
        self.topic_configs: dict[str, str] = {}
        self.broker_configs: dict[str, str] = {}
        """The dynamic configuration of all brokers."""
        self.offset = 0
        self.next_epoch = 100
        self.changed = trio.Event()
        self.alterations: list[tuple[int, ...]] = []
        self.is_deaf = False
        """True while the controller answers no requests."""

    def image(self) -> MetadataImage:
        topic = TopicImage(TOPIC, TOPIC_ID, dict(self.partitions))
        return MetadataImage(
            offset=self.offset,
            cluster_id=CLUSTER_ID,
            topics=LayeredMap({TOPIC: topic}),
            topics_by_id=LayeredMap({TOPIC_ID: topic}),
            brokers=dict(self.brokers),
            features={ELIGIBLE_LEADER_REPLICAS: 1},
            controllers={0: ControllerImage(0, bytes(16), (), REPORTS)},
            configs=LayeredMap(
                {
                    (RESOURCE_TOPIC, TOPIC): {"min.insync.replicas": str(self.min_isr)} | self.topic_configs,
                    (RESOURCE_BROKER, ""): self.broker_configs,
                }
            ),
        )

    def _tell(self) -> None:
        self.offset += 1
        changed, self.changed = self.changed, trio.Event()
        changed.set()

    def alter(self, index: int, **fields: Any) -> None:
        """Change a partition in any way, and raise its partition epoch."""
        old = self.partitions[index]
        self.partitions[index] = attrs.evolve(old, partition_epoch=old.partition_epoch + 1, **fields)
        self._tell()

    def elect(self, index: int, leader: int, *, isr: tuple[int, ...] | None = None) -> None:
        """Start a new leader epoch of the partition."""
        old = self.partitions[index]
        self.alter(
            index, leader=leader, leader_epoch=old.leader_epoch + 1, isr=old.isr if isr is None else isr
        )

    def register(self, node_id: int, directory_id: bytes, rack: str | None = None) -> int:
        """Register a new incarnation after an unclean stop: it leaves every ISR that has other members. Return its
        broker epoch."""
        self.fence(node_id)
        self.next_epoch += 1
        self.brokers[node_id] = BrokerImage(
            node_id,
            self.next_epoch,
            bytes(16),
            (ListenerImage("PLAINTEXT", host(node_id), PORT, 0),),
            REPORTS,
            rack,
            False,
            False,
            (directory_id,),
        )
        for index, partition in self.partitions.items():
            if partition.leader < 0 and node_id in partition.isr:
                self.elect(index, node_id)
        self._tell()
        return self.next_epoch

    def fence(self, node_id: int) -> None:
        """Treat a broker as dead: fence it, and move its leaderships."""
        if node_id not in self.brokers:
            return
        self.brokers[node_id] = attrs.evolve(self.brokers[node_id], fenced=True)
        for index, partition in self.partitions.items():
            if node_id in partition.isr:
                isr = tuple(each for each in partition.isr if each != node_id) or partition.isr
                alive = [each for each in isr if each != node_id and self._lives(each)]
                if partition.leader == node_id:
                    self.elect(index, alive[0] if alive else -1, isr=isr)
                elif isr != partition.isr:
                    self.alter(index, isr=isr)
        self._tell()

    def _lives(self, node_id: int) -> bool:
        known = self.brokers.get(node_id)
        return known is not None and not known.fenced

    def decide(self, request: AlterPartitionRequest) -> AlterPartitionResponse:
        """Check a leader's proposal as Kafka does, and accept or refuse it."""
        known = self.brokers.get(request.broker_id)
        if known is None or known.epoch != request.broker_epoch:
            return AlterPartitionResponse(0, ErrorCode.STALE_BROKER_EPOCH, [])
        topics = []
        for topic in request.topics:
            answers = []
            for asked in topic.partitions:
                code = self._judge(request.broker_id, asked)
                if not code:
                    isr = tuple(state.broker_id for state in asked.new_isr_with_epochs)
                    self.alterations.append(isr)
                    self.alter(asked.partition_index, isr=isr)
                now = self.partitions[asked.partition_index]
                answers.append(
                    AlterPartitionResponsePartitionData(
                        asked.partition_index,
                        code,
                        now.leader,
                        now.leader_epoch,
                        list(now.isr),
                        0,
                        now.partition_epoch,
                    )
                )
            topics.append(AlterPartitionResponseTopicData(topic.topic_id, answers))
        return AlterPartitionResponse(0, 0, topics)

    def assign(self, request: AssignReplicasToDirsRequest) -> AssignReplicasToDirsResponse:
        """Let the product decide about replicas that are lost or found again. Other replicas stay unassigned."""
        context = DecisionContext(0, 1, 0, 1, Random(1), lambda: bytes(16))
        decision = ProductController(ControllerSettings()).decide(self.image(), request, context)
        response = decision.response
        assert isinstance(response, AssignReplicasToDirsResponse)
        told = LOST_DIRECTORY in [each.id for each in request.directories]
        known = LOST_DIRECTORY in [each.directory_of(request.broker_id) for each in self.partitions.values()]
        if not told and not known:
            return response
        for record in decision.records:
            assert isinstance(record, PartitionChangeRecord)
            index = record.partition_id
            self.partitions[index] = merge_partition(self.partitions[index], record)
        self._tell()
        return response

    def _judge(self, broker_id: int, asked: Any) -> ErrorCode:
        now = self.partitions[asked.partition_index]
        if asked.leader_epoch < now.leader_epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        if now.leader != broker_id:
            return ErrorCode.INVALID_REQUEST
        if asked.partition_epoch != now.partition_epoch:
            return ErrorCode.INVALID_UPDATE_VERSION
        for state in asked.new_isr_with_epochs:
            known = self.brokers.get(state.broker_id)
            if known is None or known.fenced or state.broker_epoch not in (-1, known.epoch):
                return ErrorCode.INELIGIBLE_REPLICA
        return ErrorCode.NONE


class Channel:
    """A broker's channel to the controller. Each request and each answer has a delay."""

    def __init__(self, cluster: ReplicatedTopic, env: Env) -> None:
        self._cluster = cluster
        self._env = env

    async def request(self, message: Any, deadline: float, *, version: int | None = None) -> Any:
        cluster, clock = self._cluster, self._env.clock
        if isinstance(message, AssignReplicasToDirsRequest):
            await clock.sleep_until(clock.monotonic() + 0.01)
            return cluster.controller.assign(message)
        await clock.sleep_until(clock.monotonic() + cluster.random.random() * 0.02)
        if cluster.controller.is_deaf:
            await clock.sleep_until(deadline)
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT)
        assert isinstance(message, AlterPartitionRequest)
        response = cluster.controller.decide(message)
        await clock.sleep_until(clock.monotonic() + cluster.random.random() * 0.02)
        if cluster.random.random() < cluster.answers_lost:
            raise ConnectionLost("the answer is lost")
        return response


@attrs.define(eq=False)
class Member:
    """A running broker."""

    env: Env
    broker: Broker

    def partition(self, index: int = 0) -> Partition:
        return self.broker.topics[TOPIC].partitions[index]


class ReplicatedTopic:
    """The cluster of one test, with one replicated topic."""

    def __init__(
        self,
        seed: int = 1,
        weather: Weather | None = None,
        *,
        partitions: int = 1,
        min_isr: int = 1,
        replicas: tuple[int, ...] = NODES,
        **settings: str,
    ) -> None:
        self.world = World(seed, weather or Weather())
        self.random = Random(f"{seed}/cluster")
        self.controller = Controller(replicas, partitions, min_isr)
        self.settings = {"replica.lag.time.max.ms": str(LAG_MS_MAX)} | {
            key.replace("_", "."): value for key, value in settings.items()
        }
        self.members: dict[int, Member] = {}
        self.metadata_seconds = 0.02
        """The most seconds that an image takes to reach a broker."""
        self.answers_lost = 0.0
        self.before_registration: Callable[[Broker], None] = lambda broker: None
        """Called while a broker starts, after it has applied the metadata and before it registers."""
        self.racks: dict[int, str] = {}
        self._peers: PeerConnections | None = None

    def play(self, script: Callable[[ReplicatedTopic], Awaitable[None]]) -> None:
        """Start all three brokers, elect the first replica of each partition, then run the script."""

        async def main() -> None:
            for node_id in NODES:
                await self.start(node_id)
            for index, partition in self.controller.partitions.items():
                self.controller.elect(index, partition.replicas[index % len(partition.replicas)])
            await script(self)

        self.world.run(main)

    async def start(self, node_id: int) -> None:
        """Start the broker's process. Return when it serves."""
        ready = trio.Event()

        async def serve(env: Env) -> None:
            async with trio.open_nursery() as tasks:
                await self._serve(node_id, env, tasks, ready)

        self.world.start(host(node_id), serve)
        await ready.wait()

    async def _serve(self, node_id: int, env: Env, tasks: TaskGroup, ready: trio.Event) -> None:
        format_disks(env, node_id)
        root = env.open_dir(DATA)
        log = structlog.get_logger().bind(node=node_id)
        context = LogDirContext(
            clock=env.clock,
            workers=env.workers,
            random=env.random,
            log=log,
            on_start_stored=lambda log: broker.start_stored(log),
            on_offline=lambda log_dir, reason: broker.directory_offline(log_dir, reason),
        )
        layers = BrokerConfigLayers(self.settings)
        log_dir = LogDir.open(root, context, config_for=lambda topic: broker.log_config(topic))
        settings = BrokerSettings(
            node_id=node_id,
            cluster_id=CLUSTER_ID,
            auto_create_topics_enable=False,
            fetch_max_bytes=1 << 26,
            fetch_session_slots_max=100,
            fetch_session_eviction_ms=120_000,
            request_timeout_ms=1000,
            request_partitions_max=2000,
            groups=GroupSettings(),
            transactions=TransactionSettings(),
            config_layers=layers,
        )
        broker = Broker(settings, env, [log_dir], Channel(self, env), tasks, log)
        await log_dir.load()
        tasks.start_soon(log_dir.run_background)
        tasks.start_soon(log_dir.run_log_starts, env.event)
        tasks.start_soon(broker.timers.run)
        # As on a real node, the metadata at the start are older than the registration.
        broker.hold_leadership()
        image = self.controller.image()
        broker.apply_metadata(image, MetadataDelta.everything(image))
        self.before_registration(broker)
        epoch = self.controller.register(node_id, log_dir.directory_id, self.racks.get(node_id))
        broker.replication.registered(epoch)
        image = self.controller.image()
        broker.apply_metadata(image, MetadataDelta.everything(image))
        broker.release_leadership()
        tasks.start_soon(broker.assignments.run)
        self.members[node_id] = Member(env, broker)
        tasks.start_soon(self._feed, env, broker, image.offset)
        serve_table(env, tasks, build_table(broker), log=log, port=PORT, after_turn=broker.run_woken)
        ready.set()

    async def _feed(self, env: Env, broker: Broker, offset: int) -> None:
        """Apply the controller's images in order. Several changes may come in one image."""
        everything = MetadataDelta(
            changed_topics={TOPIC: tuple(self.controller.partitions)},
            changed_brokers=NODES,
            changed_configs=((RESOURCE_TOPIC, TOPIC), (RESOURCE_BROKER, "")),
        )
        while True:
            while self.controller.offset == offset:
                await self.controller.changed.wait()
            image = self.controller.image()
            offset = image.offset
            await env.clock.sleep_until(env.clock.monotonic() + self.random.random() * self.metadata_seconds)
            broker.apply_metadata(image, everything)

    def flip(self, node_id: int, position: int, *, index: int = 0) -> None:
        """Flip a bit in a replica's first segment. Drop the positions that the log has cached, as for records of long
        ago."""
        disk = self.world.machine(host(node_id)).disk
        if node_id in self.members:
            self.members[node_id].partition(index).log.active.forget_places()
        disk.corrupt(f"/data/{TOPIC}-{index}/{0:020}.log", position, 0x10)

    def byte(self, node_id: int, position: int, *, index: int = 0) -> int | None:
        """Return a byte of a partition's first segment on a broker's disk, or None beyond its end."""
        files = self.world.machine(host(node_id)).disk.peek(f"/data/{TOPIC}-{index}")
        data = files.get(f"{0:020}.log", b"")
        return data[position] if position < len(data) else None

    def directories(self, node_id: int) -> list[str]:
        """Return the directories of partitions on a broker's disk."""
        names = self.members[node_id].broker.log_dirs[0].directory.list()
        return [name for name in names if name.startswith(f"{TOPIC}-")]

    def crash(self, node_id: int, keep: Keep = "all") -> None:
        self.members.pop(node_id, None)
        self.world.crash(host(node_id), keep)

    # -- clients --------------------------------------------------------------------------------------------------

    def _ask(self, node_id: int) -> Any:
        env = self.world.node_env("client")
        if self._peers is None:
            self._peers = PeerConnections(
                env, self.world.tasks, client_id="client", log=structlog.get_logger()
            )
        return self._peers.channel(host(node_id), PORT), env.clock

    async def ask(self, node_id: int, request: Any, *, version: int) -> Any:
        """Send any request to a broker, and return the answer."""
        channel, clock = self._ask(node_id)
        return await channel.request(request, clock.monotonic() + 5.0, version=version)

    async def produce(
        self,
        node_id: int,
        value: bytes,
        *,
        index: int = 0,
        acks: int = -1,
        timeout_ms: int = 1000,
        count: int = 1,
    ) -> tuple[int, int]:
        """Send a batch without a producer id, like `send`."""
        return await self.send(
            node_id, batch(count, value=value), index=index, acks=acks, timeout_ms=timeout_ms
        )

    async def send(
        self, node_id: int, sent: bytearray, *, index: int = 0, acks: int = -1, timeout_ms: int = 1000
    ) -> tuple[int, int]:
        """Send a batch. Return error code and base offset. Raises `ConnectionLost`, or `KafkaError`
        REQUEST_TIMED_OUT."""
        channel, clock = self._ask(node_id)
        data = PartitionProduceData(index, bytes(sent))
        request = ProduceRequest(None, acks, timeout_ms, [TopicProduceData(TOPIC, bytes(16), [data])])
        response = await channel.request(request, clock.monotonic() + 5.0, version=9)
        answer = response.responses[0].partition_responses[0]
        return answer.error_code, answer.base_offset

    async def delete_records(
        self, node_id: int, offset: int, *, timeout_ms: int = 2000, index: int = 0
    ) -> tuple[int, int]:
        """Delete records. Return error code and low watermark."""
        channel, clock = self._ask(node_id)
        topic = DeleteRecordsTopic(TOPIC, [DeleteRecordsPartition(index, offset)])
        request = DeleteRecordsRequest([topic], timeout_ms)
        response = await channel.request(request, clock.monotonic() + 5.0, version=2)
        answer = response.topics[0].partitions[0]
        return answer.error_code, answer.low_watermark

    async def fetch(self, node_id: int, offset: int, *, index: int = 0, rack: str = "") -> Any:
        """Fetch as a consumer. Return the partition's part of the answer."""
        channel, clock = self._ask(node_id)
        topic = FetchTopic("", TOPIC_ID, [FetchPartition(index, -1, offset, -1, -1, 1 << 20)])
        request = FetchRequest(
            max_wait_ms=0, min_bytes=1, max_bytes=1 << 20, session_epoch=-1, topics=[topic], rack_id=rack
        )
        response = await channel.request(request, clock.monotonic() + 5.0, version=17)
        return response.responses[0].partitions[0]

    async def until(self, condition: Callable[[], bool]) -> None:
        """Let time pass until the condition is true. Fail if it never is."""
        deadline = self.world.now + PATIENCE_SECONDS
        while not condition():
            assert self.world.now < deadline, "it never came to be"
            await self.world.sleep(0.01)

    async def in_sync(self, *node_ids: int, index: int = 0) -> None:
        """Wait until the controller's ISR consists of exactly these brokers."""
        await self.until(lambda: sorted(self.controller.partitions[index].isr) == sorted(node_ids))

    def contents(self, node_id: int, index: int = 0, *, first: int = 0) -> dict[int, bytes]:
        """Return the value of each record in a replica's log, by its offset."""
        log = self.members[node_id].partition(index).log
        found: dict[int, bytes] = {}
        offset = max(first, log.log_start_offset)
        while offset < log.log_end_offset:
            data = log.read_bytes(offset, 1 << 20, upper_bound=log.log_end_offset, min_one=True)
            for position, header in iter_batches(data):
                for record in records(data, position, decompressed_bytes_max=1 << 20):
                    found[record.offset] = bytes(record.value or b"")
                offset = header.last_offset + 1
        return found
