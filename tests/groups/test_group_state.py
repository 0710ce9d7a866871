"""Replicated state of groups: records as Kafka writes them, replay, and the state that a new coordinator restores."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.data_plane.coordination.asking import Ask
from odradek.data_plane.coordination.decision_log import Latest
from odradek.data_plane.coordination.records import CoordinatorRecord, RecordProducer, TransactionEnd
from odradek.data_plane.groups.group_settings import GroupSettings
from odradek.data_plane.groups.machine import GroupMachine
from odradek.data_plane.groups.offsets import ExpireOffsets
from odradek.data_plane.groups.records import (
    GroupMetadataValue,
    OffsetCommitValue,
    decode_key,
    group_metadata_record,
    group_metadata_tombstone,
    offset_commit_record,
    offset_tombstone,
)
from odradek.data_plane.groups.state import GroupsState, state_of
from odradek.data_plane.log.parts.verification import ONGOING
from odradek.metadata_quorum.state_machine import DecisionContext
from odradek.wire.coordinator_partition import coordinator_partition
from odradek.wire.messages.coordinator_records import MemberMetadata
from odradek.wire.metadata_frames import decode_coordinator_value

TOPIC_ID = bytes(range(16))


def test_a_committed_offset_has_kafkas_bytes() -> None:
    """A committed offset is written as by Apache Kafka 4.3: OffsetCommitValue version 4 with the topic id as tagged
    field 0."""
    value = OffsetCommitValue(10, 3, "meta", 0x0102030405060708, -1, TOPIC_ID)
    record = offset_commit_record("g", "t", 1, value)
    assert record.encoded_key().hex() == "0001" + "000167" + "000174" + "00000001"
    assert record.encoded_value() == bytes.fromhex(
        "0004" + "000000000000000a" + "00000003" + "056d657461" + "0102030405060708" + "01" + "0010"
    ) + (TOPIC_ID)


def test_only_version_1_can_say_when_an_offset_expires() -> None:
    """A commit with a retention time is written as OffsetCommitValue version 1, as by Kafka. Newer versions have no
    such field."""
    record = offset_commit_record("g", "t", 1, OffsetCommitValue(10, 3, "m", 5, 6, TOPIC_ID))
    encoded = record.encoded_value()
    assert encoded is not None
    assert encoded.hex() == "0001" + "000000000000000a" + "00016d" + "0000000000000005" + "0000000000000006"


def test_a_group_has_kafkas_bytes() -> None:
    """A group is written as by Apache Kafka 4.3: GroupMetadataValue version 3."""
    member = MemberMetadata("m", "i", "c", "/h", 2, 1, b"s", b"a")
    record = group_metadata_record("g", GroupMetadataValue("consumer", 7, "range", "m", 9, [member]))
    assert record.encoded_key().hex() == "0002" + "000167"
    encoded = record.encoded_value()
    assert encoded is not None
    assert encoded == bytes.fromhex(
        "0003"
        + "0008636f6e73756d6572"
        + "00000007"
        + "000572616e6765"
        + "00016d"
        + "0000000000000009"
        + "00000001"
        + "00016d"
        + "000169"
        + "000163"
        + "00022f68"
        + "00000002"
        + "00000001"
        + "0000000173"
        + "0000000161"
    )
    assert decode_coordinator_value(record.key, encoded) == record.value


def test_records_of_unknown_types_are_passed_over() -> None:
    """Records of unknown types are ignored, so that a coordinator can load a newer version's log."""
    assert decode_key(b"\x7f\xff\x00") is None
    assert decode_key(b"\x01") is None
    skipped: list[str] = []
    assert state_of(Latest({b"\x7f\xff\x00": b"\x00\x00", b"": None}), skipped) == GroupsState()
    assert skipped == []


