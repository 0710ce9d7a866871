"""The checkers of replicas' logs: each kind of violation that they must find, and what they must accept."""

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
    """Make a log of one-record batches with these epochs."""
    return [
        StoredBatch(offset, offset + 1, epoch, f"{offset}@{epoch}{text}".encode())
        for offset, epoch in enumerate(epochs)
    ]


def batch(base_offset: int, *values: bytes) -> bytes:
    """Make a batch as it is stored in a segment."""
    builder = RecordBatchBuilder()
    for value in values:
        builder.append(1, None, value)
    data = builder.build()
    assign_offsets(data, 0, base_offset, 7)
    return bytes(data)


def test_segments_are_read_in_order_up_to_what_is_torn() -> None:
    """Segments are read in order. A torn batch at the end, as after a crash, is not part of the log."""
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
    """Replicas must have the same records below the given end. Their tails may differ."""
    logs = {"a": entries(1, 1, 2), "b": entries(1, 1, 3), "c": entries(1, 1)}
    check_replicas_equal("t-0", logs, 2)
    with pytest.raises(SafetyViolation, match="c ends at 2, below 3"):
        check_replicas_equal("t-0", logs, 3)
    with pytest.raises(SafetyViolation, match="a and b differ at offset 2"):
        check_replicas_equal("t-0", {"a": logs["a"], "b": logs["b"]}, 3)


def test_logs_are_compared_where_both_have_something() -> None:
    """Two logs are compared only where both have entries, because one may begin with a snapshot."""
    assert first_difference(entries(1, 1, 2)[1:], entries(1, 1)) is None
    assert first_difference(entries(1, 1, 2)[1:], entries(1, 3, 3)) == 1


def test_log_matching() -> None:
    """Two logs with an entry of the same index and epoch must be identical up to there (Raft, section 5.3)."""
    check_log_matching({"a": entries(1, 1, 2), "b": entries(1, 1, 3, 3), "c": entries(1)})
    with pytest.raises(SafetyViolation, match="a and b differ at offset 1, but both have 2 of epoch 2"):
        check_log_matching({"a": entries(1, 1, 2), "b": entries(1, 2, 2)})


def test_what_was_committed_stays() -> None:
    """Each later leader's log must contain all entries that were committed before (Raft's leader completeness)."""
    committed = Committed()
    committed.see("a", entries(1, 1, 2), 2)
    committed.see("b", entries(1, 1, 3), 3)
    committed.check("a", entries(1, 1, 3, 3)[1:])
    with pytest.raises(SafetyViolation, match="at 2 c has epoch 4, but epoch 3 was committed there"):
        committed.see("c", entries(1, 1, 4), 3)
    with pytest.raises(SafetyViolation, match="a has lost what was committed at 2"):
        committed.check("a", entries(1, 1))
