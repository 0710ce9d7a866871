"""The error code of a fenced producer, as clients of each version expect it."""

from __future__ import annotations

from odradek.wire.errors import ErrorCode


def fenced_code(code: ErrorCode, version: int, known_since: int) -> ErrorCode:
    """Return the error code for clients of this version.

    From version `known_since` on they know PRODUCER_FENCED (KIP-588).
    """
    if code is ErrorCode.PRODUCER_FENCED and version < known_since:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return code