@pytest.mark.parametrize("value", [b"", b"\x00", b"\xff\xff", b"\x00\x63\x00", b"\x00\x04\x00"])
def test_values_that_cannot_be_read_are_left_out(value: bytes) -> None:
    """A value of an unknown version, or a truncated one, is skipped and reported. All other groups are restored."""
    good = group_metadata_record("h", GroupMetadataValue("consumer", 1))
    skipped: list[str] = []
    state = state_of(
        Latest(
            {offset_tombstone("g", "t", 0).encoded_key(): value, good.encoded_key(): good.encoded_value()}
        ),
        skipped,
    )
    assert state.group_ids() == ["h"]
    assert len(skipped) == 1


def keys_and_values() -> st.SearchStrategy[dict[bytes, bytes | None]]:
    """Generate records that any writer may have put into the log: known types and versions, followed by any bytes."""
    version = st.integers(-1, 5).map(lambda number: number.to_bytes(2, "big", signed=True))
    made = st.builds(bytes.__add__, version, st.binary(max_size=40))
    real = st.sampled_from(
        [offset_tombstone("g", "t", 0).encoded_key(), group_metadata_tombstone("g").encoded_key()]
    )
    return st.dictionaries(st.one_of(made, real), st.one_of(st.none(), made), max_size=5)


@given(keys_and_values())
def test_no_record_keeps_a_coordinator_from_loading(latest: dict[bytes, bytes | None]) -> None:
    """A coordinator can take over from any log, whatever a client may have written into it."""
    machine = GroupMachine(GroupSettings())
    machine.restore(state_of(Latest(latest), []), 0, lambda: bytes(16))


GROUPS = st.sampled_from(["g", "h"])
RECORDS = st.one_of(
    st.builds(
        lambda group, topic, partition, offset: offset_commit_record(
            group, topic, partition, OffsetCommitValue(offset, -1, "", 1, -1, TOPIC_ID)
        ),
        GROUPS,
        st.sampled_from(["t", "u"]),
        st.integers(0, 2),
        st.integers(0, 9),
    ),
    st.builds(offset_tombstone, GROUPS, st.sampled_from(["t", "u"]), st.integers(0, 2)),
    st.builds(
        lambda group, number: group_metadata_record(group, GroupMetadataValue("consumer", number)),
        GROUPS,
        st.integers(0, 9),
    ),
)
DELETION = st.builds(lambda group: [group], GROUPS)


PRODUCERS = {number: RecordProducer(number, 0, ONGOING) for number in (1, 2)}
COMMITTED_IN_TRANSACTION = st.builds(
    lambda group, topic, partition, offset, producer: offset_commit_record(
        group, topic, partition, OffsetCommitValue(offset, -1, "", 1, -1, TOPIC_ID), PRODUCERS[producer]
    ),
    GROUPS,
    st.sampled_from(["t", "u"]),
    st.integers(0, 2),
    st.integers(0, 9),
    st.sampled_from([1, 2]),
)
ENDS = st.builds(
    lambda producer, is_commit: TransactionEnd(producer, 0, 0, is_commit, 1),
    st.sampled_from([1, 2]),
    st.booleans(),
)


def _put(latest: Latest, offset: int, record: CoordinatorRecord | TransactionEnd) -> None:
    """Return the record as it is read back from the log."""
    if isinstance(record, TransactionEnd):
        latest.end(record.producer_id, record.is_commit)
    elif record.producer is not None:
        latest.put_pending(record.producer.producer_id, offset, record.encoded_key(), record.encoded_value())
    else:
        latest.put(offset, record.encoded_key(), record.encoded_value())


