"""Logs and snapshots written by Apache Kafka 4.3 (record_kafka_metadata.py): each record is decoded and re-encoded."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest

from odradek.wire.batches.batch_header import iter_batches
from odradek.wire.batches.records import Record, records
from odradek.wire.messages import metadata_records as metadata
from odradek.wire.messages.control_records import (
    KRaftVersionRecord,
    LeaderChangeMessage,
    SnapshotFooterRecord,
    SnapshotHeaderRecord,
    VotersRecord,
)
from odradek.wire.messages.coordinator_records import OffsetCommitKey, OffsetCommitValue, TransactionLogKey
from odradek.wire.messages.data_records import QuorumStateData
from odradek.wire.metadata_frames import (
    CoordinatorLog,
    decode_control_record,
    decode_coordinator_key,
    decode_coordinator_value,
    decode_versioned_metadata_record,
    encode_control_record,
    encode_coordinator_key,
    encode_coordinator_value,
    encode_metadata_record,
)
from odradek.wire.schema.generate import snake_case
from odradek.wire.structure import Message
from odradek.wire.uuid_text import uuid_from_text
from tests.wire.message_values import contains

DATA = Path(__file__).parent / "data"
METADATA_FILES = ("cluster_metadata.log", "0-0.checkpoint", "bootstrap.checkpoint", "snapshot.checkpoint")


def held(name: str) -> Iterator[tuple[bool, Record]]:
    """Yield every record of a file, and whether it is a control record."""
    data = (DATA / name).read_bytes()
    end = 0
    for offset, header in iter_batches(data):
        for record in records(data, offset, decompressed_bytes_max=1 << 20):
            yield header.is_control, record
        end = offset + header.size
    assert end == len(data)


def metadata_messages(name: str) -> list[Message]:
    """Return the messages of a metadata file in order, including control records."""
    found: list[Message] = []
    for is_control, record in held(name):
        assert record.value is not None
        if is_control:
            assert record.key is not None
            type_, message = decode_control_record(record.key, record.value)
            assert message is not None
            assert encode_control_record(message, type_) == (record.key, record.value)
        else:
            message, version = decode_versioned_metadata_record(record.value)
            assert encode_metadata_record(message, version) == record.value
        found.append(message)
    return found


@pytest.mark.parametrize("name", METADATA_FILES)
def test_metadata_files_re_encode_to_their_bytes(name: str) -> None:
    """Each decoded metadata record is encoded to the same bytes as Kafka's."""
    assert metadata_messages(name)


def test_metadata_log_has_what_was_done() -> None:
    """The metadata log has the topics, configurations, quotas, users and ACLs that Kafka was given."""
    messages = metadata_messages("cluster_metadata.log")
    kinds = Counter(type(message) for message in messages)
    assert {
        LeaderChangeMessage,
        metadata.RegisterBrokerRecord,
        metadata.RegisterControllerRecord,
        metadata.FeatureLevelRecord,
        metadata.TopicRecord,
        metadata.PartitionRecord,
        metadata.RemoveTopicRecord,
        metadata.ConfigRecord,
        metadata.BrokerRegistrationChangeRecord,
        metadata.PartitionChangeRecord,
        metadata.ClientQuotaRecord,
        metadata.UserScramCredentialRecord,
        metadata.RemoveUserScramCredentialRecord,
        metadata.AccessControlEntryRecord,
        metadata.RemoveAccessControlEntryRecord,
        metadata.ProducerIdsRecord,
        metadata.BeginTransactionRecord,
        metadata.EndTransactionRecord,
    } <= kinds.keys()
    assert kinds[metadata.RegisterBrokerRecord] == 2
    topics = {
        message.name: message.topic_id for message in messages if isinstance(message, metadata.TopicRecord)
    }
    events = {
        message.partition_id
        for message in messages
        if isinstance(message, metadata.PartitionRecord) and message.topic_id == topics["events"]
    }
    assert events == set(range(5))
    configs = [
        (message.resource_name, message.name, message.value)
        for message in messages
        if isinstance(message, metadata.ConfigRecord)
    ]
    assert ("events", "retention.ms", "60000") in configs
    assert ("events", "min.insync.replicas", None) in configs
    quota = next(message for message in messages if isinstance(message, metadata.ClientQuotaRecord))
    assert [(entity.entity_type, entity.entity_name) for entity in quota.entity] in (
        [("user", "alice"), ("client-id", None)],
        [("client-id", None), ("user", "alice")],
    )
    acl = next(message for message in messages if isinstance(message, metadata.AccessControlEntryRecord))
    assert (acl.principal, acl.host, acl.resource_name) == ("User:alice", "*", "ev")


