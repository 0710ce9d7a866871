"""The checker of the compacted topic: which contents of replicas it accepts."""

from __future__ import annotations

import pytest

from sim.history import SafetyViolation
from sim.load.keyed.keyed_history import Found, KeyedHistory

DAY_MS = 86_400_000


def history_of(found: list[Found]) -> KeyedHistory:
    """Make a history in which these records of partition 0 were sent and acknowledged."""
    history = KeyedHistory(DAY_MS, 0, 0)
    for each in found:
        history.send(each.record_id, 0, each.key, each.value, 0.0)
        history.acknowledge(each.record_id, each.offset)
    return history


def written() -> list[Found]:
    """Make the records at offsets 0 to 3, with the keys a, b, a, c."""
    return [
        Found(offset, b"w:%d" % offset, key, b"value %d" % offset)
        for offset, key in enumerate((b"a", b"b", b"a", b"c"))
    ]


def test_replicas_may_have_different_rests_below_deleted_records() -> None:
    """Below deleted offsets replicas may differ, since a replica on a new disk starts at the new log start (seed
    300289)."""
    found = written()
    history = history_of(found)
    history.ask_to_delete(0, 2)
    history.check_replicas(0, {"whole": found, "new": found[2:]}, 1.0)
    history.check_replicas(0, {"new": found[2:], "whole": found}, 1.0)


def test_replicas_have_one_table_from_what_is_deleted_on() -> None:
    """From the deleted offset on, a record that is missing on one replica is found."""
    found = written()
    history = history_of(found)
    history.ask_to_delete(0, 2)
    with pytest.raises(SafetyViolation, match=r"new and whole differ in partition 0: b'c': None and Found"):
        history.check_replicas(0, {"whole": found, "new": found[2:3]}, 1.0)
    with pytest.raises(SafetyViolation, match=r"new and whole differ in partition 0: b'a': None and Found"):
        history.check_replicas(0, {"whole": found, "new": found[3:]}, 1.0)


def test_a_replica_that_lacks_what_nobody_deleted_is_told() -> None:
    """Each key must be there unless DeleteRecords was requested. A record may be gone if its key has a newer record."""
    found = written()
    history = history_of(found)
    history.check_replicas(0, {"whole": found, "cleaned": found[1:]}, 1.0)
    with pytest.raises(SafetyViolation, match=r"new and whole differ in partition 0: b'b': None and Found"):
        history.check_replicas(0, {"whole": found, "new": found[2:]}, 1.0)


def test_a_deleted_record_is_still_the_one_that_was_sent() -> None:
    """A record below the deleted offset may be gone, but if present it must have the bytes that were sent."""
    found = written()
    history = history_of(found)
    history.ask_to_delete(0, 2)
    other = Found(1, b"w:1", b"b", b"another value")
    with pytest.raises(SafetyViolation, match="whole has read"):
        history.check_replicas(0, {"whole": [found[0], other, *found[2:]]}, 1.0)


def test_a_key_may_be_gone_once_its_tombstone_is_old_when_its_place_is_read() -> None:
    """A key may be missing if its tombstone has expired by the end of the read, because the cleaner may run during the
    read."""
    for read_at, may_be_gone in ((0.9, False), (1.1, True)):
        history = KeyedHistory(1000, 0, 0)
        history.send(b"w:0", 0, b"a", None, 0.0)
        history.acknowledge(b"w:0", 0)
        if may_be_gone:
            assert history.check(0, [], read_at) == 1
        else:
            with pytest.raises(SafetyViolation, match="is gone from partition 0"):
                history.check(0, [], read_at)
