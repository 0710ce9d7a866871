"""A hash of rows that does not depend on the order of the rows. It compares what two attempts at a task have written.
PURE.

Theory of operation
===================

Each column gives a 64-bit number per row. The numbers of a row are mixed to one number. The hash is the sum of these
row numbers modulo 2**64. A Python call per row would cost as much as writing the row, unless the row is long. So values
below 2 KiB are hashed all at once:

1. A value of 512 bytes or more is read in blocks of 512 bytes. Its last block ends where the value ends, so it may
   overlap the block before. A shorter value is read as two blocks, one from its start and one up to its end. Their
   size is the largest power of two that fits. So no byte beyond a value is read. The length of a value is part of its hash.
2. The blocks of many rows are copied into a matrix of 64-bit words. Each word is multiplied by the constant of its
   column, and the products of a line are summed modulo 2**64 (multilinear hashing). Before that, a word's upper bits
   are folded into its lower ones. A difference in the highest bits alone would reach only the highest bits of the
   sum, and two of these might cancel each other.
3. The finalizer of SplitMix64 mixes each row's number.

A longer value is hashed by CRC-32C, for which processors have an instruction.

The hash detects different rows; it does not protect against attackers. The keys are fixed, so that all attempts have
the same. Attempts of version 0.3 and before used another hash (`row_hash_before.py`).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from crc32c import crc32c

__all__ = [
    "FACTOR_1",
    "FACTOR_2",
    "NULL",
    "WORD",
    "UInt64s",
    "column_factor",
    "hash_of_column",
    "hash_rows",
    "mixed",
]

UInt64s = npt.NDArray[np.uint64]
_Int64s = npt.NDArray[np.int64]
_Bytes = npt.NDArray[np.uint8]
WORD = 8
_FOLD = np.uint64(29)
"""The distance by which upper bits are folded into lower ones. It is no multiple of 8, so equal bytes do not meet."""
_BLOCK = 512
_BLOCK_BITS = 10
"""The bits of the smallest length that is read in blocks of `_BLOCK` bytes."""
_LONG_BITS = 12
"""The bits of the smallest length for which a Python call per value costs less than `_of_blocks`."""
_MATRIX_BYTES = 262144
"""The bytes that are copied at once. They should stay in a processor's cache."""
NULL = np.uint64(0x9E3779B97F4A7C15)
FACTOR_1 = np.uint64(0xBF58476D1CE4E5B9)
FACTOR_2 = np.uint64(0x94D049BB133111EB)
_MASK = (1 << 64) - 1


def hash_rows(columns: list[pa.Array | None]) -> int:
    """Compute the sum of the rows' hashes. A column has binaries, strings, int32 or lists of (key, value); None
    stands for a missing column.
    """
    hashes: UInt64s | None = None
    for place, column in enumerate(columns):
        if column is None:
            continue
        found = hash_of_column(column, _of_bytes) + column_factor(place)
        hashes = mixed(found if hashes is None else hashes * FACTOR_1 + found)
    return 0 if hashes is None else int(np.sum(hashes, dtype=np.uint64))


def column_factor(place: int) -> np.uint64:
    """Return the number that makes the values of column number `place` differ from those of another column."""
    return np.uint64((place + 1) * int(NULL) & _MASK)


def mixed(numbers: UInt64s) -> UInt64s:
    """Mix the bits with the finalizer of SplitMix64: each input bit changes half of the output bits on average."""
    numbers = (numbers ^ (numbers >> np.uint64(30))) * FACTOR_1
    numbers = (numbers ^ (numbers >> np.uint64(27))) * FACTOR_2
    return numbers ^ (numbers >> np.uint64(31))


