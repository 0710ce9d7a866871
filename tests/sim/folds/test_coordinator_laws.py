"""The laws of coordinators' records: each has a log that obeys it, and a record that breaks it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from odradek.wire.messages.coordinator_records import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
    GroupMetadataKey,
    GroupMetadataValue,
    MemberMetadata,
    OffsetCommitKey,
    OffsetCommitValue,
    PartitionsSchema,
    TransactionLogKey,
    TransactionLogValue,
)
from odradek.wire.structure import Message
from sim.checks.folds.coordinator_folds import GroupsFold, TransactionsFold
from sim.checks.folds.group_laws import expiry_complaint
from sim.checks.folds.transaction_laws import EPOCH_MAX, judge_transaction
from sim.history import SafetyViolation
from tests.sim.folds.test_folds import data, record

Written = tuple[Message, Message | None]
EMPTY, ONGOING, PREPARE_COMMIT, PREPARE_ABORT, COMPLETE_COMMIT, COMPLETE_ABORT = range(6)
ONE, BOTH = (0,), (0, 1)


# --- transactions


def state(
    status: int,
    partitions: Sequence[int] = (),
    *,
    start: int = -1,
    epoch: int = 0,
    producer: int = 5,
    timeout: int = 60,
    at: int = 0,
    named: tuple[int, int] = (-1, -1),
) -> TransactionLogValue:
    """Make a value of a transactional id."""
    return TransactionLogValue(
        producer_id=producer,
        next_producer_id=named[0],
        producer_epoch=epoch,
        next_producer_epoch=named[1],
        transaction_timeout_ms=timeout,
        transaction_status=status,
        transaction_partitions=[PartitionsSchema("t", list(partitions))] if partitions else None,
        transaction_last_update_timestamp_ms=at,
        transaction_start_timestamp_ms=start,
    )


def judge_states(*values: TransactionLogValue | None) -> TransactionsFold:
    """Fold the values of one transactional id, each in a batch."""
    fold = TransactionsFold(judge_transaction)
    for offset, value in enumerate(values):
        fold.take(*data(offset, [record(TransactionLogKey("id"), value)]))
    return fold


BEGUN = (state(EMPTY), state(ONGOING, ONE, start=7, at=7))
LAST = EPOCH_MAX - 1
SOUND_STATES: dict[str, Sequence[TransactionLogValue | None]] = {
    "it commits": (
        *BEGUN,
        state(ONGOING, BOTH, start=7, at=9),
        state(PREPARE_COMMIT, BOTH, start=7, epoch=1),
        state(COMPLETE_COMMIT, start=7, epoch=1),
        state(ONGOING, ONE, start=12, at=12, epoch=1),
    ),
    "it is fenced, begins anew and expires": (
        *BEGUN,
        state(PREPARE_ABORT, ONE, start=7, epoch=1),
        state(COMPLETE_ABORT, start=7, epoch=1),
        state(EMPTY, epoch=1, timeout=90),
        None,
        state(EMPTY, producer=6),
    ),
    "nothing is aborted": (
        state(EMPTY),
        state(PREPARE_ABORT, start=3, epoch=1),
        state(COMPLETE_ABORT, start=3, epoch=1),
    ),
    "the epochs are used up": (
        state(EMPTY, epoch=LAST),
        state(ONGOING, ONE, start=7, at=7, epoch=LAST),
        state(PREPARE_ABORT, ONE, start=7, epoch=EPOCH_MAX),
        state(COMPLETE_ABORT, start=7, producer=6),
    ),
    "a resumed transaction goes on with a new id": (
        *BEGUN,
        state(ONGOING, ONE, start=7, named=(9, 4)),
        state(PREPARE_COMMIT, ONE, start=7, epoch=1, named=(9, 5)),
        state(COMPLETE_COMMIT, start=7, epoch=5, producer=9),
    ),
    "an administrator has written a marker": (
        *BEGUN,
        state(PREPARE_ABORT, ONE, start=7, epoch=1),
        state(COMPLETE_ABORT, start=7, epoch=LAST),
    ),
}
BROKEN_STATES: dict[str, Sequence[TransactionLogValue | None]] = {
    "the state 1 never follows None": (state(ONGOING, ONE, start=7, at=7),),
    "the state 4 never follows 1": (*BEGUN, state(COMPLETE_COMMIT, start=7)),
    "the state 5 never follows 2": (
        *BEGUN,
        state(PREPARE_COMMIT, ONE, start=7),
        state(COMPLETE_ABORT, start=7),
    ),
    "the state 0 never follows 1": (*BEGUN, state(EMPTY, epoch=1)),
    "removed while its transaction is open": (*BEGUN, None),
    "partitions are in no transaction": (state(EMPTY, ONE),),
    "it has a start time": (state(EMPTY, start=7),),
    "the timeout changes": (*BEGUN, state(ONGOING, BOTH, start=7, timeout=90)),
    "began at 7, and now at 9": (*BEGUN, state(ONGOING, BOTH, start=9, at=9)),
    "not begun with its first record": (state(EMPTY), state(ONGOING, ONE, start=7, at=9)),
    "loses [('t', 0)]": (*BEGUN, state(ONGOING, (1,), start=7)),
    "an outcome is decided for []": (*BEGUN, state(PREPARE_COMMIT, start=7)),
    "id changes too early": (state(EMPTY), state(EMPTY, producer=6)),
    "the producer epoch falls": (state(EMPTY), state(EMPTY, epoch=1), state(EMPTY)),
    "changes within a transaction": (*BEGUN, state(ONGOING, BOTH, start=7, epoch=1)),
    "skips others": (state(EMPTY), state(EMPTY, epoch=2)),
}


@pytest.mark.parametrize("name", SOUND_STATES)
def test_a_sound_transaction(name: str) -> None:
    """Transactions that follow Kafka's state machine obey the laws."""
    values = SOUND_STATES[name]
    assert judge_states(*values).values == {"id": values[-1]}


