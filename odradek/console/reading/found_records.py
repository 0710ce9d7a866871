"""Takes the records that pass a filter out of fetched batches, each with the state of its transaction. PURE, except for
the ticks, which look at a clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import attrs

from odradek.client.consumer.consumer_records import BatchRecords
from odradek.client.consumer.record_runs import LastShapes
from odradek.console.reading.batch_fetches import FetchedBatches
from odradek.console.reading.transaction_states import StableStates, TransactionState
from odradek.wire.batches.batch_errors import CorruptBatch
from odradek.wire.batches.batch_header import BatchHeader, iter_batches
from odradek.wire.batches.transaction_markers import EndMarker, parse_marker
from odradek.wire.errors import KafkaError

if TYPE_CHECKING:
    from odradek.console.reading.record_filters import RecordFilter
    from odradek.wire.batches.records import Header

__all__ = ["Found", "PartitionFindings", "StoredRecord", "Tick", "Transaction", "take_findings"]

DECOMPRESSED_BYTES_MAX = 64 << 20
"""The most bytes that a batch may decompress to."""
HELD_BYTES_MAX = 4 << 20
"""The most bytes of records that one partition may add to a round."""
RECORD_HEADERS_MAX = 10_000
"""The most headers of a record. An empty one takes two bytes in the batch, and more than thirty times as many here."""
TICK_SECONDS = 0.2
_TAKEN_AT_ONCE = 100
_OBJECT_BYTES = 100
"""The bytes that a record or a header takes beside its texts."""


@attrs.frozen
class Tick:
    """A sign that the work goes on, for a reader that shows progress or wants to stop."""


@attrs.frozen
class Transaction:
    """The transaction that a record belongs to."""

    producer_id: int
    state: TransactionState


@attrs.frozen
class StoredRecord:
    """A record of a topic. Times are in milliseconds since 1970."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    timestamp_type: int
    """0 for the producer's time, 1 for the broker's."""
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]


@attrs.frozen
class Found:
    """A record, a marker, or a place whose records cannot be read."""

    partition: int
    offset: int
    next_offset: int
    """The offset at which reading continues."""
    time_ms: int
    record: StoredRecord | None = None
    transaction: Transaction | None = None
    marker: EndMarker | None = None
    """The marker, if this is the control record of a transaction."""
    is_control: bool = False
    failure: str | None = None
    """The reason why the records from `offset` to `next_offset` cannot be read."""
    held_bytes: int = 0
    """The bytes of memory that the record takes, roughly."""


@attrs.define
class PartitionFindings:
    """What one round finds in one partition, from `position` on."""

    topic: str
    partition: int
    position: int
    end: int | None
    found: list[Found] = attrs.field(factory=list)
    scanned: int = 0
    next_offset: int = -1
    """The offset behind all that was looked at."""
    held_bytes: int = 0

    def is_full(self, limit: int) -> bool:
        """True if nothing more should be taken in this round."""
        return len(self.found) >= limit or self.held_bytes > HELD_BYTES_MAX

    def first_unpassed(self, passed: int) -> int:
        """Return the offset at which to read on after the first `passed` findings were passed on."""
        return self.next_offset if passed == len(self.found) else self.found[passed].offset


StateOf = Callable[[BatchHeader], TransactionState]


def take_findings(
    findings: PartitionFindings,
    fetched: FetchedBatches,
    unstable_state: StateOf | None,
    fits: RecordFilter | None,
    limit: int,
    *,
    with_markers: bool,
) -> Iterator[Tick]:
    """Fill `findings` from fetched batches; yield ticks meanwhile.

    `unstable_state` gives the states of transactions beyond the last stable offset; None if the batches are stable.
    """
    stable = StableStates(fetched.aborted)
    findings.next_offset = findings.position
    shapes = LastShapes()
    tick_at = time.monotonic() + TICK_SECONDS
    try:
        for position, header in iter_batches(fetched.data):
            if header.next_offset <= findings.next_offset:
                # The first batch may end below the position, if compaction has left a hole.
                continue
            if findings.is_full(limit):
                break
            if findings.end is not None and header.base_offset >= findings.end:
                findings.next_offset = findings.end
                break
            marker = None
            if header.is_control:
                marker = parse_marker(fetched.data[position : position + header.size])
            transaction = None
            if header.is_transactional:
                state = stable.state_of(header, marker) if unstable_state is None else unstable_state(header)
                transaction = Transaction(header.producer_id, state)
            if header.is_control:
                _take_marker(findings, header, marker, transaction, with_markers)
                continue
            for _ in _take_batch(findings, fetched.data, position, header, transaction, fits, limit, shapes):
                if time.monotonic() > tick_at:
                    tick_at = time.monotonic() + TICK_SECONDS
                    yield Tick()
    except KafkaError as error:
        # The header itself is damaged, so that the place of the next batch is unknown.
        at = findings.next_offset
        if not findings.found and at == findings.position:
            failed = Found(findings.partition, at, at + 1, -1, failure=str(error.message or error))
            findings.found.append(failed)
            findings.next_offset = at + 1
    if findings.end is not None and findings.next_offset > findings.end:
        findings.next_offset = findings.end


def _take_marker(
    findings: PartitionFindings,
    header: BatchHeader,
    marker: EndMarker | None,
    transaction: Transaction | None,
    with_markers: bool,
) -> None:
    findings.next_offset = header.next_offset
    findings.scanned += 1
    if with_markers:
        findings.found.append(
            Found(
                findings.partition,
                header.base_offset,
                header.next_offset,
                header.max_timestamp,
                transaction=transaction,
                marker=marker,
                is_control=True,
            )
        )


def _take_batch(
    findings: PartitionFindings,
    data: memoryview,
    position: int,
    header: BatchHeader,
    transaction: Transaction | None,
    fits: RecordFilter | None,
    limit: int,
    shapes: LastShapes,
) -> Iterator[None]:
    first = findings.next_offset
    try:
        batch = BatchRecords(
            findings.topic,
            findings.partition,
            data,
            position,
            header,
            decompressed_bytes_max=DECOMPRESSED_BYTES_MAX,
            crc=True,
            last_shapes=shapes,
        )
        batch.headers_max = RECORD_HEADERS_MAX
        yield
        while not batch.is_used_up:
            for record in batch.take(_TAKEN_AT_ONCE):
                if record.offset < first:
                    continue
                if findings.is_full(limit):
                    return
                if findings.end is not None and record.offset >= findings.end:
                    findings.next_offset = findings.end
                    return
                findings.next_offset = record.offset + 1
                findings.scanned += 1
                if fits is None or fits(record):
                    stored = StoredRecord(
                        record.topic,
                        record.partition,
                        record.offset,
                        record.timestamp,
                        record.timestamp_type,
                        record.key,
                        record.value,
                        record.headers,
                    )
                    _add(findings, stored, transaction)
            yield
    except (KafkaError, CorruptBatch) as error:
        at = max(findings.next_offset, header.base_offset)
        findings.found.append(
            Found(findings.partition, at, header.next_offset, -1, failure=error.message or str(error))
        )
    findings.next_offset = header.next_offset


def _add(findings: PartitionFindings, record: StoredRecord, transaction: Transaction | None) -> None:
    held = len(record.key or b"") + len(record.value or b"") + _OBJECT_BYTES
    held += sum(len(name) + len(data or b"") + _OBJECT_BYTES for name, data in record.headers)
    findings.held_bytes += held
    findings.found.append(
        Found(
            findings.partition,
            record.offset,
            record.offset + 1,
            record.timestamp,
            record,
            transaction,
            held_bytes=held,
        )
    )
