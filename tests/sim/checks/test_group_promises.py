"""The ledger of a consumer group: what it accepts, and each violation that it must find."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from odradek.wire.topic_partition import TopicPartition
from sim.checks.groups.group_promises import GroupPromises
from sim.history import History, SafetyViolation, Told

KEY = TopicPartition("t", 0)
OTHER = TopicPartition("t", 1)


def group() -> GroupPromises:
    """Make a ledger after ten records were sent to one partition."""
    history = History(())
    for offset in range(10):
        history.send(KEY, b"a:%d" % offset, "a", 0.0)
    return GroupPromises("g", history)


def told(*offsets: int) -> list[Told]:
    return [Told(KEY, offset, b"a:%d" % offset, 0.0) for offset in offsets]


def owned(promises: GroupPromises, member: str, generation: int, now: float) -> None:
    """Let a member own the partition in a generation."""
    promises.owns(member, generation, [KEY], now)
    promises.begins(member, [KEY], now)


def committed(promises: GroupPromises, member: str, generation: int, offset: int, now: float) -> None:
    """Let a commit be acknowledged half a second after its request."""
    promises.committed(promises.commits(member, generation, {KEY: offset}, now), now + 0.5)


def test_a_partition_goes_from_hand_to_hand() -> None:
    """A partition's next owner begins at the last commit. Records may be handed over twice."""
    promises = group()
    owned(promises, "one", 1, 1.0)
    promises.handed("one", told(0, 1), 1.5)
    committed(promises, "one", 1, 2, 2.0)
    promises.handed("one", told(2, 3), 2.6)
    promises.ends("one", [KEY])
    owned(promises, "two", 2, 3.0)
    promises.handed("two", told(*range(2, 10)), 3.5)
    committed(promises, "two", 2, 10, 4.0)
    for offset in range(10):
        promises.history.acknowledge(told(offset)[0], 5.0)
    promises.check()
    promises.check_commits({KEY: 10, OTHER: None}, 6.0)
    assert promises.rebalances == 2


def test_a_generation_that_others_share_may_have_begun_anew() -> None:
    """A member joins generation 1 of a new group. If another member has this generation, too, the first one proves
    nothing about the old group, since its session has ended (seed 101034)."""
    promises = group()
    owned(promises, "one", 2, 1.0)
    promises.ends("one", [KEY])
    promises.owns("one", 1, [OTHER], 20.0)
    promises.begins("one", [OTHER], 20.0)
    owned(promises, "two", 1, 20.1)
    promises.handed("two", told(0, 1), 20.2)
    committed(promises, "two", 1, 2, 20.3)
    assert promises.begun_anew == 1
    promises = group()
    owned(promises, "one", 2, 1.0)
    owned(promises, "two", 1, 2.0)
    with pytest.raises(SafetyViolation, match="generation 2 had begun"):
        committed(promises, "two", 1, 0, 2.3)


def test_generations_begin_anew_where_nothing_was_committed() -> None:
    """Kafka deletes an empty group that has no commits. So generations may restart at 1 until the first commit."""
    promises = group()
    owned(promises, "one", 2, 1.0)
    promises.gone("one")
    owned(promises, "two", 1, 5.0)
    owned(promises, "two", 2, 12.0)
    assert promises.begun_anew == 1
    committed(promises, "two", 2, 0, 13.0)
    with pytest.raises(SafetyViolation, match="belongs to two and to three in generation 2"):
        promises.owns("three", 2, [KEY], 30.0)


def test_a_generation_counts_from_when_its_member_asked() -> None:
    """A generation counts from the member's request, not from the answer, which a frozen member may read much later
    (seed 900019)."""
    promises = group()
    promises.owns("one", 2, [KEY], 9.0, asked=1.0)
    promises.begins("one", [KEY], 9.0)
    owned(promises, "two", 1, 12.0)
    committed(promises, "two", 1, 0, 12.1)
    assert promises.begun_anew == 1
    promises = group()
    promises.owns("one", 2, [KEY], 9.0, asked=8.0)
    promises.begins("one", [KEY], 9.0)
    owned(promises, "two", 1, 12.0)
    with pytest.raises(SafetyViolation, match="generation 2 had begun"):
        committed(promises, "two", 1, 0, 12.1)


