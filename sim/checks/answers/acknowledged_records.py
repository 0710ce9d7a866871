"""Check of Produce with acks=all: when the answer leaves the broker, enough replicas have the records. PURE.

1. All replicas in the ISR have the records (`held_records`).
2. At least `min.insync.replicas` replicas have the records, since at least this number was in sync when the leader
   acknowledged.
3. A leader acknowledges nothing if it has too few in-sync replicas for the whole time from the request to the answer
   (KIP-966).

The leader may acknowledge at any moment between request and answer. So rule 3 applies only if the leader's ISR is the
same at the request and at the answer. If `min.insync.replicas` differs between these two moments, the lower value
counts.
"""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from odradek.data_plane.replication.isr_state import IsrState
from odradek.data_plane.replication.partition import Partition
from odradek.wire.batches.batch_header import HEADER, HEADER_SIZE
from odradek.wire.messages.produce import PartitionProduceResponse, ProduceRequest, ProduceResponse
from odradek.wire.topic_partition import TopicIdPartition
from sim.checks.answers.held_records import HeldRecords
from sim.checks.watched import Processes, partition_name
from sim.checks.wiretap import Exchange
from sim.history import SafetyViolation

__all__ = ["AcknowledgedRecords"]

ALL = -1


@attrs.frozen
class _Asked:
    """The state of a leader when it received a batch to append."""

    partition: Partition
    key: TopicIdPartition
    records: int
    leader_epoch: int
    partition_epoch: int
    isr_state: IsrState
    min_isr: int
    replicas: tuple[int, ...]


class AcknowledgedRecords:
    """The check of answers to Produce."""

    def __init__(self, processes: Processes, held: HeldRecords) -> None:
        self._processes = processes
        self._held = held
        self.seen = 0

    def asked(self, exchange: Exchange) -> bool:
        """Record the leader of each partition in the request. Returns False unless the request has acks=all and a
        leader was found.
        """
        request = exchange.request
        if request.acks != ALL:
            return False
        found = self._processes.at(exchange.conn.peer)
        broker = None if found is None else found[1].broker
        if broker is None:
            return False
        memo: dict[tuple[bytes | str, int], _Asked] = {}
        for topic, index, records in _batches(request):
            partition = broker.hosted.partition(topic, index)
            if partition is not None and partition.is_leader and partition.image is not None:
                memo[topic, index] = _Asked(
                    partition,
                    TopicIdPartition(partition.log.topic_id, index),
                    records,
                    partition.leader_epoch,
                    partition.partition_epoch,
                    partition.isr_state,
                    partition.effective_min_isr,
                    partition.image.replicas,
                )
        exchange.memo = found, memo
        return bool(memo)

    def answered(self, exchange: Exchange, answer: object) -> None:
        """Check the records that the answer acknowledges. Raises `SafetyViolation`."""
        assert isinstance(answer, ProduceResponse)
        found, memo = exchange.memo
        if self._processes.at(exchange.conn.peer) != found:
            return
        for topic in answer.responses:
            for part in topic.partition_responses:
                asked = memo.get((topic.name or topic.topic_id, part.index))
                if asked is not None and not part.error_code and part.base_offset >= 0:
                    self._acknowledged(found[0].name, asked, part)

    def _acknowledged(self, who: str, asked: _Asked, part: PartitionProduceResponse) -> None:
        self.seen += 1
        partition, end_offset = asked.partition, part.base_offset + asked.records
        name = partition_name(partition)
        self._held.check(asked.key, end_offset, f"acks=all: {name}: {who} acknowledges all below")
        image = self._held.newest.partition(asked.key)
        least = min(asked.min_isr, partition.effective_min_isr)
        # A large enough ISR needs no second check: the first rule has just found the records at all its members.
        is_short = image is not None and len(image.isr) < least
        if (
            image is not None
            and is_short
            and partition.is_leader
            and set(image.replicas) == set(asked.replicas)
        ):
            holders = self._held.holders(asked.key, end_offset)
            if holders < least:
                raise SafetyViolation(
                    f"acks=all: {name}: {who} acknowledges all below {end_offset}, and {holders} replicas have it, where "
                    f"{least} must be in sync"
                )
        stands_still = (
            partition.is_leader
            and partition.leader_epoch == asked.leader_epoch
            and partition.partition_epoch == asked.partition_epoch
            and partition.isr_state is asked.isr_state
        )
        in_sync = len(asked.isr_state.maximal_isr)
        if stands_still and in_sync < least:
            raise SafetyViolation(
                f"acks=all: {name}: {who} acknowledges all below {end_offset} with {in_sync} in sync, and {least} are needed"
            )


def _batches(request: ProduceRequest) -> Iterator[tuple[bytes | str, int, int]]:
    """Yield (topic name or id, partition, number of records) for each batch of the request."""
    for topic in request.topic_data:
        for part in topic.partition_data:
            records = part.records
            if isinstance(records, (bytes, bytearray, memoryview)) and len(records) >= HEADER_SIZE:
                last_delta = HEADER.unpack_from(records, 0)[6]
                yield topic.name or topic.topic_id, part.index, last_delta + 1
