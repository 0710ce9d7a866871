"""Checksums of damaged batches, made right, so that what lies behind a checksum is reached."""

from __future__ import annotations

from odradek.wire.batches.batch_header import HEADER_SIZE, SIZE_PREFIX, seal

_LENGTH = slice(8, 12)


def seal_batches(data: bytearray) -> None:
    """Give each whole batch in `data` the checksum of its bytes, as far as lengths lead from one to the next."""
    position = 0
    while len(data) - position >= HEADER_SIZE:
        end = position + SIZE_PREFIX + int.from_bytes(data[position:][_LENGTH], "big", signed=True)
        if not position + HEADER_SIZE <= end <= len(data):
            return
        one = data[position:end]
        seal(one)
        data[position:end] = one
        position = end
