"""The fold of the metadata log: the meaning of each record, and how it finds a bug in the product."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs
import pytest

from odradek.metadata_quorum.image import image_builder
from odradek.metadata_quorum.image.access_image import AccessChanges
from odradek.metadata_quorum.image.image_builder import ImageBuilder
from odradek.metadata_quorum.image.image_records import records_of
from odradek.metadata_quorum.image.metadata_image import MetadataImage
from odradek.wire.messages import metadata_records as wire
from odradek.wire.structure import Message
from sim.checks.folds.metadata_difference import metadata_difference
from sim.checks.folds.metadata_fold import MIGRATING, MetadataFold, PartitionFold, Touched
from sim.history import SafetyViolation

TOPIC, OTHER = bytes([1]) * 16, bytes([2]) * 16
DIRS = [bytes([number]) * 16 for number in (11, 12, 13)]
TROUBLED = "odradek.troubled.log.dirs"


def broker(number: int, epoch: int) -> wire.RegisterBrokerRecord:
    """Register a broker with two listeners and two directories."""
    return wire.RegisterBrokerRecord(
        broker_id=number,
        broker_epoch=epoch,
        incarnation_id=bytes([number]) * 16,
        end_points=[wire.BrokerEndpoint("B", "b", 2, 0), wire.BrokerEndpoint("A", "a", 1, 3)],
        features=[wire.BrokerFeature("metadata.version", 1, 27)],
        rack=f"rack-{number}",
        log_dirs=[DIRS[1], DIRS[0]],
    )


def partition(topic: bytes, number: int) -> wire.PartitionRecord:
    """Make a partition on three brokers, of which two are in sync."""
    return wire.PartitionRecord(number, topic, [1, 2, 3], [1, 2], [], [], 1, 0, 4, 7, DIRS, [3], [2])


LOG: Sequence[Message] = (
    wire.FeatureLevelRecord("metadata.version", 20),
    wire.FeatureLevelRecord("group.version", 1),
    wire.FeatureLevelRecord("metadata.version", 27),
    wire.FeatureLevelRecord("group.version", 0),
    broker(1, 5),
    broker(2, 6),
    wire.UnfenceBrokerRecord(1, 5),
    wire.FenceBrokerRecord(1, 5),
    wire.BrokerRegistrationChangeRecord(1, 5, -1, 0, [], None),
    wire.BrokerRegistrationChangeRecord(1, 5, 0, 1, [DIRS[2]], [DIRS[2]]),
    wire.UnregisterBrokerRecord(2, 6),
    broker(2, 9),
    wire.UnfenceBrokerRecord(2, 9),
    wire.FenceBrokerRecord(2, 9),
    wire.RegisterControllerRecord(7, DIRS[0], False, [wire.ControllerEndpoint("C", "c", 3, 0)], []),
    wire.TopicRecord("one.x", TOPIC),
    partition(TOPIC, 0),
    partition(TOPIC, 1),
    wire.TopicRecord("one_x", OTHER),
    partition(OTHER, 0),
    wire.PartitionChangeRecord(0, TOPIC, isr=[1, 3], eligible_leader_replicas=[]),
    wire.PartitionChangeRecord(0, TOPIC, leader=1),
    wire.PartitionChangeRecord(0, TOPIC, leader=-1, leader_recovery_state=1, last_known_elr=[1]),
    wire.PartitionChangeRecord(
        1, TOPIC, replicas=[2, 1], isr=[2], adding_replicas=[2], removing_replicas=[1], directories=DIRS[:2]
    ),
    wire.ClearElrRecord("one.x"),
    wire.ConfigRecord(2, "one.x", "retention.ms", "1000"),
    wire.ConfigRecord(2, "one.x", "retention.ms", "2000"),
    wire.ConfigRecord(2, "one.x", "retention.bytes", "5"),
    wire.ConfigRecord(2, "one.x", "retention.bytes", None),
    wire.ConfigRecord(2, "one.x", "retention.ms", "many"),
    wire.ConfigRecord(2, "one_x", "retention.ms", "77"),
    wire.ConfigRecord(4, "1", TROUBLED, "CwsLCwsLCwsLCwsLCwsLCw:full:5:/a"),
    wire.RemoveTopicRecord(OTHER),
    wire.ProducerIdsRecord(1, 5, 1000),
    wire.AccessControlEntryRecord(DIRS[0], 2, "one", 4, "User:a", "*", 3, 3),
    wire.AccessControlEntryRecord(DIRS[1], 2, "two", 3, "User:b", "*", 4, 2),
    wire.RemoveAccessControlEntryRecord(DIRS[1]),
    wire.UserScramCredentialRecord("a", 1, b"salt", b"stored", b"server", 4096),
    wire.UserScramCredentialRecord("b", 1, b"salt", b"stored", b"server", 4096),
    wire.RemoveUserScramCredentialRecord("b", 1),
    wire.DelegationTokenRecord("User:a", "User:b", ["User:c"], 1, 9, 5, "token"),
    wire.DelegationTokenRecord("User:a", "User:b", ["User:c"], 1, 9, 7, "token"),
    wire.DelegationTokenRecord("User:a", "User:b", [], 1, 9, 7, "gone"),
    wire.RemoveDelegationTokenRecord("gone"),
    wire.ClientQuotaRecord(
        [wire.EntityData("user", "a"), wire.EntityData("client-id", None)], "producer_byte_rate", 5.0
    ),
    wire.ClientQuotaRecord([wire.EntityData("user", "b")], "producer_byte_rate", 5.0),
    wire.ClientQuotaRecord([wire.EntityData("user", "b")], "producer_byte_rate", 0.0, True),
    wire.BeginTransactionRecord(),
    wire.ConfigRecord(2, "one.x", "segment.bytes", "4096000"),
    wire.AbortTransactionRecord(),
    wire.BeginTransactionRecord(),
    wire.ConfigRecord(2, "one.x", "cleanup.policy", "compact"),
    wire.EndTransactionRecord(),
    wire.NoOpRecord(),
)
"""A log in which every kind of record has a lasting effect."""


def folded(log: Sequence[Message] = LOG) -> MetadataFold:
    """Fold a log, with one record in each batch."""
    fold = MetadataFold()
    for offset, record in enumerate(log):
        fold.take(offset, 1 + offset // 20, [record])
    return fold


def replayed(log: Sequence[Message] = LOG) -> MetadataImage:
    """Replay a log with the product. An image is built after each record, except within a metadata transaction."""
    builder = ImageBuilder(MetadataImage.empty("cluster"))
    image = MetadataImage.empty("cluster")
    for offset, record in enumerate(log):
        builder.replay(offset, record, 1 + offset // 20)
        if not builder.in_transaction:
            image = builder.build()[0]
    return image


def test_a_partition_changes_field_by_field() -> None:
    """A partition change keeps all fields that it does not name and raises the partition epoch. If it names a leader,
    the leader epoch rises, too."""
    fold = folded()
    first, second = fold.topics[TOPIC].partitions.values()
    assert first == PartitionFold(-1, 6, 11, (1, 2, 3), (1, 3), tuple(DIRS), (), (), (), (), 1)
    assert second == PartitionFold(1, 4, 9, (2, 1), (2,), tuple(DIRS[:2]), (), (), (2,), (1,), 0)
    assert list(fold.topics) == [TOPIC]


def test_a_partition_without_directories_is_migrating() -> None:
    """A partition record without directories gets the directory id MIGRATING for each replica (KIP-858)."""
    old = wire.PartitionRecord(0, TOPIC, [1, 2], [1, 2], leader=1)
    fold = folded([wire.TopicRecord("t", TOPIC), old])
    assert fold.topics[TOPIC].partitions[0].directories == (MIGRATING, MIGRATING)


def test_nodes_change_field_by_field() -> None:
    """A broker registration replaces the earlier one. A registration change keeps the fields that it does not name."""
    fold = folded()
    first = fold.brokers[1]
    assert (first.epoch, first.fenced, first.in_controlled_shutdown) == (5, False, True)
    assert (first.log_dirs, first.cordoned_log_dirs, first.rack) == ([DIRS[2]], [DIRS[2]], "rack-1")
    second = fold.brokers[2]
    assert (second.epoch, second.fenced, second.log_dirs) == (9, True, DIRS[:2])
    assert fold.controllers[7].listeners == [("C", "c", 3, 0)]


def test_settings_are_the_last_ones() -> None:
    """The last value of each configuration counts. Removing a topic removes its configurations, and level 0 removes a
    feature."""
    fold = folded()
    assert fold.configs == {
        (2, "one.x"): {"retention.ms": ["1000", "2000", "many"], "cleanup.policy": ["compact"]},
        (4, "1"): {TROUBLED: ["CwsLCwsLCwsLCwsLCwsLCw:full:5:/a"]},
    }
    assert fold.features == {"metadata.version": 27}
    assert fold.next_producer_id == 1000


def test_access_is_the_last_one() -> None:
    """ACLs, credentials, tokens and quotas are replaced by key, and can be removed."""
    fold = folded()
    assert fold.acls == {DIRS[0]: (2, "one", 4, "User:a", "*", 3, 3)}
    assert fold.credentials == {("a", 1): (b"salt", b"stored", b"server", 4096)}
    assert fold.tokens == {"token": ("User:a", "User:b", ("User:c",), 1, 9, 7)}
    assert fold.quotas == {((("client-id", None), ("user", "a")), "producer_byte_rate"): 5.0}


@pytest.mark.parametrize(
    "record",
    [
        wire.TopicRecord("one.x", DIRS[0]),
        wire.RemoveTopicRecord(OTHER),
        partition(OTHER, 0),
        wire.PartitionChangeRecord(5, TOPIC),
        wire.PartitionChangeRecord(0, TOPIC, replicas=[1]),
        wire.FenceBrokerRecord(1, 4),
        wire.UnregisterBrokerRecord(3, 4),
        wire.ClearElrRecord("unknown"),
        wire.EndTransactionRecord(),
        wire.RemoveTopicRecord(DIRS[0]),
    ],
)
def test_a_record_that_fits_no_state_is_refused(record: Message) -> None:
    """A record that refers to something unknown raises."""
    with pytest.raises(SafetyViolation, match="metadata log: "):
        folded([*LOG, record])


@pytest.mark.parametrize("end", range(1, len(LOG) + 1))
def test_the_product_means_the_same(end: int) -> None:
    """After each record, the product's image equals the fold, also after a snapshot."""
    fold = folded(LOG[:end])
    if fold.held is not None:
        return
    image = replayed(LOG[:end])
    assert metadata_difference(fold, image) is None
    assert metadata_difference(fold, image, fold.touched) is None
    stored = MetadataFold()
    stored.take(fold.offset, fold.epoch, records_of(image))
    assert metadata_difference(stored, image) is None


