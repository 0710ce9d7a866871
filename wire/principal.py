"""The encoding of a principal inside an Envelope request: a version number, then Kafka's
DefaultPrincipalData, version 0.

In Kafka each installation may choose a principal builder, which defines this encoding. All brokers and
controllers of a cluster must use the same encoding. This module has the encoding of Kafka's default builder.
"""

from __future__ import annotations

from struct import Struct

from odradek.wire.errors import MalformedMessage
from odradek.wire.primitives import Buffer, read_uvarint, write_uvarint

__all__ = ["decode_principal", "encode_principal"]

_VERSION = Struct(">h")


def encode_principal(principal: str, by_token: bool = False) -> bytes:
    """Encode a principal `type:name` as DefaultPrincipalData. If the text has no colon, the whole text is the
    name, and the type is User. `by_token` is true if the client logged in by a delegation token.
    """
    kind, colon, name = principal.partition(":")
    if not colon:
        kind, name = "User", principal
    w = bytearray(_VERSION.pack(0))
    for text in (kind, name):
        encoded = text.encode()
        write_uvarint(w, len(encoded) + 1)
        w += encoded
    w.append(by_token)
    # The number of tagged fields.
    w.append(0)
    return bytes(w)


def decode_principal(data: Buffer) -> tuple[str, bool]:
    """Decode a principal. Returns `type:name`, and whether the client logged in by a delegation token. Raises
    `MalformedMessage`.
    """
    if len(data) < _VERSION.size:
        raise MalformedMessage(
            f"the principal has {len(data)} bytes, which is too short: its version alone takes "
            f"{_VERSION.size}"
        )
    (version,) = _VERSION.unpack_from(data)
    if version != 0:
        raise MalformedMessage(f"the principal has version {version}, and only version 0 is known")
    position = _VERSION.size
    texts = []
    for _ in range(2):
        size, position = read_uvarint(data, position)
        end = position + size - 1
        if size < 1 or end > len(data):
            raise MalformedMessage("a string of the encoded principal runs past its last byte")
        try:
            texts.append(str(data[position:end], "utf-8"))
        except UnicodeDecodeError:
            raise MalformedMessage("a text of the principal is not UTF-8") from None
        position = end
    if position >= len(data):
        raise MalformedMessage("the principal does not say whether it logged in by a token")
    return ":".join(texts), bool(data[position])
