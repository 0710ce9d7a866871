"""Frame lengths and headers: all forms that clients send are accepted, and invalid ones refused."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odradek.wire.api_keys import APIS, ApiKey
from odradek.wire.codec import encode, encoder
from odradek.wire.errors import MalformedMessage, RemoteProtocolError
from odradek.wire.framing.frames import (
    UnknownApiKey,
    frame_length,
    frame_response,
    is_supported,
    parse_request_header,
    parse_response_header,
)
from odradek.wire.messages.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from odradek.wire.messages.headers import RequestHeader, ResponseHeader
from odradek.wire.messages.metadata import MetadataResponse
from odradek.wire.primitives import write_uvarint
from tests.schedule import examples

FLEXIBLE = b"\0\3\0\x0c\0\0\0\x07\0\3abc"
"""Request header of Metadata 12, with correlation id 7 and client id "abc". Its tagged fields must follow."""


def tagged(*tags: tuple[int, bytes]) -> bytes:
    w = bytearray()
    write_uvarint(w, len(tags))
    for tag, value in tags:
        write_uvarint(w, tag)
        write_uvarint(w, len(value))
        w += value
    return bytes(w)


class TestFrameLength:
    @pytest.mark.parametrize("length", [0, 1, 1000])
    def test_allowed(self, length: int) -> None:
        """Lengths from 0 to the limit are allowed. A frame of length 0 has no header."""
        assert frame_length(b"xx" + length.to_bytes(4, "big"), 2, 1000) == length

    @pytest.mark.parametrize(
        "start", [b"\xff\xff\xff\xff", b"\x80\0\0\0", b"\0\0\3\xe9", b"\x7f\xff\xff\xff", b"GET "]
    )
    def test_refused(self, start: bytes) -> None:
        """Negative lengths and lengths above the limit are refused, for example the beginning of an HTTP request."""
        with pytest.raises(RemoteProtocolError):
            frame_length(start, 0, 1000)


class TestRequestHeader:
    @settings(max_examples=examples(150))
    @given(
        st.sampled_from(ApiKey),
        st.integers(0, 20),
        st.integers(-(2**31), 2**31 - 1),
        st.none() | st.text(max_size=20),
        st.binary(max_size=9),
        st.integers(0, 5),
    )
    def test_as_the_codec_writes_it(
        self, key: ApiKey, version: int, correlation_id: int, client_id: str | None, body: bytes, place: int
    ) -> None:
        """The header of each API and version is parsed as the codec wrote it. A null client id becomes an empty one."""
        header_version = 2 if version >= APIS[key].flexible_since else 1
        header = encode(RequestHeader(key, version, correlation_id, client_id), header_version)
        buf = memoryview(bytes(place) + header + body + b"next frame")
        end = place + len(header) + len(body)
        parsed = parse_request_header(buf, place, end)
        start = place + len(header)
        if key is ApiKey.API_VERSIONS and version > 4:
            # For an unknown version, neither the body nor the end of the header is parsed.
            start -= 1
        assert parsed == (key, version, correlation_id, client_id or "", start)

    def test_client_id_keeps_its_two_byte_length(self) -> None:
        """The client id in header version 2 keeps its two-byte length, so that version 1 parsers can read it
        (KIP-482)."""
        assert parse_request_header(FLEXIBLE + b"\0body", 0, len(FLEXIBLE) + 5) == (
            3,
            12,
            7,
            "abc",
            len(FLEXIBLE) + 1,
        )

    @pytest.mark.parametrize("tags", [(), ((0, b""),), ((1, b"x" * 200), (300, b"yz"))])
    def test_unknown_tags_are_skipped(self, tags: tuple[tuple[int, bytes], ...]) -> None:
        """Unknown tagged fields are skipped (KIP-482)."""
        header = FLEXIBLE + tagged(*tags)
        assert parse_request_header(header + b"body", 0, len(header) + 4)[4] == len(header)

    def test_each_cut(self) -> None:
        """A frame that ends within its header is malformed, even if the buffer has more bytes."""
        header = FLEXIBLE + tagged((1, b"xyz"), (2, b""))
        buf = header + b"\0" * 50
        for end in range(len(header)):
            with pytest.raises(MalformedMessage):
                parse_request_header(buf, 0, end)

    @pytest.mark.parametrize(
        "frame",
        [
            b"\0\3\0\1\0\0\0\7\xff\xfe",
            b"\0\3\0\1\0\0\0\7\x80\0",
            b"\0\3\0\1\0\0\0\7\x7f\xffab",
            b"\0\3\0\1\0\0\0\7\0\2\xff\xfe",
            FLEXIBLE + b"\xff\xff\xff\xff\x0f" + bytes(40),
            FLEXIBLE + b"\1\0\xff\xff\xff\xff\x0f" + bytes(40),
            FLEXIBLE + b"\xff" * 40,
        ],
        ids=["length -2", "length -32768", "beyond the end", "not UTF-8", "4 billion tags", "a tag of 4 GiB", "a number without end"],
    )  # fmt: skip
    def test_malformed(self, frame: bytes) -> None:
        """Lengths that are negative, or exceed the frame, are malformed."""
        with pytest.raises(MalformedMessage):
            parse_request_header(frame, 0, len(frame))

    @pytest.mark.parametrize("key", [-1, 4, 7, 76, 32767])
    def test_unknown_api(self, key: int) -> None:
        """An unknown API key raises `UnknownApiKey` with the key; Kafka closes the connection."""
        with pytest.raises(UnknownApiKey) as caught:
            parse_request_header(key.to_bytes(2, "big", signed=True) + bytes(8), 0, 10)
        assert caught.value.api_key == key

    def test_api_versions_from_the_future(self) -> None:
        """An ApiVersions request of an unknown version is parsed up to its client id, so that it can be answered
        (KIP-511)."""
        frame = b"\0\x12\0\x63\0\0\0\7\0\3abc" + b"\xff" * 30
        assert parse_request_header(frame, 0, len(frame)) == (18, 99, 7, "abc", 13)
        assert not is_supported(18, 99)

    @pytest.mark.parametrize(
        ("key", "version", "served"),
        [(0, 2, False), (0, 3, True), (1, 18, True), (3, -1, False), (3, 14, False)],
    )
    def test_supported(self, key: int, version: int, served: bool) -> None:
        """The supported versions are those of Kafka 4.3. Versions of Produce below 3 are advertised, but not
        supported."""
        assert is_supported(key, version) is served

    @settings(max_examples=examples(200))
    @given(st.sampled_from([b"", FLEXIBLE, b"\0\x12\0\4"]), st.binary(max_size=40))
    def test_any_bytes(self, start: bytes, rest: bytes) -> None:
        """Random bytes are parsed or raise RemoteProtocolError. The body never begins after the end of the frame."""
        frame = start + rest
        try:
            *_, body = parse_request_header(frame, 0, len(frame))
        except RemoteProtocolError:
            return
        assert body <= len(frame)


class TestResponseHeader:
    @pytest.mark.parametrize("version", [0, 1])
    @pytest.mark.parametrize("correlation_id", [0, 77, 2**31 - 1, -1])
    def test_as_the_codec_writes_it(self, version: int, correlation_id: int) -> None:
        """The header has a correlation id, and tagged fields in version 1."""
        header = encode(ResponseHeader(correlation_id), version)
        assert parse_response_header(b"x" + header + b"body", 1, len(header) + 5, version) == (
            correlation_id,
            len(header) + 1,
        )

    def test_tags(self) -> None:
        """Tagged fields are skipped. If one exceeds the frame, the header is malformed."""
        header = bytes(4) + tagged((5, b"abc"))
        assert parse_response_header(header, 0, len(header), 1) == (0, len(header))
        for end in range(len(header)):
            with pytest.raises(MalformedMessage):
                parse_response_header(header + bytes(9), 0, end, 1)


class TestFrameResponse:
    @pytest.mark.parametrize("version", [1, 12])
    def test_without_spills(self, version: int) -> None:
        """A response without file ranges is one chunk of length, header and body."""
        response = MetadataResponse(cluster_id="c", controller_id=3)
        (frame,) = frame_response(9, ApiKey.METADATA, version, encoder(MetadataResponse, version), response)
        assert isinstance(frame, bytearray)
        assert frame_length(frame, 0, 1000) == len(frame) - 4
        expected = encode(ResponseHeader(9), 1 if version == 12 else 0) + encode(response, version)
        assert frame[4:] == expected

    def test_with_spills(self) -> None:
        """File ranges become separate chunks at their places and count in the frame length."""

        def fetched(first: object, second: object) -> FetchResponse:
            partitions = [
                PartitionData(index, records=data)
                for index, data in ((0, first), (1, b"inline"), (2, second))
            ]
            return FetchResponse(responses=[FetchableTopicResponse("t", partitions=partitions)])

        spilled = [range(100, 140), range(7)]
        chunks = frame_response(5, ApiKey.FETCH, 12, encoder(FetchResponse, 12), fetched(*spilled))
        assert [chunk for chunk in chunks if isinstance(chunk, range)] == spilled
        joined = b"".join(bytes(chunk) for chunk in chunks)
        (whole,) = frame_response(
            5, ApiKey.FETCH, 12, encoder(FetchResponse, 12), fetched(*map(bytes, spilled))
        )
        assert joined == whole
        assert frame_length(joined, 0, 10_000) == len(joined) - 4
