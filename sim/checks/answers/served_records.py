"""Check of Fetch: consumers get no record at or beyond the high watermark of the replica that serves them. PURE.

A read_committed fetch ends at the last stable offset. Answers are checked when they are sent. The high watermark
may have changed since the answer was made, so the highest one of the process counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs

from odradek.node.node import Node
from odradek.wire.batches.batch_errors import CorruptBatch
from odradek.wire.batches.batch_header import iter_batches
from odradek.wire.messages.fetch import FetchRequest, FetchResponse
from odradek.wire.topic_partition import TopicIdPartition
from sim.checks.answers.held_records import HeldRecords
from sim.checks.watched import Hosted, Processes, moved_of
from sim.checks.wiretap import Exchange
from sim.history import SafetyViolation

__all__ = ["ServedRecords", "end_of", "is_replica"]

READ_COMMITTED = 1


def is_replica(request: FetchRequest) -> bool:
    """True if the sender is a replica, and False for a consumer."""
    return request.replica_id >= 0 or request.replica_state.replica_id >= 0


@attrs.define
class _Highest:
    """The highest offsets that a process has had for a partition so far: no answer may go beyond them."""

    high_watermark: int = 0
    last_stable_offset: int = 0


class ServedRecords:
    """The check of answers to Fetch."""

    def __init__(self, processes: Processes) -> None:
        self._processes = processes
        self._highest: dict[tuple[str, TopicIdPartition], tuple[Node, _Highest]] = {}
        self.batches_seen = 0
        self.held: HeldRecords | None = None
        """If set, all in-sync replicas must have the records below each high watermark in an answer."""

    def asked(self, exchange: Exchange) -> bool:
        """Return True for a request of a consumer: its answer must be checked."""
        return not is_replica(exchange.request)

    def answered(self, exchange: Exchange, answer: Any) -> None:
        """Check the records that the answer returns. Raises `SafetyViolation`."""
        assert isinstance(answer, FetchResponse)
        serving = self._processes.at(exchange.conn.peer)
        if serving is None or serving[1].broker is None:
            return
        member, node = serving
        broker = serving[1].broker
        for topic in answer.responses:
            hosted = (
                broker.topics.get(topic.topic) if topic.topic else broker.topics_by_id.get(topic.topic_id)
            )
            for part in topic.partitions:
                partition = None if hosted is None else hosted.partitions.get(part.partition_index)
                if hosted is None or partition is None or part.error_code:
                    continue
                key = TopicIdPartition(hosted.topic_id, part.partition_index)
                log = partition.log
                highest = self._note(member.name, node, key, log.high_watermark, log.last_stable_offset)
                committed = exchange.request.isolation_level == READ_COMMITTED
                limit = highest.last_stable_offset if committed else highest.high_watermark
                name = f"{hosted.name}-{part.partition_index}"
                if part.high_watermark > highest.high_watermark:
                    raise SafetyViolation(
                        f"{name}: {member.name} tells a consumer of high watermark {part.high_watermark}, "
                        f"and has {highest.high_watermark}"
                    )
                if self.held is not None:
                    told = f"fetch: {name}: {member.name} says that all is committed below"
                    self.held.check(key, part.high_watermark, told)
                end_offset = end_of(part.records)
                self.batches_seen += end_offset >= 0
                if end_offset > limit:
                    raise SafetyViolation(
                        f"{name}: {member.name} serves records up to {end_offset}, beyond its high watermark {limit}"
                    )

    def look(self, hosted: Sequence[Hosted]) -> None:
        """Record the high watermark and last stable offset of all replicas."""
        for each in moved_of(hosted):
            log = each.partition.log
            self._note(each.member.name, each.node, each.key, log.high_watermark, log.last_stable_offset)

    def look_at_all(self, hosted: Sequence[Hosted]) -> None:
        """Do nothing: answers are checked when they are sent."""

    def _note(
        self, who: str, node: Node, key: TopicIdPartition, high_watermark: int, last_stable_offset: int
    ) -> _Highest:
        known = self._highest.get((who, key))
        if known is None or known[0] is not node:
            known = self._highest[who, key] = (node, _Highest())
        highest = known[1]
        highest.high_watermark = max(highest.high_watermark, high_watermark)
        highest.last_stable_offset = max(highest.last_stable_offset, last_stable_offset)
        return highest


def end_of(records: Any) -> int:
    """Return the offset after the last complete batch; -1 if there is none. Damaged bytes count as the end."""
    end_offset = -1
    try:
        for _, header in iter_batches(records or b""):
            end_offset = header.next_offset
    except CorruptBatch:
        return end_offset
    return end_offset
