"""The aborted transactions of one segment: its `.txnindex` file, in Kafka's format. PURE.

A segment has one entry per abort marker in it, in the order of the markers. An entry is 34 bytes: version
(int16, 0), producer id, first offset, last offset (the marker's) and last stable offset, all int64 and
big-endian. The last stable offset is the first offset of the earliest transaction that was still open when
the marker was appended. If there was none, it is the offset after the marker. So the last stable offset
never falls from one entry to the next. A transaction that ends after an entry's marker began at the entry's
last stable offset or later.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from struct import Struct
from typing import NamedTuple

__all__ = ["NONE_ABORTED", "AbortedIndex", "AbortedTransaction", "DamagedTransactionIndex"]

_ENTRY = Struct(">hqqqq")
ENTRY_BYTES = _ENTRY.size
assert ENTRY_BYTES == 34
_FIELDS = 4
_LAST, _STABLE = 2, 3
_VERSION = 0


class DamagedTransactionIndex(Exception):
    """Raised if a `.txnindex` file is cut, has an unknown version, or entries out of order."""


class AbortedTransaction(NamedTuple):
    """One entry of the index. `last_offset` is the offset of the transaction's abort marker."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class AbortedIndex:
    """The aborted transactions of one segment; an entry takes 32 bytes of memory."""

    __slots__ = ("_fields",)

    def __init__(self) -> None:
        self._fields = array("q")

    def __len__(self) -> int:
        return len(self._fields) // _FIELDS

    def __iter__(self) -> Iterator[AbortedTransaction]:
        for at in range(len(self)):
            yield self._entry(at)

    def _entry(self, at: int) -> AbortedTransaction:
        return AbortedTransaction(*self._fields[at * _FIELDS : (at + 1) * _FIELDS])

    def append(self, entry: AbortedTransaction) -> None:
        """Add the entry of the newest abort marker. Raises `AssertionError` unless its offset is above the
        last marker's.
        """
        if self._fields and entry.last_offset <= self._fields[-2]:
            raise AssertionError(
                f"an abort marker at offset {entry.last_offset} cannot follow the abort marker at "
                f"{self._fields[-2]}"
            )
        self._fields.extend(entry)

    def truncate(self, offset: int) -> None:
        """Remove the entries whose marker is at `offset` or later."""
        del self._fields[self._first_ending_at(offset) * _FIELDS :]

    def _first_ending_at(self, offset: int) -> int:
        """Return the index of the first entry whose marker is at `offset` or later."""
        low, high = 0, len(self)
        while low < high:
            middle = (low + high) // 2
            if self._fields[middle * _FIELDS + _LAST] < offset:
                low = middle + 1
            else:
                high = middle
        return low

    def collect(self, offset: int, end_offset: int, found: list[AbortedTransaction]) -> bool:
        """Add the aborted transactions with offsets in `[offset, end_offset)` to `found`. Returns True if
        later segments cannot have any further such transaction.
        """
        for at in range(self._first_ending_at(offset), len(self)):
            entry = self._entry(at)
            if entry.first_offset < end_offset:
                found.append(entry)
            if entry.last_stable_offset >= end_offset:
                return True
        return False

    def encode(self) -> bytes:
        """Encode all entries as the contents of a `.txnindex` file."""
        return b"".join(_ENTRY.pack(_VERSION, *entry) for entry in self)

    @classmethod
    def decode(cls, data: bytes) -> AbortedIndex:
        """Decode the contents of a `.txnindex` file. Raises `DamagedTransactionIndex`."""
        if len(data) % ENTRY_BYTES:
            raise DamagedTransactionIndex(
                f"the transaction index has {len(data)} bytes, which is not a multiple of an entry's size"
            )
        index = cls()
        last_offset = -1
        for version, *fields in _ENTRY.iter_unpack(data):
            entry = AbortedTransaction(*fields)
            if version != _VERSION:
                raise DamagedTransactionIndex(f"the transaction index has the unknown version {version}")
            if not 0 <= entry.first_offset < entry.last_offset or entry.last_offset <= last_offset:
                raise DamagedTransactionIndex(
                    f"the transaction index lists transaction {entry} after an abort marker at offset "
                    f"{last_offset}"
                )
            last_offset = entry.last_offset
            index._fields.extend(entry)
        return index


NONE_ABORTED = AbortedIndex()
"""An empty index that all segments without aborted transactions share. It must stay empty."""
