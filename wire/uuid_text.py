"""Kafka's text form of a UUID: 22 characters of URL-safe base64 without padding."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode

from odradek.wire.errors import LocalProtocolError

UUID_SIZE = 16
TEXT_LENGTH = 22


def uuid_to_text(value: bytes) -> str:
    """Encode 16 bytes as 22 characters; raises LocalProtocolError for another size."""
    if len(value) != UUID_SIZE:
        raise LocalProtocolError(f"a UUID has {UUID_SIZE} bytes, not {len(value)}")
    return urlsafe_b64encode(value).decode("ascii")[:TEXT_LENGTH]


def uuid_from_text(text: str) -> bytes:
    """Decode 22 characters to 16 bytes. Raises ValueError for a text that does not encode a UUID.

    The last character holds only two bits of the value. A text whose spare bits are set is refused, so each
    UUID has exactly one text.
    """
    try:
        value = urlsafe_b64decode(text + "==")
    except ValueError:
        value = b""
    if len(value) != UUID_SIZE or uuid_to_text(value) != text:
        raise ValueError(f"a UUID's text has {TEXT_LENGTH} characters of URL-safe base64: {text!r}")
    return value
