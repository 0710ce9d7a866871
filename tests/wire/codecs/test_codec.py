"""The generated codecs agree with the reflective one for every message and version, and for hostile bytes."""

from __future__ import annotations

import tracemalloc
from functools import cache
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from odradek.wire import codec
from odradek.wire.api import ApiKey, request_class, response_class
from odradek.wire.codecs import codec_reflective
from odradek.wire.errors import LocalProtocolError, MalformedMessage
from odradek.wire.messages.api_versions import ApiVersionsRequest
from odradek.wire.messages.coordinator_records import ClassicMemberMetadata, ConsumerGroupMemberMetadataValue
from odradek.wire.messages.create_topics import CreatableTopicResult, CreateTopicsResponse
from odradek.wire.messages.describe_topic_partitions import Cursor, DescribeTopicPartitionsRequest
from odradek.wire.messages.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from odradek.wire.messages.find_coordinator import FindCoordinatorRequest
from odradek.wire.messages.headers import RequestHeader
from odradek.wire.messages.metadata import MetadataRequest
from odradek.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from odradek.wire.structure import Message
from tests.schedule import examples
from tests.wire.message_values import LONG, SHAPES, all_versions, generated

EVERY_VERSION = list(all_versions())
COUNT_MAX = b"\x7f\xff\xff\xff"
COMPACT_COUNT_MAX = b"\xff\xff\xff\xff\x07"


class Example(NamedTuple):
    """An encoded message of a class and version."""

    cls: type[Message]
    version: int
    data: bytes


@cache
def every_example() -> list[Example]:
    """Return encoded messages of every class and version. The result is cached, since several tests use it."""
    return [
        Example(cls, version, codec_reflective.encode(message, version))
        for cls, version in EVERY_VERSION
        for message in generated(cls, version)
    ]


def outcome(module: Any, example: Example, data: bytes) -> bytes | None:
    """Decode and encode again with a codec; return None if the bytes are refused."""
    try:
        message = module.decode(example.cls, example.version, data)
    except MalformedMessage:
        return None
    return codec_reflective.encode(message, example.version)


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_generated_and_reflective_codecs_agree(shape: Any) -> None:
    """Both codecs write the same bytes for every message and version, and decode them to the same message."""
    for cls, version in EVERY_VERSION:
        for message in generated(cls, version, (shape,)):
            data = codec_reflective.encode(message, version)
            assert codec.encode(message, version) == data, (cls, version)
            assert codec_reflective.decode(cls, version, data) == message, (cls, version)
            assert codec.decode(cls, version, data) == message, (cls, version)


@pytest.mark.long
def test_codecs_agree_on_long_values() -> None:
    """Both codecs agree on lengths and counts of more than one byte."""
    for key in (ApiKey.PRODUCE, ApiKey.FETCH, ApiKey.METADATA):
        for cls in (request_class(key), response_class(key)):
            for version in range(cls.VALID_VERSIONS[0], cls.VALID_VERSIONS[1] + 1):
                for message in generated(cls, version, (LONG,)):
                    data = codec_reflective.encode(message, version)
                    assert codec.encode(message, version) == data, (cls, version)
                    assert codec.decode(cls, version, data) == message, (cls, version)


def test_every_truncation_is_refused() -> None:
    """A truncated message is always malformed."""
    for example in every_example():
        for size in range(0, len(example.data), 1 + len(example.data) // 40):
            with pytest.raises(MalformedMessage):
                codec.decode(example.cls, example.version, example.data[:size])


@settings(max_examples=examples(600), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_mutations_are_refused_or_read_as_the_oracle_reads_them(data: st.DataObject) -> None:
    """Both codecs either refuse changed bytes with MalformedMessage, or decode them to the same message."""
    example = data.draw(st.sampled_from(every_example()))
    mutated = bytearray(example.data)
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, len(mutated)))
        removed = data.draw(st.sampled_from((0, 1, 2, 4)))
        mutated[start : start + removed] = data.draw(
            st.binary(max_size=5) | st.sampled_from((b"\xff\xff", COUNT_MAX, COMPACT_COUNT_MAX, b"\x80\x00"))
        )
    assert outcome(codec, example, bytes(mutated)) == outcome(codec_reflective, example, bytes(mutated))


