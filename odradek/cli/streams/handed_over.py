"""The bookkeeping of `consume --group`: which records were polled, and which of them were written to standard
output. PURE.

Records are handed over in the order in which they were polled. A record is handed over if it was written to
standard output, or if a filter dropped it. If all polled records of a partition are handed over, the
consumer's position is committed. This position is after transaction markers and compaction gaps, so these
cause no lag. Otherwise the offset of the first record that is not handed over is committed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from odradek.client.consumer.consumer_types import ConsumerRecord
    from odradek.wire.topic_partition import TopicPartition

__all__ = ["HandedOver"]


class HandedOver:
    """Polled records that are not handed over yet, in order. For each partition, it also has the next offset
    after the handed-over records.
    """

    def __init__(self) -> None:
        self.next_offsets: dict[TopicPartition, int] = {}
        self._waiting: Sequence[ConsumerRecord] = ()
        self._done = 0

    @property
    def waiting(self) -> int:
        """The number of polled records that are not handed over yet."""
        return len(self._waiting) - self._done

    def polled(self, records: Sequence[ConsumerRecord]) -> None:
        """Add the records of a poll, in order. The caller must not change the sequence afterwards."""
        self._waiting = [*self._waiting[self._done :], *records] if self.waiting else records
        self._done = 0

    def settle(self, count: int) -> None:
        """Mark the first `count` waiting records as handed over."""
        if count > self.waiting:
            raise AssertionError(f"{count} records were printed, but only {self.waiting} records were polled")
        next_offsets: Any = self.next_offsets
        for record in self._waiting[self._done : self._done + count]:
            # A plain tuple finds the same dictionary entry as a `TopicPartition` at a quarter of the cost.
            # This line makes a tuple for every record.
            next_offsets[record.topic, record.partition] = record.offset + 1
        self._done += count

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Drop all data about partitions that other members read now."""
        gone = set(partitions)
        self._waiting = [
            record for record in self._waiting[self._done :] if (record.topic, record.partition) not in gone
        ]
        self._done = 0
        for key in gone:
            self.next_offsets.pop(key, None)

    def offsets(self, positions: dict[TopicPartition, int | None]) -> dict[TopicPartition, int]:
        """Return the offset to commit for each partition in `positions`, the consumer's positions (None:
        unknown).

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
