"""Records as the API shows them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import attrs

from odradek.console.decoding.decoded import Decoded, as_null, structured
from odradek.console.decoding.internal import marker_value
from odradek.console.shapes.fields import about

if TYPE_CHECKING:
    from odradek.console.decoding.decoders import Decoders
    from odradek.console.decoding.steps import Steps
    from odradek.console.reading.found_records import Found, StoredRecord

__all__ = ["HEADERS_MAX", "ShownHeader", "ShownRecord", "ShownTransaction", "show"]

HEADERS_MAX = 100
_HEADER_NAME_MAX = 256
_TIMESTAMP_TYPES = ("create", "append")


@attrs.frozen(kw_only=True)
class ShownHeader:
    """A header of a record."""

    name: str = attrs.field(metadata=about("the name"))
    value: Decoded = attrs.field(metadata=about("the value"))


@attrs.frozen(kw_only=True)
class ShownTransaction:
    """The transaction of a record."""

    producer_id: int = attrs.field(metadata=about("the producer's id"))
    state: str = attrs.field(
        metadata=about(
            "committed, aborted, open, or unknown (ended, but its marker is far behind)",
            choices=("committed", "aborted", "open", "unknown"),
        )
    )


@attrs.frozen(kw_only=True)
class ShownRecord:
    """A record, the marker of a transaction, or a place whose records cannot be read."""

    partition: int = attrs.field(metadata=about("the partition"))
    offset: int = attrs.field(metadata=about("the offset"))
    timestamp_ms: int | None = attrs.field(metadata=about("milliseconds since 1970"))
    timestamp_type: str | None = attrs.field(
        metadata=about("create: by the producer; append: by the broker", choices=_TIMESTAMP_TYPES)
    )
    key: Decoded = attrs.field(metadata=about("the key"))
    value: Decoded = attrs.field(metadata=about("the value; null is a tombstone"))
    headers: Sequence[ShownHeader] = attrs.field(metadata=about(f"the first {HEADERS_MAX} headers"))
    header_count: int = attrs.field(metadata=about("the number of all headers"))
    transaction: ShownTransaction | None = attrs.field(
        metadata=about("the transaction; null for a record without one")
    )
    size_bytes: int = attrs.field(metadata=about("bytes of key, value and headers"))
    is_control: bool = attrs.field(metadata=about("true for the marker that ends a transaction"))
    error: str | None = attrs.field(
        default=None, metadata=about("the reason why the records from here to next_offset cannot be read")
    )
    next_offset: int = attrs.field(metadata=about("the offset at which reading continues"))


def show(
    found: Found,
    decoders: Decoders,
    formats: tuple[str, str],
    characters_max: int,
    stream: Steps | None = None,
) -> ShownRecord:
    """Show a finding. Each text has at most `characters_max` characters. `stream` limits the work of decoders."""
    transaction = None
    if found.transaction is not None:
        state = found.transaction.state.value
        transaction = ShownTransaction(producer_id=found.transaction.producer_id, state=state)
    record = found.record
    if record is not None:
        return _record(found, record, transaction, decoders, formats, characters_max, stream)
    key, value = as_null(), as_null()
    if found.is_control:
        value = structured("internal", marker_value(found.marker), b"", characters_max)
    return ShownRecord(
        partition=found.partition,
        offset=found.offset,
        timestamp_ms=found.time_ms if found.time_ms >= 0 else None,
        timestamp_type=None,
        key=key,
        value=value,
        headers=(),
        header_count=0,
        transaction=transaction,
        size_bytes=0,
        is_control=found.is_control,
        error=found.failure,
        next_offset=found.next_offset,
    )


def _record(
    found: Found,
    record: StoredRecord,
    transaction: ShownTransaction | None,
    decoders: Decoders,
    formats: tuple[str, str],
    characters_max: int,
    stream: Steps | None,
) -> ShownRecord:
    key, value = decoders.key_and_value(
        record.topic, record.key, record.value, formats, characters_max, stream
    )
    headers = [
        ShownHeader(
            name=name[:_HEADER_NAME_MAX],
            value=decoders.header(data, characters_max, stream),
        )
        for name, data in record.headers[:HEADERS_MAX]
    ]
    size = len(record.key or b"") + len(record.value or b"")
    size += sum(len(name.encode(errors="replace")) + len(data or b"") for name, data in record.headers)
    return ShownRecord(
        partition=found.partition,
        offset=found.offset,
        timestamp_ms=record.timestamp if record.timestamp >= 0 else None,
        timestamp_type=_TIMESTAMP_TYPES[record.timestamp_type],
        key=key,
        value=value,
        headers=headers,
        header_count=len(record.headers),
        transaction=transaction,
        size_bytes=size,
        is_control=False,
        next_offset=found.next_offset,
    )
