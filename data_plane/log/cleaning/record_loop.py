"""The cleaner's work on records: fills the offset map, and rewrites batches with the records that stay. PURE.

A `RecordLoop` runs in a companion process (`Env.new_companion`). So numpy is imported there, and not in the
node's own process. Files are passed as arguments. The rules are those of Kafka's `Cleaner` and of
`MemoryRecords.filterTo`:

* A record beyond the end of the map stays. Before that end, a record stays if it has a key, and the map has
  no later record with the same key. A tombstone stays only until the delete horizon of its batch (KIP-534). A
  batch gets its horizon, `delete.retention.ms` from now, from the first pass that keeps a tombstone in it.
* A batch keeps its range of offsets, its producer's numbers, its leader epoch and its timestamp type. A batch
  that loses no record is kept unchanged. A batch that loses all records is removed, unless it is the last
  batch of a known producer.
* The base timestamp stays, so that the records' bytes can be copied. (Kafka instead sets it to the timestamp
  of the first record that stays.) If the batch gets a delete horizon, the horizon replaces the base
  timestamp. The records' timestamp deltas are then counted from the horizon.
* `ended_transactions` decides which batches and markers of transactions are removed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import attrs
import numpy as np
import numpy.typing as npt

from odradek.data_plane.log.cleaning.ended_transactions import Aborted, EndedTransactions
from odradek.data_plane.log.cleaning.key_hash import KeyHash
from odradek.data_plane.log.cleaning.offset_map import OffsetMap, bytes_for
from odradek.data_plane.log.cleaning.pass_values import (
    Cleaned,
    Mapped,
    OffsetMapTooSmall,
    PassRules,
)
from odradek.env.pausing import pause
from odradek.wire.batches.batch_errors import CorruptBatch
from odradek.wire.batches.batch_header import (
    HEAD,
    HEAD_SIZE,
    HEADER,
    HEADER_SIZE,
    SIZE_PREFIX,
    BatchHeader,
    check_crc,
    iter_batches,
    seal,
)
from odradek.wire.batches.compression import compress
from odradek.wire.batches.record_columns import (
    Bytes,
    Int64s,
    RecordColumns,
    RecordPlaces,
    record_columns,
    record_offsets,
)
from odradek.wire.batches.records import RecordBatchBuilder, empty_batch, records
from odradek.wire.batches.transaction_markers import parse_marker

_GROUP_BYTES = 4 << 20
"""The approximate number of decompressed bytes of the batches that are processed together. The limit bounds
the memory, and is high enough for numpy to be fast.
"""
_SMALLEST = np.iinfo(np.int64).min
LONG_MAX = (1 << 63) - 1

_Bools = npt.NDArray[np.bool_]


class Source(Protocol):
    """The interface of a file of batches in the companion process."""

    def pread(self, count: int, offset: int) -> bytes: ...


class RecordLoop:
    """The record loop of one cleaner task. A pass first calls `begin`. It calls `map_records` until the whole
    dirty part is in the map, or the map is full. Then it calls `rewrite_by` once, and `clean` until all
    batches are cleaned.
    """

    def __init__(self) -> None:
        self._map: OffsetMap | None = None
        self._shape = (0, 0, 0.0)
        self._hash = KeyHash(bytes(32))
        self._bytes_max = 0
        self._rules: PassRules | None = None
        self._transactions = EndedTransactions(())

    def begin(
        self,
        secret: bytes,
        buffer_bytes: int,
        load_factor: float,
        decompressed_bytes_max: int,
        records_max: int,
        aborted: tuple[Aborted, ...] = (),
    ) -> int:
        """Begin a pass with an empty map. Returns the number of keys that the map may hold.

        `buffer_bytes` is the largest size of the map. The dirty part has at most `records_max` records; a map
        that has room for them may be smaller. `aborted` are the aborted transactions of the log.
        """
        shape = buffer_bytes, _size_class(records_max), load_factor
        if self._map is None or self._shape != shape:
            self._map, self._shape = None, shape
            self._map = OffsetMap(min(buffer_bytes, bytes_for(shape[1], load_factor)), load_factor)
        self._map.clear()
        self._hash = KeyHash(secret)
        self._bytes_max = decompressed_bytes_max
        self._rules = None
        self._transactions = EndedTransactions(aborted)
        return self._map.keys_max

    # -- the map

    def map_records(
        self, source: Source, position: int, end: int, bytes_max: int, offsets: range, from_offset: int
    ) -> Mapped:
        """Put the keys of some whole batches of a file into the map. The first batch begins at `position`;
        the last batch ends at `end` or before.

        Reads about `bytes_max` bytes, but at least one batch. All offsets of the batches must lie within
        `offsets`. Skips records below `from_offset`, records of aborted transactions, and markers. Stops
        before a batch whose keys do not fit into the map.

        Raises:
            CorruptBatch, InvalidRecord, KafkaError: the log cannot be cleaned.
            OffsetMapTooSmall: one batch does not fit into an empty map.
        """
        pause()
        data = _read_batches(source, position, end, bytes_max)
        mapped = Mapped()
        group = RecordPlaces()
        consumed = group_start = 0
        for at, header in _batches(data, offsets):
            if header.next_offset > from_offset and self._counts(header):
                group.add(data, at, header, self._bytes_max)
            consumed = at + header.size
            mapped.next_offset = header.next_offset
            if group.size >= _GROUP_BYTES:
                if not self._map_group(data, group, group_start, from_offset, mapped):
                    return mapped
                group, group_start = RecordPlaces(), consumed
        if self._map_group(data, group, group_start, from_offset, mapped):
            mapped.bytes_read = consumed
        return mapped

    def _map_group(
        self, data: bytes, group: RecordPlaces, start: int, from_offset: int, mapped: Mapped
    ) -> bool:
        """Put the keys of a group of batches into the map. Returns False if only the group's first batches fit.
        The group's batches begin at position `start` in `data`.
        """
        if not len(group) or self._put(group, from_offset, mapped):
            return True
        for at, header in iter_batches(data, start):
            single = RecordPlaces()
            if header.next_offset > from_offset and self._counts(header):
                single.add(data, at, header, self._bytes_max)
            if len(single) and not self._put(single, from_offset, mapped):
                # The caller has set `next_offset` to the end of the whole group. Set it back to the first
                # batch that does not fit.
                mapped.next_offset = header.base_offset
                break
            mapped.bytes_read = at + header.size
            mapped.next_offset = header.next_offset
        else:
            raise AssertionError(
                "the keys of each batch fit into the map alone, but those of all batches together do not"
            )
        mapped.is_full = True
        if not self._known.size:
            raise OffsetMapTooSmall(
                f"a batch of {header.record_count} records is too large for the cleaner's map of "
                f"{self._known.keys_max} keys: raise log.cleaner.dedupe.buffer.size"
            )
        return False

    def _put(self, group: RecordPlaces, from_offset: int, mapped: Mapped) -> bool:
        columns = record_columns(group)
        offsets = record_offsets(group.headers, columns.offset_delta)
        wanted = offsets >= from_offset
        keyed = np.flatnonzero(wanted & (columns.key_length >= 0))
        hashes = self._hash.of(columns.data, columns.key[keyed], columns.key_length[keyed])
        known = self._known
        if known.size + len(keyed) > known.keys_max and known.size + known.count_new(hashes) > known.keys_max:
            return False
        known.put(hashes, offsets[keyed])
        mapped.records += int(wanted.sum())
        mapped.keyless += int(wanted.sum()) - len(keyed)
        mapped.keys = known.size
        return True

    def _counts(self, header: BatchHeader) -> bool:
        """True if the keys of this batch count, because it is neither a marker nor a batch of an aborted
        transaction.
        """
        return not header.is_control and not self._transactions.is_aborted(header)

    @property
    def _known(self) -> OffsetMap:
        if self._map is None:
            raise AssertionError("the cleaner was asked to go on, but no cleaning pass has begun")
        return self._map

    # -- the cleaned batches

    def rewrite_by(self, rules: PassRules) -> None:
        """Set the rules for the calls of `clean` that follow, because the map is complete now."""
        self._rules = rules
        self._transactions.begin_rewriting()

    def clean(self, source: Source, position: int, end: int, bytes_max: int, offsets: range) -> Cleaned:
        """Clean some whole batches of a file, from `position` on and within `offsets`. Returns the batches
        that stay.

        Raises:
            CorruptBatch, InvalidRecord, KafkaError: the log cannot be cleaned.
        """
        if self._rules is None:
            raise AssertionError(
                "the cleaner was asked to rewrite segments before its map of keys was complete"
            )
        pause()
        data = _read_batches(source, position, end, bytes_max)
        cleaned = Cleaned()
        out: list[bytes | bytearray | memoryview] = []
        waiting: list[tuple[int, BatchHeader]] = []
        size = 0
        for at, header in _batches(data, offsets):
            cleaned.bytes_read = at + header.size
            cleaned.last_header = tuple(header)
            if header.base_offset >= self._rules.map_end:
                out += self._rewritten(data, waiting, cleaned)
                waiting, size = [], 0
                if not check_crc(data, at, header.size):
                    raise CorruptBatch(f"the checksum of the batch at offset {header.base_offset} is wrong")
                out.append(memoryview(data)[at : at + header.size])
                cleaned.records_read += header.record_count
                cleaned.records_kept += header.record_count
                if header.is_control:
                    cleaned.abort_markers.append(header.base_offset)
                continue
            if header.is_transactional:
                is_aborted = self._transactions.is_aborted(header)
                if not header.is_control:
                    self._transactions.note_batch(header)
                if header.is_control or is_aborted:
                    out += self._rewritten(data, waiting, cleaned)
                    waiting, size = [], 0
                    out += self._end_or_abort(data, at, header, cleaned)
                    continue
            waiting.append((at, header))
            # The size of a compressed batch after decompression is unknown, so assume eight times as much.
            size += header.size * (8 if header.compression_type else 1)
            if size >= _GROUP_BYTES:
                out += self._rewritten(data, waiting, cleaned)
                waiting, size = [], 0
        out += self._rewritten(data, waiting, cleaned)
        cleaned.data = out[0] if len(out) == 1 and not isinstance(out[0], memoryview) else b"".join(out)
        return cleaned

    def _rewritten(
        self, data: bytes, batches: list[tuple[int, BatchHeader]], cleaned: Cleaned
    ) -> list[bytes | bytearray | memoryview]:
        """Rewrite successive batches with the records that stay. Returns their bytes."""
        if not batches:
            return []
        assert self._rules is not None
        group = RecordPlaces()
        for at, header in batches:
            group.add(data, at, header, self._bytes_max)
        verdict = self._judge(group) if len(group) else None
        out: list[bytes | bytearray | memoryview] = []
        index = 0
        for at, header in batches:
            kept = 0
            if header.record_count:
                assert verdict is not None
                kept, index, now = verdict.kept[index], index + 1, index
                cleaned.records_read += header.record_count
                cleaned.records_kept += kept
            source = memoryview(data)[at : at + header.size]
            if not kept:
                if not self._rules.stays_empty(header):
                    cleaned.is_changed = True
                elif header.record_count:
                    out.append(empty_batch(header))
                    cleaned.is_changed = True
                else:
                    out.append(source)
                continue
            assert verdict is not None
            is_whole = not verdict.needs_horizon[now] and kept == header.record_count
            if is_whole and (header.timestamp_type or verdict.max_timestamps[now] == header.max_timestamp):
                out.append(source)
                continue
            cleaned.is_changed = True
            if verdict.needs_horizon[now]:
                out.append(self._dated(data, at, header, verdict.of_batch(now)))
            else:
                out.append(_rebuilt(header, verdict, now))
        return out

    def _end_or_abort(
        self, data: bytes, at: int, header: BatchHeader, cleaned: Cleaned
    ) -> list[bytes | bytearray | memoryview]:
        """Rewrite a marker, or a batch of an aborted transaction. Returns its bytes; an empty list if it is
        removed.
        """
        assert self._rules is not None
        rules = self._rules
        if not check_crc(data, at, header.size):
            raise CorruptBatch(f"the checksum of the batch at offset {header.base_offset} is wrong")
        batch = memoryview(data)[at : at + header.size]
        cleaned.records_read += header.record_count
        if header.is_control:
            marker = parse_marker(batch)
            is_needless = self._transactions.is_needless(header, marker)
            if not is_needless and marker is not None and marker.is_abort:
                cleaned.abort_markers.append(header.base_offset)
            if not is_needless or (header.has_delete_horizon and header.base_timestamp > rules.earliest_ms):
                cleaned.records_kept += header.record_count
                return [batch]
            if header.record_count and not header.has_delete_horizon:
                cleaned.records_kept += header.record_count
                cleaned.is_changed = True
                return [self._dated(data, at, header, (True,) * header.record_count)]
        if not rules.stays_empty(header):
            cleaned.is_changed = True
            return []
        if not header.record_count:
            return [batch]
        cleaned.is_changed = True
        return [empty_batch(header)]

    def _judge(self, group: RecordPlaces) -> _Verdict:
        """Decide which records of a group of batches stay."""
        assert self._rules is not None
        rules = self._rules
        columns = record_columns(group)
        headers = group.headers
        offsets = record_offsets(headers, columns.offset_delta)
        keyed = np.flatnonzero(columns.key_length >= 0)
        latest = self._known.find(self._hash.of(columns.data, columns.key[keyed], columns.key_length[keyed]))
        keep = np.zeros(len(offsets), np.bool_)
        keep[keyed] = offsets[keyed] >= latest
        counts = group.counts()
        is_tombstone = columns.value_length < 0
        if is_tombstone.any():
            expired = np.array(
                [each.has_delete_horizon and each.base_timestamp <= rules.earliest_ms for each in headers],
                np.bool_,
            )
            keep &= ~(is_tombstone & np.repeat(expired, counts))
        return _Verdict.of(columns, headers, counts, keep, keep & is_tombstone)

    def _dated(self, data: bytes, at: int, header: BatchHeader, keep: Sequence[bool]) -> bytearray:
        """Rebuild a batch with a delete horizon, and with the records for which `keep` is true."""
        assert self._rules is not None
        horizon_ms = min(self._rules.latest_ms + self._rules.delete_retention_ms, LONG_MAX)
        builder = RecordBatchBuilder.like(
            header, compression_type=header.compression_type, delete_horizon_ms=horizon_ms
        )
        found = records(data, at, decompressed_bytes_max=self._bytes_max)
        for record, stays in zip(found, keep, strict=True):
            if stays:
                builder.append(record.timestamp, record.key, record.value, record.headers, record.offset)
        if header.timestamp_type:
            builder.max_timestamp = header.max_timestamp
        return builder.build(last_offset=header.last_offset)


@attrs.frozen
class _Verdict:
    """The records that stay, for several batches that are cleaned together."""

    kept: list[int]
    """The number of records that stay, for each batch."""
    needs_horizon: list[bool]
    max_timestamps: list[int]
    """The largest timestamp of the records that stay, for each batch."""
    _keep: _Bools
    _first: list[int]
    """The index of the first record of each batch among all records; the last element is the number of
    records.
    """
    _bytes: memoryview
    """The bytes of all records that stay, one after the other."""
    _ends: list[int]
    """The position in `_bytes` at which each batch ends; the first element is 0."""

    @classmethod
    def of(
        cls,
        columns: RecordColumns,
        headers: list[BatchHeader],
        counts: Int64s,
        keep: _Bools,
        kept_tombstones: _Bools,
    ) -> _Verdict:
        first = np.concatenate((np.zeros(1, np.int64), np.cumsum(counts)))
        starts = first[:-1]
        base = np.repeat(np.array([header.base_timestamp for header in headers], np.int64), counts)
        timestamps = np.where(keep, base + columns.timestamp_delta, _SMALLEST)
        lengths = columns.end - columns.start
        ends = np.cumsum(np.add.reduceat(np.where(keep, lengths, 0), starts))
        tombstones = np.add.reduceat(kept_tombstones, starts, dtype=np.int64)
        return cls(
            kept=np.add.reduceat(keep, starts, dtype=np.int64).tolist(),
            needs_horizon=[
                bool(count) and not header.has_delete_horizon
                for count, header in zip(tombstones.tolist(), headers, strict=True)
            ],
            max_timestamps=np.maximum.reduceat(timestamps, starts).tolist(),
            keep=keep,
            first=first.tolist(),
            bytes=_kept_bytes(columns.data, keep, lengths),
            ends=[0, *ends.tolist()],
        )

    def of_batch(self, index: int) -> list[bool]:
        """Return, for each record of a batch, whether it stays."""
        stays: list[bool] = self._keep[self._first[index] : self._first[index + 1]].tolist()
        return stays

    def bytes_of(self, index: int) -> memoryview:
        """Return the bytes of the records of a batch that stay."""
        return self._bytes[self._ends[index] : self._ends[index + 1]]


def _kept_bytes(data: Bytes, keep: _Bools, lengths: Int64s) -> memoryview:
    if keep.all():
        return data[: int(lengths.sum())].data
    return data[: int(lengths.sum())][np.repeat(keep, lengths)].data


def _rebuilt(header: BatchHeader, verdict: _Verdict, index: int) -> bytearray:
    """Rebuild a batch with the records that stay, whose bytes are copied unchanged."""
    payload: bytes | memoryview = verdict.bytes_of(index)
    if header.compression_type:
        payload = compress(header.compression_type, payload)
    max_timestamp = header.max_timestamp if header.timestamp_type else verdict.max_timestamps[index]
    changed = header._replace(
        batch_length=HEADER_SIZE - SIZE_PREFIX + len(payload),
        max_timestamp=max_timestamp,
        record_count=verdict.kept[index],
        crc=0,
    )
    batch = bytearray(HEADER.pack(*changed))
    batch += payload
    seal(batch)
    return batch


def _size_class(records: int) -> int:
    """Round a number of records up to a power of two. So passes with similar numbers of records can reuse one
    map.
    """
    return 1 << max(records - 1, 1).bit_length()


def _read_batches(source: Source, position: int, end: int, bytes_max: int) -> bytes:
    """Read bytes of a file from `position`, where a batch begins, up to `end`: about `bytes_max`, but at
    least the first batch.
    """
    wanted = min(max(bytes_max, HEADER_SIZE), end - position)
    data = source.pread(wanted, position)
    if len(data) < wanted:
        raise CorruptBatch(
            f"the segment ends at position {position + len(data)}, before its size of {end} bytes"
        )
    if len(data) >= HEAD_SIZE:
        size = HEAD.unpack_from(data)[1] + SIZE_PREFIX
        if len(data) < size <= end - position:
            data = source.pread(size, position)
    return data


def _batches(data: bytes, offsets: range) -> list[tuple[int, BatchHeader]]:
    """Parse the whole batches at the start of `data`, at least one. Returns (position, header) of each.

    All batches must lie within `offsets`, in ascending order. This check is needed because no checksum covers
    a batch's base offset. A record whose damaged offset is too high would count as the latest record of its
    key. Raises `CorruptBatch`, `InvalidRecord`.
    """
    found = list(iter_batches(data))
    if not found:
        raise CorruptBatch(f"the {len(data)} bytes that were read hold no whole batch")
    lowest = offsets.start
    for _, header in found:
        if not lowest <= header.base_offset < header.next_offset <= offsets.stop:
            raise CorruptBatch(
                f"a batch has the offsets {header.base_offset} to {header.last_offset}, but only offsets {lowest} to {offsets.stop - 1} are expected here"
            )
        lowest = header.next_offset
    return found
