"""A transaction whose marker is not committed is undecided, even after a restart or a truncation."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from odradek.data_plane.log.log_config import LogConfig
from odradek.data_plane.log.partition_log import Origin, PartitionLog
from odradek.wire.batches.transaction_markers import build_marker
from testkit.by_hand import NOW_MS
from tests.log.support import Node, append, append_verified, batch

PRODUCER = 7


def ended_above_high_watermark(log: PartitionLog, *, rolls: bool) -> None:
    """Append a transaction with its marker. The high watermark is between the transaction's record and the marker."""
    append_verified(
        log, batch(producer_id=PRODUCER, producer_epoch=0, base_sequence=0, is_transactional=True)
    )
    marker = build_marker(PRODUCER, 0, 0, is_commit=True, timestamp_ms=NOW_MS)
    append(log, marker, origin=Origin.COORDINATOR)
    log.advance_high_watermark(1)
    if rolls:
        log.roll(NOW_MS)
        append(log, batch())


def stop_cleanly(node: Node) -> PartitionLog:
    node.log_dir.close_clean(7)
    node.disk.crash("synced")
    node.start()
    return node.log()


def crash(node: Node) -> PartitionLog:
    node.log().flush()
    node.log_dir.checkpoints.write_all()
    node.disk.crash("all")
    node.start()
    return node.log()


def truncate(node: Node) -> PartitionLog:
    append(node.log(), batch())
    node.log().truncate_to(node.log().log_end_offset - 1)
    return node.log()


@pytest.mark.parametrize("rolls", [False, True])
@pytest.mark.parametrize("again", [stop_cleanly, crash, truncate])
def test_the_last_stable_offset_stays_below_an_undecided_transaction(
    again: Callable[[Node], PartitionLog], rolls: bool
) -> None:
    """After a restart or a truncation, the last stable offset is still below an undecided transaction.

    Its marker may yet be truncated.
    """
    node = Node(LogConfig(index_interval_bytes=0))
    ended_above_high_watermark(node.log(), rolls=rolls)
    assert node.log().last_stable_offset == 0
    log = again(node)
    assert (log.high_watermark, log.last_stable_offset) == (1, 0)
    log.advance_high_watermark(2)
    assert log.last_stable_offset == 2
    assert log.load_producers().has_ongoing(PRODUCER, 0) is False
