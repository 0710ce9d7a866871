"""Check of OffsetCommit and TxnOffsetCommit: an acknowledged commit is in the coordinator's log. PURE.

The commit's record was appended after the request was sent, for the same group and partition and with the same
offset. A record of TxnOffsetCommit also has the producer's id and epoch. The record is below the high watermark, and
all in-sync replicas have it.
"""

from __future__ import annotations

from collections.abc import Mapping

from odradek.data_plane.groups.records import OffsetCommitKey, OffsetCommitValue, decode_key
from odradek.wire.api_keys import ApiKey
from odradek.wire.batches.batch_errors import CorruptBatch
from odradek.wire.batches.batch_header import TRANSACTIONAL_MASK, BatchHeader
from odradek.wire.batches.records import records
from odradek.wire.errors import KafkaError, ProtocolError
from odradek.wire.messages.offset_commit import OffsetCommitResponse, OffsetCommitResponseTopic
from odradek.wire.messages.txn_offset_commit import TxnOffsetCommitResponse, TxnOffsetCommitResponseTopic
from odradek.wire.metadata_frames import decode_coordinator_value
from odradek.wire.topic_partition import TopicIdPartition
from sim.checks.answers.held_records import HeldRecords
from sim.checks.answers.log_tail import DECOMPRESSED_BYTES_MAX, Tail
from sim.checks.watched import Processes, partition_name
from sim.checks.wiretap import Exchange
from sim.history import SafetyViolation

__all__ = ["KeptCommits"]

_UNREADABLE = (KafkaError, ProtocolError, CorruptBatch)

TOPIC_IDS_SINCE = 10
"""The version of OffsetCommit from which topics have ids instead of names."""

Written = dict[tuple[str, int], list[tuple[int, int]]]
"""For each (topic, partition), the (log offset of the record, committed offset) of each commit."""


class KeptCommits:
    """The check of answers to OffsetCommit and TxnOffsetCommit."""

    def __init__(self, processes: Processes, held: HeldRecords) -> None:
        self._processes = processes
        self._held = held
        self.seen = 0

    def asked(self, exchange: Exchange) -> bool:
        """Record where the log of the group's coordinator ends. Returns False if this broker coordinates no such
        group.
        """
        found = self._processes.at(exchange.conn.peer)
        broker = None if found is None else found[1].broker
        if found is None or broker is None:
            return False
        index = broker.groups.partition_for(exchange.request.group_id)
        shard = None if index is None else broker.groups.shards.get(index)
        tail = None if shard is None else Tail.of(shard.partition.log)
        exchange.memo = found, shard, tail
        return tail is not None

    def answered(self, exchange: Exchange, answer: object) -> None:
        """Check the offsets that the answer acknowledges. Raises `SafetyViolation`."""
        assert isinstance(answer, (OffsetCommitResponse, TxnOffsetCommitResponse))
        found, shard, tail = exchange.memo
        if self._processes.at(exchange.conn.peer) != found or not shard.partition.is_leader:
            return
        names = {topic.topic_id: name for name, topic in found[1].broker.newest.image.topics.items()}
        has_ids = exchange.api == ApiKey.OFFSET_COMMIT and exchange.version >= TOPIC_IDS_SINCE
        told_topics: list[OffsetCommitResponseTopic] | list[TxnOffsetCommitResponseTopic] = answer.topics
        kept = [
            (_name(topic, names), part.partition_index)
            for topic in told_topics
            for part in topic.partitions
            if not part.error_code
        ]
        if not kept:
            return
        try:
            written = _written(tail, exchange)
        except _UNREADABLE:
            return
        if written is None:
            return
        offsets = {
            (
                names.get(topic.topic_id, "") if has_ids else topic.name,
                part.partition_index,
            ): part.committed_offset
            for topic in exchange.request.topics
            for part in topic.partitions
        }
        where = f"commit: group {exchange.request.group_id}: {found[0].name}"
        end_offset = max(self._end_of(where, key, offsets, written) for key in kept)
        log = tail.log
        if log.high_watermark < end_offset:
            raise SafetyViolation(
                f"{where} answers a commit whose record ends at {end_offset} of {partition_name(shard.partition)}, and the high "
                f"watermark is {log.high_watermark}"
            )
        self.seen += 1
        told = f"{where} answers a commit in {partition_name(shard.partition)} below"
        self._held.check(TopicIdPartition(log.topic_id, log.partition), end_offset, told)

    @staticmethod
    def _end_of(
        where: str, key: tuple[str, int], offsets: Mapping[tuple[str, int], int], written: Written
    ) -> int:
        """Return the offset after the first record of this commit; 0 if its topic has been deleted. Raises
        `SafetyViolation`.
        """
        if key not in offsets:
            return 0
        found = [at for at, offset in written.get(key, ()) if offset == offsets[key]]
        if not found:
            raise SafetyViolation(
                f"{where} has answered that {offsets[key]} is committed in {key[0]}-{key[1]}, and its log has no such record"
            )
        return min(found) + 1


def _name(topic: OffsetCommitResponseTopic | TxnOffsetCommitResponseTopic, names: Mapping[bytes, str]) -> str:
    if topic.name or isinstance(topic, TxnOffsetCommitResponseTopic):
        return topic.name
    return names.get(topic.topic_id, "")


def _written(tail: Tail, exchange: Exchange) -> Written | None:
    """Read the offsets that the group has committed since the request; None if the log was truncated or cleaned since."""
    batches = tail.appended()
    if batches is None:
        return None
    request = exchange.request
    found: Written = {}
    for header, batch in batches:
        if header.is_control or not _is_of(exchange, header):
            continue
        for record in records(batch, decompressed_bytes_max=DECOMPRESSED_BYTES_MAX):
            key = None if record.key is None else decode_key(record.key)
            if (
                isinstance(key, OffsetCommitKey)
                and key.group == request.group_id
                and record.value is not None
            ):
                value = decode_coordinator_value(key, record.value)
                if isinstance(value, OffsetCommitValue):
                    found.setdefault((key.topic, key.partition), []).append((record.offset, value.offset))
    return found


def _is_of(exchange: Exchange, header: BatchHeader) -> bool:
    """True if this request may have written the batch."""
    if exchange.api != ApiKey.TXN_OFFSET_COMMIT:
        return not header.attributes & TRANSACTIONAL_MASK
    request = exchange.request
    return (header.producer_id, header.producer_epoch) == (request.producer_id, request.producer_epoch)
