"""The errors for a query that cannot be planned or read. PURE."""

from __future__ import annotations

__all__ = ["DataLoss", "ReadError"]


class ReadError(Exception):
    """Raised if a query cannot be planned or read. The text is one sentence."""


class DataLoss(ReadError):
    """Raised if records that the query should read are gone. The text has their offsets."""
