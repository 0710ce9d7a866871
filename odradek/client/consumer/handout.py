"""The records of one poll that an iterator over a consumer yields, and the number that it has yielded so far.
PURE.
"""

from __future__ import annotations

from collections.abc import Iterator
from operator import length_hint

import attrs

from odradek.client.consumer.consumer_types import ConsumerRecord, OffsetAndMetadata
from odradek.client.consumer.subscription import PartitionState
from odradek.wire.topic_partition import TopicPartition

__all__ = ["Handout"]


@attrs.define(eq=False)
class Handout:
    """The records of one poll that an iterator over the consumer yields. The iterator ends early if another
    call takes back the records that were not yielded yet.
    """

    records: list[ConsumerRecord]
    before: dict[TopicPartition, tuple[PartitionState, int, OffsetAndMetadata]]
    """For each partition, the state of the partition, the `serial` of this state, and the position before the
    poll.
    """
    done: int = 0
    """The number of records, from the first record on, that the application has committed by a call during the
    iteration.
    """
    left: Iterator[ConsumerRecord] = attrs.field(
        init=False, default=attrs.Factory(lambda self: iter(self.records), takes_self=True)
    )

    @property
    def yielded(self) -> int:
        """The number of records that the iterator has yielded so far.

        It is computed from the length of the list's iterator, so yielding a record need not increment a counter.
        """
        return len(self.records) - length_hint(self.left)

    def positions(self, done: int) -> dict[TopicPartition, OffsetAndMetadata]:
        """Compute the positions after the first `done` records. Partitions that have no further records are left out."""
        records = self.records
        keys = dict.fromkeys(TopicPartition(each.topic, each.partition) for each in records[done:])
        found = {key: self.before[key][2] for key in keys}
        for record in records[:done] if found else ():
            key = TopicPartition(record.topic, record.partition)
            if key in found:
                found[key] = OffsetAndMetadata(record.offset + 1, record.leader_epoch)
        return found
