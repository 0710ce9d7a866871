"""The batch writer writes the same as the builder that takes single records."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from odradek.wire.batches.batch_header import check_crc, parse_header
from odradek.wire.batches.record_writer import Row, encode_batch, stamp
from odradek.wire.batches.records import RecordBatchBuilder, records
from tests.schedule import examples

some_bytes = st.none() | st.binary(max_size=40) | st.integers(0, 20_000).map(bytes)
headers = st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5)), max_size=3)
rows = st.lists(
    st.tuples(st.integers(0, 1 << 41) | st.integers(1000, 1100), some_bytes, some_bytes, headers),
    min_size=1,
    max_size=12,
)


@settings(max_examples=examples(150), deadline=None)
@given(rows=rows, codec=st.sampled_from([0, 1, 2, 3, 4]), numbers=st.booleans())
def test_it_writes_what_the_builder_writes(rows: list[Row], codec: int, numbers: bool) -> None:
    """For keys, values, headers and times of any size, the bytes are the same."""
    producer_id, epoch, sequence = (1234567, 3, 99) if numbers else (-1, -1, -1)
    builder = RecordBatchBuilder(
        compression_type=codec, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence
    )
    for row in rows:
        builder.append(*row)
    batch = encode_batch(rows, compression_type=codec)
    stamp(batch, producer_id, epoch, sequence)
    if codec == 1:
        # gzip's header may contain the time, so only the content is compared.
        assert records(batch, decompressed_bytes_max=1 << 20) == records(
            builder.build(), decompressed_bytes_max=1 << 20
        )
    else:
        assert batch == builder.build()


def test_many_records() -> None:
    """A batch has more records than the writer's table of lengths has entries, so offset deltas take several bytes. The
    bytes still equal the builder's."""
    rows: list[Row] = [(1000 + number, None, b"%d" % number, ()) for number in range(20_000)]
    builder = RecordBatchBuilder()
    for row in rows:
        builder.append(*row)
    batch = encode_batch(rows)
    stamp(batch, -1, -1, -1)
    assert batch == builder.build()


def test_a_batch_may_be_stamped_again() -> None:
    """A batch can be stamped again with a new epoch, sequence numbers from 0 and a right checksum (KIP-360)."""
    batch = encode_batch([(5, b"k", b"v", ())])
    for numbers in ((7, 0, 500), (7, 1, 0)):
        stamp(batch, *numbers)
        header = parse_header(batch)
        assert (header.producer_id, header.producer_epoch, header.base_sequence) == numbers
        assert check_crc(batch, 0, header.size)
