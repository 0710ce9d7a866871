"""Batches that workers check. A refused batch keeps no memory."""

from __future__ import annotations

import gc

import pytest

from bench.budget.broker_lines import batch
from odradek.data_plane.log.batch_work import HandedOff, LoopWork, RequestBudget
from odradek.data_plane.log.log_config import LogConfig
from odradek.wire.batches.compression import CompressionType, Inflated, compress
from odradek.wire.errors import ErrorCode, KafkaError

BOMB = batch(CompressionType.ZSTD, compress(CompressionType.ZSTD, bytes(1 << 20), None))
ROOM_BYTES = 1 << 30


def test_a_batch_that_inflates_too_far_holds_nothing_when_it_is_forgotten() -> None:
    """A batch inflates beyond its limit.

    When it is dropped, its bytes and its decompressor are freed at once, since a request may have hundreds of such
    batches.
    """
    config = LogConfig(max_message_bytes=2000)
    budget = RequestBudget(0, Inflated())
    budget.bytes_left = 1_000
    received = bytearray(BOMB)
    gc.collect()
    gc.disable()
    try:
        handed_off = HandedOff(memoryview(received), config, budget, LoopWork(lambda _: None))
        handed_off.inflate(ROOM_BYTES)
        assert isinstance(handed_off.size, KafkaError)
        with pytest.raises(KafkaError) as raised:
            handed_off.size_of(CompressionType.ZSTD, memoryview(b""), ROOM_BYTES)
        assert raised.value.code == ErrorCode.MESSAGE_TOO_LARGE
        raised.value.__traceback__ = None
        del raised, handed_off
        received.clear()  # raises BufferError while a view of it exists
    finally:
        gc.enable()
