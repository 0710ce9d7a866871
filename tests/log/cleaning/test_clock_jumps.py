"""Compaction while the wall clock jumps. Tombstones still stay for `delete.retention.ms`, and young records for
`min.compaction.lag.ms`."""

from __future__ import annotations

import pytest

from odradek.data_plane.log.cleaning.log_views import view_of
from odradek.data_plane.log.cleaning.plan import plan_log
from odradek.data_plane.log.cleaning_pass import cleanable_end
from odradek.data_plane.log.log_config import LogConfig
from odradek.data_plane.log.partition_log import PartitionLog
from odradek.env.agreed_clock import INTERVAL_MS, AgreedClock
from odradek.wire.batches.batch_header import iter_batches
from odradek.wire.batches.records import records
from odradek.wire.record_batch import RecordBatchBuilder
from testkit.by_hand import NOW_MS
from tests.log.cleaning.passes import clean
from tests.log.support import Node, append, content

DAY_MS = 86_400_000


class Compacted:
    """A compacted log with a tombstone of key `k`, passes over it, and the clock that decides when it is removed."""

    def __init__(self, **config: int) -> None:
        self.node = Node(LogConfig(cleanup_policy=("compact",), delete_retention_ms=DAY_MS, **config))
        self.clock = self.node.clock
        self.agreed = AgreedClock(self.clock)
        self.write(b"k", b"v")
        self.write(b"k", None)

    @property
    def log(self) -> PartitionLog:
        return self.node.log()

    def write(self, key: bytes, value: bytes | None) -> None:
        """Append a record in its own segment."""
        builder = RecordBatchBuilder()
        builder.append(NOW_MS + self.clock.now_ms, key, value)
        append(self.log, builder.build(), now_ms=NOW_MS + self.clock.now_ms)
        self.log.roll(self.clock.wall_ms())
        self.log.advance_high_watermark(self.log.log_end_offset)
        self.log.flush()

    def has_tombstone_after_pass(self, milliseconds: int = 0) -> bool:
        """Let time pass, and run a pass over everything cleanable. Return True if the tombstone remains."""
        self.clock.now_ms += milliseconds
        self.write(b"other", b"v")
        assert clean(self.log, cleanable_end(self.log), agreed_clock=self.agreed) is not None
        data = content(self.log)
        return any(
            record.key == b"k" and record.value is None
            for at, _ in iter_batches(data)
            for record in records(data, at, decompressed_bytes_max=1 << 20)
        )


def test_one_jump_forward_removes_no_tombstone_until_it_is_believed() -> None:
    """The clock jumps forward.

    A tombstone stays until the jump is confirmed, since readers must see it for `delete.retention.ms` (KIP-534).
    """
    log = Compacted()
    assert log.has_tombstone_after_pass()
    log.clock.jumped_ms += 7 * DAY_MS
    assert log.has_tombstone_after_pass()
    assert log.has_tombstone_after_pass(INTERVAL_MS - 1)
    assert not log.has_tombstone_after_pass(1)


@pytest.mark.parametrize("jump_ms", [7 * DAY_MS, -7 * DAY_MS], ids=["forward", "backward"])
def test_a_delete_horizon_of_a_wrong_clock_is_not_too_early(jump_ms: int) -> None:
    """The first pass dates a tombstone by a wrong clock, which is then corrected.

    The tombstone still stays long enough.
    """
    log = Compacted()
    log.clock.jumped_ms += jump_ms
    assert log.has_tombstone_after_pass()
    log.clock.jumped_ms -= jump_ms
    assert log.has_tombstone_after_pass(INTERVAL_MS)
    assert log.has_tombstone_after_pass(DAY_MS - 2 * INTERVAL_MS)


def test_a_tombstone_goes_when_both_clocks_say_so() -> None:
    """The clock jumps backward. A tombstone stays for longer, but is removed in the end."""
    log = Compacted()
    log.clock.jumped_ms -= DAY_MS
    assert log.has_tombstone_after_pass()
    assert log.has_tombstone_after_pass(DAY_MS)
    assert not log.has_tombstone_after_pass(DAY_MS + 1)


def test_a_jump_forward_makes_no_young_record_old_enough_for_compaction() -> None:
    """The clock jumps forward. Until the jump is confirmed, it does not count for `min.compaction.lag.ms`."""
    log = Compacted(min_compaction_lag_ms=DAY_MS)
    log.clock.jumped_ms += 7 * DAY_MS

    def end_offset() -> int:
        return plan_log(view_of(log.log), log.agreed.earliest_ms()).end_offset

    assert end_offset() == 0
    log.clock.now_ms += INTERVAL_MS
    assert end_offset() == 2
