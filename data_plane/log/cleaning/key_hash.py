"""A secret hash of 128 bits for many keys at once. PURE.

Theory of operation
-------------------
Kafka hashes keys with MD5, one by one. Here a hash is four sums of products modulo 2**64, of which the upper
32 bits count. The factors are random and secret. They multiply the key's length and its pieces of 32 bits.
Such a sum is strongly universal (Lemire and Kaser, "Strongly universal string hashing is fast", 2014, theorem
3.1). So two different keys have the same hash with a probability of 2**-128. An attacker who chooses the keys
cannot raise this probability, because the factors are drawn anew for each map.

numpy multiplies all keys of similar length as one matrix. Each key is padded with zeros to the matrix's
width. Since the length is hashed too, the padding makes no two keys equal. Keys that are longer than the
widest matrix are hashed one by one with keyed BLAKE2b.
"""

from __future__ import annotations

from hashlib import blake2b, shake_256

import numpy as np
import numpy.typing as npt

from odradek.data_plane.log.cleaning.pass_values import SECRET_BYTES
from odradek.wire.batches.record_columns import Bytes, Int64s

_WIDTHS = (8, 16, 32, 64, 128, 256)
_PIECE = 4
_LANES = 4
_AT_ONCE_BYTES = 4 << 20
"""The size in bytes of the matrix of keys that numpy multiplies at once. It bounds the memory, and fits into
the processor's caches.
"""

Hashes = npt.NDArray[np.uint64]
"""An array of hashes, in two columns: the upper and the lower half of each hash."""


class KeyHash:
    """A hash function of keys, made from a secret of `SECRET_BYTES` bytes."""

    def __init__(self, secret: bytes) -> None:
        if len(secret) != SECRET_BYTES:
            raise ValueError(
                f"the secret of the key hash must have {SECRET_BYTES} bytes, and it has {len(secret)}"
            )
        self._secret = secret
        pieces = 1 + _WIDTHS[-1] // _PIECE
        drawn = shake_256(secret).digest((pieces + 1) * _LANES * 8)
        factors = np.frombuffer(drawn, "<u8").astype(np.uint64).reshape(pieces + 1, _LANES)
        self._offset, self._of_length, self._factors = factors[0], factors[1], factors[2:]

    def of(self, data: Bytes, places: Int64s, lengths: Int64s) -> Hashes:
        """Compute the hashes of the keys at `places` of `data`, with these lengths in bytes. At least 64
        bytes must follow the last key.
        """
        hashes = np.empty((len(places), 2), np.uint64)
        width_before = -1
        for width in _WIDTHS:
            wanted = np.flatnonzero((lengths > width_before) & (lengths <= width))
            step = max(1, _AT_ONCE_BYTES // width)
            for at in range(0, len(wanted), step):
                some = wanted[at : at + step]
                hashes[some] = self._of_similar(data, places[some], lengths[some], width)
            width_before = width
        for index in np.flatnonzero(lengths > width_before).tolist():
            key = data[places[index] : places[index] + lengths[index]]
            digest = blake2b(key.tobytes(), digest_size=16, key=self._secret).digest()
            hashes[index] = np.frombuffer(digest, "<u8")
        return hashes

    def _of_similar(self, data: Bytes, places: Int64s, lengths: Int64s, width: int) -> Hashes:
        columns = np.arange(width, dtype=np.int64)
        at = places[:, None] + columns
        # The columns of a short key's row reach beyond the key, perhaps beyond the data. So limit the
        # positions here; the bytes beyond the key become zeros below.
        np.minimum(at, len(data) - 1, out=at)
        padded = data.take(at)
        if int(lengths.min()) < width:
            padded[columns >= lengths[:, None]] = 0
        pieces = padded.view("<u4").astype(np.uint64)
        sums = pieces @ self._factors[: width // _PIECE]
        sums += lengths[:, None].astype(np.uint64) * self._of_length
        sums += self._offset
        upper = sums >> np.uint64(32)
        return np.stack(
            (upper[:, 0] << np.uint64(32) | upper[:, 1], upper[:, 2] << np.uint64(32) | upper[:, 3]), axis=1
        )