@pytest.mark.long
def test_hostile_counts_allocate_nothing() -> None:
    """A huge array count is compared with the remaining bytes before memory is allocated."""
    tracemalloc.start(1)
    try:
        for key in (ApiKey.FETCH, ApiKey.OFFSET_COMMIT, ApiKey.CREATE_TOPICS, ApiKey.ALTER_CLIENT_QUOTAS):
            for example in every_example():
                if example.cls is not request_class(key) or example.version not in example.cls.VALID_VERSIONS:
                    continue  # the first version has plain lengths, the last one compact lengths
                codec.decode(example.cls, example.version, example.data)
                for start in range(len(example.data)):
                    for count in (COUNT_MAX, COMPACT_COUNT_MAX):
                        hostile = example.data[:start] + count + example.data[start + len(count) :]
                        tracemalloc.reset_peak()
                        before = tracemalloc.get_traced_memory()[0]
                        outcome(codec, example, hostile)
                        peak = tracemalloc.get_traced_memory()[1] - before
                        assert peak < 20_000 + 200 * len(hostile), (example.cls, example.version, start)
    finally:
        tracemalloc.stop()


def test_bytes_behind_a_message_are_refused_unless_allowed() -> None:
    """Extra bytes after a message are refused, unless `exact=False`."""
    data = codec.encode(ApiVersionsRequest("odradek", "1"), 3) + b"x"
    with pytest.raises(MalformedMessage, match="1 unexpected bytes"):
        codec.decode(ApiVersionsRequest, 3, data)
    message = codec.decode(ApiVersionsRequest, 3, data, exact=False)
    assert message.client_software_name == "odradek"


def test_decoder_reads_at_an_offset_and_tells_where_it_ended() -> None:
    """A decoder starts at an offset and returns where the message ends."""
    first = codec.encode(FindCoordinatorRequest("a"), 0)
    second = codec.encode(FindCoordinatorRequest("bc"), 0)
    decode = codec.decoder(FindCoordinatorRequest, 0)
    message, end = decode(memoryview(first + second), 0)
    assert (message.key, end) == ("a", len(first))
    assert decode(memoryview(first + second), end) == (FindCoordinatorRequest("bc"), len(first + second))


@pytest.mark.parametrize("wrap", [bytes, bytearray, memoryview])
def test_records_are_views_of_the_buffer(wrap: Any) -> None:
    """Decoded records are views of the buffer, so that they are not copied on their way to the log."""
    request = ProduceRequest(
        None, 1, 10, [TopicProduceData("t", partition_data=[PartitionProduceData(0, b"batch")])]
    )
    buf = wrap(codec.encode(request, 9))
    records = codec.decode(ProduceRequest, 9, buf).topic_data[0].partition_data[0].records
    assert isinstance(records, memoryview)
    assert records.obj is (buf.obj if isinstance(buf, memoryview) else buf)
    assert records == b"batch"


