"""The frames around metadata records, control records and coordinator records."""

from __future__ import annotations

import pytest

from odradek.wire.errors import LocalProtocolError, MalformedMessage
from odradek.wire.messages import (
    control_records,
    coordinator_records,
    metadata_records,
    share_group_records,
    streams_group_records,
)
from odradek.wire.messages.control_records import (
    EndTxnMarker,
    KRaftVersionRecord,
    LeaderChangeMessage,
    VotersRecord,
)
from odradek.wire.messages.coordinator_records import (
    LegacyOffsetCommitKey,
    OffsetCommitKey,
    OffsetCommitValue,
    TransactionLogKey,
    TransactionLogValue,
)
from odradek.wire.messages.metadata_records import NoOpRecord, TopicRecord
from odradek.wire.messages.produce import ProduceRequest
from odradek.wire.metadata_frames import (
    ControlRecordType,
    UnknownRecord,
    decode_control_record,
    decode_coordinator_key,
    decode_coordinator_value,
    decode_metadata_record,
    decode_versioned_metadata_record,
    encode_control_record,
    encode_coordinator_key,
    encode_coordinator_value,
    encode_metadata_record,
)
from tests.wire.message_values import SHAPES, generated


def test_metadata_records_survive_their_frame() -> None:
    """Every metadata record survives a round trip at every version."""
    for cls in metadata_records.RECORDS.values():
        first, last = cls.VALID_VERSIONS
        for version in range(first, last + 1):
            for record in generated(cls, version, SHAPES):
                data = encode_metadata_record(record, version)
                assert decode_versioned_metadata_record(data) == (record, version)
        assert encode_metadata_record(cls()) == encode_metadata_record(cls(), last)


def test_metadata_frame() -> None:
    """A metadata record's frame has the frame version 1, the record type, the record version and the message."""
    assert encode_metadata_record(NoOpRecord()) == b"\x01\x14\x00\x00"
    assert encode_metadata_record(TopicRecord("t", bytes(16))) == b"\x01\x02\x00\x02t" + bytes(16) + b"\x00"


@pytest.mark.parametrize("data", ["", "01", "0114", "011400", "01140000ff", "80", "ffffffffff"])
def test_malformed_metadata_frames(data: str) -> None:
    """Frames that are truncated, too long, or begin with invalid numbers are malformed."""
    with pytest.raises(MalformedMessage):
        decode_metadata_record(bytes.fromhex(data))


@pytest.mark.parametrize("data", ["00140000", "02140000", "01630000", "01140100"])
def test_unknown_metadata_frames(data: str) -> None:
    """Another frame version, and types or versions unknown to Kafka 4.3, raise UnknownRecord."""
    with pytest.raises(UnknownRecord):
        decode_metadata_record(bytes.fromhex(data))


def test_only_metadata_records_are_framed_as_such() -> None:
    """Only metadata records can be framed. Requests and control records are refused."""
    for message in (ProduceRequest(), VotersRecord()):
        with pytest.raises(LocalProtocolError):
            encode_metadata_record(message)


def test_control_records_of_the_quorum() -> None:
    """A control record's key has version 0 and the type. The message's first field is its version."""
    for type_, record in (
        (ControlRecordType.LEADER_CHANGE, LeaderChangeMessage(0, 3)),
        (
            ControlRecordType.LEADER_CHANGE,
            LeaderChangeMessage(1, 3, [control_records.LeaderChangeMessageVoter(1, bytes(range(16)))]),
        ),
        (ControlRecordType.SNAPSHOT_HEADER, control_records.SnapshotHeaderRecord(0, 5)),
        (ControlRecordType.SNAPSHOT_FOOTER, control_records.SnapshotFooterRecord(0)),
        (ControlRecordType.KRAFT_VERSION, KRaftVersionRecord(0, 1)),
        (ControlRecordType.KRAFT_VOTERS, VotersRecord(0)),
    ):
        key, value = encode_control_record(record)
        assert key == bytes((0, 0, 0, type_))
        assert decode_control_record(key, value) == (type_, record)


@pytest.mark.parametrize("type_", [ControlRecordType.ABORT, ControlRecordType.COMMIT])
def test_markers_of_transactions(type_: ControlRecordType) -> None:
    """A transaction marker's value has version 0 and the coordinator epoch."""
    key, value = encode_control_record(EndTxnMarker(7), type_)
    assert (key, value) == (bytes((0, 0, 0, type_)), b"\x00\x00\x00\x00\x00\x07")
    assert decode_control_record(key, value) == (type_, EndTxnMarker(7))


