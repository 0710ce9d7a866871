"""Packs what a log knows about one producer into bytes, because a log may know many thousands; finds a
duplicate among its last five batches.

A packed entry has a head, then up to five batches, the newest first. All fields of the newest batch are
stored. Of an older batch, only its size and the distances to the next newer batch are stored. The sequence
numbers of an older batch end where those of the newer batch begin. The next append reads the head and the
newest batch. It converts this batch to distances, and puts the appended batch before it. A packed entry takes
80 bytes of memory with one batch, and 128 bytes with five batches. (A Python object with integers would take
about 200 and 360 bytes.) The garbage collector skips packed entries.

This format has two limits. First, batches before a gap in the sequence numbers, or before a gap of 2**32
offsets, are forgotten. No client still waits for the answers to such batches. Second, the timestamps of two
neighbouring batches must be less than 24 days apart. If they are further apart, the older timestamp is
inexact. Exact timestamps matter only if the broker's clock sets them. In that case a producer that is silent
for a day is forgotten anyway.

`ProducerEntry` has the same content as named attributes, for code off the hot path.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, MutableMapping
from struct import Struct
from typing import NamedTuple

from odradek.wire.batches.batch_header import SEQUENCE_MASK

BATCHES_KEPT = 5
NO_BEGIN = -1
HEAD = Struct("<hiqq")
"""The layout of the head: epoch, coordinator epoch, begin, newest timestamp. The begin is the first offset of
the open transaction. Without an open transaction, the begin is below 0. It is -1, or it encodes the time
since which the producer has been silent (`begin_of_silence`).
"""
BATCH = Struct("<iqiq")
"""The layout of the newest batch: last sequence, last offset, offset delta, timestamp."""
OLDER = Struct("<iIi")
"""The layout of an older batch: its offset delta, then two distances to the next newer batch, of the last
offsets and of the timestamps.
"""
read_head = HEAD.unpack_from
read_what_decides = Struct("<h4xq8xi").unpack_from
"""A function that reads (epoch, begin, last sequence) from a packed entry. The check of the next batch
depends on these fields. The entry must have at least one batch.
"""
NO_BATCH = (-1, -1, 0, -1)
"""The fields of the newest batch of a producer without batches."""
pack_with_batch = Struct("<hiqqiqiq").pack
_read_newest = Struct("<22xiqiq").unpack_from
_pack_older = OLDER.pack
HEAD_SIZE = HEAD.size
_OLDER_AT = HEAD_SIZE + BATCH.size
_OLDEST_AT = _OLDER_AT + (BATCHES_KEPT - 2) * OLDER.size
"""The position of the last of five batches in a packed entry, which is dropped when a batch is added."""
_SILENT_FROM = -2
_OFFSETS_MAX = (1 << 32) - 1
_TIME_MAX_MS = (1 << 31) - 1
FIELDS = 4


class Duplicate(NamedTuple):
    """A batch that the log already has. `timestamp_ms` is the newest timestamp of its records."""

    base_offset: int
    last_offset: int
    timestamp_ms: int


def find_duplicate(packed: bytes, epoch: int, base_sequence: int, last_sequence: int) -> Duplicate | None:
    """Return the batch of a packed entry with exactly these first and last sequence numbers; None if there is
    none.
    """
    if len(packed) == HEAD_SIZE:
        return None
    known_epoch, _, newest_sequence = read_what_decides(packed)
    if known_epoch != epoch or base_sequence == (newest_sequence + 1) & SEQUENCE_MASK:
        return None
    for sequence, last_offset, delta, timestamp_ms in batches_of(packed):
        if sequence == last_sequence and (sequence - delta) & SEQUENCE_MASK == base_sequence:
            return Duplicate(last_offset - delta, last_offset, timestamp_ms)
    return None


def batches_of(packed: bytes) -> Iterator[tuple[int, int, int, int]]:
    """Yield the batches of a packed entry as (last sequence, last offset, offset delta, timestamp), the
    newest first.
    """
    if len(packed) == HEAD_SIZE:
        return
    sequence, last_offset, delta, timestamp_ms = BATCH.unpack_from(packed, HEAD_SIZE)
    yield sequence, last_offset, delta, timestamp_ms
    for at in range(_OLDER_AT, len(packed), OLDER.size):
        if sequence >= 0:  # In batches of coordinators it is -1, and stays -1.
            sequence = (sequence - delta - 1) & SEQUENCE_MASK
        delta, offsets, time_ms = OLDER.unpack_from(packed, at)
        last_offset -= offsets
        timestamp_ms -= time_ms
        yield sequence, last_offset, delta, timestamp_ms


def older_batches(packed: bytes, sequence: int, last_offset: int, delta: int, timestamp_ms: int) -> bytes:
    """Encode the batches of the entry `packed` in the layout `OLDER`. The caller puts them after a new batch,
    whose fields are the other arguments.
    """
    if len(packed) == HEAD_SIZE:
        return b""
    known_sequence, known_offset, known_delta, known_ms = _read_newest(packed)
    offsets = last_offset - known_offset
    if known_sequence != ((sequence - delta - 1) & SEQUENCE_MASK if sequence >= 0 else -1):
        return b""
    if not 0 <= offsets <= _OFFSETS_MAX:
        return b""
    time_ms = timestamp_ms - known_ms
    if not -_TIME_MAX_MS <= time_ms <= _TIME_MAX_MS:
        time_ms = _TIME_MAX_MS if time_ms > 0 else -_TIME_MAX_MS
    return _pack_older(known_delta, offsets, time_ms) + packed[_OLDER_AT:_OLDEST_AT]


def begin_of_silence(now_ms: int) -> int:
    """Return the value of the field `begin` for a producer that counts as silent since `now_ms` and has no
    open transaction. `silent_since` decodes it.
    """
    return _SILENT_FROM - now_ms


def silent_since(begin: int) -> int:
    """Return the time, in monotonic milliseconds, since which a producer counts as silent. `begin` is the
    field of its entry. Returns -1 if the producer does not count as silent.
    """
    return _SILENT_FROM - begin if begin <= _SILENT_FROM else -1


class ProducerEntry:
    """One producer. `batches` holds (last sequence, last offset, offset delta, timestamp) of up to five
    batches, the oldest first.
    """

    __slots__ = (
        "batches",
        "coordinator_epoch",
        "current_txn_first_offset",
        "epoch",
        "last_timestamp_ms",
        "silent_since_ms",
    )

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.coordinator_epoch = -1
        self.current_txn_first_offset = -1
        self.last_timestamp_ms = -1
        self.batches = array("q")
        self.silent_since_ms = -1
        """The monotonic time in milliseconds at which a check for expiry first found no new batch; else -1.
        """

    @classmethod
    def of(cls, packed: bytes) -> ProducerEntry:
        epoch, coordinator_epoch, begin, last_timestamp_ms = read_head(packed)
        entry = cls(epoch)
        entry.coordinator_epoch = coordinator_epoch
        entry.current_txn_first_offset = max(begin, NO_BEGIN)
        entry.last_timestamp_ms = last_timestamp_ms
        entry.silent_since_ms = silent_since(begin)
        for batch in reversed(list(batches_of(packed))):
            entry.batches.extend(batch)
        return entry

    def packed(self) -> bytes:
        begin = self.current_txn_first_offset
        if begin < 0 <= self.silent_since_ms:
            begin = begin_of_silence(self.silent_since_ms)
        packed = head = HEAD.pack(self.epoch, self.coordinator_epoch, begin, self.last_timestamp_ms)
        for at in range(0, len(self.batches), FIELDS):
            fields = self.batches[at : at + FIELDS]
            packed = head + BATCH.pack(*fields) + older_batches(packed, *fields)
        return packed

    @property
    def last_sequence(self) -> int:
        return self.batches[-4] if self.batches else -1

    @property
    def last_offset(self) -> int:
        return self.batches[-3] if self.batches else -1

    @property
    def last_offsets(self) -> list[int]:
        """The last offsets of all kept batches, ascending."""
        return self.batches[1::FIELDS].tolist()

    @property
    def first_sequence(self) -> int:
        """The first sequence number of the oldest kept batch."""
        return (self.batches[0] - self.batches[2]) & SEQUENCE_MASK


class ProducerEntries(MutableMapping[int, ProducerEntry]):
    """The producers of a log by id, unpacked when they are read. After changing an entry, store it again."""

    __slots__ = ("_packed",)

    def __init__(self, packed: dict[int, bytes]) -> None:
        self._packed = packed

    def __getitem__(self, producer_id: int) -> ProducerEntry:
        return ProducerEntry.of(self._packed[producer_id])

    def __setitem__(self, producer_id: int, entry: ProducerEntry) -> None:
        self._packed[producer_id] = entry.packed()

    def __delitem__(self, producer_id: int) -> None:
        del self._packed[producer_id]

    def __iter__(self) -> Iterator[int]:
        return iter(self._packed)

    def __len__(self) -> int:
        return len(self._packed)
