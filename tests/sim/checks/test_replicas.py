"""The checkers of replicas: each kind of breach that they must find, and what they must let pass."""

from __future__ import annotations

import pytest

from odradek.wire.batches.batch_header import assign_offsets
from odradek.wire.record_batch import RecordBatchBuilder
from sim.history import SafetyViolation
from sim.replicas import (
    Committed,
    StoredBatch,
    check_log_matching,
    check_replicas_equal,
    first_difference,
    read_log,
)


def entries(*epochs: int, text: str = "") -> list[StoredBatch]:
    """A log of one-record batches with these epochs."""
    return [
        StoredBatch(offset, offset + 1, epoch, f"{offset}@{epoch}{text}".encode())
        for offset, epoch in enumerate(epochs)
    ]


def batch(base_offset: int, *values: bytes) -> bytes:
    """A batch as it is in a segment."""
    builder = RecordBatchBuilder()
    for value in values:
        builder.append(1, None, value)
    data = builder.build()
    assign_offsets(data, 0, base_offset, 7)
    return bytes(data)


def test_segments_are_read_in_order_up_to_what_is_torn() -> None:
    """A crash leaves half a batch behind, which is no part of the log."""
    whole = {
        "00000000000000000003.log": batch(3, b"d") + batch(4, b"e")[:-1],
        "00000000000000000000.log": batch(0, b"a", b"b") + batch(2, b"c"),
        "00000000000000000000.index": b"",
    }
    found = read_log(whole)
    assert [(each.base_offset, each.next_offset, each.epoch) for each in found] == [
        (0, 2, 7),
        (2, 3, 7),
        (3, 4, 7),
    ]
    damaged = bytearray(whole["00000000000000000000.log"])
    damaged[-1] ^= 1
    assert [each.base_offset for each in read_log({"00000000000000000000.log": bytes(damaged)})] == [0]


def test_replicas_are_equal_below_the_high_watermark() -> None:
    """Below the given end all replicas must have the same records; their tails may differ."""
    logs = {"a": entries(1, 1, 2), "b": entries(1, 1, 3), "c": entries(1, 1)}
    check_replicas_equal("t-0", logs, 2)
    with pytest.raises(SafetyViolation, match="c ends at 2, below 3"):
        check_replicas_equal("t-0", logs, 3)
    with pytest.raises(SafetyViolation, match="a and b differ at offset 2"):
        check_replicas_equal("t-0", {"a": logs["a"], "b": logs["b"]}, 3)


def test_logs_are_compared_where_both_have_something() -> None:
    """A snapshot has taken the place of the beginning of one of them."""
    assert first_difference(entries(1, 1, 2)[1:], entries(1, 1)) is None
    assert first_difference(entries(1, 1, 2)[1:], entries(1, 3, 3)) == 1


def test_log_matching() -> None:
    """Raft, section 5.3. 'If two logs contain an entry with the same index and term, then the logs are identical in all entries up through the given index.'"""
    check_log_matching({"a": entries(1, 1, 2), "b": entries(1, 1, 3, 3), "c": entries(1)})
    with pytest.raises(SafetyViolation, match="a and b differ at offset 1, but both have 2 of epoch 2"):
        check_log_matching({"a": entries(1, 1, 2), "b": entries(1, 2, 2)})


def test_what_was_committed_stays() -> None:
    """Leader completeness: what one leader has committed is in the log of every later one."""
    committed = Committed()
    committed.see("a", entries(1, 1, 2), 2)
    committed.see("b", entries(1, 1, 3), 3)
    committed.check("a", entries(1, 1, 3, 3)[1:])
    with pytest.raises(SafetyViolation, match="at 2 c has epoch 4, but epoch 3 was committed there"):
        committed.see("c", entries(1, 1, 4), 3)
    with pytest.raises(SafetyViolation, match="a has lost what was committed at 2"):
        committed.check("a", entries(1, 1))
