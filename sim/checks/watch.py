"""All checks during a run: every 0.05 s the state of all living nodes is compared with `sim.checks.invariants`.
PORTED.

`Watch` reads the nodes' own objects and the bytes on their disks. It leaves all messages, disk operations and random
numbers unchanged, so the run is the same without it. The first violated rule ends the run.

Each call of `look` checks only the nodes on which a task has run since the last call. It checks only the partitions
of which a replica has changed.

Rule 3 counts a replica as in sync if the leader does, under two conditions. The leader has the newest partition epoch
that any node has. The replica's broker is registered with its present process. The second condition exists because a
broker whose machine has just lost its page cache remains in the ISR until it registers. All other members of the ISR
must have all records.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import attrs

from odradek.data_plane.replication.partition import Partition
from odradek.env.ports import File
from odradek.metadata_quorum.raft.roles import Leader
from odradek.metadata_quorum.replica.quorum_leader import WAITING_BYTES_MAX
from odradek.metadata_quorum.replica.quorum_state import FILE_NAME as QUORUM_STATE
from odradek.metadata_quorum.replica.storage_format import METADATA_LOG_DIRECTORY
from odradek.node.connections.answer_queue import SEND_QUEUE_BYTES_MAX
from odradek.node.connections.answers import HELD_BYTES_MAX, PARKED_MAX, SLOTS_MAX
from odradek.node.connections.connection_loop import FRAMES_PER_TURN
from odradek.node.node import Node
from odradek.wire.api_keys import ApiKey
from odradek.wire.batches.batch_header import HEADER, HEADER_SIZE, SIZE_PREFIX
from odradek.wire.batches.batch_header import Buffer as Bytes
from odradek.wire.topic_partition import TopicIdPartition
from sim.checks.access import Access
from sim.checks.answers.given_answers import GivenAnswers
from sim.checks.answers.served_records import ServedRecords
from sim.checks.availability import Availability
from sim.checks.derived.derived_state import DerivedState
from sim.checks.derived.group_states import GroupStates
from sim.checks.derived.image_caches import ImageCaches
from sim.checks.derived.known_followers import KnownFollowers
from sim.checks.derived.metadata_replay import MetadataReplay
from sim.checks.derived.published_images import PublishedImages
from sim.checks.derived.replica_states import ReplicaStates
from sim.checks.derived.transactions import TransactionStates
from sim.checks.found_dead import FoundDead
from sim.checks.groups.fenced_members import FencedMembers
from sim.checks.groups.told_offsets import ToldOffsets
from sim.checks.invariants import (
    CommittedBatches,
    EqualAtOffsets,
    NeverFalls,
    OneForEach,
    StoredHeader,
    check_bound,
    check_isr_holds,
)
from sim.checks.min_isr import MinIsr
from sim.checks.promises import Promises
from sim.checks.served_offsets import ServedOffsets
from sim.checks.stored_marks import StoredMarks
from sim.checks.watched import Check, Processes, Replicas
from sim.checks.wiretap import Wiretap
from sim.history import SafetyViolation
from sim.machine.disk_files import SimFile
from sim.machine.members import Member
from sim.machine.platter import Inode

if TYPE_CHECKING:
    from odradek.metadata_quorum.image.metadata_image import MetadataDelta, MetadataImage
    from sim.machine.cluster_members import Cluster

LOOK_SECONDS = 0.05
WAITING_TASKS_MAX = 10_000
"""The largest number of waiting tasks that a node may have."""
ANSWER_BYTES_MAX = 16 << 20
"""The size in bytes of the largest answer that clients of a run request. A queue may exceed its limit by one such
answer.
"""
GUARDED_APIS = (
    *(ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE, ApiKey.METADATA, ApiKey.PRODUCE, ApiKey.FETCH),
    *(ApiKey.CREATE_TOPICS, ApiKey.CREATE_ACLS),
)
"""The APIs whose requests and answers `sim.checks.access` checks."""
_SLOTS_MAX = SLOTS_MAX + FRAMES_PER_TURN
_HELD_BYTES_MAX = HELD_BYTES_MAX + ANSWER_BYTES_MAX
_QUEUED_BYTES_MAX = SEND_QUEUE_BYTES_MAX + ANSWER_BYTES_MAX
_METADATA = TopicIdPartition(b"metadata", 0)

__all__ = ["Watch"]


@attrs.define
class _Cursor:
    """How far a log has been read: a position in the segment with base offset `base`."""

    base: int = -1
    position: int = 0
    next_offset: int = 0


@attrs.define
class _Seen:
    """The state of one process at the last call of `look`."""

    node: Node
    number: int
    """The number of the process: processes are counted in the order in which `Watch` found them."""
    wakes: int = -1
    """How often the process's tasks had been woken before the last call of `look`."""
    follows_images: bool = False
    cursors: dict[TopicIdPartition, tuple[object, _Cursor]] = attrs.Factory(dict)
    quorum_state: bytes = b""


