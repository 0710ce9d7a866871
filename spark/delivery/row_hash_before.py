"""The hash of rows of version 0.3 and before. It compares the rows of a batch that such a version has begun. PURE.

Each column gives a 64-bit number per row. The numbers of a row are mixed to one number. The hash is the sum of these
row numbers modulo 2**64. Short values are read word by word for all rows at once, because a Python object per row
would cost more than writing the row. The hash detects different rows; it does not protect against attackers.
"""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["hash_rows"]

_UInt64s = npt.NDArray[np.uint64]
_WORD = 8
_SHORT_BYTES_MAX = 512
"""Values with more bytes than this are hashed one by one. Reading the bytes of such values takes most of the
time anyway.
"""
_NULL = np.uint64(0x9E3779B97F4A7C15)
_FACTOR_1 = np.uint64(0xBF58476D1CE4E5B9)
_FACTOR_2 = np.uint64(0x94D049BB133111EB)
_MASK = (1 << 64) - 1


def hash_rows(columns: list[pa.Array | None]) -> int:
    """Compute the sum of the rows' hashes. A column has binaries, strings, int32 or lists of (key, value); None
    stands for a missing column.
    """
    hashes: _UInt64s | None = None
    for place, column in enumerate(columns):
        if column is None:
            continue
        found = _mixed(_of_column(column) + np.uint64((place + 1) * int(_NULL) & _MASK))
        hashes = found if hashes is None else _mixed(hashes * _FACTOR_1 + found)
    return 0 if hashes is None else int(np.sum(hashes, dtype=np.uint64))


def _mixed(numbers: _UInt64s) -> _UInt64s:
    """Mix the bits with the finalizer of SplitMix64: each input bit changes half of the output bits on average."""
    numbers = (numbers ^ (numbers >> np.uint64(30))) * _FACTOR_1
    numbers = (numbers ^ (numbers >> np.uint64(27))) * _FACTOR_2
    return numbers ^ (numbers >> np.uint64(31))


def _of_column(column: pa.Array) -> _UInt64s:
    kind = column.type
    if pa.types.is_list(kind):
        return _of_lists(column)
    if pa.types.is_integer(kind):
        found = pc.fill_null(column, 0).to_numpy(zero_copy_only=False).astype(np.int64).view(np.uint64)
        found = _mixed(found + _NULL)
    else:
        found = _of_bytes(column.cast(pa.large_binary()))
    if column.null_count:
        found[pc.is_null(column).to_numpy(zero_copy_only=False)] = _NULL
    return found


def _of_bytes(column: pa.Array) -> _UInt64s:
    _, offsets, data = column.buffers()
    rows = len(column)
    ends = np.frombuffer(offsets, np.int64)[column.offset : column.offset + rows + 1]
    starts, lengths = ends[:-1], np.diff(ends)
    found: _UInt64s = lengths.astype(np.uint64) * _FACTOR_2
    if data is None or not rows:
        return _mixed(found)
    # The loop reads whole words, even beyond the end of the last row. The extra bytes are masked.
    padded = np.zeros(int(ends[-1]) + _WORD, np.uint8)
    padded[: int(ends[-1])] = np.frombuffer(data, np.uint8)[: int(ends[-1])]
    words = np.ndarray((len(padded) - _WORD + 1,), np.dtype("<u8"), padded.data, strides=(1,))
    short = np.flatnonzero((lengths > 0) & (lengths <= _SHORT_BYTES_MAX))
    place = 0
    while len(short):
        left = lengths[short] - place
        word = words[starts[short] + place]
        missing = np.maximum(0, _WORD - left).astype(np.uint64) * np.uint64(8)
        word &= np.uint64(_MASK) >> missing
        found[short] = _mixed((found[short] + _NULL) * _FACTOR_1 + word)
        place += _WORD
        short = short[left > _WORD]
    for row in np.flatnonzero(lengths > _SHORT_BYTES_MAX).tolist():
        digest = hashlib.blake2b(
            padded[starts[row] : starts[row] + lengths[row]].data, digest_size=_WORD
        ).digest()
        found[row] = np.uint64(int.from_bytes(digest, "little"))
    return _mixed(found)


def _of_lists(column: pa.Array) -> _UInt64s:
    """Compute the hash of each row's list of headers. The hash depends on the order of the headers."""
    items = column.flatten()
    counts = pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    found = _mixed(counts.astype(np.uint64) + _NULL)
    if len(items):
        of_items = _mixed(
            _of_column(pc.struct_field(items, "key")) * _FACTOR_1
            + _of_column(pc.struct_field(items, "value"))
        )
        rows = np.repeat(np.arange(len(counts)), counts)
        position = np.arange(len(items)) - np.repeat(np.cumsum(counts) - counts, counts)
        np.add.at(found, rows, _mixed(of_items + position.astype(np.uint64) * _FACTOR_2))
    return found
