"""The error of a fenced producer, as clients of each version know it."""

from __future__ import annotations

from odradek.wire.errors import ErrorCode


def fenced_code(code: ErrorCode, version: int, known_since: int) -> ErrorCode:
    """Return the error in the form for clients of this version, which know PRODUCER_FENCED since `known_since`
    (KIP-588).
    """
    if code is ErrorCode.PRODUCER_FENCED and version < known_since:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return code
