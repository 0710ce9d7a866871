"""Variable-length integers, and the text form of UUIDs."""

from __future__ import annotations

from collections.abc import Callable
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.serial import readers

from odradek.wire import primitives
from odradek.wire.errors import LocalProtocolError, MalformedMessage
from odradek.wire.primitives import (
    read_uvarint,
    read_varint,
    read_varlong,
    write_uvarint,
    write_varint,
    write_varlong,
)
from odradek.wire.uuid_text import uuid_from_text, uuid_to_text


def written(write: Callable[[bytearray, int], None], value: int) -> bytes:
    w = bytearray()
    write(w, value)
    return bytes(w)


@pytest.mark.parametrize(
    ("value", "encoded"),
    [(0, "00"), (1, "01"), (127, "7f"), (128, "8001"), (300, "ac02"), (2**32 - 1, "ffffffff0f")],
)
def test_uvarint(value: int, encoded: str) -> None:
    """Unsigned varints have groups of seven bits, lowest first. The high bit means that more follow."""
    assert written(write_uvarint, value).hex() == encoded
    assert read_uvarint(b"x" + bytes.fromhex(encoded), 1) == (value, 1 + len(encoded) // 2)
    assert primitives.uvarint_size(value) == len(encoded) // 2


@pytest.mark.parametrize(
    ("value", "encoded"), [(0, "00"), (-1, "01"), (1, "02"), (-2, "03"), (-(2**31), "ffffffff0f")]
)
def test_varint_is_zigzag(value: int, encoded: str) -> None:
    """Zigzag makes small positive and negative numbers short."""
    assert written(write_varint, value).hex() == encoded
    assert read_varint(bytes.fromhex(encoded), 0) == (value, len(encoded) // 2)


@given(st.integers(-(2**31), 2**31 - 1))
def test_varint_as_kio_writes_it(value: int) -> None:
    """Varints of all 32-bit numbers are written as kio writes them."""
    data = written(write_varint, value)
    assert read_varint(data, 0) == (value, len(data))
    assert primitives.varint_size(value) == len(data)
    assert readers.read_signed_varint(data, 0) == (value, len(data))


@given(st.integers(-(2**63), 2**63 - 1))
def test_varlong_as_kio_writes_it(value: int) -> None:
    """Varlongs of all 64-bit numbers are written as kio writes them."""
    data = written(write_varlong, value)
    assert read_varlong(data, 0) == (value, len(data))
    assert primitives.varlong_size(value) == len(data)
    assert readers.read_signed_varlong(data, 0) == (value, len(data))


@pytest.mark.parametrize("read", [read_uvarint, read_varint])
@pytest.mark.parametrize("encoded", ["", "80", "ffffffff", "ffffffff1f", "808080808000", "8080808080"])
def test_numbers_cut_off_or_beyond_32_bits(read: Callable[..., object], encoded: str) -> None:
    """Numbers that are cut off, or that take more than 32 bits or five bytes, are malformed."""
    with pytest.raises(MalformedMessage):
        read(bytes.fromhex(encoded), 0)


@pytest.mark.parametrize("encoded", ["80", "ff" * 9 + "02", "80" * 10 + "00"])
def test_numbers_beyond_64_bits(encoded: str) -> None:
    """Numbers that take more than 64 bits or ten bytes are malformed."""
    with pytest.raises(MalformedMessage):
        read_varlong(bytes.fromhex(encoded), 0)


def test_writers_refuse_what_has_no_encoding() -> None:
    """Writing a number outside its type's range raises an error."""
    for write, value in (
        (write_uvarint, -1),
        (write_uvarint, 2**32),
        (write_varint, 2**31),
        (write_varlong, -(2**63) - 1),
    ):
        with pytest.raises(LocalProtocolError):
            write(bytearray(), value)


def test_uuid_text_is_url_safe_base64() -> None:
    """A UUID is printed as 22 characters of URL-safe base64 without padding, as in Kafka."""
    assert uuid_to_text(bytes(16)) == "AAAAAAAAAAAAAAAAAAAAAA"
    assert uuid_to_text(b"\xff" * 16) == "_____________________w"
    assert uuid_from_text("H5nlA7uKR0-zDRxvMJS5iw").hex() == "1f99e503bb8a474fb30d1c6f3094b98b"
    for _ in range(20):
        value = uuid4().bytes
        assert uuid_from_text(uuid_to_text(value)) == value


@pytest.mark.parametrize(
    "text", ["", "A" * 21, "A" * 23, "A" * 21 + "=", "A" * 21 + "é", "A" * 21 + "B", "A" * 21 + "+"]
)
def test_uuid_text_that_no_uuid_has(text: str) -> None:
    """Text with a wrong length, other characters or surplus bits is no UUID."""
    with pytest.raises(ValueError, match="UUID"):
        uuid_from_text(text)


def test_uuid_of_another_size() -> None:
    """A UUID must have 16 bytes."""
    with pytest.raises(LocalProtocolError):
        uuid_to_text(b"short")