def test_a_member_may_hear_of_a_deleted_group() -> None:
    """A member that was frozen longer than its session may report its old ownership after the new group's first
    commit."""
    promises = group()
    owned(promises, "two", 1, 12.0)
    committed(promises, "two", 1, 0, 12.5)
    promises.owns("one", 1, [KEY], 13.5, asked=1.0)
    assert promises.begun_anew == 0
    with pytest.raises(SafetyViolation, match="belongs to two and to three in generation 1"):
        promises.owns("three", 1, [KEY], 13.5, asked=5.0)


def test_a_member_that_leaves_ends_its_session() -> None:
    """A group is deleted as soon as its last member leaves. A member that was silent for long counts as gone."""
    promises = group()
    promises.owns("silent", 1, [OTHER], 1.0)
    promises.begins("silent", [OTHER], 1.0)
    owned(promises, "one", 2, 20.0)
    promises.leaves("one")
    owned(promises, "two", 1, 21.0)
    committed(promises, "two", 1, 0, 21.5)
    assert promises.begun_anew == 1


def test_a_static_member_is_no_witness_against_itself() -> None:
    """A static member restarts and joins a new group of the same name. Its old generation is no evidence against the
    new group."""
    promises = group()
    promises.owns("one.1", 2, [KEY], 1.0, owner="one")
    promises.begins("one.1", [KEY], 1.0)
    promises.gone("one.1")
    promises.owns("one.2", 1, [KEY], 12.0, owner="one")
    promises.begins("one.2", [KEY], 12.0)
    committed(promises, "one.2", 1, 0, 12.5)
    assert promises.begun_anew == 1


def test_a_commit_without_an_answer_counts_in_a_new_group() -> None:
    """If a new group's first commit is accepted but its answer lost, the next member may begin at the committed
    offset."""
    promises = group()
    owned(promises, "one", 2, 1.0)
    promises.gone("one")
    owned(promises, "two", 1, 12.0)
    promises.handed("two", told(0, 1), 12.5)
    promises.refused(promises.commits("two", 1, {KEY: 2}, 13.0), 14.0, "lost", certain=False)
    promises.gone("two")
    owned(promises, "three", 3, 25.0)
    promises.handed("three", told(2), 25.5)


def two_owners(promises: GroupPromises) -> None:
    owned(promises, "one", 1, 1.0)
    promises.owns("two", 1, [OTHER], 1.0)
    promises.owns("two", 1, [KEY, OTHER], 1.1)


def not_its_own(promises: GroupPromises) -> None:
    owned(promises, "one", 1, 1.0)
    promises.ends("one", [KEY])
    promises.handed("one", told(0), 1.5)


def left_out(promises: GroupPromises) -> None:
    owned(promises, "one", 1, 1.0)
    promises.handed("one", told(0, 1, 3), 1.5)


def twice(promises: GroupPromises) -> None:
    owned(promises, "one", 1, 1.0)
    promises.handed("one", told(0, 1), 1.5)
    promises.handed("one", told(1), 1.6)


def begins_too_high(promises: GroupPromises) -> None:
    owned(promises, "one", 1, 1.0)
    promises.handed("one", told(3), 1.5)


def begins_too_low(promises: GroupPromises) -> None:
    owned(promises, "one", 1, 1.0)
    promises.handed("one", told(0, 1, 2), 1.5)
    committed(promises, "one", 1, 3, 2.0)
    promises.ends("one", [KEY])
    owned(promises, "two", 2, 3.0)
    promises.handed("two", told(0), 3.5)


def commits_too_much(promises: GroupPromises) -> None:
    owned(promises, "one", 1, 1.0)
    promises.handed("one", told(0, 1), 1.5)
    committed(promises, "one", 1, 3, 2.0)


def of_an_older_generation(promises: GroupPromises) -> None:
    owned(promises, "one", 1, 1.0)
    promises.owns("two", 2, [KEY], 2.0)
    committed(promises, "one", 1, 0, 3.0)


