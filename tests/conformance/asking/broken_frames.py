"""Frames that are not quite requests, for every API: some get an answer, others end the connection."""

from __future__ import annotations

import struct
from functools import partial

from odradek.wire.api import ApiKey, api_versions, request_class, request_header_version
from odradek.wire.codec import encode
from odradek.wire.messages.add_partitions_to_txn import AddPartitionsToTxnTransaction
from tests.conformance.asking.talk import Talk, case

CORRELATION_ID = 7
FLEXIBLE_HEADER = 2
ALL_IN_SYNC = -1
NO_TAGS, ONE_TAG = b"\0", b"\x01\x64\x03any"
"""Tagged fields of a header: none, or an unknown one with number 100 and three bytes."""


def _frame(
    key: int, version: int, body: bytes, *, client: bytes | None = b"raw", tags: bytes = NO_TAGS
) -> bytes:
    head = struct.pack(">hhi", key, version, CORRELATION_ID)
    head += struct.pack(">h", -1) if client is None else struct.pack(">h", len(client)) + client
    if request_header_version(key, version) >= FLEXIBLE_HEADER:
        head += tags
    return struct.pack(">i", len(head) + len(body)) + head + body


def _broken(talk: Talk, *, key: ApiKey) -> None:
    """Send an empty request of the newest version several times, each time with one mistake."""
    first, last = api_versions(key)
    message = request_class(key)()
    if key == ApiKey.PRODUCE:
        message.acks = ALL_IN_SYNC
    if key == ApiKey.ADD_PARTITIONS_TO_TXN:
        # Kafka 4.3 never answers this request if it names no transaction.
        message.transactions = [AddPartitionsToTxnTransaction()]
    body = bytes(encode(message, last))
    flexible = request_header_version(key, last) >= FLEXIBLE_HEADER
    frames = {
        "whole": _frame(key, last, body),
        "without a client id": _frame(key, last, body, client=None),
        "with an empty client id": _frame(key, last, body, client=b""),
        "without a body": _frame(key, last, b""),
        "with three bytes more": _frame(key, last, body + bytes(3)),
        "of a negative version": _frame(key, -1, body),
    }
    if body:
        frames["cut by a byte"] = _frame(key, last, body[:-1])
        frames["all ones"] = _frame(key, last, b"\xff" * len(body))
    if flexible:
        frames["with an unknown tag in the header"] = _frame(key, last, body, tags=ONE_TAG)
        frames["with an unknown tag in the body"] = _frame(key, last, body[:-1] + ONE_TAG)
    if key != ApiKey.API_VERSIONS:
        frames["of a version to come"] = _frame(key, last + 1, body)
        if first > 0:
            frames["of a version long gone"] = _frame(key, first - 1, body)
    for label, data in frames.items():
        talk.note(f"{label}: {'answered' if talk.is_answered(data, key, last) else 'closed'}")


def enter(key: ApiKey) -> None:
    """Add the conversation about one API to the corpus."""
    case(f"{key.name.lower()} in broken frames")(partial(_broken, key=key))
