"""Encodes messages to bytes and decodes them, untrusted ones within limits, by functions generated at first
use: one per message class and version.

`decoder` and `encoder` return the generated functions, for hot paths; `decode` and `encode` are for all other
callers. `codec_decode` and `codec_encode` write the source of these functions. To read one: `python -c "from
odradek.wire.codecs.codec_decode import *; from odradek.wire.messages.produce import *;
print(decoder_source(ProduceRequest, 9))"`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

from odradek.wire.codecs.codec_decode import make_decoder
from odradek.wire.codecs.codec_encode import make_encoder
from odradek.wire.errors import MalformedMessage
from odradek.wire.primitives import Buffer
from odradek.wire.structure import Message

M = TypeVar("M", bound=Message)
Spills: TypeAlias = list[tuple[int, Any]]
"""Pairs (offset, object), in order of offsets. The object's bytes belong at this offset of the encoded bytes.
The sender takes them from elsewhere, for example from a file.
"""

ErrorCounts: TypeAlias = dict[int, int]
"""The number of times that each error code was written, by error code. The code 0 is not counted."""

ELEMENTS_MAX = 40_000
"""The most array elements of one request, including nested elements and tagged fields. In each API, decoding
this many elements takes at most a tenth of a second, and their objects at most 6 MiB (`python -m
bench.budget.decoding`).

Without this limit, a request of one megabyte could have 350,000 of the smallest structures. Decoding them
takes most of a second. No real client needs so many elements: Kafka accepts at most 10,000 metadata records
from one administrator's request.
"""

ELEMENTS_AT_ONCE = 4_000
"""The most elements of a request that a server decodes on its event loop, in about 6 ms. A worker thread
decodes larger requests.
"""

_decoders: dict[tuple[type[Message], int], Callable[..., Any]] = {}
_bounded_decoders: dict[tuple[type[Message], int, int], Callable[..., Any]] = {}
_measuring_decoders: dict[tuple[type[Message], int], Callable[..., Any]] = {}
_encoders: dict[tuple[type[Message], int], Callable[..., None]] = {}
_counting_encoders: dict[tuple[type[Message], int], Callable[..., None]] = {}


def decoder(cls: type[M], version: int) -> Callable[[Buffer, int], tuple[M, int]]:
    """Return the function that decodes one message: (buffer, offset) -> (message, offset behind it).

    The message may extend to the buffer's end, so pass a view of one frame. `records` fields are memoryviews
    into the buffer; a caller that keeps a message longer than its buffer copies them. The function raises
    MalformedMessage for bytes that are not this message. `decoder` itself raises LocalProtocolError for a
    version that the class does not have.
    """
    function = _decoders.get((cls, version))
    if function is None:
        function = _decoders[cls, version] = make_decoder(cls, version)
    return function


def bounded_decoder(
    cls: type[M], version: int, elements_max: int = ELEMENTS_MAX
) -> Callable[[Buffer, int], tuple[M, int]]:
    """Return the function that decodes one message from untrusted bytes. It is called like the function of
    `decoder`. It raises TooManyElements (a MalformedMessage) for more than `elements_max` array elements.

    Each element takes at least a byte. So a message with at most `elements_max` bytes may safely be decoded
    with the function of `decoder`, which is faster.
    """
    function = _bounded_decoders.get((cls, version, elements_max))
    if function is None:
        function = _bounded_decoders[cls, version, elements_max] = make_decoder(cls, version, elements_max)
    return function


def measuring_decoder(cls: type[M], version: int) -> Callable[[Buffer, int], tuple[M, int]]:
    """Return a function that decodes with the limit `ELEMENTS_MAX`, and also counts. It returns the message
    and the number of the message's array elements.
    """
    function = _measuring_decoders.get((cls, version))
    if function is None:
        function = make_decoder(cls, version, ELEMENTS_MAX, counts=True)
        _measuring_decoders[cls, version] = function
    return function


def encoder(cls: type[M], version: int) -> Callable[[bytearray, M, Spills | None], None]:
    """Return the function that appends one encoded message to a bytearray: (bytearray, message, spills).

    A `records` field that is neither bytes, bytearray nor memoryview is a spill. The function writes only its
    length, and appends `(offset of the bytes, object)` to `spills`. If `spills` is None, a spill is refused.
    The function raises LocalProtocolError for values that do not fit their fields; the bytearray then holds a
    part of the message.
    """
    function = _encoders.get((cls, version))
    if function is None:
        function = _encoders[cls, version] = make_encoder(cls, version)
    return function


def counting_encoder(
    cls: type[M], version: int
) -> Callable[[bytearray, M, Spills | None, ErrorCounts], None]:
    """Return a function like the function of `encoder`, but with a fourth argument, a dictionary. The
    function counts the error codes that it writes in this dictionary.
    """
    function = _counting_encoders.get((cls, version))
    if function is None:
        function = _counting_encoders[cls, version] = make_encoder(cls, version, counts_errors=True)
    return function


def decode(cls: type[M], version: int, buf: Buffer, offset: int = 0, exact: bool = True) -> M:
    """Decode one message. Raises MalformedMessage for bytes that are not this message, and for further bytes
    behind it unless `exact` is false.
    """
    message, end = decoder(cls, version)(buf, offset)
    if exact and end != len(buf):
        raise MalformedMessage(
            f"{cls.__name__} version {version} has {len(buf) - end} unexpected bytes at its end"
        )
    return message


def decode_bounded(cls: type[M], version: int, buf: Buffer, offset: int = 0) -> M:
    """Decode a message from untrusted bytes, with at most `ELEMENTS_MAX` elements; ignores bytes behind it.
    Raises MalformedMessage.
    """
    function = decoder if len(buf) - offset <= ELEMENTS_MAX else bounded_decoder
    return function(cls, version)(buf, offset)[0]


def encode(message: Message, version: int) -> bytes:
    """Encode one message; raises LocalProtocolError for values that do not fit their fields."""
    w = bytearray()
    encoder(type(message), version)(w, message, None)
    return bytes(w)