def never_handed(promises: GroupPromises) -> None:
    promises.history.acknowledge(told(4)[0], 1.0)
    promises.check()


def forgotten(promises: GroupPromises) -> None:
    owned(promises, "one", 1, 1.0)
    promises.handed("one", told(0, 1), 1.5)
    committed(promises, "one", 1, 2, 2.0)
    promises.check_commits({KEY: None}, 9.0)


@pytest.mark.parametrize(
    ("breach", "reason"),
    [
        (two_owners, "belongs to one and to two in generation 1"),
        (not_its_own, "which it does not own"),
        (left_out, "is handed 3 of t-0 behind 1"),
        (twice, "is handed 1 of t-0 behind 1"),
        (begins_too_high, r"begins t-0 at 3 .* one of \[0\]"),
        (begins_too_low, r"begins t-0 at 0 .* one of \[3\]"),
        (commits_too_much, "commits 3 of t-0, and was handed up to 2"),
        (of_an_older_generation, "a commit of generation 1 was taken"),
        (never_handed, "nobody was handed"),
        (forgotten, "None of t-0 is committed"),
    ],
)
def test_broken_promises_are_found(breach: Callable[[GroupPromises], None], reason: str) -> None:
    """A violation of each rule is found."""
    with pytest.raises(SafetyViolation, match=reason):
        breach(group())


def test_a_commit_without_an_answer_counts_until_its_generation_is_over() -> None:
    """After an unanswered commit, the next owner may begin at the old offset or the new one. The next owner's commit
    then decides."""
    for begin in (0, 2):
        promises = group()
        owned(promises, "one", 1, 1.0)
        promises.handed("one", told(0, 1), 1.5)
        promises.commits("one", 1, {KEY: 2}, 2.0)
        promises.gone("one")
        owned(promises, "two", 2, 3.0)
        promises.handed("two", told(begin), 3.5)
        committed(promises, "two", 2, begin + 1, 4.0)
        promises.ends("two", [KEY])
        owned(promises, "three", 3, 5.0)
        with pytest.raises(SafetyViolation, match=rf"one of \[{begin + 1}\]"):
            promises.handed("three", told(begin + 2), 5.5)
        promises.handed("three", told(begin + 1), 5.5)


def test_a_commit_that_was_sent_twice_may_come_late() -> None:
    """A commit sent twice may arrive again after a later commit, but only within its generation."""
    promises = group()
    owned(promises, "one", 1, 1.0)
    promises.handed("one", told(0, 1, 2), 1.5)
    promises.committed(promises.commits("one", 1, {KEY: 1}, 2.0), 2.5, times=2)
    committed(promises, "one", 1, 3, 3.0)
    promises.check_commits({KEY: 1}, 4.0)
    promises.owns("two", 2, [KEY], 5.0)
    promises.begins("two", [KEY], 5.0)
    promises.handed("two", told(1), 5.5)
    committed(promises, "two", 2, 2, 6.0)
    with pytest.raises(SafetyViolation, match=r"it can only be one of \[2\]"):
        promises.check_commits({KEY: 1}, 7.0)


def test_who_seeks_goes_on_there() -> None:
    """A member that seeks goes on reading at the new position, and may then commit a lower offset."""
    promises = group()
    owned(promises, "one", 1, 1.0)
    assert not promises.has_begun("one", KEY)
    promises.handed("one", told(0, 1, 2), 1.5)
    promises.seeks("one", KEY, 0)
    promises.handed("one", told(0), 2.0)
    committed(promises, "one", 1, 1, 2.5)
    promises.check_commits({KEY: 1}, 4.0)
    assert promises.held_by("one") == {KEY}


def test_what_was_deleted_may_be_missed() -> None:
    """After a DeleteRecords request, an owner may begin above the deleted records and skip them."""
    promises = group()
    promises.history.deleted_below[KEY] = 5
    owned(promises, "one", 1, 1.0)
    promises.handed("one", told(2, 3, 6), 1.5)
    promises.history.acknowledge(told(4)[0], 2.0)
    promises.check()
