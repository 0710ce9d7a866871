"""Check of Vote and Fetch between nodes: what a message implies about its sender's disk is true when it is
sent. PURE.

1. A voter requests votes in an epoch, or grants its vote, only after its own vote is synced to disk (Raft, figure
   2).
2. A node that fetches the metadata log from an offset has synced the whole log below that offset (KIP-595). It has
   also synced everything that its core counts as flushed. A Fetch may wait in a connection while the log is
   truncated. If the Fetch's offset is beyond the log's present end, the Fetch was decided before the truncation. Then
   the whole log below the offset must have been synced before the truncation.
3. A follower that fetches a partition from an offset has all records below that offset in its page cache. These
   records need not be synced, unless `flush.messages` demands it. A Fetch of an earlier leader epoch is left out. It
   may have waited in a connection while the log was truncated, and leaders reject it. Records below the log start are
   not needed. The start of an empty log may be higher than the offset in its segment's name. After a restart the log
   must begin at or after the log start offset in the Fetch. The checkpoint or the name of the first segment decides
   where it begins.

A message is checked when its last byte is sent.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from odradek.data_plane.metadata_log import SYNCED_OFFSET_FILE
from odradek.data_plane.replication.partition import Partition
from odradek.metadata_quorum.replica.quorum_state import FILE_NAME as QUORUM_STATE
from odradek.metadata_quorum.replica.storage_format import METADATA_LOG_DIRECTORY
from odradek.metadata_quorum.replica.wire_messages import METADATA_TOPIC, METADATA_TOPIC_ID
from odradek.node.node import Node
from odradek.wire.api_keys import ApiKey
from odradek.wire.messages.fetch import FetchPartition
from odradek.wire.uuid_text import uuid_to_text
from sim.checks.answers.served_records import is_replica
from sim.checks.stored_logs import StoredLogs, stored_start
from sim.checks.watched import Hosted, Processes, partition_name
from sim.checks.wiretap import Exchange
from sim.history import SafetyViolation
from sim.machine.disk import SimDisk
from sim.machine.members import Member
from sim.machine.platter import Inode

NO_EPOCH = -1

__all__ = ["Promises"]


class Promises:
    """The check of Vote and Fetch between nodes."""

    def __init__(self, processes: Processes) -> None:
        self._processes = processes
        self._durable = StoredLogs(is_durable=True)
        self._cached = StoredLogs(is_durable=False)
        self._cut: dict[str, tuple[Node, int]] = {}
        """For each machine, its process, and the offset up to which its metadata log was synced before a truncation."""
        self.votes_seen = self.quorum_fetches_seen = self.fetches_seen = 0

    def watch_cuts(self) -> None:
        """Record before each truncation of synced data how far the metadata log is synced, since the truncation
        lowers that offset.
        """
        for member in self._processes.cluster.members:
            self._watch_disk(member, self._processes.world.machine(member.name).disk)

    def _watch_disk(self, member: Member, disk: SimDisk) -> None:
        others = disk.on_operation
        renamed = f"{_metadata_path(member)}/{SYNCED_OFFSET_FILE}.tmp"

        def on_operation(operation: str, path: str, position: int, count: int) -> None:
            if others is not None:
                others(operation, path, position, count)
            if operation == "rename" and path == renamed and member.node is not None:
                node, end_offset = member.node, self._durable.end_offset(disk, _metadata_path(member))
                known = self._cut.get(member.name)
                if known is None or known[0] is not node or known[1] < end_offset:
                    self._cut[member.name] = node, end_offset

        disk.on_operation = on_operation

    def look(self, hosted: Sequence[Hosted]) -> None:
        """Check that the end offset which each core counts as flushed is synced to disk. Raises `SafetyViolation`.

        While a leader's snapshot replaces the log, the disk may already have less than the core knows. The snapshot may
        end below records that were never committed. The replica fetches nothing meanwhile.
        """
        for member, node in self._processes.living():
            metadata = node.metadata
            if metadata is None or not metadata.quorum.is_open:
                continue
            if not metadata.quorum.snapshots.is_installing:
                self._check_durable(member, metadata.quorum.core.log.flushed_offset, "takes for flushed")

    def look_at_all(self, hosted: Sequence[Hosted]) -> None:
        """Check as `look` does."""
        self.look(hosted)

    # --- messages

    def asked(self, exchange: Exchange) -> bool:
        """Check a Vote or Fetch request. Returns True if the answer must be checked too. Raises `SafetyViolation`."""
        asking = self._processes.at(exchange.conn)
        request = exchange.request
        if exchange.api == ApiKey.VOTE:
            part = request.topics[0].partitions[0]
            if asking is not None and not part.pre_vote:
                self._check_vote(asking[0], part.replica_epoch, part.replica_id, None)
            return not part.pre_vote
        if asking is None or not is_replica(request):
            return False
        for topic in request.topics:
            if topic.topic_id == METADATA_TOPIC_ID or topic.topic == METADATA_TOPIC:
                self.quorum_fetches_seen += 1
                if not self._is_of_before_a_cut(asking, topic.partitions[0].fetch_offset):
                    self._check_durable(asking[0], topic.partitions[0].fetch_offset, "promises")
            else:
                for part in topic.partitions:
                    self._check_follower(asking, part, topic.topic or topic.topic_id)
        return False

    def answered(self, exchange: Exchange, answer: Any) -> None:
        """Check a granted vote. Raises `SafetyViolation`."""
        voter = self._processes.at(exchange.conn.peer)
        if voter is None or not answer.topics:
            return
        asked, given = exchange.request.topics[0].partitions[0], answer.topics[0].partitions[0]
        if given.vote_granted:
            self._check_vote(
                voter[0], asked.replica_epoch, asked.replica_id, uuid_to_text(asked.replica_directory_id)
            )

    # --- disks

    def _check_vote(self, member: Member, epoch: int, candidate: int, directory: str | None) -> None:
        """Check that the vote, or a later epoch, is synced to disk."""
        self.votes_seen += 1
        disk = self._processes.world.machine(member.name).disk
        inode = disk.on_platter(_metadata_path(member)).get(QUORUM_STATE)
        stored = json.loads(bytes(inode.data[: inode.durable_size])) if isinstance(inode, Inode) else {}
        known = stored.get("leaderEpoch", -1)
        holds = stored.get("votedId") == candidate and directory in (None, stored.get("votedDirectoryId"))
        if known < epoch or (known == epoch and not holds):
            raise SafetyViolation(
                f"vote: {member.name} votes for {candidate} in epoch {epoch}, and its disk has epoch {known} with a vote "
                f"for {stored.get('votedId')}"
            )

    def _check_durable(self, member: Member, offset: int, what: str) -> None:
        """Check that the metadata log below `offset` is synced to disk, in segments or in a snapshot."""
        disk = self._processes.world.machine(member.name).disk
        end_offset = self._durable.end_offset(disk, _metadata_path(member))
        if end_offset < offset and offset > 0:
            raise SafetyViolation(
                f"metadata log: {member.name} {what} all below {offset}, and its disk has it up to {end_offset}"
            )

    def _is_of_before_a_cut(self, asking: tuple[Member, Node], offset: int) -> bool:
        """True if a Fetch from this offset was decided before the log was truncated, and the whole log below the
        offset was synced before the truncation.
        """
        member, node = asking
        process, end_offset = self._cut.get(member.name, (None, -1))
        if process is not node or end_offset < offset or node.metadata is None:
            return False
        quorum = node.metadata.quorum
        return quorum.is_open and quorum.core.log.end_offset < offset

    def _check_follower(self, asking: tuple[Member, Node], part: FetchPartition, topic: bytes | str) -> None:
        member, node = asking
        broker = node.broker
        partition = None if broker is None else broker.hosted.partition(topic, part.partition)
        if partition is None or partition.log.offline:
            return
        if NO_EPOCH < part.current_leader_epoch < partition.leader_epoch:
            return
        self.fetches_seen += 1
        disk = self._processes.world.machine(member.name).disk
        path, start_offset = partition.log.directory.path, partition.log.log_start_offset
        end_offset = max(self._cached.end_offset(disk, path), start_offset)
        if part.fetch_offset > end_offset:
            raise SafetyViolation(
                f"{partition_name(partition)}: {member.name} promises all below {part.fetch_offset}, and its page cache "
                f"has it up to {end_offset}"
            )
        unsynced_max = partition.log.config.flush_messages - 1
        if unsynced_max < part.fetch_offset:
            end_offset = max(self._durable.end_offset(disk, path), start_offset)
            if part.fetch_offset - end_offset > unsynced_max:
                raise SafetyViolation(
                    f"{partition_name(partition)}: {member.name} promises all below {part.fetch_offset} with "
                    f"flush.messages={unsynced_max + 1}, and its disk has it up to {end_offset}"
                )
        self._check_start(member, partition, part.log_start_offset)

    def _check_start(self, member: Member, partition: Partition, log_start_offset: int) -> None:
        """Check that the log begins at or after this offset, now and after a restart."""
        log = partition.log
        disk = self._processes.world.machine(member.name).disk
        found = self._cached.segments(disk, log.directory.path)
        stored = max(stored_start(disk, log), found[0][0] if found else 0)
        if log_start_offset > min(log.log_start_offset, stored):
            raise SafetyViolation(
                f"{partition_name(partition)}: {member.name} says that it begins at {log_start_offset}. It begins at "
                f"{log.log_start_offset}, and would begin at {stored} after a restart"
            )


def _metadata_path(member: Member) -> str:
    return f"{member.config.metadata_log_dir}/{METADATA_LOG_DIRECTORY}"