def test_voters_and_kraft_version_are_in_the_first_snapshot() -> None:
    """A dynamic quorum's voters and `kraft.version` are in its first snapshot, 0-0.checkpoint (KIP-853)."""
    messages = metadata_messages("0-0.checkpoint")
    assert [type(message) for message in messages] == [
        SnapshotHeaderRecord,
        KRaftVersionRecord,
        VotersRecord,
        SnapshotFooterRecord,
    ]
    _, version, voters, _ = messages
    assert isinstance(version, KRaftVersionRecord)
    assert version.kraft_version == 1
    assert isinstance(voters, VotersRecord)
    (voter,) = voters.voters
    assert voter.voter_id == 1
    assert [endpoint.name for endpoint in voter.endpoints] == ["CONTROLLER"]


def test_bootstrap_snapshot_states_each_feature() -> None:
    """The bootstrap snapshot has each feature, the metadata version first."""
    features = [
        message
        for message in metadata_messages("bootstrap.checkpoint")
        if isinstance(message, metadata.FeatureLevelRecord)
    ]
    assert features[0].name == "metadata.version"
    assert {feature.name for feature in features} >= {"transaction.version", "group.version"}


def test_snapshot_ends_with_its_footer() -> None:
    """A snapshot has a header, records and a footer."""
    messages = metadata_messages("snapshot.checkpoint")
    assert isinstance(messages[0], SnapshotHeaderRecord)
    assert isinstance(messages[-1], SnapshotFooterRecord)
    assert any(isinstance(message, metadata.TopicRecord) for message in messages)


def coordinator_messages(name: str, log: CoordinatorLog) -> list[tuple[Message, Message | None]]:
    """Decode the records of a coordinator log, and check that they encode to the same bytes; return keys and values."""
    found: list[tuple[Message, Message | None]] = []
    for is_control, record in held(name):
        assert record.key is not None
        if is_control:
            continue
        key = decode_coordinator_key(record.key, log)
        assert encode_coordinator_key(key) == record.key
        value = None
        if record.value is not None:
            value = decode_coordinator_value(key, record.value)
            version = int.from_bytes(record.value[:2], "big")
            assert encode_coordinator_value(value, version) == record.value
        found.append((key, value))
    return found


def test_group_log_re_encodes_to_its_bytes() -> None:
    """Records of classic, consumer and share groups, with offsets and tombstones, are encoded to the same bytes."""
    messages = coordinator_messages("consumer_offsets.log", "group")
    kinds = {type(key).__name__ for key, _ in messages}
    assert kinds >= {
        "GroupMetadataKey",
        "OffsetCommitKey",
        "ConsumerGroupMetadataKey",
        "ConsumerGroupMemberMetadataKey",
        "ConsumerGroupTargetAssignmentMetadataKey",
        "ConsumerGroupTargetAssignmentMemberKey",
        "ConsumerGroupCurrentMemberAssignmentKey",
        "ShareGroupMetadataKey",
        "ShareGroupMemberMetadataKey",
    }
    commits = [
        (key, value)
        for key, value in messages
        if isinstance(key, OffsetCommitKey) and isinstance(value, OffsetCommitValue)
    ]
    # The client that committed adds a zero byte to its metadata.
    assert {(key.group, key.topic, value.metadata.rstrip("\0")) for key, value in commits} == {
        ("group-classic", "placed", "note"),
        ("group-consumer", "placed", "note"),
    }
    assert any(value is None for _, value in messages)


def test_transaction_log_re_encodes_to_its_bytes() -> None:
    """Records of an aborted and a committed transaction are encoded to the same bytes."""
    messages = coordinator_messages("transaction_state.log", "transaction")
    assert len(messages) > 5
    assert all(key == TransactionLogKey("recorder") for key, _ in messages)


def test_markers_are_not_in_these_logs() -> None:
    """These logs contain no transaction markers, because offsets were committed outside of transactions."""
    for name in ("consumer_offsets.log", "transaction_state.log"):
        assert not any(is_control for is_control, _ in held(name))


def test_quorum_state_has_the_fields_of_its_message() -> None:
    """Kafka's quorum-state is JSON with the fields of QuorumStateData at its `data_version`, and UUIDs as text."""
    state = json.loads((DATA / "quorum-state").read_text())
    version = state.pop("data_version")
    fields = attrs.fields(QuorumStateData)
    assert {snake_case(name) for name in state} == {
        field.name for field in fields if contains(field.metadata["kafka"].versions, version)
    }
    assert state["leaderId"] == 1
    assert uuid_from_text(state["votedDirectoryId"]) == bytes(16)
