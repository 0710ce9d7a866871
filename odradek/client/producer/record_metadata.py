"""The place of a record in its topic, as both producers report it. PURE."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from odradek.client.producer.accumulator import Batch

__all__ = ["Delivered", "OnDelivery", "RecordMetadata"]


class RecordMetadata(NamedTuple):
    """The place of a record that was sent.

    `offset` is -1 if the broker does not report it: with acks=0, or for a repetition whose original was acknowledged
    long ago. `timestamp_ms` is the record's own, or the broker's in topics with LogAppendTime.
    """

    topic: str
    partition: int
    offset: int
    timestamp_ms: int

    @classmethod
    def of(cls, batch: Batch, index: int, timestamp_ms: int) -> RecordMetadata:
        """Make the metadata of one record in a batch that is done. Raises the record's error."""
        offset, append_time_ms, error = batch.outcome(index)
        if error is not None:
            raise error
        lane = batch.lane
        return cls(lane.topic, lane.partition, offset, timestamp_ms if append_time_ms < 0 else append_time_ms)


class Delivered(NamedTuple):
    """The place of a record whose delivery has ended, for `on_delivery`; `key` is in bytes, as it was sent.

    The callback runs in the producer's thread without its lock. Its first argument is the error, or None. With an error, `offset` is -1 and `timestamp_ms` is the record's own.
    """

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None

    @classmethod
    def of(
        cls, batch: Batch, index: int, timestamp_ms: int, key: bytes | None
    ) -> tuple[Exception | None, Delivered]:
        """Return the error (or None) and the place of one record in a batch that is done."""
        offset, append_time_ms, error = batch.outcome(index)
        if error is not None or append_time_ms < 0:
            append_time_ms = timestamp_ms
        lane = batch.lane
        place = cls(lane.topic, lane.partition, offset if error is None else -1, append_time_ms, key)
        return error, place


OnDelivery: TypeAlias = Callable[[Exception | None, Delivered], object]
"""Called with the error of a record, or None, and with its place."""
