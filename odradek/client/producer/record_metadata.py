"""The data about a written record that both producers return. PURE."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from odradek.client.producer.accumulator import Batch

__all__ = ["Delivered", "OnDelivery", "RecordMetadata"]


class RecordMetadata(NamedTuple):
    """The position of a written record: its topic, partition and offset, and its timestamp.

    `offset` is -1 if the broker does not report it: with acks=0, or for a repetition whose original was acknowledged
    long ago. `timestamp_ms` is the record's own timestamp, or the broker's if the topic uses LogAppendTime.
    """

    topic: str
    partition: int
    offset: int
    timestamp_ms: int

    @classmethod
    def of(cls, batch: Batch, index: int, timestamp_ms: int) -> RecordMetadata:
        """Make the metadata of the record with this index in a batch that is done. Raises the record's error."""
        offset, append_time_ms, error = batch.outcome(index)
        if error is not None:
            raise error
        lane = batch.lane
        return cls(lane.topic, lane.partition, offset, timestamp_ms if append_time_ms < 0 else append_time_ms)


class Delivered(NamedTuple):
    """The position of a record whose delivery has ended, for `on_delivery`. `key` has the bytes that were sent.

    The callback runs in the producer's thread, which holds no lock meanwhile. The first argument of the
    callback is the error, or None. If there is an error, `offset` is -1 and `timestamp_ms` is the record's
    own timestamp.
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
        """Return the error (or None) and the position of the record with this index in a batch that is done."""
        offset, append_time_ms, error = batch.outcome(index)
        if error is not None or append_time_ms < 0:
            append_time_ms = timestamp_ms
        lane = batch.lane
        place = cls(lane.topic, lane.partition, offset if error is None else -1, append_time_ms, key)
        return error, place


OnDelivery: TypeAlias = Callable[[Exception | None, Delivered], object]
"""A callback that gets the error of a record (or None), and the record's position."""