def _same_leader_is_none(before: object, record: wire.PartitionChangeRecord, share: object = tuple) -> object:
    if record.leader == getattr(before, "leader", None):
        record = attrs.evolve(record, leader=-2)
    return MERGE(before, record)  # type: ignore[arg-type]  # same type as the patched function


MERGE = image_builder.merge_partition


def _nothing(*_: object) -> None:
    """Replace a function of the product, so that the record has no effect."""


def _config_stays(self: ImageBuilder, record: wire.RemoveTopicRecord) -> None:
    REMOVE(self, record)
    self._changes.configs.clear()


REMOVE = ImageBuilder._remove_topic


@pytest.mark.parametrize(
    ("owner", "name", "wrong"),
    [
        (image_builder, "merge_partition", _same_leader_is_none),
        (ImageBuilder, "_clear_elr", _nothing),
        (ImageBuilder, "_fence_broker", _nothing),
        (ImageBuilder, "_change_broker", _nothing),
        (ImageBuilder, "_set_next_producer_id", _nothing),
        (ImageBuilder, "_remove_topic", _config_stays),
        (AccessChanges, "replay", _nothing),
        (image_builder, "troubled_directories", lambda values: ()),
        (image_builder, "collision_key", lambda name: None),
    ],
)
def test_a_wrong_rule_of_the_product_is_noticed(
    monkeypatch: pytest.MonkeyPatch, owner: object, name: str, wrong: Callable[..., object]
) -> None:
    """A planted bug in any of the product's rules makes its image differ from the fold."""
    monkeypatch.setattr(owner, name, wrong)
    assert metadata_difference(folded(), replayed()) is not None


def test_only_what_changed_is_compared() -> None:
    """With a list of changes, only the listed entries are compared. Without a list, all entries are compared."""
    fold = folded()
    image = replayed()
    broken = attrs.evolve(image, controllers={})
    assert metadata_difference(fold, broken, Touched()) is None
    assert metadata_difference(fold, broken, Touched(controllers={7: None})) is not None
    assert metadata_difference(fold, broken) is not None