class Watch:
    """All checks during a run. Call `begin` once the simulation runs; `looks` counts the calls of `look`."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._world = cluster.world
        self._seen: dict[str, _Seen] = {}
        self.leaders = OneForEach("one leader per epoch")
        self.high_watermarks = NeverFalls("high watermark")
        self.committed = CommittedBatches()
        self._compacted: set[bytes] = set()
        """Ids of topics that were compacted at some time: their replicas may have different batches."""
        self.images = EqualAtOffsets("metadata images")
        self.quorum_leaders = OneForEach("one quorum leader per epoch")
        self.votes = OneForEach("one vote per epoch")
        self.producer_blocks = OneForEach("one broker per block of producer ids")
        self.producer_ids = NeverFalls("producer ids")
        self._processes_seen = 0
        self.looks = 0
        self._is_over = False
        processes = self.processes = Processes(cluster)
        self.served_records = ServedRecords(processes)
        self.served_offsets = ServedOffsets(processes)
        self.promises = Promises(processes)
        self.found_dead = FoundDead(cluster)
        self.answers = GivenAnswers(processes, self.found_dead)
        self.stored_marks = StoredMarks(processes)
        self.min_isr = MinIsr(processes)
        self.metadata_replay = MetadataReplay(processes)
        self.metadata_replay.judges.append(self.answers.judge)
        self.published = PublishedImages(processes.world.seed)
        self.derived_state = DerivedState(processes)
        self.transactions = TransactionStates(processes)
        self.group_states = GroupStates(processes)
        self.replica_states = ReplicaStates()
        self.known_followers = KnownFollowers()
        self.image_caches = ImageCaches(processes, self.metadata_replay)
        self.checks: tuple[Check, ...] = (
            self.served_records,
            self.served_offsets,
            self.promises,
            self.answers,
            self.stored_marks,
            self.min_isr,
            self.metadata_replay,
            self.derived_state,
            self.transactions,
            self.group_states,
            self.replica_states,
            self.known_followers,
            self.image_caches,
        )
        self.access = Access(processes, cluster.shape.session_ms)
        if cluster.shape.guarded:
            self.checks += (self.access,)
        self.availability = Availability(processes)
        self.told_offsets = ToldOffsets(processes)
        self.fenced_members = FencedMembers(processes)
        self.tap = self._tapped()

    def _tapped(self) -> Wiretap:
        """Make the tap on connections, and register each check for its APIs."""
        tap = Wiretap(self._world.refute)
        tap.listen(ApiKey.FETCH, self.served_records)
        tap.listen(ApiKey.FETCH, self.promises)
        tap.listen(ApiKey.VOTE, self.promises)
        tap.listen(ApiKey.LIST_OFFSETS, self.served_offsets)
        tap.listen(ApiKey.DELETE_RECORDS, self.served_offsets)
        tap.listen(ApiKey.OFFSET_FETCH, self.told_offsets)
        for api in (ApiKey.DELETE_GROUPS, ApiKey.OFFSET_DELETE):
            tap.listen(api, self.group_states.removed)
        for api in (ApiKey.JOIN_GROUP, ApiKey.OFFSET_COMMIT, ApiKey.TXN_OFFSET_COMMIT):
            tap.listen(api, self.fenced_members)
        if self._cluster.shape.guarded:
            for api in GUARDED_APIS:
                tap.listen(api, self.access)
        return tap

    def begin(self) -> None:
        """Start to check nodes and messages, until the run ends."""
        self._world.fabric.on_sent = self.tap.sent
        self.stored_marks.watch_markers()
        self.promises.watch_cuts()
        self.found_dead.begin()
        self._look_later()

    def end(self) -> None:
        """Stop checking, because the metadata log is about to be replaced. After that, another `Watch` begins."""
        self._is_over = True

    def _look_later(self) -> None:
        self._world.agenda.at(self._world.now + LOOK_SECONDS, self._look_again)

    def _look_again(self) -> None:
        if self._is_over:
            return
        self._look_later()
        try:
            self.look()
        except SafetyViolation as error:
            self._world.refute(error)

    def look(self, *, also_unmoved: bool = False) -> None:
        """Check the nodes on which a task has run since the last call. With `also_unmoved` check all nodes. Raises
        `SafetyViolation`.
        """
        self.looks += 1
        living = [member for member in self._cluster.members if member.is_up() and member.node is not None]
        have_moved = False
        for member in living:
            seen = self._of(member)
            wakes = self._world.node_env(member.name).wakes
            if wakes != seen.wakes or also_unmoved:
                seen.wakes = wakes
                have_moved = True
                self._look_at_quorum(member, seen)
                self._look_at_bounds(member, seen.node)
        if have_moved:
            for member in living:
                self._look_at_producer_ids(member, self._of(member))
            replicas = self.processes.look(anyway=also_unmoved)
            self._look_at_partitions(replicas)
            for check in self.checks:
                check.look(replicas)

    def look_at_all(self) -> None:
        """Check everything once, including the parts of which `look` checks only random samples. Raises
        `SafetyViolation`.
        """
        self.look()
        hosted = self.processes.look(anyway=True)
        for check in self.checks:
            check.look_at_all(hosted)

    def _of(self, member: Member) -> _Seen:
        node = member.node
        assert node is not None
        seen = self._seen.get(member.name)
        if seen is None or seen.node is not node:
            self._processes_seen += 1
            seen = self._seen[member.name] = _Seen(node, self._processes_seen)
        return seen

    # --- the quorum

    def _look_at_quorum(self, member: Member, seen: _Seen) -> None:
        metadata = seen.node.metadata
        if metadata is None or not metadata.quorum.is_open:
            return
        quorum = metadata.quorum
        if isinstance(quorum.core.role, Leader):
            epoch = quorum.core.role.epoch
            self.quorum_leaders.see(epoch, (member.name, quorum.settings.me), f"epoch {epoch}")
            self.answers.heartbeats.lead(epoch, member, seen.node)
        high_watermark = quorum.decisions.high_watermark
        self.high_watermarks.see(
            member.name, seen.node, high_watermark, f"of the metadata log on {member.name}"
        )
        disk = self._world.machine(member.name).disk
        path = f"{member.config.metadata_log_dir}/{METADATA_LOG_DIRECTORY}"
        state = disk.in_cache(path).get(QUORUM_STATE)
        if isinstance(state, Inode) and state.data != seen.quorum_state:
            self._look_at_vote(member, seen, bytes(state.data), quorum.settings.me)
        cursor = self._cursor(seen, _METADATA, quorum.log)
        if cursor.next_offset != high_watermark:
            files = disk.contents(path)
            segments = [(int(name[:20]), files[name]) for name in sorted(files) if name.endswith(".log")]
            headers = _headers(segments, cursor, high_watermark)
            self.committed.see(_METADATA, "metadata log", member.name, headers)
        if not seen.follows_images:
            seen.follows_images = True
            self._see_image(member, metadata.committed_image)
            self.published.begin(member.name, metadata.committed_image)
            self.answers.newest.see(metadata.committed_image, None)
            metadata.subscribe(lambda image, delta: self._on_image(member, image, delta))

    def _look_at_vote(self, member: Member, seen: _Seen, state: bytes, me: object) -> None:
        if not state:
            return
        seen.quorum_state = state
        stored = json.loads(state)
        if stored["votedId"] >= 0:
            epoch = stored["leaderEpoch"]
            voted = (stored["votedId"], stored["votedDirectoryId"])
            self.votes.see((me, epoch), voted, f"the vote of {member.name} in epoch {epoch}")

    def _on_image(self, member: Member, image: MetadataImage, delta: MetadataDelta) -> None:
        if self._is_over:
            return
        try:
            self.answers.newest.see(image, delta)
            self.group_states.removed.topics.update(each.name for each in delta.deleted_topics.values())
            self._see_image(member, image)
            self.published.published(member.name, image, delta)
        except SafetyViolation as error:
            self._world.refute(error)

    def _see_image(self, member: Member, image: MetadataImage) -> None:
        if image.offset >= 0:
            self.images.see(member.name, image.offset, image)
            self.metadata_replay.published(member, image)

    # --- partitions

    def _look_at_partitions(self, replicas: Replicas) -> None:
        """Check the partitions of which a replica has changed."""
        moved: dict[TopicIdPartition, dict[int, tuple[Member, Partition]]] = {}
        for each in replicas:
            if each.key in replicas.moved_keys:
                moved.setdefault(each.key, {})[each.member.config.node_id] = (each.member, each.partition)
        for key, there in moved.items():
            self._look_at_partition(key, there)

    def _look_at_partition(self, key: TopicIdPartition, there: dict[int, tuple[Member, Partition]]) -> None:
        newest = -1
        for _, partition in there.values():
            if partition.image is not None:
                newest = max(newest, partition.partition_epoch, partition.image.partition_epoch)
        # After a loss of power a log may have back what was cut, even below its checkpoint of the high watermark. The
        # replica serves nobody until its leader has confirmed the checkpoint.
        limits = {
            broker_id: partition.log.high_watermark if partition.knows_high_watermark else 0
            for broker_id, (_, partition) in there.items()
        }
        for broker_id, (member, partition) in there.items():
            log = partition.log
            if partition.knows_high_watermark:
                told = f"of {_name(partition)} on {member.name}"
                self.high_watermarks.see((member.name, key), log, log.high_watermark, told)
            if partition.is_leader:
                epoch = partition.leader_epoch
                told = f"epoch {epoch} of {_name(partition)}"
                self.leaders.see((key, epoch), member.name, told)
                if partition.partition_epoch >= newest:
                    self._look_at_isr(broker_id, partition, there, limits)
        for broker_id, (member, partition) in there.items():
            self._look_at_batches(member, key, partition, limits[broker_id])

    def _look_at_producer_ids(self, member: Member, seen: _Seen) -> None:
        if seen.node.broker is None:
            return
        block = seen.node.broker.producer_ids
        if block.end_id:
            told = f"the block that ends at {block.end_id}"
            self.producer_blocks.see(block.end_id, (member.name, seen.number), told)
            self.producer_ids.see(member.name, seen.node, block.next_id, f"the next one of {member.name}")

    def _look_at_isr(
        self,
        leader: int,
        partition: Partition,
        there: dict[int, tuple[Member, Partition]],
        limits: dict[int, int],
    ) -> None:
        """Check that a leader's in-sync replicas have all records below its high watermark. Compare the replicas'
        batches below the high watermark, too.
        """
        leading = self._of(there[leader][0]).node.broker
        assert leading is not None
        high_watermark = partition.log.high_watermark
        ends: list[tuple[str, int]] = []
        for broker_id in partition.isr_state.isr:
            if broker_id == leader or broker_id not in there:
                continue
            member, replica = there[broker_id]
            broker = self._of(member).node.broker
            known = leading.image.brokers.get(broker_id)
            assert broker is not None
            if known is None or known.epoch != broker.replication.broker_epoch or replica.log.offline:
                continue
            ends.append((member.name, replica.log.log_end_offset))
            if replica.leader_epoch == partition.leader_epoch:
                limits[broker_id] = max(limits[broker_id], high_watermark)
        check_isr_holds(_name(partition), there[leader][0].name, high_watermark, ends)

    def _look_at_batches(
        self, member: Member, key: TopicIdPartition, partition: Partition, limit: int
    ) -> None:
        log = partition.log
        if log.config.is_compacted:
            self._compacted.add(key.topic_id)
        if key.topic_id in self._compacted or log.offline or log.is_closed:
            return
        cursor = self._cursor(self._of(member), key, log)
        if cursor.next_offset == limit:
            return
        segments = [(segment.base_offset, _content(segment.file)) for segment in log.segments]
        # Skip batches below the log start. A follower may keep bytes there that differ from the leader's; no client
        # can read them.
        start = log.log_start_offset
        headers = (each for each in _headers(segments, cursor, limit) if each.next_offset > start)
        self.committed.see(key, _name(partition), member.name, headers)

    @staticmethod
    def _cursor(seen: _Seen, key: TopicIdPartition, log: object) -> _Cursor:
        known = seen.cursors.get(key)
        if known is None or known[0] is not log:
            known = seen.cursors[key] = (log, _Cursor())
        return known[1]

    # --- bounds

    def _look_at_bounds(self, member: Member, node: Node) -> None:
        name = member.name
        env = self._world.node_env(name)
        check_bound(name, "tasks that wait", len(env.waits), WAITING_TASKS_MAX)
        for services in node.services:
            buffers = services.buffers
            used = buffers.bytes_used
            check_bound(name, "bytes of half-received frames", used, buffers.bytes_max)
        for server in node.servers:
            for connection in server.connections:
                if connection.slots:
                    waiting = len(connection.slots)
                    check_bound(name, "answers that wait in one connection", waiting, _SLOTS_MAX)
                if connection.parked:
                    check_bound(name, "parked fetches of one connection", connection.parked, PARKED_MAX)
                held, queued = connection.held_bytes, connection.send_queue.bytes_queued
                if held:
                    check_bound(name, "bytes that wait behind a delayed answer", held, _HELD_BYTES_MAX)
                if queued:
                    check_bound(name, "bytes that one connection does not take", queued, _QUEUED_BYTES_MAX)
        broker = node.broker
        if broker is not None:
            sessions = broker.sessions.statistics()["sessions"]
            check_bound(name, "fetch sessions", sessions, broker.settings.fetch_session_slots_max)
        if node.metadata is not None:
            waiting = node.metadata.quorum.decisions.waiting_bytes
            check_bound(name, "bytes of decisions that wait", waiting, WAITING_BYTES_MAX)


def _content(file: File) -> bytearray:
    assert isinstance(file, SimFile)
    return file.content


def _name(partition: Partition) -> str:
    return f"{partition.log.topic}-{partition.log.partition}"


def _headers(segments: Sequence[tuple[int, Bytes]], cursor: _Cursor, limit: int) -> Iterator[StoredHeader]:
    """Yield the batches below offset `limit` that were not read yet, and advance `cursor` past them."""
    for base, data in segments:
        if base < cursor.base:
            continue
        if base > cursor.base:
            cursor.base, cursor.position = base, 0
        while cursor.position + HEADER_SIZE <= len(data):
            offset, length, epoch, _, crc, _, delta, *_ = HEADER.unpack_from(data, cursor.position)
            if offset + delta + 1 > limit:
                return
            cursor.position += length + SIZE_PREFIX
            cursor.next_offset = offset + delta + 1
            yield StoredHeader(offset, offset + delta + 1, epoch, crc)
