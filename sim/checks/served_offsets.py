"""Check of ListOffsets: answers agree with the offsets that were committed and deleted before the request. PURE.

1. The latest offset is at or above every high watermark that a leader had before the request. So it never decreases,
   and all acknowledged records are below it (KIP-207). A deposed leader answers by its own state until it learns of the
   election. So high watermarks of leader epochs after the epoch of the answer do not count.
2. DeleteRecords reports that records below an offset are deleted. The earliest offset in a later request's answer is
   at or above that offset, even after restarts and elections. The answers of leaders with an earlier epoch than that of
   the report are not checked.
3. For a timestamp, the answer is the offset of the first record with this timestamp or a later one. This rule is
   checked at the end of the run, against the final log.

The time of a request or an answer is when its last byte is sent. The leader epoch of an answer is known if the node
was in the same epoch at both moments. Topics with the same name are distinguished by their ids.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from odradek.data_plane.log.partition_log import PartitionLog
from odradek.node.node import Node
from odradek.wire.api_keys import ApiKey
from odradek.wire.batches.batch_errors import CorruptBatch
from odradek.wire.batches.batch_header import iter_batches
from odradek.wire.batches.record_times import record_times
from odradek.wire.topic_partition import TopicIdPartition
from sim.checks.watched import Hosted, Processes, moved_of, partition_name
from sim.checks.wiretap import Exchange
from sim.history import SafetyViolation
from sim.machine.disk_files import SimFile
from sim.machine.members import Member

__all__ = ["AnswerByTime", "ServedOffsets", "Timestamps"]

LATEST, EARLIEST, MAX_TIMESTAMP = -1, -2, -3
CONSUMER = -1
ANSWERS_MAX = 5_000
RECORDS_MAX = 100_000
BYTES_MAX = 64 << 20

Timestamps = Sequence[tuple[int, int]]
"""(offset, timestamp) of each record of a log, in order of offsets."""


@attrs.define
class _Floors:
    """Lower limits for the offsets in answers about one partition. The key of each limit is the first leader epoch to
    which it applies.
    """

    committed: dict[int, int] = attrs.Factory(dict)
    deleted: dict[int, int] = attrs.Factory(dict)

    def copy(self) -> _Floors:
        return _Floors(dict(self.committed), dict(self.deleted))

    def committed_at(self, epoch: int) -> int:
        return max((offset for each, offset in self.committed.items() if each <= epoch), default=0)

    def deleted_at(self, epoch: int) -> int:
        return max((offset for each, offset in self.deleted.items() if each <= epoch), default=0)


@attrs.frozen
class AnswerByTime:
    """An answer to ListOffsets for a timestamp, or for the largest timestamp (-3)."""

    who: str
    key: TopicIdPartition
    name: str
    asked_ms: int
    timestamp_ms: int
    offset: int
    committed: int
    """The committed offset at the time of the request."""
    log_start_offset: int
    """The log start offset when the answer was sent, or at a later time."""

    def check(self, records: Timestamps) -> None:
        """Check the answer against the partition's final records. Raises `SafetyViolation`."""
        told = f"{self.name}: {self.who} was asked for timestamp {self.asked_ms} and said {self.offset}"
        there = dict(records)
        if self.offset >= 0 and self.offset in there and there[self.offset] != self.timestamp_ms:
            raise SafetyViolation(
                f"{told} of timestamp {self.timestamp_ms}, but that record has {there[self.offset]}"
            )
        below = self.committed if self.asked_ms == MAX_TIMESTAMP or self.offset < 0 else self.offset
        limit = self.timestamp_ms + 1 if self.asked_ms == MAX_TIMESTAMP else self.asked_ms
        if 0 <= self.timestamp_ms < self.asked_ms:
            raise SafetyViolation(f"{told}, whose timestamp {self.timestamp_ms} is older")
        for offset, timestamp_ms in records:
            if self.log_start_offset <= offset < below and timestamp_ms >= limit:
                raise SafetyViolation(f"{told}, but the record at {offset} has timestamp {timestamp_ms}")