@given(
    st.lists(
        st.one_of(st.one_of(RECORDS, COMMITTED_IN_TRANSACTION, ENDS).map(lambda record: [record]), DELETION),
        max_size=30,
    )
)
def test_reading_the_log_gives_the_state_that_replay_gave(
    decisions: list[list[CoordinatorRecord | TransactionEnd | str]],
) -> None:
    """Replaying records one by one, as a leader does, gives the same state as the latest record of each key."""
    state = GroupsState()
    latest = Latest()
    offset = 0
    for decision in decisions:
        records: list[CoordinatorRecord | TransactionEnd] = []
        for each in decision:
            if isinstance(each, str):
                keys = sorted({*state.offsets_of(each), *state.pending_of(each)})
                records += [offset_tombstone(each, *key) for key in keys]
                records.append(group_metadata_tombstone(each))
            else:
                records.append(each)
        state = state.replay(records, offset)
        for record in records:
            _put(latest, offset, record)
            offset += 1
    restored = state_of(latest, [])
    assert restored.metadata == state.metadata
    assert {group: offsets for group, offsets in restored.offsets.items() if offsets} == {
        group: offsets for group, offsets in state.offsets.items() if offsets
    }
    assert _left(restored) == _left(state)


def _left(state: GroupsState) -> dict[int, Any]:
    """Return the pending offsets, without empty entries."""
    return {
        producer: {group: dict(offsets) for group, offsets in state.pending[producer].items() if offsets}
        for producer in state.pending
        if any(state.pending[producer].values())
    }


def test_the_later_record_counts_whichever_transaction_ends_first() -> None:
    """If two transactions commit an offset, the later record in the log counts, whichever transaction ends first."""
    first = offset_commit_record("g", "t", 0, OffsetCommitValue(10, -1, "", 1, -1, TOPIC_ID), PRODUCERS[1])
    second = offset_commit_record("g", "t", 0, OffsetCommitValue(20, -1, "", 1, -1, TOPIC_ID), PRODUCERS[2])
    state = GroupsState().replay([first], 0).replay([second], 1)
    assert state.pending_of("g") == {("t", 0)}
    state = state.replay([TransactionEnd(2, 0, 0, True, 1)], 2)
    assert state.offsets_of("g")["t", 0].offset == 20
    assert state.pending_of("g") == {("t", 0)}
    state = state.replay([TransactionEnd(1, 0, 0, True, 1)], 3)
    assert state.offsets_of("g")["t", 0].offset == 20
    assert not state.pending_of("g")


@pytest.mark.parametrize(
    ("group_id", "java_hash"),
    [
        ("", 0),
        ("g", 103),
        ("console-consumer-12345", 158455506),
        ("polygenelubricants", -(1 << 31)),
        ("ü😀", 2015071),
    ],
)
def test_a_group_belongs_to_the_partition_that_java_computes(group_id: str, java_hash: int) -> None:
    """A group belongs to partition `Utils.abs(groupId.hashCode()) % partitions`, where the smallest int counts as 0."""
    expected = 0 if java_hash == -(1 << 31) else abs(java_hash)
    assert coordinator_partition(group_id, 1 << 31) == expected


def test_an_offset_that_a_transaction_may_replace_does_not_expire() -> None:
    """KIP-98: while a transaction's offset is pending, neither the committed offset before it nor the group expires."""
    settings = GroupSettings()
    machine = GroupMachine(settings)
    committed = offset_commit_record("g", "t", 0, OffsetCommitValue(10, -1, "", 1, -1, TOPIC_ID))
    pending = offset_commit_record("g", "t", 0, OffsetCommitValue(20, -1, "", 1, -1, TOPIC_ID), PRODUCERS[1])
    state = GroupsState().replay([committed], 0).replay([pending], 1)
    machine.restore(state, 0, lambda: bytes(16))
    context = DecisionContext(0, 0, 0, 0, Random(1), lambda: bytes(16))
    late_ms = settings.offsets_retention_ms + 2
    late = Ask(ExpireOffsets(late_ms), 0, None, late_ms)
    assert machine.decide(state, late, context).records == []
    state = state.replay([TransactionEnd(1, 0, 0, False, 1)], 2)
    removed: Any = machine.decide(state, late, context).records
    assert [record.encoded_value() for record in removed] == [None, None]
    assert removed[0].encoded_key() == committed.encoded_key()