def test_control_record_needs_its_own_type() -> None:
    """A marker can only be encoded with an explicit type, because it does not contain whether it commits or aborts."""
    for message, type_ in (
        (EndTxnMarker(), None),
        (VotersRecord(), ControlRecordType.COMMIT),
        (NoOpRecord(), None),
    ):
        with pytest.raises(LocalProtocolError):
            encode_control_record(message, type_)


def test_newer_control_records_are_read_as_far_as_known() -> None:
    """Newer control records are read as far as they are known, since fields may only be added at the end."""
    assert decode_control_record(b"\x00\x01\x00\x01more", b"\x00\x05\x00\x00\x00\x07more") == (
        ControlRecordType.COMMIT,
        EndTxnMarker(7),
    )
    assert decode_control_record(b"\x00\x00\x00\x63", b"?") == (ControlRecordType.UNKNOWN, None)
    assert decode_control_record(b"\x00\x00\xff\xff", b"?") == (ControlRecordType.UNKNOWN, None)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("", ""),
        ("000000", "00"),
        ("ffff0001", "000000000007"),
        ("00000001", "0000000000"),
        ("00000001", "ffff00000007"),
    ],
)
def test_malformed_control_records(key: str, value: str) -> None:
    """Control records that are truncated or have a negative version are malformed."""
    with pytest.raises(MalformedMessage):
        decode_control_record(bytes.fromhex(key), bytes.fromhex(value))


def test_coordinator_records_survive_their_frame() -> None:
    """All keys and all versions of values survive a round trip, for classic, consumer, share and streams groups."""
    for module in (coordinator_records, share_group_records, streams_group_records):
        assert module.KEYS.keys() == module.VALUES.keys()
        for record_type, key_class in module.KEYS.items():
            for key in generated(key_class, 0, SHAPES):
                data = encode_coordinator_key(key)
                assert data[:2] == record_type.to_bytes(2, "big")
                assert decode_coordinator_key(data) == key
            value_class = module.VALUES[record_type]
            for version in range(value_class.VALID_VERSIONS[0], value_class.VALID_VERSIONS[1] + 1):
                for value in generated(value_class, version, SHAPES):
                    data = encode_coordinator_value(value, version)
                    assert data[:2] == version.to_bytes(2, "big")
                    assert decode_coordinator_value(key_class(), data) == value


def test_the_two_logs_number_their_records_apart() -> None:
    """Both coordinator logs number their record types separately. Type 0 is an old offset commit in one log and a
    transaction in the other."""
    data = encode_coordinator_key(TransactionLogKey("txn"))
    assert decode_coordinator_key(data, "transaction") == TransactionLogKey("txn")
    value = TransactionLogValue(7, transaction_timeout_ms=1000)
    assert decode_coordinator_value(TransactionLogKey("txn"), encode_coordinator_value(value)) == value
    key = LegacyOffsetCommitKey("g", "t", 1)
    assert decode_coordinator_key(encode_coordinator_key(key)) == key
    with pytest.raises(UnknownRecord):
        decode_coordinator_key(encode_coordinator_key(OffsetCommitKey("g", "t", 1)), "transaction")


def test_malformed_and_unknown_coordinator_records() -> None:
    """Types and versions unknown to Kafka 4.3 raise UnknownRecord, and truncated records are malformed."""
    with pytest.raises(UnknownRecord):
        decode_coordinator_key(b"\x00\x63\x00")
    with pytest.raises(UnknownRecord):
        decode_coordinator_value(OffsetCommitKey(), b"\x00\x63\x00")
    for data in (b"", b"\x00", b"\x00\x01", encode_coordinator_key(OffsetCommitKey("g", "t", 1)) + b"x"):
        with pytest.raises(MalformedMessage):
            decode_coordinator_key(data)
    with pytest.raises(MalformedMessage):
        decode_coordinator_value(OffsetCommitKey(), encode_coordinator_value(OffsetCommitValue(), 3)[:-1])
    with pytest.raises(LocalProtocolError):
        encode_coordinator_key(VotersRecord())
    with pytest.raises(LocalProtocolError):
        decode_coordinator_value(VotersRecord(), b"")
