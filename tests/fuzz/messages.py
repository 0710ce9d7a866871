"""Target `messages`: every message class and version, read by the generated decoder and by the plain one.

An input is a line of text (`ProduceRequest 9`), followed by the bytes of the message.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from odradek.wire.codec import decoder, encode
from odradek.wire.codecs import codec_reflective
from odradek.wire.errors import MalformedMessage
from odradek.wire.structure import Message
from tests.fuzz.target import Target
from tests.wire.message_values import SHAPES, all_classes, generated


@cache
def _classes() -> dict[str, type[Message]]:
    return {cls.__name__: cls for cls in all_classes()}


def run(data: bytes) -> None:
    """Decode with both decoders. They must accept the same bytes and read the same message from them."""
    head, _, body = data.partition(b"\n")
    name, _, number = head.partition(b" ")
    cls = _classes().get(name.decode("latin-1"))
    if cls is None or len(number) > 3 or not number.isdigit():
        return
    version = int(number)
    first, last = cls.VALID_VERSIONS
    if not first <= version <= last:
        return
    try:
        message, end = decoder(cls, version)(body, 0)
    except MalformedMessage:
        _check_refused(cls, version, body)
        return
    written = encode(message, version)
    plain = codec_reflective.decode(cls, version, body[:end])
    assert encode(plain, version) == written, "two decoders read two things"
    again, end = decoder(cls, version)(written, 0)
    assert end == len(written)
    assert encode(again, version) == written, "what was written is not what was read"


def _check_refused(cls: type[Message], version: int, body: bytes) -> None:
    """Check that the plain decoder refuses the bytes, too."""
    try:
        codec_reflective.decode(cls, version, body, exact=False)
    except MalformedMessage:
        return
    raise AssertionError("the generated decoder refuses bytes that the plain decoder accepts")


def seeds() -> Iterator[bytes]:
    """Return the first and the last version of each message, with all fields filled."""
    for cls in all_classes():
        for version in sorted({*cls.VALID_VERSIONS}):
            for message in generated(cls, version, SHAPES)[2:]:
                yield b"%s %d\n" % (cls.__name__.encode(), version) + encode(message, version)


TARGET = Target("messages", run, seeds)
