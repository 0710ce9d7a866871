"""Valid checksums for damaged batches, so that readers get past the checksum."""

from __future__ import annotations

from odradek.wire.batches.batch_header import HEADER_SIZE, SIZE_PREFIX, seal

_LENGTH = slice(8, 12)


def seal_batches(data: bytearray) -> None:
    """Set a valid checksum in each whole batch in `data`, as far as the lengths lead from one batch to the next."""
    position = 0
    while len(data) - position >= HEADER_SIZE:
        end = position + SIZE_PREFIX + int.from_bytes(data[position:][_LENGTH], "big", signed=True)
        if not position + HEADER_SIZE <= end <= len(data):
            return
        one = data[position:end]
        seal(one)
        data[position:end] = one
        position = end
