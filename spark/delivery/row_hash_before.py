"""The hash of rows of version 0.3 and before. It compares the rows of a batch that such a version has begun. PURE.

It differs from the present hash (`row_hash.py`) in two respects. Each column is mixed before it joins the row. Short
values are read word by word for all rows at once, and longer ones are hashed by BLAKE2b.
"""

from __future__ import annotations

import hashlib

import numpy as np
import pyarrow as pa

from odradek.spark.delivery.row_hash import (
    FACTOR_1,
    FACTOR_2,
    NULL,
    WORD,
    UInt64s,
    column_factor,
    hash_of_column,
    mixed,
)

__all__ = ["hash_rows"]

_SHORT_BYTES_MAX = 512
"""Values with more bytes than this are hashed one by one. Reading the bytes of such values takes most of the
time anyway.
"""
_MASK = (1 << 64) - 1


def hash_rows(columns: list[pa.Array | None]) -> int:
    """Compute the sum of the rows' hashes. A column has binaries, strings, int32 or lists of (key, value); None
    stands for a missing column.
    """
    hashes: UInt64s | None = None
    for place, column in enumerate(columns):
        if column is None:
            continue
        found = mixed(hash_of_column(column, _of_bytes) + column_factor(place))
        hashes = found if hashes is None else mixed(hashes * FACTOR_1 + found)
    return 0 if hashes is None else int(np.sum(hashes, dtype=np.uint64))


def _of_bytes(column: pa.Array) -> UInt64s:
    _, offsets, data = column.buffers()
    rows = len(column)
    ends = np.frombuffer(offsets, np.int64)[column.offset : column.offset + rows + 1]
    starts, lengths = ends[:-1], np.diff(ends)
    found: UInt64s = lengths.astype(np.uint64) * FACTOR_2
    if data is None or not rows:
        return mixed(found)
    # The loop reads whole words, even beyond the end of the last row. The extra bytes are masked.
    padded = np.zeros(int(ends[-1]) + WORD, np.uint8)
    padded[: int(ends[-1])] = np.frombuffer(data, np.uint8)[: int(ends[-1])]
    words = np.ndarray((len(padded) - WORD + 1,), np.dtype("<u8"), padded.data, strides=(1,))
    short = np.flatnonzero((lengths > 0) & (lengths <= _SHORT_BYTES_MAX))
    place = 0
    while len(short):
        left = lengths[short] - place
        word = words[starts[short] + place]
        missing = np.maximum(0, WORD - left).astype(np.uint64) * np.uint64(8)
        word &= np.uint64(_MASK) >> missing
        found[short] = mixed((found[short] + NULL) * FACTOR_1 + word)
        place += WORD
        short = short[left > WORD]
    for row in np.flatnonzero(lengths > _SHORT_BYTES_MAX).tolist():
        digest = hashlib.blake2b(
            padded[starts[row] : starts[row] + lengths[row]].data, digest_size=WORD
        ).digest()
        found[row] = np.uint64(int.from_bytes(digest, "little"))
    return mixed(found)
