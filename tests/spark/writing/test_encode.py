"""`odradek.spark.writing.encode` turns Arrow columns into record batches like the producer's writer for single records."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

import pytest

pa = pytest.importorskip("pyarrow")
np = pytest.importorskip("numpy")

from odradek.client.producer.partitioner import murmur2  # noqa: E402 - needs pyarrow
from odradek.spark.writing.encode import Rows, encode, murmur2_of, partitions_of  # noqa: E402 - needs pyarrow
from odradek.wire.batches.record_writer import Row, encode_batch, stamp  # noqa: E402 - needs pyarrow
from odradek.wire.batches.records import records  # noqa: E402 - needs pyarrow

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
NOW = 1_700_000_000_000


def rows_of(rows: Sequence[Row]) -> Rows:
    """Return rows as columns."""
    headers = [
        [{"key": name, "value": value} for name, value in row[3]] if row[3] is not None else None
        for row in rows
    ]
    return Rows(
        pa.array([row[1] for row in rows], pa.binary()),
        pa.array([row[2] for row in rows], pa.binary()),
        pa.array(headers, HEADERS) if any(row[3] for row in rows) else None,
    )


def some_bytes(rng: random.Random, most: int) -> bytes | None:
    if rng.random() < 0.1:
        return None
    return rng.randbytes(rng.choice([0, 1, 5, 63, 64, rng.randrange(most)]))


def some_rows(seed: int, count: int, *, headers: bool = True) -> list[Row]:
    rng = random.Random(seed)
    return [
        (
            NOW,
            some_bytes(rng, 200),
            some_bytes(rng, 9000),
            [(rng.choice(["", "trace", "é" * 70]), some_bytes(rng, 200)) for _ in range(rng.randrange(4))]
            if headers
            else (),
        )
        for _ in range(count)
    ]


@pytest.mark.parametrize("compression_type", [0, 4])
@pytest.mark.parametrize("headers", [True, False])
def test_batches_are_those_of_the_single_record_writer(compression_type: int, headers: bool) -> None:
    """For each partition, the batches equal those of the single-record writer byte by byte. Only a single large record
    may exceed the size limit."""
    rows = some_rows(1, 2000, headers=headers)
    rng = random.Random(2)
    lanes = [rng.randrange(3) for _ in rows]
    waiting = {
        lane: [row for row, mine in zip(rows, lanes, strict=True) if mine == lane] for lane in range(3)
    }
    batches = list(
        encode(
            rows_of(rows),
            np.array(lanes, np.int32),
            timestamp_ms=NOW,
            batch_bytes_max=20_000,
            compression_type=compression_type,
        )
    )
    assert len(batches) > 10
    for batch in batches:
        mine = waiting[batch.lane][: batch.record_count]
        del waiting[batch.lane][: batch.record_count]
        assert batch.data == encode_batch(mine, compression_type=compression_type)
        assert batch.record_bytes == sum(len(row[1] or b"") + len(row[2] or b"") for row in mine)
        assert batch.record_count == 1 or len(encode_batch(mine)) <= 20_000
    assert not any(waiting.values())


def test_partitions_take_turns() -> None:
    """The first batch of each partition comes before any second batch, so the producer can send them together."""
    rows = some_rows(2, 400)
    lanes = np.repeat(np.array([2, 0, 5], np.int32), (50, 100, 250))
    batches = encode(rows_of(rows), lanes, timestamp_ms=NOW, batch_bytes_max=4000)
    seen: Counter[int] = Counter()
    turns = []
    for batch in batches:
        turns.append((seen[batch.lane], batch.lane))
        seen[batch.lane] += 1
    assert turns == sorted(turns)
    assert min(seen[lane] for lane in (0, 2, 5)) > 1


def test_slices_of_arrays_are_encoded_from_where_they_begin() -> None:
    """Slices of larger Arrow arrays are encoded correctly, including lists of headers."""
    rows = some_rows(3, 300)
    whole = rows_of(rows)
    assert whole.headers is not None
    part = Rows(whole.key.slice(100, 90), whole.value.slice(100, 90), whole.headers.slice(100, 90))
    (batch,) = encode(part, np.zeros(90, np.int32), timestamp_ms=NOW, batch_bytes_max=1 << 24)
    assert batch.data == encode_batch(rows[100:190])
    assert murmur2_of(part.key).tolist() == [murmur2(row[1] or b"") for row in rows[100:190]]


def test_a_plain_reader_finds_the_records() -> None:
    """Once its checksum is set, a batch can be read by any consumer."""
    rows = some_rows(4, 50)
    (batch,) = encode(rows_of(rows), np.zeros(50, np.int32), timestamp_ms=NOW, batch_bytes_max=1 << 24)
    stamp(batch.data, 7, 0, 0)
    found = records(batch.data, decompressed_bytes_max=1 << 24)
    assert [(each.timestamp, each.key, each.value, list(each.headers)) for each in found] == [
        (*row[:3], list(row[3])) for row in rows
    ]


def test_no_rows_make_no_batch() -> None:
    """An empty Arrow batch makes no record batch."""
    assert list(encode(rows_of([]), np.zeros(0, np.int32), timestamp_ms=NOW, batch_bytes_max=1000)) == []


def test_keys_go_where_kafkas_clients_send_them() -> None:
    """A key's partition is `(murmur2(key) & 0x7fffffff) % partitions`. A null key goes to the given partition."""
    rng = random.Random(5)
    keys = [None, b"", *(rng.randbytes(size) for size in range(130))]
    keyless = np.full(len(keys), 5, np.int32)
    found = partitions_of(pa.array(keys, pa.binary()), 7, wanted=None, keyless=keyless)
    assert found.tolist() == [5 if key is None else (murmur2(key) & 0x7FFFFFFF) % 7 for key in keys]
    same = pa.array([b"N14228", b"N24211"] * 4, pa.binary())
    assert murmur2_of(same).tolist() == [murmur2(b"N14228"), murmur2(b"N24211")] * 4


def test_a_given_partition_wins_over_the_key() -> None:
    """A value in the column `partition` takes precedence over the key, and must name an existing partition."""
    keys = pa.array([b"a", b"b", None], pa.binary())
    keyless = np.zeros(3, np.int32)
    hashed = partitions_of(keys, 4, wanted=None, keyless=keyless).tolist()
    wanted = pa.array([3, None, 1], pa.int32())
    assert partitions_of(keys, 4, wanted=wanted, keyless=keyless).tolist() == [3, hashed[1], 1]
    for wrong in (4, -1):
        with pytest.raises(ValueError, match=str(wrong)):
            partitions_of(keys, 4, wanted=pa.array([0, wrong, 0], pa.int32()), keyless=keyless)