class FileRange:
    """A stub for bytes that are sent from a file."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size


@pytest.mark.parametrize("version", [11, 17])
def test_spilled_records_are_noted_with_their_place(version: int) -> None:
    """The encoder returns objects that stand for file ranges, each with its place. The encoding is complete when their
    bytes are inserted there."""

    def response(first: Any, second: Any) -> FetchResponse:
        partitions = [
            PartitionData(0, records=first),
            PartitionData(1, records=b"here"),
            PartitionData(2, records=second),
        ]
        return FetchResponse(responses=[FetchableTopicResponse("t", bytes(range(16)), partitions)])

    w = bytearray(b"head")
    spills: list[tuple[int, Any]] = []
    codec.encoder(FetchResponse, version)(w, response(FileRange(300), FileRange(0)), spills)
    assert [len(held) for _, held in spills] == [300, 0]
    for place, held in reversed(spills):
        w[place:place] = b"f" * len(held)
    assert w == b"head" + codec.encode(response(b"f" * 300, b""), version)


def test_spills_need_a_list() -> None:
    """Without a list for file ranges, the encoder refuses an object that stands for one, because its bytes would be
    lost."""
    data: Any = FileRange(3)
    response = FetchResponse(
        responses=[FetchableTopicResponse("t", partitions=[PartitionData(records=data)])]
    )
    with pytest.raises(LocalProtocolError):
        codec.encode(response, 11)


def test_unknown_tagged_fields_are_skipped() -> None:
    """Unknown tagged fields are skipped (KIP-482). Malformed tagged fields are refused."""
    plain = codec.encode(ApiVersionsRequest("n", "v"), 3)
    tagged = plain[:-1] + b"\x02" + b"\x05\x02ab" + b"\x81\x01\x00"
    assert codec.decode(ApiVersionsRequest, 3, tagged) == ApiVersionsRequest("n", "v")
    assert codec.decode(ApiVersionsRequest, 3, plain[:-1] + b"\x01\x05\x00") == ApiVersionsRequest("n", "v")
    for hostile in (
        b"\x01\x05\x03ab",
        b"\x02\x05\x00",
        b"\xff\xff\xff\xff\x0f",
        b"\x01\x05\xff\xff\xff\xff\x0f",
    ):
        with pytest.raises(MalformedMessage):
            codec.decode(ApiVersionsRequest, 3, plain[:-1] + hostile)


def test_tagged_field_must_fill_its_size() -> None:
    """A known tagged field whose content is shorter or longer than its size is malformed."""
    response = CreateTopicsResponse(topics=[CreatableTopicResult("t", topic_config_error_code=29)])
    data = codec.encode(response, 5)
    field = b"\x01\x00\x02\x00\x1d"
    assert data.count(field) == 1
    assert codec.decode(CreateTopicsResponse, 5, data) == response
    for wrong in (b"\x01\x00\x01\x00\x1d", b"\x01\x00\x03\x00\x1d"):
        with pytest.raises(MalformedMessage):
            codec.decode(CreateTopicsResponse, 5, data.replace(field, wrong))


def test_tagged_field_with_its_default_is_left_out() -> None:
    """A tagged field with its default value is not encoded, as in Kafka."""
    assert codec.encode(FetchResponse(), 17)[-1:] == b"\x00"
    partition = PartitionData(records=b"")
    assert codec.encode(
        FetchResponse(responses=[FetchableTopicResponse(partitions=[partition])]), 17
    ).endswith(b"\x01\x00\x00\x00")


def test_nullable_structure() -> None:
    """A nullable structure begins with a byte that marks null."""
    for cursor in (None, Cursor("t", 3)):
        request = DescribeTopicPartitionsRequest([], 10, cursor)
        data = codec.encode(request, 0)
        assert codec.decode(DescribeTopicPartitionsRequest, 0, data) == request
        assert data[5:6] == (b"\xff" if cursor is None else b"\x01")


def test_client_id_keeps_its_old_form_in_a_flexible_header() -> None:
    """Request header 2 has tagged fields, but its client id keeps the two-byte length."""
    header = RequestHeader(18, 3, 7, "cli")
    assert codec.encode(header, 2) == b"\x00\x12\x00\x03\x00\x00\x00\x07\x00\x03cli\x00"
    assert codec.encode(RequestHeader(18, 3, 7, None), 2) == b"\x00\x12\x00\x03\x00\x00\x00\x07\xff\xff\x00"


def test_null_and_empty_array_differ() -> None:
    """A null array differs from an empty array. In Metadata, null means all topics, and an empty array means no
    topics."""
    for version in (1, 9):
        for topics in (None, []):
            data = codec.encode(MetadataRequest(topics), version)
            assert codec.decode(MetadataRequest, version, data).topics == topics
    with pytest.raises(MalformedMessage):
        codec.decode(MetadataRequest, 0, b"\xff\xff\xff\xff")
    with pytest.raises(LocalProtocolError):
        codec.encode(MetadataRequest(None), 0)


@pytest.mark.parametrize("module", [codec, codec_reflective])
def test_values_that_do_not_fit_are_our_own_mistake(module: Any) -> None:
    """Encoding a value outside its range, null or invalid text raises LocalProtocolError."""
    wrong: list[tuple[Any, int]] = [
        (ProduceRequest(acks=40_000), 3),
        (FindCoordinatorRequest(None), 0),  # type: ignore[arg-type]  # wrong on purpose
        (FindCoordinatorRequest("a" * 32_768), 0),
        (FindCoordinatorRequest("a" * 32_768), 3),
        (FindCoordinatorRequest("\ud800"), 0),
        (FindCoordinatorRequest("a"), 7),
        (FindCoordinatorRequest("a"), -1),
    ]
    for message, version in wrong:
        with pytest.raises(LocalProtocolError):
            module.encode(message, version)


@pytest.mark.parametrize("module", [codec, codec_reflective])
def test_strings_have_at_most_32767_bytes(module: Any) -> None:
    """Strings longer than 32,767 bytes are refused, as in Kafka, even where a compact length could express them."""
    assert (
        module.decode(FindCoordinatorRequest, 3, b"\x80\x80\x02" + b"a" * 32_767 + b"\x00\x00").key_type == 0
    )
    with pytest.raises(MalformedMessage):
        module.decode(FindCoordinatorRequest, 3, b"\x81\x80\x02" + b"a" * 32_768 + b"\x00\x00")


@pytest.mark.parametrize("module", [codec, codec_reflective])
def test_bad_text_is_malformed(module: Any) -> None:
    """Strings that are not UTF-8 are malformed."""
    with pytest.raises(MalformedMessage):
        module.decode(FindCoordinatorRequest, 0, b"\x00\x01\xff")


def test_unknown_version_has_no_codec() -> None:
    """A version outside the class's range raises LocalProtocolError."""
    with pytest.raises(LocalProtocolError, match="versions 3 to 13, so version 2 cannot be used"):
        codec.decoder(ProduceRequest, 2)
    with pytest.raises(LocalProtocolError):
        codec_reflective.decode(ProduceRequest, 14, b"")


