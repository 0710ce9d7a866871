"""Values that a pass and its record loop exchange between processes: the rules of the pass, producers' last
batches, results. PURE.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

from odradek.wire.batches.batch_header import SEQUENCE_MASK, BatchHeader

if TYPE_CHECKING:
    from odradek.data_plane.log.parts.producer_state import ProducerState

SECRET_BYTES = 32


class OffsetMapTooSmall(Exception):
    """Raised if the keys of a single batch do not fit into an empty map."""


@attrs.define
class Mapped:
    """The result of putting some batches into the offset map (`RecordLoop.map_records`)."""

    bytes_read: int = 0
    """The number of bytes of the batches that were put into the map."""
    next_offset: int = -1
    """The offset after the batches that were put into the map; -1 if there were none."""
    records: int = 0
    keyless: int = 0
    """The number of records without a key, which a pass removes."""
    keys: int = 0
    """The number of different keys in the map, from all calls so far."""
    is_full: bool = False
    """True if the next batch does not fit into the map."""


@attrs.define
class Cleaned:
    """The result of cleaning some batches (`RecordLoop.clean`)."""

    data: bytes | bytearray = b""
    """The bytes of the batches that stay."""
    bytes_read: int = 0
    records_read: int = 0
    records_kept: int = 0
    is_changed: bool = False
    """False if all batches stay unchanged."""
    abort_markers: list[int] = attrs.field(factory=list)
    """The offsets of abort markers whose transactions may still have records for readers. So the entries of
    these markers in the transaction index must stay.
    """
    last_header: tuple[Any, ...] = ()
    """The header fields of the last batch read, before cleaning."""


@attrs.frozen
class LastBatches:
    """The last committed data batch of each known producer. Such a batch stays in the log even if all its
    records are removed.

    Here a batch counts as committed if it lies below the high watermark, because later batches may still be
    truncated. Kafka keeps a producer's very last batch, whether it is committed or not.
    """

    offsets: dict[int, int]
    """The last offset of each producer's last committed batch, by producer id."""
    next_sequences: dict[int, int]
    """The sequence number that follows the last committed batch, by producer id. A producer is listed here only
    if all of its remembered batches lie above the high watermark.
    """
    epochs: dict[int, int] = attrs.field(factory=dict)
    """The epochs of producers whose data batches the log no longer remembers, by producer id. The transaction
    marker with this epoch stays in the log.
    """

    @classmethod
    def of(cls, producers: ProducerState, high_watermark: int) -> LastBatches:
        """Collect the producers' last batches below the high watermark."""
        offsets: dict[int, int] = {}
        next_sequences: dict[int, int] = {}
        epochs: dict[int, int] = {}
        for producer_id, entry in producers.entries.items():
            committed = [offset for offset in entry.last_offsets if offset < high_watermark]
            if committed:
                offsets[producer_id] = committed[-1]
            elif entry.last_offset >= 0:
                next_sequences[producer_id] = entry.first_sequence
            else:
                epochs[producer_id] = entry.epoch
        return cls(offsets, next_sequences, epochs)

    def has(self, header: BatchHeader) -> bool:
        """True if the batch with this header is the last batch of its producer."""
        producer_id = header.producer_id
        if header.is_control:
            return self.epochs.get(producer_id) == header.producer_epoch
        if self.offsets.get(producer_id) == header.last_offset:
            return True
        following = (header.base_sequence + header.last_offset_delta + 1) & SEQUENCE_MASK
        return self.next_sequences.get(producer_id) == following


@attrs.frozen
class PassRules:
    """The rules that hold for all batches of a pass."""

    earliest_ms: int
    """The agreed clock's earliest time, in milliseconds since 1970. Horizons up to it count as passed."""
    latest_ms: int
    """The agreed clock's latest time, in milliseconds since 1970. New horizons are counted from it."""
    delete_retention_ms: int
    map_end: int
    """The offset after the last batch in the map. Batches from there on stay unchanged."""
    last_batches: LastBatches

    def stays_empty(self, header: BatchHeader) -> bool:
        """True if the batch stays even if all its records are removed, because it keeps its producer's last
        sequence number.
        """
        return header.producer_id >= 0 and self.last_batches.has(header)
