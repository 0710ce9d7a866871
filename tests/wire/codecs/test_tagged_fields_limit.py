"""Unknown tagged fields are limited in number like elements, because each one must be skipped separately."""

from __future__ import annotations

import pytest

from odradek.wire.codec import ELEMENTS_MAX, bounded_decoder, decoder, encode
from odradek.wire.errors import MalformedMessage
from odradek.wire.framing.frames import HEADER_TAGS_MAX, skip_tags
from odradek.wire.messages.fetch import FetchRequest
from odradek.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from odradek.wire.primitives import write_uvarint
from odradek.wire.structure import Message

TAG = b"\x63\x00"


def tags(count: int) -> bytes:
    """Encode `count` empty tagged fields with an unknown tag."""
    w = bytearray()
    write_uvarint(w, count)
    return bytes(w) + TAG * count


def with_tags(message: Message, version: int, count: int) -> bytes:
    """Return the encoded message with `count` tagged fields at its end."""
    data = encode(message, version)
    assert data.endswith(b"\0")
    return data[:-1] + tags(count)


@pytest.mark.parametrize(
    ("message", "version"),
    [(MetadataRequest([]), 12), (FetchRequest(topics=[]), 16)],
    ids=["none", "some known"],
)
def test_as_many_tagged_fields_as_elements_are_passed_over(message: Message, version: int) -> None:
    """Unknown tagged fields are skipped up to the limit of elements, after structures with and without known tagged
    fields. One more is refused."""
    decode = bounded_decoder(type(message), version)
    data = with_tags(message, version, ELEMENTS_MAX)
    assert decode(data, 0) == (message, len(data))
    with pytest.raises(MalformedMessage, match=f"more than {ELEMENTS_MAX} elements"):
        decode(with_tags(message, version, ELEMENTS_MAX + 1), 0)
    assert decoder(type(message), version)(with_tags(message, version, 300), 0)[0] == message


def test_tagged_fields_of_all_elements_are_counted_together() -> None:
    """Unknown tagged fields of all structures count together."""
    one = encode(MetadataRequest([MetadataRequestTopic(name="")]), 12)
    head, topic, tail = one[:1], one[1:-4], one[-3:]
    count = 201
    data = bytes([*uvarint(count + 1)]) + (topic + tags(200)) * count + tail
    assert head == b"\x02"
    with pytest.raises(MalformedMessage, match="elements"):
        bounded_decoder(MetadataRequest, 12)(data, 0)
    decoded: MetadataRequest = decoder(MetadataRequest, 12)(data, 0)[0]
    assert len(decoded.topics or ()) == count


def uvarint(number: int) -> bytes:
    w = bytearray()
    write_uvarint(w, number)
    return bytes(w)


def test_a_header_has_few_tagged_fields() -> None:
    """A header may have up to `HEADER_TAGS_MAX` tagged fields. With more it is refused."""
    data = tags(HEADER_TAGS_MAX)
    assert skip_tags(data, 0, len(data)) == len(data)
    with pytest.raises(MalformedMessage, match="tagged fields, but at most"):
        skip_tags(tags(HEADER_TAGS_MAX + 1), 0, 1 << 20)
