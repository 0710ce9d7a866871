"""The bookkeeping of `consume --group`: what was polled, and what of it the command's reader has. PURE.

Records are handed over in the order in which they were polled. A write to standard output that succeeded has handed them
over, and so has a filter that turned them down. A partition's commit is the consumer's position where all that was polled of it is handed over.
So transactions' markers and gaps of compaction leave no lag. Else the commit is the first record that is not handed over.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from odradek.client.consumer.consumer_types import ConsumerRecord
    from odradek.wire.topic_partition import TopicPartition

__all__ = ["HandedOver"]


class HandedOver:
    """Records that were polled but not handed over yet, in order; and the next offset of each partition behind the
    handed-over ones.
    """

    def __init__(self) -> None:
        self.next_offsets: dict[TopicPartition, int] = {}
        self._waiting: Sequence[ConsumerRecord] = ()
        self._done = 0

    @property
    def waiting(self) -> int:
        """The number of records that were polled and are not handed over."""
        return len(self._waiting) - self._done

    def polled(self, records: Sequence[ConsumerRecord]) -> None:
        """Take up the records of a poll, in its order; the caller leaves the sequence as it is."""
        self._waiting = [*self._waiting[self._done :], *records] if self.waiting else records
        self._done = 0

    def settle(self, count: int) -> None:
        """Call the first `count` records that wait handed over."""
        if count > self.waiting:
            raise AssertionError(f"{count} records were printed, but only {self.waiting} records were polled")
        next_offsets: Any = self.next_offsets
        for record in self._waiting[self._done : self._done + count]:
            # A plain tuple finds the same entry as the named one at a quarter of the cost. One is made for
            # every record.
            next_offsets[record.topic, record.partition] = record.offset + 1
        self._done += count

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Drop all about partitions that others read now."""
        gone = set(partitions)
        self._waiting = [
            record for record in self._waiting[self._done :] if (record.topic, record.partition) not in gone
        ]
        self._done = 0
        for key in gone:
            self.next_offsets.pop(key, None)

    def offsets(self, positions: dict[TopicPartition, int | None]) -> dict[TopicPartition, int]:
        """Return the offset to commit of each partition whose position is given; None stands for an unknown position.

        A partition that has neither a known position nor records is left out.
        """
        first_waiting: dict[tuple[str, int], int] = {}
        for record in self._waiting[self._done :]:
            first_waiting.setdefault((record.topic, record.partition), record.offset)
        found = {}
        for key, position in positions.items():
            offset = first_waiting.get(key, position)
            if offset is None:
                offset = self.next_offsets.get(key)
            if offset is not None:
                found[key] = offset
        return found