@pytest.mark.parametrize("complaint", BROKEN_STATES)
def test_a_broken_law_of_transactions(complaint: str) -> None:
    """The last record breaks a law, and the complaint names it. The records before are sound."""
    values = BROKEN_STATES[complaint]
    judge_states(*values[:-1])
    with pytest.raises(SafetyViolation) as broken:
        judge_states(*values)
    assert complaint in str(broken.value)


def test_records_behind_a_gap_are_not_judged() -> None:
    """The cleaner may have removed records, so the first record of a key behind a gap is not judged. The next one is."""
    fold = TransactionsFold(judge_transaction)
    key = TransactionLogKey("id")
    fold.take(*data(0, [record(key, state(EMPTY))]))
    fold.take(*data(5, [record(key, state(COMPLETE_COMMIT, start=7, epoch=3))]))
    with pytest.raises(SafetyViolation, match="the state 2 never follows 4"):
        fold.take(*data(6, [record(key, state(PREPARE_COMMIT, ONE, start=7, epoch=3))]))


# --- groups

RETENTION_MS = 2
SUBSCRIPTION = b"\x00\x00" + b"\x00\x00\x00\x01" + b"\x00\x01t" + b"\xff\xff\xff\xff"


def group(
    generation: int, *members: str, since: int = 0, given: bytes = b"a", kind: str = "consumer"
) -> Written:
    """Make a record of the classic group g, whose members read topic t."""
    there = [
        MemberMetadata(each, None, "c", "h", 1, 1, SUBSCRIPTION, given + each.encode()) for each in members
    ]
    return GroupMetadataKey("g"), GroupMetadataValue(kind, generation, "range", None, since, there)


def commit(at: int | None, *, topic: str = "t") -> Written:
    """Make the record of a commit at a time; the tombstone for None."""
    value = None if at is None else OffsetCommitValue(3, -1, "", at)
    return OffsetCommitKey("g", topic, 0), value


def epoch(number: int) -> Written:
    return ConsumerGroupMetadataKey("g"), ConsumerGroupMetadataValue(number)


def target(number: int) -> Written:
    return ConsumerGroupTargetAssignmentMetadataKey("g"), ConsumerGroupTargetAssignmentMetadataValue(number)


def current(number: int) -> Written:
    value = ConsumerGroupCurrentMemberAssignmentValue(number, number, 0, [], [])
    return ConsumerGroupCurrentMemberAssignmentKey("g", "m"), value


def reader(topic: str) -> Written:
    value = ConsumerGroupMemberMetadataValue(subscribed_topic_names=[topic])
    return ConsumerGroupMemberMetadataKey("g", "m"), value


