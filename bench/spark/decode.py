"""Measures how many rows per second `odradek.spark.decode` decodes from a fetch answer, compared with the plain
reader of `odradek.wire`.

    python -m bench.spark.decode [--seconds 1] [--records 16384]

It uses one core, no sockets, and batches of 100 records, as from a producer with default settings and small records.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import attrs

from odradek.spark.decode import decode_batches
from odradek.wire.batches.batch_header import iter_batches
from odradek.wire.batches.records import Header, records
from odradek.wire.record_batch import RecordBatchBuilder

_BATCH_RECORDS = 100
_BYTES_MAX = 1 << 28


@attrs.frozen
class Case:
    """The properties of the records: size, compression, headers."""

    name: str
    value_bytes: int
    compression_type: int = 0
    headers: tuple[Header, ...] = ()


CASES = (
    Case("100 B", 100),
    Case("1 KiB", 1024),
    Case("100 B, lz4", 100, 3),
    Case("100 B, zstd", 100, 4),
    Case("100 B, a header", 100, 0, (("trace", b"0123456789abcdef"),)),
)


def fetch_answer(case: Case, count: int) -> bytes:
    """Return the bytes of `count` records with keys of 8 bytes, in batches."""
    out = bytearray()
    for base_offset in range(0, count, _BATCH_RECORDS):
        builder = RecordBatchBuilder(base_offset=base_offset, compression_type=case.compression_type)
        for offset in range(base_offset, min(base_offset + _BATCH_RECORDS, count)):
            value = (b"%012d," % (offset * 7919)) * (case.value_bytes // 13 + 1)
            builder.append(
                1_700_000_000_000 + offset, b"%08d" % offset, value[: case.value_bytes], case.headers
            )
        out += builder.build()
    return bytes(out)


def rows_per_second(decode: Callable[[], int], seconds: float) -> float:
    """Return the rows per second of the best round, because noise only slows a round down."""
    best = 0.0
    until = time.perf_counter() + seconds
    while (start := time.perf_counter()) < until:
        rows = decode()
        best = max(best, rows / (time.perf_counter() - start))
    return best


def by_spark(answer: bytes, *, with_headers: bool) -> int:
    """Decode with `odradek.spark.decode`, and return the number of rows."""
    pieces = decode_batches(
        answer,
        topic="flights",
        partition=0,
        offset=0,
        decompressed_bytes_max=_BYTES_MAX,
        with_headers=with_headers,
    )
    return sum(piece.rows.num_rows for piece in pieces)


def by_wire(answer: bytes) -> int:
    """Decode with the plain reader, and return the number of records."""
    return sum(
        len(records(answer, position, decompressed_bytes_max=_BYTES_MAX))
        for position, _ in iter_batches(answer)
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=1.0, help="length of each measurement (default: 1)")
    parser.add_argument(
        "--records", type=int, default=16384, help="records in a fetch answer (default: 16384)"
    )
    arguments = parser.parse_args()
    print(f"{'records':18} {'odradek.spark.decode':>14} {'odradek.wire.batches.records':>14}  rows/s")
    for case in CASES:
        answer = fetch_answer(case, arguments.records)

        def ours(answer: bytes = answer, case: Case = case) -> int:
            return by_spark(answer, with_headers=bool(case.headers))

        def plain(answer: bytes = answer) -> int:
            return by_wire(answer)

        figures = [rows_per_second(each, arguments.seconds) for each in (ours, plain)]
        print(f"{case.name:18} {figures[0]:14,.0f} {figures[1]:14,.0f}")


if __name__ == "__main__":
    main()
