"""The message by which a client logs in by OAUTHBEARER (RFC 7628, section 3.1). PURE.

The message is `n,[a=AUTHORIZATION ID],` and then pairs of a key and a value, each ended by 0x01, and a last 0x01. The
pair `auth` has the token. Other pairs are SASL extensions (KIP-342), which are ignored here.
"""

from __future__ import annotations

import re

import attrs

__all__ = ["ClientMessage", "MalformedClientMessage", "decode_client_message", "encode_client_message"]

CHARACTERS_MAX = 64 << 10
_HEADER = re.compile(r"n,(?:a=((?:[\x01-\x2b\x2d-\x3c\x3e-\x7f]++|=2C|=3D)+))?,")
_KEY = re.compile(r"[A-Za-z]+")
_VALUE = re.compile(r"[\x21-\x7e \t\r\n]+")
_BEARER = re.compile(r"(\w+) +([-_.a-zA-Z0-9]+)")


class MalformedClientMessage(ValueError):
    """Raised if bytes are not a client's message as in RFC 7628."""


@attrs.frozen
class ClientMessage:
    """The content of the message: the token, and the user that the client wants to be (empty: the token's subject)."""

    token: str = attrs.field(repr=False)
    authorization_id: str = ""


def decode_client_message(data: bytes) -> ClientMessage:
    """Decode the message. Raises `MalformedClientMessage`."""
    if len(data) > CHARACTERS_MAX:
        raise MalformedClientMessage(
            f"the client's message has {len(data)} bytes, but at most {CHARACTERS_MAX} are allowed"
        )
    try:
        header, *pairs = data.decode("ascii").split("\x01")
    except UnicodeDecodeError as error:
        raise MalformedClientMessage("the client's message has a byte that is not ASCII") from error
    match = _HEADER.fullmatch(header)
    if match is None or pairs[-2:] != ["", ""]:
        raise MalformedClientMessage(
            "the client's message must begin with n,, or n,a=USER, and end with two bytes 0x01"
        )
    auth = _values_of(pairs[:-2]).get("auth")
    bearer = None if auth is None else _BEARER.fullmatch(auth)
    if bearer is None or bearer[1].lower() != "bearer":
        raise MalformedClientMessage("the client's message has no token of the scheme Bearer")
    return ClientMessage(bearer[2], (match[1] or "").replace("=2C", ",").replace("=3D", "="))


def encode_client_message(message: ClientMessage) -> bytes:
    """Encode the message that a client sends."""
    name = message.authorization_id.replace("=", "=3D").replace(",", "=2C")
    return f"n,{f'a={name}' if name else ''},\x01auth=Bearer {message.token}\x01\x01".encode("ascii")


def _values_of(pairs: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or _KEY.fullmatch(key) is None or _VALUE.fullmatch(value) is None:
            raise MalformedClientMessage("the client's message has a part that is not KEY=VALUE")
        if key in found:
            raise MalformedClientMessage("the client's message has a key twice")
        found[key] = value
    return found
