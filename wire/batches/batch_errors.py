"""Errors that a record batch may raise, each with Kafka's error code."""

from __future__ import annotations

from odradek.wire.errors import ErrorCode, KafkaError

__all__ = ["CorruptBatch", "DecompressionBomb", "InvalidRecord"]


class CorruptBatch(KafkaError):
    """Raised if bytes are damaged: in the framing, in the checksum or in compressed data. Its code is
    CORRUPT_MESSAGE.
    """

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.CORRUPT_MESSAGE, message)


class DecompressionBomb(CorruptBatch):
    """Raised if the batch would decompress to more bytes than the caller allows.

    Its code is MESSAGE_TOO_LARGE. A retry with the same bytes would fail again, but after this code a
    producer may split the batch.
    """

    def __init__(self, message: str) -> None:
        KafkaError.__init__(self, ErrorCode.MESSAGE_TOO_LARGE, message)


class InvalidRecord(KafkaError):
    """Raised if the batch is whole, but breaks a rule of the format. Its code is INVALID_RECORD."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.INVALID_RECORD, message)
