"""The verification of transactions by a new leader, and the memory that it needs (KIP-890)."""

from __future__ import annotations

from odradek.data_plane.log.log_config import LogConfig
from odradek.data_plane.log.log_types import Origin
from odradek.data_plane.log.partition_log import PartitionLog
from odradek.data_plane.log.parts.verification import (
    GUARDS_MAX,
    ONGOING,
    VerificationGuard,
    Verifications,
    name_of,
)
from odradek.wire.batches.transaction_markers import build_marker
from testkit.by_hand import NOW_MS
from tests.log.support import Node, append, append_verified, batch, new_disk

PRODUCER = 9


def written(sequence: int) -> bytearray:
    return batch(2, producer_id=PRODUCER, producer_epoch=0, base_sequence=sequence, is_transactional=True)


def verification(log: PartitionLog, sequence: int, name: str = "mine") -> VerificationGuard:
    log.load_producers()
    checks_name = log.config.verifies_transactions
    return log.producers.verify(PRODUCER, name, 0, sequence, True, 0, checks_name)


def test_a_new_leader_verifies_an_open_transaction_once() -> None:
    """After a failover, the next batch of each open transaction is verified, even a repeated one.

    Later batches are not.
    """
    node = Node(LogConfig(), new_disk(1))
    log = node.log()
    append_verified(log, written(0))
    assert verification(log, 2) is ONGOING
    node.log_dir.close_clean(7)
    node.disk.crash("synced")
    node.start()
    log = node.log()
    assert log.load_producers().has_ongoing(PRODUCER, 0)
    again = verification(log, 0)
    assert again is not ONGOING
    assert append(log, written(0), guard=again).duplicate
    assert verification(log, 2) is ONGOING
    assert verification(log, 2, "another") is not ONGOING


def test_a_follower_forgets_a_transaction_with_its_marker() -> None:
    """A leader becomes a follower. It remembers verified transactions until their markers arrive."""
    log = Node(LogConfig(), new_disk(1)).log()
    append_verified(log, written(0))
    verifications = log.producers.verifications
    assert verifications is not None
    assert verifications.verified == {PRODUCER: "mine"}
    marker = build_marker(PRODUCER, 0, 0, is_commit=True, timestamp_ms=NOW_MS)
    marker[0:8] = log.log_end_offset.to_bytes(8, "big")
    append(log, marker, origin=Origin.REPLICA)
    assert verifications.verified == {}


def test_guards_are_bounded_and_of_one_transactional_id_each() -> None:
    """At most `GUARDS_MAX` verifications are kept. Beyond that, those of the oldest producer are dropped."""
    found = Verifications()
    first = found.begin(PRODUCER, "mine", 0, 7, True, 0)
    for number in range(GUARDS_MAX - 1):
        found.begin(PRODUCER + 1, f"other {number}", 9, 0, True, 0)
    assert len(found) == GUARDS_MAX
    assert found.is_valid(PRODUCER, first)
    assert first.lowest_sequence == 7
    found.refuse(PRODUCER + 1, "other 5")
    found.refuse(PRODUCER + 1, "other 5")
    assert len(found) == GUARDS_MAX - 1
    for number in range(2):
        found.begin(PRODUCER + 2, f"other {number}", 0, 0, True, 1)
    assert not found.is_valid(PRODUCER, first)
    assert len(found) == GUARDS_MAX
    found.expire(5, 5)
    assert len(found) == 2
    found.void(PRODUCER + 2)
    assert len(found) == 0


def test_a_long_transactional_id_is_kept_as_its_digest() -> None:
    """A transactional id of any length is kept in at most 128 characters, and two ids are still distinguished."""
    long = "x" * 32_000
    assert name_of("short") == "short"
    assert len(name_of(long)) == 128
    assert len({name_of(long), name_of(f"{long}x"), name_of("\ud800" * 100)}) == 3