_KEYS: UInt64s = mixed(np.arange(1, _BLOCK // WORD + 1, dtype=np.uint64) * NULL) | np.uint64(1)
"""The constants by which the words of a line are multiplied."""


def hash_of_column(column: pa.Array, of_bytes: Callable[[pa.Array], UInt64s]) -> UInt64s:
    """Compute a number for each row of a column. `of_bytes` does so for a column of large binaries."""
    kind = column.type
    if pa.types.is_list(kind):
        return _of_lists(column, of_bytes)
    if pa.types.is_integer(kind):
        found = pc.fill_null(column, 0).to_numpy(zero_copy_only=False).astype(np.int64).view(np.uint64)
        found = mixed(found + NULL)
    else:
        found = of_bytes(column.cast(pa.large_binary()))
    if column.null_count:
        found[pc.is_null(column).to_numpy(zero_copy_only=False)] = NULL
    return found


def _of_bytes(column: pa.Array) -> UInt64s:
    _, offsets, buffer = column.buffers()
    rows = len(column)
    ends = np.frombuffer(offsets, np.int64)[column.offset : column.offset + rows + 1]
    starts, ends = ends[:-1], ends[1:]
    lengths = ends - starts
    found: UInt64s = lengths.astype(np.uint64) * FACTOR_2
    if buffer is None or not rows:
        return found
    data = np.frombuffer(buffer, np.uint8)
    # The number of bits of a length names the way in which it is read.
    bits = np.minimum(np.frexp(lengths)[1], _LONG_BITS)
    ways = np.flatnonzero(np.bincount(bits)).tolist()
    for each in ways:
        some = np.flatnonzero(bits == each) if len(ways) > 1 else slice(None)
        first, end = starts[some], ends[some]
        if each == _LONG_BITS:
            found[some] += _of_long(data, first, end)
        elif each >= _BLOCK_BITS:
            found[some] += _block_by_block(data, first, end)
        elif each:
            found[some] += _of_short(data, first, end, 1 << (each - 1))
    return found


def _of_short(data: _Bytes, starts: _Int64s, ends: _Int64s, size: int) -> UInt64s:
    """Compute the hashes of values by their first and their last `size` bytes."""
    return _of_blocks(data, np.stack((starts, ends - size), axis=1), size)


def _of_long(data: _Bytes, starts: _Int64s, ends: _Int64s) -> UInt64s:
    """Compute the hashes of values one by one."""
    whole = data.data
    values = map(whole.__getitem__, map(slice, starts.tolist(), ends.tolist()))
    return mixed(np.fromiter(map(crc32c, values), np.uint64, len(starts)))


def _block_by_block(data: _Bytes, starts: _Int64s, ends: _Int64s) -> UInt64s:
    """Compute the hashes of values by all their blocks."""
    counts = -((starts - ends) // _BLOCK)
    firsts = np.cumsum(counts) - counts
    within = np.arange(int(counts.sum())) - np.repeat(firsts, counts)
    places = np.repeat(starts, counts) + within * _BLOCK
    places[firsts + counts - 1] = ends - _BLOCK
    blocks = _of_blocks(data, places[:, np.newaxis], _BLOCK)
    blocks *= within.astype(np.uint64) * NULL | np.uint64(1)
    found: UInt64s = np.add.reduceat(blocks, firsts)
    return found


def _of_blocks(data: _Bytes, places: _Int64s, size: int) -> UInt64s:
    """Compute the hashes of the blocks of `size` bytes at the positions in each line of `places`. The blocks of a line give one number."""
    blocks = np.ndarray((len(data) - size + 1,), np.dtype(f"V{size}"), data.data, strides=(1,))
    found = np.empty(len(places), np.uint64)
    width = max(size // WORD, 1) * places.shape[1]
    lines = _MATRIX_BYTES // (size * places.shape[1])
    for begin in range(0, len(places), lines):
        copied = blocks[places[begin : begin + lines]]
        if size < WORD:
            words = copied.view(f"<u{size}").astype(np.uint64)
        else:
            words = copied.view("<u8").reshape(len(copied), width)
            words ^= words >> _FOLD
        np.einsum("ij,j->i", words, _KEYS[:width], out=found[begin : begin + lines])
    return found


def _of_lists(column: pa.Array, of_bytes: Callable[[pa.Array], UInt64s]) -> UInt64s:
    """Compute the hash of each row's list of headers. The hash depends on the order of the headers."""
    items = column.flatten()
    counts = pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    found = mixed(counts.astype(np.uint64) + NULL)
    if len(items):
        of_items = mixed(
            hash_of_column(pc.struct_field(items, "key"), of_bytes) * FACTOR_1
            + hash_of_column(pc.struct_field(items, "value"), of_bytes)
        )
        rows = np.repeat(np.arange(len(counts)), counts)
        position = np.arange(len(items)) - np.repeat(np.cumsum(counts) - counts, counts)
        np.add.at(found, rows, mixed(of_items + position.astype(np.uint64) * FACTOR_2))
    return found
