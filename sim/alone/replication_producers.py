"""Simulated idempotent producers. Each has one batch in flight, and repeats the batch until it is acknowledged. PURE."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import attrs

from odradek.wire.errors import ErrorCode, KafkaError
from odradek.wire.record_batch import RecordBatchBuilder
from sim.alone.replication_broker import START_MS, Broker
from sim.alone.replication_checks import Promises

__all__ = ["Producers"]


@attrs.define(eq=False)
class _Batch:
    """A batch whose acknowledgement has not reached its producer yet."""

    producer: int
    sequence: int
    values: tuple[bytes, ...]
    is_waiting: bool = False


@attrs.define(eq=False)
class _Waiter:
    """`odradek.data_plane.replication.waiting_requests.AckWaiter` for a batch: it waits for the acknowledgement."""

    producers: Producers
    batch: _Batch
    base_offset: int
    last_offset: int

    def acknowledged(self, code: ErrorCode) -> None:
        self.producers.settled(self.batch, None if code else self.base_offset)

    def leadership_lost(self) -> None:
        self.producers.settled(self.batch, None)


class Producers:
    """Two simulated idempotent producers with acks=all."""

    def __init__(self, random: Random, promises: Promises) -> None:
        self._random = random
        self._promises = promises
        self._batches: dict[int, _Batch | None] = {1: None, 2: None}
        self._sequences = {1: 0, 2: 0}
        self._serial = 0

    def produce(self, living: Sequence[Broker], now_ms: int) -> None:
        """Let a random producer send its unacknowledged batch, or else its next batch, to a broker that considers
        itself the leader.
        """
        producer = self._random.choice((1, 2))
        batch = self._batches[producer]
        if batch is not None and batch.is_waiting:
            return
        if batch is None:
            values = []
            for _ in range(self._random.choice((1, 1, 3))):
                self._serial += 1
                values.append(b"%d:%d" % (producer, self._serial))
            batch = _Batch(producer, self._sequences[producer], tuple(values))
            self._sequences[producer] += len(values)
            self._batches[producer] = batch
        leading = [node for node in living if node.partition.is_leader]
        if leading:
            self._append(self._random.choice(leading), batch, now_ms)

    def _append(self, node: Broker, batch: _Batch, now_ms: int) -> None:
        """Append a batch to the leader's log, as the Produce handler does with acks=all."""
        partition = node.partition
        if not partition.has_min_isr:
            return
        builder = RecordBatchBuilder(
            producer_id=batch.producer, producer_epoch=0, base_sequence=batch.sequence
        )
        for value in batch.values:
            builder.append(START_MS, None, value)
        try:
            result = partition.append_as_leader(memoryview(builder.build()), START_MS + now_ms)
        except KafkaError:
            return  # The leader lacks an earlier batch of this producer, so it will be deposed. The batch is repeated.
        batch.is_waiting = True
        if node.log.high_watermark > result.last_offset:
            self.settled(batch, result.base_offset)
        else:
            partition.waiting.wait_for_acks(_Waiter(self, batch, result.base_offset, result.last_offset))

    def settled(self, batch: _Batch, base_offset: int | None) -> None:
        """Called when the wait for a batch ends. `base_offset` is the offset at which the batch was acknowledged;
        None after an error.
        """
        batch.is_waiting = False
        if base_offset is not None:
            self._promises.acknowledge(base_offset, batch.values)
            if self._batches[batch.producer] is batch:
                self._batches[batch.producer] = None

    def time_out(self) -> None:
        """Let both producers stop waiting, so that they send their batches again."""
        for batch in self._batches.values():
            if batch is not None:
                batch.is_waiting = False