def test_field_outside_its_versions_decodes_to_its_default() -> None:
    """A field outside its versions is not encoded, and decodes to its default."""
    request = ProduceRequest("txn", -1, 5, [TopicProduceData("name", bytes(range(16)))])
    decoded = codec.decode(ProduceRequest, 13, codec.encode(request, 13))
    assert (decoded.topic_data[0].name, decoded.topic_data[0].topic_id) == ("", bytes(range(16)))
    decoded = codec.decode(ProduceRequest, 12, codec.encode(request, 12))
    assert (decoded.topic_data[0].name, decoded.topic_data[0].topic_id) == ("name", bytes(16))


@pytest.mark.parametrize("size", [0, 126, 127, 128, 16_382, 16_383, 16_384, 2**21 - 2, 2**21 - 1, 2**21])
def test_lengths_of_records_around_each_number_of_bytes(size: int) -> None:
    """Lengths of records at the limits of one to four bytes are encoded and decoded."""
    for version in (8, 9):
        partition = PartitionProduceData(1, bytes(size))
        request = ProduceRequest(topic_data=[TopicProduceData("t", partition_data=[partition])])
        data = codec.encode(request, version)
        assert codec.decode(ProduceRequest, version, data) == request
        assert codec_reflective.decode(ProduceRequest, version, data) == request
        for cut in (data[:-1], data[: len(data) - size - 2]):
            with pytest.raises(MalformedMessage):
                codec.decode(ProduceRequest, version, cut)


def test_null_behind_a_tag_is_stated_when_it_is_not_the_default() -> None:
    """A null structure in a tagged field is encoded as 0, and only if null is not the default, as in Kafka."""
    start = codec.encode(ConsumerGroupMemberMetadataValue(), 0)[:-1]
    for held, tail in (
        (ClassicMemberMetadata(), b"\x00"),
        (None, b"\x01\x00\x01\x00"),
        (ClassicMemberMetadata(5), b"\x01\x00\x07\x01\x00\x00\x00\x05\x01\x00"),
    ):
        value = ConsumerGroupMemberMetadataValue(classic_member_metadata=held)
        assert codec.encode(value, 0) == codec_reflective.encode(value, 0) == start + tail
        assert codec.decode(ConsumerGroupMemberMetadataValue, 0, start + tail) == value