@attrs.define
class _Question:
    """The known state of the partitions at the time when a request was sent."""

    epochs: Mapping[TopicIdPartition, int]
    """The leader epochs in which the receiver of the request leads."""
    floors: Mapping[TopicIdPartition, _Floors]
    is_committed_only: bool
    """True if the request is for offsets up to the last stable offset."""


class ServedOffsets:
    """The check of answers to ListOffsets and DeleteRecords."""

    def __init__(self, processes: Processes) -> None:
        self._processes = processes
        self._floors: dict[TopicIdPartition, _Floors] = {}
        self._starts: dict[tuple[TopicIdPartition, int], int] = {}
        self.answers: list[AnswerByTime] = []
        """The first `ANSWERS_MAX` answers about a timestamp, to be checked at the end."""
        self.times_checked = 0
        self.latest_seen = self.earliest_seen = self.deletions_seen = 0

    # --- states

    def look(self, hosted: Sequence[Hosted]) -> None:
        """Record the high watermarks of leaders. Raises `SafetyViolation` if a log start offset decreases within a
        leader epoch.
        """
        for each in moved_of(hosted):
            partition = each.partition
            if partition.is_leader:
                log = partition.log
                self._commit(each.key, partition.leader_epoch, log.high_watermark)
                term = (each.key, partition.leader_epoch)
                if not each.member.serves():
                    # A broker with a new disk has an empty log, but the metadata from before the loss still name it
                    # as the leader.
                    continue
                before = self._starts.get(term, 0)
                if log.log_start_offset < before:
                    raise SafetyViolation(
                        f"log start: {partition_name(partition)} began at {before} in epoch {partition.leader_epoch}, "
                        f"and begins at {log.log_start_offset} on {each.member.name}"
                    )
                self._starts[term] = log.log_start_offset

    def _commit(self, key: TopicIdPartition, epoch: int, high_watermark: int) -> None:
        committed = self._floors.setdefault(key, _Floors()).committed
        committed[epoch] = max(committed.get(epoch, 0), high_watermark)

    # --- messages

    def asked(self, exchange: Exchange) -> bool:
        """Record the offsets that the answer to this request must reach. Returns False if it need not be checked."""
        if exchange.api == ApiKey.DELETE_RECORDS:
            return True
        if exchange.request.replica_id != CONSUMER:
            return False
        asked = {
            (topic.name, part.partition_index)
            for topic in exchange.request.topics
            for part in topic.partitions
        }
        target = self._processes.named(exchange.conn.peer_name)
        epochs: dict[TopicIdPartition, int] = {}
        floors: dict[TopicIdPartition, _Floors] = {}
        for each in self._processes.hosted():
            partition = each.partition
            if (partition.log.topic, partition.log.partition) not in asked:
                continue
            if partition.is_leader:
                self._commit(each.key, partition.leader_epoch, partition.log.high_watermark)
                if target is not None and each.member is target[0]:
                    epochs[each.key] = partition.leader_epoch
        for key in epochs:
            floors[key] = self._floors[key].copy()
        exchange.memo = _Question(epochs, floors, bool(exchange.request.isolation_level))
        return bool(epochs)

    def answered(self, exchange: Exchange, answer: Any) -> None:
        """Check the offsets that the answer returns. Raises `SafetyViolation`."""
        serving = self._processes.at(exchange.conn.peer)
        if serving is None:
            return
        if exchange.api == ApiKey.DELETE_RECORDS:
            self._deleted(serving, exchange.request, answer)
            return
        asked = {
            (topic.name, part.partition_index): part.timestamp
            for topic in exchange.request.topics
            for part in topic.partitions
        }
        for topic in answer.topics:
            for part in topic.partitions:
                if not part.error_code:
                    timestamp = asked[topic.name, part.partition_index]
                    self._listed(serving, exchange.memo, topic.name, part, timestamp)

    def _listed(
        self, serving: tuple[Member, Node], question: _Question, topic: str, part: Any, timestamp: int
    ) -> None:
        member, node = serving
        hosted = None if node.broker is None else node.broker.topics.get(topic)
        partition = None if hosted is None else hosted.partitions.get(part.partition_index)
        if hosted is None or partition is None or not partition.is_leader:
            return
        key = TopicIdPartition(hosted.topic_id, part.partition_index)
        epoch = partition.leader_epoch
        if question.epochs.get(key) != epoch:
            return
        name, floors = f"{topic}-{part.partition_index}", question.floors[key]
        if timestamp == LATEST and not question.is_committed_only:
            self.latest_seen += 1
            _check_at_least(
                "latest", name, member.name, epoch, part.offset, floors.committed_at(epoch), "committed"
            )
        elif timestamp == EARLIEST:
            self.earliest_seen += 1
            _check_at_least(
                "earliest", name, member.name, epoch, part.offset, floors.deleted_at(epoch), "deleted"
            )
        elif (
            (timestamp >= 0 or timestamp == MAX_TIMESTAMP)
            and not question.is_committed_only
            and len(self.answers) < ANSWERS_MAX
        ):
            committed, start = floors.committed_at(epoch), partition.log.log_start_offset
            answer = AnswerByTime(
                member.name, key, name, timestamp, part.timestamp, part.offset, committed, start
            )
            self.answers.append(answer)

    def _deleted(self, serving: tuple[Member, Node], request: Any, answer: Any) -> None:
        """Note that the records below an offset were reported as deleted: leaders from this epoch on must begin at or
        after it.
        """
        broker = serving[1].broker
        for topic in answer.topics if broker is not None else ():
            hosted = broker.topics.get(topic.name) if broker is not None else None
            for part in topic.partitions:
                partition = None if hosted is None else hosted.partitions.get(part.partition_index)
                if hosted is None or partition is None or part.error_code or not partition.is_leader:
                    continue
                key = TopicIdPartition(hosted.topic_id, part.partition_index)
                self.deletions_seen += 1
                if partition.log.log_start_offset < part.low_watermark:
                    raise SafetyViolation(
                        f"{topic.name}-{part.partition_index}: {serving[0].name} says that all below {part.low_watermark} "
                        f"is deleted, and begins at {partition.log.log_start_offset}"
                    )
                floors = self._floors.setdefault(key, _Floors())
                epoch = partition.leader_epoch
                floors.deleted[epoch] = max(floors.deleted.get(epoch, 0), part.low_watermark)

    # --- checks at the end of the run

    def look_at_all(self, hosted: Sequence[Hosted]) -> None:
        """Check the answers about timestamps against the logs of the present leaders. Raises `SafetyViolation`."""
        asked = {answer.key for answer in self.answers}
        logs = {
            each.key: _timestamps(each.partition.log)
            for each in hosted
            if each.partition.is_leader and each.key in asked
        }
        self.times_checked = 0
        for answer in self.answers:
            records = logs.get(answer.key)
            if records is not None:
                answer.check(records)
                self.times_checked += 1


def _timestamps(log: PartitionLog) -> Timestamps | None:
    """Read (offset, timestamp) of a log's records; None if a disk has damaged them."""
    found: list[tuple[int, int]] = []
    for segment in log.segments:
        assert isinstance(segment.file, SimFile)
        data = bytes(segment.file.content)
        try:
            for position, header in iter_batches(data):
                batch = data[position : position + header.size]
                found += record_times(batch, records_max=RECORDS_MAX, decompressed_bytes_max=BYTES_MAX)
        except CorruptBatch:
            return None
    return found


def _check_at_least(what: str, name: str, who: str, epoch: int, answered: int, floor: int, why: str) -> None:
    if answered < floor:
        raise SafetyViolation(
            f"{what} offset: {who}, which leads {name} in epoch {epoch}, says {answered}, but all below {floor} was "
            f"{why} before it was asked"
        )