def judge_groups(*written: Written, removable: bool = False, gap: int = 0) -> GroupsFold:
    """Fold records, each in a batch. The offset of a record is also its time in ms. The log begins at `gap`."""
    fold = GroupsFold(lambda place, value: removable, RETENTION_MS)
    for offset, each in enumerate(written):
        header, batch = data(gap + offset, [record(*each)])
        fold.take(header, batch)
    return fold


PAST = -1000
SOUND_GROUPS: dict[str, Sequence[Written]] = {
    "generations go on, and begin anew with the group": (
        group(1, "a"),
        group(1, "a"),
        group(2, "a", "b", given=b"x"),
        group(3),
        (GroupMetadataKey("g"), None),
        group(1, "a"),
    ),
    "epochs go on, and begin anew with the group": (
        epoch(3),
        target(3),
        current(3),
        epoch(4),
        target(4),
        current(-2),
        current(4),
        (ConsumerGroupMetadataKey("g"), None),
        epoch(1),
    ),
    "offsets of an empty group expire": (commit(9), group(1, since=0), commit(None)),
    "offsets without a group expire": (commit(PAST), commit(None)),
    "nobody reads the topic": (commit(PAST, topic="u"), group(1, "a"), commit(None, topic="u")),
    "no member reads the topic": (reader("u"), epoch(2), commit(PAST), commit(None)),
}
BROKEN_GROUPS: dict[str, Sequence[Written]] = {
    "generation falls from 2 to 1": (group(2, "a"), group(1, "a")),
    "generation 1 gives": (group(1, "a"), group(1, "a", given=b"x")),
    "epoch falls from 3 to 2": (epoch(3), epoch(2)),
    "its target falls from 3 to 2": (epoch(3), target(3), target(2)),
    "target is of epoch 4": (epoch(3), target(4)),
    "a member goes from epoch 3 to 2": (epoch(3), current(3), current(2)),
    "it expires 1 ms later": (commit(0), commit(None)),
    "it expires 2 ms later": (commit(PAST), group(1, since=2), commit(None)),
    "members that may read": (commit(PAST), group(1, "a"), commit(None)),
    "has members that may": (commit(PAST, topic="u"), group(1, "a", kind="connect"), commit(None, topic="u")),
    "its group reads the topic": (reader("t"), epoch(2), commit(PAST), commit(None)),
}


@pytest.mark.parametrize("name", SOUND_GROUPS)
def test_a_sound_group(name: str) -> None:
    """Groups whose epochs only grow, and offsets that have expired, obey the laws."""
    assert not judge_groups(*SOUND_GROUPS[name]).offsets


@pytest.mark.parametrize("complaint", BROKEN_GROUPS)
def test_a_broken_law_of_groups(complaint: str) -> None:
    """The last record breaks a law, and the complaint names it. The records before are sound."""
    *before, last = BROKEN_GROUPS[complaint]
    judge_groups(*before)
    with pytest.raises(SafetyViolation) as broken:
        judge_groups(*before, last)
    assert complaint in str(broken.value)


def test_an_offset_with_a_time_of_its_own() -> None:
    """An offset whose commit named a retention time expires at that time, even if its group has just become empty."""
    value = OffsetCommitValue(3, -1, "", 0, expire_timestamp=50)
    empty = GroupMetadataValue("consumer", 1, None, None, 49, [])
    assert expiry_complaint("t", value, (empty, None), 49, RETENTION_MS) == "it expires 1 ms later"
    assert expiry_complaint("t", value, (empty, None), 50, RETENTION_MS) is None


def test_an_offset_that_a_client_deletes_need_not_expire() -> None:
    """An offset may be removed at any time if a client has asked for it, or if its topic is gone."""
    assert not judge_groups(commit(0), commit(None), removable=True).offsets


def test_an_offset_in_an_open_transaction_never_expires() -> None:
    """An offset that an open transaction may change never expires."""
    fold = judge_groups(commit(PAST))
    fold.take(*data(1, [record(*commit(PAST))], 7))
    with pytest.raises(SafetyViolation, match="an open transaction may change it"):
        fold.take(*data(2, [record(*commit(None))]))


def test_an_offset_behind_a_gap_is_not_judged_without_its_group() -> None:
    """If the cleaner may have removed a record of the group, an offset of the group is not judged."""
    assert not judge_groups(commit(0), commit(None), gap=3).offsets
    with pytest.raises(SafetyViolation, match="it expires"):
        judge_groups(group(1, since=9), commit(0), commit(None), gap=3)
