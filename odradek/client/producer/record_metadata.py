"""The place of a record in its topic, as both producers report it. PURE."""

from __future__ import annotations

from typing import NamedTuple

from odradek.client.producer.accumulator import Batch

__all__ = ["RecordMetadata"]


class RecordMetadata(NamedTuple):
    """The place of a record that was sent.

    `offset` is -1 where the broker does not say: with acks=0, or for a repetition whose original was acknowledged
    long ago. `timestamp_ms` is the record's own, or the broker's in topics with LogAppendTime.
    """

    topic: str
    partition: int
    offset: int
    timestamp_ms: int

    @classmethod
    def of(cls, batch: Batch, index: int, timestamp_ms: int) -> RecordMetadata:
        """The metadata of the record at a place in a batch that is done. Raises the record's error."""
        offset, append_time_ms, error = batch.outcome(index)
        if error is not None:
            raise error
        lane = batch.lane
        return cls(lane.topic, lane.partition, offset, timestamp_ms if append_time_ms < 0 else append_time_ms)
