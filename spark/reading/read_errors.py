"""The errors of a query that cannot be planned or read. PURE."""

from __future__ import annotations

__all__ = ["DataLoss", "ReadError"]


class ReadError(Exception):
    """A query cannot be planned or read. The text is one sentence."""


class DataLoss(ReadError):
    """Records that the query was to read are not there any more; the message names the offsets."""
