"""The checker of promises to clients: what it must accept, and each kind of violation that it must find."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from odradek.wire.topic_partition import TopicPartition
from sim.history import History, SafetyViolation, Told

SYNCED = TopicPartition("synced", 0)
CACHED = TopicPartition("cached", 0)
VALUES = (b"a:0", b"a:1", b"b:0", b"a:2")


def history(
    *, acknowledged: Sequence[Told] = (), read: Sequence[Told] = (), lost: Sequence[float] = ()
) -> History:
    """Make a history in which two producers sent `VALUES` to both partitions."""
    made = History(("synced",), acknowledged=list(acknowledged), read=list(read), power_losses=list(lost))
    for partition in (SYNCED, CACHED):
        for value in VALUES:
            made.send(partition, value)
    return made


def test_what_was_told_is_there() -> None:
    """Acknowledged records must be in the log. Failed and unanswered records may be there, and the log may start at
    any offset."""
    told = [Told(SYNCED, 7, b"b:0", 1.0)]
    assert (
        history(acknowledged=told, read=told).check(SYNCED, 5, [(5, b"a:0"), (6, b"a:2"), (7, b"b:0")]) == 3
    )
    assert history().check(SYNCED, 0, []) == 0


@pytest.mark.parametrize(
    ("records", "reason"),
    [
        ([(0, b"a:0"), (2, b"a:1")], "follows"),
        ([(0, b"a:0"), (0, b"a:1")], "follows"),
        ([(0, b"x")], "nobody sent"),
        ([(0, b"a:0"), (1, b"a:0")], "is at 0 and at 1"),
        ([(0, b"a:1"), (1, b"b:0"), (2, b"a:0")], "after a later one of its producer"),
    ],
)
def test_gaps_inventions_repetitions_and_disorder_are_found(
    records: list[tuple[int, bytes]], reason: str
) -> None:
    """Gaps, records that nobody sent, duplicates and wrong order are found (promises 3 and 4)."""
    with pytest.raises(SafetyViolation, match=reason):
        history().check(SYNCED, 0, records)


def test_a_lost_or_moved_acknowledgement_is_found() -> None:
    """An acknowledged record must be at its offset, with the same bytes (promise 1)."""
    told = history(acknowledged=[Told(SYNCED, 1, b"a:1", 1.0)])
    with pytest.raises(SafetyViolation, match="acknowledged at offset 1"):
        told.check(SYNCED, 0, [(0, b"a:0")])
    with pytest.raises(SafetyViolation, match="acknowledged at offset 1"):
        told.check(SYNCED, 0, [(0, b"a:0"), (1, b"b:0"), (2, b"a:2")])
    assert told.check(CACHED, 0, []) == 0


def test_a_loss_of_power_excuses_only_what_was_not_synced() -> None:
    """After a power loss, acknowledged records may be missing only from topics without a sync for each batch (promise
    1)."""
    lost = history(acknowledged=[Told(CACHED, 0, b"a:0", 1.0), Told(SYNCED, 0, b"a:0", 1.0)], lost=[2.0])
    assert lost.check(CACHED, 0, []) == 0
    with pytest.raises(SafetyViolation):
        lost.check(SYNCED, 0, [])
    with pytest.raises(SafetyViolation):
        history(acknowledged=[Told(CACHED, 0, b"a:0", 3.0)], lost=[2.0]).check(CACHED, 0, [])


def test_what_was_read_stays_unless_the_power_was_lost() -> None:
    """A record that was read must stay in any topic, unless power was lost, since records are read before their sync
    (promise 2)."""
    read = [Told(SYNCED, 0, b"a:0", 1.0)]
    with pytest.raises(SafetyViolation, match="read at offset 0"):
        history(read=read).check(SYNCED, 0, [])
    assert history(read=read, lost=[2.0]).check(SYNCED, 0, []) == 0


def test_operations_are_held_against_jepsens_definitions() -> None:
    """The history is also checked with Jepsen's definitions of anomalies. For example, a poll that goes backwards is
    found."""
    made = History(("synced",))
    for offset, value in enumerate((b"a:0", b"a:1", b"a:2")):
        made.send(SYNCED, value, "a", offset)
        made.acknowledge(Told(SYNCED, offset, value, offset), offset + 0.5)
    told = [Told(SYNCED, offset, value, 5.0) for offset, value in enumerate((b"a:0", b"a:1", b"a:2"))]
    made.assign("reader", [SYNCED], 4.0)
    made.see("reader", told, 6.0)
    made.check_anomalies()
    made.see("reader", told[2:], 7.0)
    with pytest.raises(SafetyViolation, match="nonmonotonic-poll: synced-0"):
        made.check_anomalies()
    made.deleted_below[SYNCED] = 1
    made.check_anomalies()


def test_foreign_bytes_and_reads_before_the_send_are_found() -> None:
    """A read of bytes that nobody sent is found (wrong-bytes), and so is a read before the send (G1c-realtime)."""
    made = History(("synced",))
    made.see("reader", [Told(SYNCED, 0, b"a:0", 1.0)], 2.0)
    with pytest.raises(SafetyViolation, match="wrong-bytes"):
        made.check_anomalies()
    early = History(("synced",))
    early.send(SYNCED, b"a:0", "a", 3.0)
    early.see("reader", [Told(SYNCED, 0, b"a:0", 1.0)], 2.0)
    with pytest.raises(SafetyViolation, match="G1c-realtime"):
        early.check_anomalies()


def test_a_record_is_there_as_often_as_it_was_sent() -> None:
    """A producer without idempotence may write a record as often as it sent it, in any order (promise 4)."""
    made = History(())
    for serial in range(2):
        made.send(CACHED, b"a:%d" % serial, "a", 1.0, idempotent=False)
    assert made.check(CACHED, 0, [(0, b"a:1"), (1, b"a:0")]) == 2
    with pytest.raises(SafetyViolation, match="is at 0 and at 1"):
        made.check(CACHED, 0, [(0, b"a:0"), (1, b"a:0")])
    made.attempted(CACHED, b"a:0", 2)
    assert made.check(CACHED, 0, [(0, b"a:0"), (1, b"a:1"), (2, b"a:0")]) == 3
    made.see("auditor", [Told(CACHED, 0, b"a:0", 5.0), Told(CACHED, 1, b"a:1", 5.0)], 6.0, final=True)
    made.see("auditor", [Told(CACHED, 2, b"a:0", 6.0)], 7.0, final=True)
    made.check_anomalies()
    with pytest.raises(SafetyViolation, match="is at 0 and at 3"):
        made.check(CACHED, 0, [(0, b"a:0"), (1, b"a:1"), (2, b"a:0"), (3, b"a:0")])


@pytest.mark.parametrize("how", ["acknowledged", "read", "witnessed"])
def test_what_is_sent_later_is_behind_what_was_known_before(how: str) -> None:
    """A record is placed after all records that were known before it was sent (promise 5)."""
    made = History(())
    made.send(CACHED, b"a:0", "a", 1.0)
    first = Told(CACHED, 1, b"a:0", 1.0)
    if how == "acknowledged":
        made.acknowledge(first, 2.0)
    elif how == "read":
        made.see("reader", [first], 2.0)
    else:
        made.witness(first, 2.0)
    made.send(CACHED, b"b:0", "b", 1.5)
    made.send(CACHED, b"c:0", "c", 2.5)
    assert made.check(CACHED, 0, [(0, b"b:0"), (1, b"a:0"), (2, b"c:0")]) == 3
    with pytest.raises(SafetyViolation, match=r"c:0.* was sent at 2.5.* is at 0, before b'a:0' at 1"):
        made.check(CACHED, 0, [(0, b"c:0"), (1, b"a:0")])


def test_what_a_loss_of_power_took_may_come_back_behind_other_records() -> None:
    """After a power loss, a record that was known before may be sent again, and then follows other records."""
    for heard in (2.0, 4.0):
        made = History(())
        made.send(CACHED, b"a:0", "a", 1.0)
        made.witness(Told(CACHED, 1, b"a:0", 1.5), heard)
        made.power_losses.append(3.0)
        made.send(CACHED, b"c:0", "c", 5.0)
        assert made.check(CACHED, 0, [(0, b"c:0"), (1, b"a:0")]) == 2
        made.witness(Told(CACHED, 1, b"a:0", 5.5), 6.0)
        made.send(CACHED, b"d:0", "d", 7.0)
        with pytest.raises(SafetyViolation, match=r"d:0.* was sent at 7.0"):
            made.check(CACHED, 0, [(0, b"d:0"), (1, b"a:0")])


def test_a_synced_record_keeps_its_place_over_a_loss_of_power() -> None:
    """If a topic syncs each batch, an acknowledged record keeps its place after a power loss."""
    made = History(("synced",))
    made.send(SYNCED, b"a:0", "a", 1.0)
    made.acknowledge(Told(SYNCED, 1, b"a:0", 1.0), 2.0)
    made.power_losses.append(3.0)
    made.send(SYNCED, b"c:0", "c", 5.0)
    with pytest.raises(SafetyViolation, match=r"c:0.* was sent at 5.0"):
        made.check(SYNCED, 0, [(0, b"c:0"), (1, b"a:0")])


def test_a_send_that_failed_is_never_seen() -> None:
    """A record whose send failed must never be read (promise 6, Jepsen's G1a)."""
    made = History(())
    made.send(CACHED, b"a:0", "a", 1.0)
    made.refuse(CACHED, b"a:0", "too large", 2.0)
    made.check_anomalies()
    made.see("reader", [Told(CACHED, 0, b"a:0", 3.0)], 4.0)
    with pytest.raises(SafetyViolation, match=r"G1a: cached-0: .* failed by 'too large'"):
        made.check_anomalies()


def test_a_commit_that_was_forgotten_is_found() -> None:
    """A member that begins below an acknowledged commit of its group is found (lost-commit)."""
    made = History(())
    for serial in range(4):
        made.send(CACHED, b"a:%d" % serial, "a", 0.0)
    told = [Told(CACHED, offset, b"a:%d" % offset, 1.0) for offset in range(4)]
    made.own("one", "g", [CACHED], 1.0)
    made.see("one", told, 2.0)
    commit = made.commit("one", "g", {CACHED: 3}, 3.0)
    commit.completed, commit.outcome = 3.5, "ok"
    lost = made.commit("one", "g", {CACHED: 1}, 2.5)
    lost.over = 2.9
    made.own("two", "g", [CACHED], 4.0)
    made.see("two", [Told(CACHED, 3, b"a:3", 5.0)], 6.0)
    made.check_anomalies()
    made.own("three", "g", [CACHED], 7.0)
    made.see("three", [Told(CACHED, 1, b"a:1", 8.0)], 9.0)
    with pytest.raises(SafetyViolation, match="lost-commit: cached-0: g had committed 3"):
        made.check_anomalies()
    lost.over = None
    made.check_anomalies()
