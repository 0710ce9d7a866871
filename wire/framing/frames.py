"""Frames and the headers inside them: the functions that all connections share, on the hot path and
elsewhere.

A frame is a 4-byte length and that many bytes. A request's bytes are a header and a body. The header has API
key, version, correlation id, client id, and tagged fields where the version is flexible. A response's bytes
are a correlation id, tagged fields in header version 1, and a body.
"""

from __future__ import annotations

from collections.abc import Callable, Sized
from struct import Struct
from typing import Any, Final, TypeAlias

from odradek.wire.api import api_versions, response_header_version
from odradek.wire.api_keys import APIS, ApiKey
from odradek.wire.errors import MalformedMessage, RemoteProtocolError
from odradek.wire.primitives import Buffer, read_uvarint

__all__ = [
    "LENGTH_SIZE",
    "Chunk",
    "UnknownApiKey",
    "frame_length",
    "frame_response",
    "is_supported",
    "parse_request_header",
    "parse_response_header",
]

Chunk: TypeAlias = bytes | bytearray | memoryview | Sized
"""Bytes to send, or a spill: an object of known length whose bytes are elsewhere (see `odradek.wire.codec`)."""

LENGTH_SIZE: Final = 4
HEADER_TAGS_MAX = 1000
"""The most tagged fields of a header. Kafka's headers have had none so far, and each takes time to skip."""
_LENGTH = Struct(">i")
_REQUEST_HEADER = Struct(">hhih")
_CORRELATION_ID = Struct(">i")
_RESPONSE_START = (Struct(">ii"), Struct(">iib"))
"""The layouts of a response's start, for header versions 0 and 1: length, correlation id, and in version 1
the number of tagged fields.
"""

_FLEXIBLE_SINCE: Final = {int(key): api.flexible_since for key, api in APIS.items()}
_API_VERSIONS_LAST: Final = api_versions(ApiKey.API_VERSIONS)[1]


class UnknownApiKey(RemoteProtocolError):
    """Raised for a request with an unknown API key. The request gets no answer, because the format of its
    header is unknown, too.
    """

    def __init__(self, api_key: int) -> None:
        self.api_key = api_key
        super().__init__(f"the request has the unknown API key {api_key}")


def frame_length(buf: Buffer, offset: int, max_frame_bytes: int) -> int:
    """Read a frame's length from the 4 bytes at `offset`. The caller may allocate that much, because the
    length has been checked.

    Raises:
        RemoteProtocolError: the length is negative, or more than `max_frame_bytes`.
    """
    length: int = _LENGTH.unpack_from(buf, offset)[0]
    if not 0 <= length <= max_frame_bytes:
        raise RemoteProtocolError(
            f"a frame claims a length of {length} bytes, but only 0 to {max_frame_bytes} are allowed"
        )
    return length


def is_supported(api_key: int, api_version: int) -> bool:
    """True if Kafka 4.3 supports this version of this API. Callers check separately whether unstable versions
    are enabled.
    """
    first, last = api_versions(api_key, unstable=True)
    return first <= api_version <= last


def parse_request_header(buf: Buffer, offset: int, end: int) -> tuple[int, int, int, str, int]:
    """Read a request's header from the frame `buf[offset:end]`.

    Returns (api_key, api_version, correlation_id, client_id, offset of the body); a null client id becomes
    "", as in Kafka. The version may be unsupported (`is_supported`). In header version 2 the client id keeps
    its 2-byte length (KIP-482). An ApiVersions request of a newer version may have unknown fields behind the
    client id. They are skipped, since the answer does not depend on them (KIP-511).

    Raises:
        UnknownApiKey: no API has this key.
        MalformedMessage: the bytes are no header.
    """
    position = offset + 10
    if position > end:
        raise MalformedMessage(f"the request has {end - offset} bytes, which is too short for a header")
    api_key, api_version, correlation_id, size = _REQUEST_HEADER.unpack_from(buf, offset)
    flexible_since = _FLEXIBLE_SINCE.get(api_key)
    if flexible_since is None:
        raise UnknownApiKey(api_key)
    client_id = ""
    if size > 0:
        start = position
        position += size
        if position > end:
            raise MalformedMessage(
                f"the client id claims {size} bytes, and only {end - start} bytes of the frame are left"
            )
        try:
            client_id = str(buf[start:position], "utf-8")
        except UnicodeDecodeError:
            raise MalformedMessage("the client id is not UTF-8") from None
    elif size < -1:
        raise MalformedMessage(f"the client id claims the impossible length of {size} bytes")
    if api_version >= flexible_since:
        if api_key == ApiKey.API_VERSIONS and api_version > _API_VERSIONS_LAST:
            return api_key, api_version, correlation_id, client_id, position
        if position < end and not buf[position]:
            position += 1
        else:
            position = skip_tags(buf, position, end)
    return api_key, api_version, correlation_id, client_id, position


def parse_response_header(buf: Buffer, offset: int, end: int, header_version: int) -> tuple[int, int]:
    """Read a response's header. Returns (correlation_id, offset of the body).

    Raises:
        MalformedMessage: the bytes are no header.
    """
    position = offset + 4
    if position > end:
        raise MalformedMessage(f"the response has {end - offset} bytes, which is too short for a header")
    correlation_id: int = _CORRELATION_ID.unpack_from(buf, offset)[0]
    if header_version:
        if position < end and not buf[position]:
            position += 1
        else:
            position = skip_tags(buf, position, end)
    return correlation_id, position


def skip_tags(buf: Buffer, position: int, end: int) -> int:
    """Skip the tagged fields of a header, and return the position behind them. Kafka defines no such tags so
    far, and unknown tags are skipped (KIP-482).
    """
    count, position = read_uvarint(buf, position)
    if 2 * count > end - position:
        raise MalformedMessage(
            f"the header claims {count} tagged fields, too many for its {end - position} bytes"
        )
    if count > HEADER_TAGS_MAX:
        raise MalformedMessage(
            f"the header has {count} tagged fields, but at most {HEADER_TAGS_MAX} are allowed"
        )
    for _ in range(count):
        _, position = read_uvarint(buf, position)
        size, position = read_uvarint(buf, position)
        position += size
        if position > end:
            break
    if position > end:
        raise MalformedMessage("the tagged fields of the header run past the end of the frame")
    return position


def frame_response(
    correlation_id: int,
    api_key: int,
    api_version: int,
    encode: Callable[[bytearray, Any, list[tuple[int, Any]] | None], None],
    response: Any,
) -> list[Chunk]:
    """Encode a response as a frame. Returns chunks to send in order: one bytearray, divided only where spills
    belong.

    `encode` is `odradek.wire.codec.encoder` for the response and its version.
    """
    header_version = response_header_version(api_key, api_version)
    start = _RESPONSE_START[header_version]
    w = bytearray(start.size)
    spills: list[tuple[int, Any]] = []
    encode(w, response, spills)
    length = len(w) - LENGTH_SIZE + sum(len(spill) for _, spill in spills)
    start.pack_into(w, 0, *((length, correlation_id, 0) if header_version else (length, correlation_id)))
    if not spills:
        return [w]
    view = memoryview(w)
    chunks: list[Chunk] = []
    done = 0
    for position, spill in spills:
        if position > done:
            chunks.append(view[done:position])
        chunks.append(spill)
        done = position
    if done < len(w):
        chunks.append(view[done:])
    return chunks
