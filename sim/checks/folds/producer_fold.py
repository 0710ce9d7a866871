"""A model of a log's producer state, built from its batches: producers, open and ended transactions (KIP-98). PURE.

* A producer's state has its last five batches. A batch with another epoch, or after a gap of sequence numbers,
  discards the producer's earlier batches. A coordinator's batches have no sequence numbers.
* A transaction is open from its producer's first transactional batch to that producer's next marker. The marker may
  have a newer epoch.
* The last stable offset is the start of the first transaction that is open or has an uncommitted marker.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import attrs

from odradek.wire.batches.batch_header import BatchHeader
from odradek.wire.batches.transaction_markers import parse_marker

__all__ = ["BATCHES", "EndedFold", "FallenEpoch", "FoldedBatch", "ProducerFold", "ProducersFold"]

BATCHES = 5
SEQUENCES = 1 << 31
NONE = -1
TRANSACTIONAL = 0x10


class FoldedBatch(NamedTuple):
    """The fields of a batch by which the log recognises a duplicate of it."""

    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp_ms: int


@attrs.define
class ProducerFold:
    """The state of one producer. `open_from` is the first offset of its open transaction, or -1. `marker_offset` is
    that of its last marker, or -1.
    """

    epoch: int
    coordinator_epoch: int = NONE
    marker_offset: int = NONE
    open_from: int = NONE
    batches: list[FoldedBatch] = attrs.Factory(list)

    @property
    def last_offset(self) -> int:
        return self.batches[-1].last_offset if self.batches else NONE


class EndedFold(NamedTuple):
    """A transaction and its marker. `last_stable_offset` is the log's last stable offset after the marker."""

    producer_id: int
    first_offset: int
    marker_offset: int
    last_stable_offset: int
    is_aborted: bool


class FallenEpoch(NamedTuple):
    """A marker with a lower coordinator epoch than the producer's marker before it."""

    producer_id: int
    offset: int
    epoch: int
    newest_epoch: int


class ProducersFold:
    """The state of all producers in one log."""

    def __init__(self) -> None:
        self.producers: dict[int, ProducerFold] = {}
        self.ended: list[EndedFold] = []
        """Ended transactions with records in the log, in the order of their markers."""
        self.fallen: FallenEpoch | None = None

    def take(self, header: BatchHeader, batch: bytes | None) -> EndedFold | None:
        """Apply the next batch. `batch` has the bytes of a control batch; None for any other batch. Return the
        transaction that a marker ends, or None.
        """
        if header.producer_id < 0:
            return None
        if not header.is_control:
            self._data(header)
            return None
        marker = parse_marker(batch) if batch is not None and header.attributes & TRANSACTIONAL else None
        return None if marker is None else self._marker(header, marker.coordinator_epoch, marker.is_abort)

    def _producer(self, header: BatchHeader) -> ProducerFold:
        """Return the state of the batch's producer. If the batch has another epoch than the state, the state adopts
        that epoch and drops its batches.
        """
        producer = self.producers.get(header.producer_id)
        if producer is None:
            producer = self.producers[header.producer_id] = ProducerFold(header.producer_epoch)
        if producer.epoch != header.producer_epoch:
            producer.epoch = header.producer_epoch
            producer.batches = []
        return producer

    def _data(self, header: BatchHeader) -> None:
        producer = self._producer(header)
        first, delta = header.base_sequence, header.last_offset_delta
        last = (first + delta) % SEQUENCES if first >= 0 else NONE
        if producer.batches:
            newest = producer.batches[-1].last_sequence
            follows = newest == NONE if first < 0 else newest >= 0 and first == (newest + 1) % SEQUENCES
            if not follows:
                producer.batches = []
        producer.batches.append(FoldedBatch(last, header.last_offset, delta, header.max_timestamp))
        del producer.batches[:-BATCHES]
        if header.attributes & TRANSACTIONAL and producer.open_from < 0:
            producer.open_from = header.base_offset

    def _marker(self, header: BatchHeader, coordinator_epoch: int, is_aborted: bool) -> EndedFold | None:
        producer = self._producer(header)
        if coordinator_epoch < producer.coordinator_epoch:
            newest = producer.coordinator_epoch
            self.fallen = FallenEpoch(header.producer_id, header.base_offset, coordinator_epoch, newest)
        producer.coordinator_epoch, producer.marker_offset = coordinator_epoch, header.base_offset
        begun, producer.open_from = producer.open_from, NONE
        if begun < 0:
            return None
        stable = min(self.open(), default=header.base_offset + 1)
        ended = EndedFold(header.producer_id, begun, header.base_offset, stable, is_aborted)
        self.ended.append(ended)
        return ended

    def open(self) -> dict[int, int]:
        """Return the producer id of each open transaction, by the transaction's first offset."""
        found = {each.open_from: number for number, each in self.producers.items() if each.open_from >= 0}
        return dict(sorted(found.items()))

    def undecided(self, high_watermark: int) -> Iterator[int]:
        """Yield the first offset of each transaction that is open, or whose marker is not committed."""
        yield from self.open()
        for each in self.ended:
            if each.marker_offset >= high_watermark:
                yield each.first_offset
