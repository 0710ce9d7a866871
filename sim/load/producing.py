"""A function that sends a list of records as one operation, for the simulator and tests. PURE.

Programs use `odradek.Producer`. The same accumulator and sender do the work here. `Producing.produce` puts the
records into its own accumulator, and runs a sender until each record has an outcome. `odradek.client.producer.sender`
explains the steps and the guarantees.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import attrs

from odradek.client.core.client_keys import ProducerSettings
from odradek.client.core.operation import Operation, Task, Wait
from odradek.client.core.requests import topics_with_metadata
from odradek.client.errors import ClientClosed
from odradek.client.producer.accumulator import Accumulator, Batch
from odradek.client.producer.sender import Sender
from odradek.wire.batches.compression import CompressionType
from odradek.wire.batches.records import Header

if TYPE_CHECKING:
    from odradek.client.core.client_core import ClientCore

__all__ = ["Delivery", "ProduceConfig", "Producing", "RecordToSend"]


@attrs.frozen
class ProduceConfig:
    """Settings of `Producing`. `acks` is -1 (all), 1 or 0; sizes are in bytes before compression; `idempotent` needs
    acks=-1.
    """

    acks: int = -1
    compression_type: int = 0
    batch_bytes_max: int = 256 << 10
    request_bytes_max: int = 1 << 20
    idempotent: bool = True
    auto_create: bool = True


@attrs.frozen
class RecordToSend:
    """One record to send. With `partition` None the producer chooses the partition, by the record's key if it has a
    key. `timestamp_ms` counts from 1970.
    """

    topic: str
    value: bytes | None
    key: bytes | None = None
    headers: tuple[Header, ...] = ()
    partition: int | None = None
    timestamp_ms: int = 0


@attrs.frozen
class Delivery:
    """The outcome of one batch. `indexes` are the indexes of its records in the list that was passed to `produce`.

    `base_offset` is the first record's offset. It is -1 if the broker does not report this offset: for acks=0, or for
    a repeated batch that was acknowledged long ago. `error` is None if the batch was acknowledged.
    """

    topic: str
    partition: int
    indexes: tuple[int, ...]
    base_offset: int
    error: Exception | None


class Producing:
    """A simple producer. It keeps the state of its partitioner and its producer id between calls. Only one operation
    may run at a time.
    """

    def __init__(self, core: ClientCore, config: ProduceConfig) -> None:
        self.config = config
        self._core = core
        settings = ProducerSettings(
            bootstrap_servers=(),
            acks=config.acks,
            batch_size=config.batch_bytes_max,
            buffer_memory=1 << 62,
            compression_type=CompressionType(config.compression_type).name.lower(),
            enable_idempotence=config.idempotent and config.acks == -1,
            linger_ms=0,
            max_request_size=config.request_bytes_max,
            request_timeout_ms=int(core.config.request_timeout * 1000),
        )
        self._accumulator = Accumulator(settings, core.cluster, core.rng)
        self._sender = Sender(core, settings, self._accumulator, auto_create=config.auto_create)
        self._sender.closing = True

    def produce(self, records: Sequence[RecordToSend], *, timeout: float) -> Operation[list[Delivery]]:
        """Send records, and return the outcomes of all batches. The batches of a partition are in order.

        Raises `KafkaError` or `ClientError` only before the first byte is sent, because the topic, partition or
        broker is unknown.
        """
        core = self._core
        deadline = core.now + timeout
        names = dict.fromkeys(record.topic for record in records)
        yield from topics_with_metadata(core, names, deadline=deadline, auto_create=self.config.auto_create)
        for record in records:
            if record.partition is not None:
                core.cluster.partition(record.topic, record.partition)
        placed = self._place(records, deadline)
        ended = core.signal()
        sending: Task[None] = Task(self._sender.run())
        sending.on_done = ended.notify
        core.adopt(sending, core.now)
        try:
            while not sending.done:
                yield Wait(signals=(ended,))
        finally:
            if not sending.done:
                core.abandon(sending)
                self._sender.abort(ClientClosed("the operation was abandoned"))
        sending.result()
        return [delivery for batch, indexes in placed.items() for delivery in _deliveries(batch, indexes)]

    def _place(self, records: Sequence[RecordToSend], deadline: float) -> dict[Batch, list[int]]:
        """Put the records into batches. Return the indexes of each batch's records in `records`. A record that is too
        large gets its own batch.
        """
        accumulator = self._accumulator
        placed: dict[Batch, list[int]] = {}
        for index, record in enumerate(records):
            fields = (
                record.topic,
                record.partition,
                record.timestamp_ms,
                record.key,
                record.value,
                record.headers,
            )
            batch = accumulator.append(*fields) or accumulator.open_batch(
                *fields, self._core.now, deadline=deadline, any_size=True
            )
            assert batch is not None
            placed.setdefault(batch, []).append(index)
        return placed


def _deliveries(batch: Batch, indexes: Sequence[int]) -> Iterator[Delivery]:
    if batch.parts is not None:
        for number, (first, part) in enumerate(batch.parts):
            end = batch.parts[number + 1][0] if number + 1 < len(batch.parts) else len(indexes)
            yield from _deliveries(part, indexes[first:end])
        return
    lane = batch.lane
    if batch.record_errors is None:
        yield Delivery(lane.topic, lane.partition, tuple(indexes), batch.base_offset, batch.error)
        return
    for place, index in enumerate(indexes):
        offset, _, error = batch.outcome(place)
        yield Delivery(lane.topic, lane.partition, (index,), offset, error)
