"""Failing logins as bytes, and mutations of them. No mutation may log in."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from random import Random

from odradek.security.oauth.client_message import ClientMessage, encode_client_message
from odradek.security.scram import MECHANISMS, ScramClient
from odradek.wire.messages.api_versions import ApiVersionsRequest
from odradek.wire.messages.metadata import MetadataRequest
from odradek.wire.messages.sasl_authenticate import SaslAuthenticateRequest
from odradek.wire.messages.sasl_handshake import SaslHandshakeRequest
from testkit.raw_requests import frame
from tests.security.logins.issuer import Issuer

__all__ = ["failing_logins", "mutated"]

NONCE = "fyko+d2lbbFgONRv9qkxdawL"
INTERESTING = (0, 1, 0x7F, 0x80, 0xFF, 0x20, 0x2C, 0x3D)
NUMBERS = (0, 1, -1, 0x7FFF, 0x7FFFFFFF, -0x80000000, 524_288, 524_289, 65_536)


def failing_logins() -> list[list[bytes]]:
    """Make failing logins by each mechanism, in both framings. Each ends with a request that needs a login."""
    wanted = bytes(frame(MetadataRequest([]), 9))
    scram = ScramClient(MECHANISMS["SCRAM-SHA-256"], "alice", "wrong", NONCE)
    proof = f"c=biws,r={NONCE}abc,p={'A' * 43}=".encode()
    forged = encode_client_message(ClientMessage(Issuer().token()))
    tokens: dict[str, Sequence[bytes]] = {
        "PLAIN": [b"\0carol\0wrong"],
        "SCRAM-SHA-256": [scram.first(), proof],
        "SCRAM-SHA-512": [b"n,,n=nobody,r=" + NONCE.encode(), proof],
        "OAUTHBEARER": [forged, b"\x01"],
    }
    found = []
    for mechanism, messages in tokens.items():
        greeting = [bytes(frame(ApiVersionsRequest("fuzz", "1"), 3))]
        named = [bytes(frame(SaslHandshakeRequest(mechanism), version)) for version in (0, 1)]
        bare = [struct.pack(">i", len(each)) + each for each in messages]
        for version in (0, 2):
            dressed = [bytes(frame(SaslAuthenticateRequest(each), version)) for each in messages]
            found.append([*greeting, named[1], *dressed, wanted])
        found.append([named[0], *bare, wanted])
    return found


def _flipped(data: bytearray, random: Random) -> None:
    data[random.randrange(len(data))] ^= 1 << random.randrange(8)


def _replaced(data: bytearray, random: Random) -> None:
    data[random.randrange(len(data))] = random.choice(INTERESTING)


def _cut(data: bytearray, random: Random) -> None:
    del data[random.randrange(len(data)) :]


def _grown(data: bytearray, random: Random) -> None:
    at = random.randrange(len(data) + 1)
    data[at:at] = random.randbytes(random.choice((1, 2, 17, 300)))


def _shrunk(data: bytearray, random: Random) -> None:
    at = random.randrange(len(data))
    del data[at : at + random.choice((1, 2, 9))]


def _renumbered(data: bytearray, random: Random) -> None:
    """Overwrite two or four bytes at a random place by a number, since the place may contain a length."""
    layout = random.choice((">i", ">h"))
    size = struct.calcsize(layout)
    if len(data) >= size:
        number = random.choice(NUMBERS)
        limit = 1 << (8 * size - 1)
        if -limit <= number < limit:
            struct.pack_into(layout, data, random.randrange(len(data) - size + 1), number)


_CHANGES: tuple[Callable[[bytearray, Random], None], ...] = (
    _flipped,
    _replaced,
    _cut,
    _grown,
    _shrunk,
    _renumbered,
)


def mutated(login: list[bytes], random: Random) -> bytes:
    """Apply one to three mutations to a login: to the contents of frames, to their order, or to their sizes."""
    frames = [bytearray(each) for each in login]
    for _ in range(random.randint(1, 3)):
        kind = random.randrange(8)
        at = random.randrange(len(frames))
        if kind == 0:
            frames.insert(at, bytearray(random.choice(login)))
        elif kind == 1 and len(frames) > 1:
            del frames[at]
        elif kind == 2:
            random.shuffle(frames)
        elif frames[at]:
            random.choice(_CHANGES)(frames[at], random)
            if kind < 6 and len(frames[at]) >= 4:
                # With a correct size, the mutation is not refused by the check of the frame.
                struct.pack_into(">i", frames[at], 0, len(frames[at]) - 4)
    return b"".join(map(bytes, frames))
