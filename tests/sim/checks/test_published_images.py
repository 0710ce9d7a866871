"""Published images: a snapshot that lacks something is noticed, and so is a change that a delta leaves out."""

from __future__ import annotations

import attrs
import pytest

from odradek.metadata_quorum.image.image_builder import ImageBuilder
from odradek.metadata_quorum.image.image_records import records_of
from odradek.metadata_quorum.image.metadata_image import MetadataDelta, MetadataImage
from odradek.metadata_quorum.replica.publisher import difference
from odradek.wire.messages import metadata_records as wire
from odradek.wire.structure import Message
from sim.checks.derived import published_images
from sim.checks.derived.published_images import JUMP, PublishedImages
from sim.history import SafetyViolation

TOPIC = bytes([1]) * 16
DIRS = [bytes([number]) * 16 for number in (11, 12)]
RECORDS: tuple[Message, ...] = (
    wire.FeatureLevelRecord("metadata.version", 27),
    wire.RegisterBrokerRecord(broker_id=1, broker_epoch=1, incarnation_id=DIRS[0], log_dirs=DIRS[:1]),
    wire.TopicRecord("one", TOPIC),
    wire.PartitionRecord(0, TOPIC, [1, 2], [1], [1], [2], 1, 0, 0, 0, DIRS, [], []),
    wire.ConfigRecord(2, "one", "retention.ms", "1000"),
    wire.AccessControlEntryRecord(DIRS[1], 2, "one", 3, "User:u", "*", 3, 3),
    wire.ClientQuotaRecord([wire.EntityData("user", "u")], "producer_byte_rate", 5.0, False),
    wire.ProducerIdsRecord(1, 1, 1000),
)
LATER: tuple[Message, ...] = (
    wire.ConfigRecord(2, "one", "retention.ms", None),
    wire.RemoveAccessControlEntryRecord(DIRS[1]),
    wire.ClientQuotaRecord([wire.EntityData("user", "u")], "producer_byte_rate", 0.0, True),
    wire.UnfenceBrokerRecord(1, 1),
    wire.PartitionChangeRecord(partition_id=0, topic_id=TOPIC, isr=[1, 2]),
    wire.FeatureLevelRecord("group.version", 1),
)


def built(*records: Message, after: MetadataImage | None = None) -> tuple[MetadataImage, MetadataDelta]:
    """Replay records; the last is a whole jump behind the image before."""
    builder = ImageBuilder(after or MetadataImage.empty("c"))
    first = 0 if after is None else after.offset + JUMP
    for offset, record in enumerate(records, first):
        builder.replay(offset, record, 1)
    return builder.build()


def test_a_true_image_and_delta() -> None:
    """Nothing is said against what the product makes of these records."""
    check = PublishedImages(1)
    before, _ = built(*RECORDS)
    check.begin("node-1", before)
    check.published("node-1", *built(*LATER, after=before))
    assert check.images_seen == 1


@pytest.mark.parametrize(
    ("lacks", "complaint"),
    [
        (wire.ProducerIdsRecord, "next_producer_id"),
        (wire.ConfigRecord, "retention.ms"),
        (wire.ClientQuotaRecord, "producer_byte_rate"),
        (wire.AccessControlEntryRecord, "User:u"),
    ],
)
def test_a_snapshot_that_lacks_records(
    lacks: type[Message], complaint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A snapshot without the records of one kind gives another image."""
    written = records_of
    monkeypatch.setattr(
        published_images,
        "records_of",
        lambda image: (each for each in written(image) if not isinstance(each, lacks)),
    )
    check = PublishedImages(1)
    check.begin("node-1", MetadataImage.empty("c"))
    image, delta = built(*RECORDS, after=attrs.evolve(MetadataImage.empty("c"), offset=0))
    with pytest.raises(SafetyViolation, match=complaint):
        check.published("node-1", image, delta)


@pytest.mark.parametrize(
    ("field", "complaint"),
    [
        ("changed_configs", "the configuration of"),
        ("changed_acls", "the rule"),
        ("changed_quotas", "the quota"),
        ("changed_brokers", "broker 1"),
        ("changed_topics", "partition one-0"),
        ("features_changed", "a feature"),
        ("access_changed", "a change of access"),
    ],
)
def test_a_delta_that_leaves_out_a_change(field: str, complaint: str) -> None:
    """A delta without one of its parts hides a change, and the complaint names it."""
    check = PublishedImages(1)
    before, _ = built(*RECORDS)
    check.begin("node-1", before)
    image, delta = built(*LATER, after=before)
    hidden = attrs.evolve(delta, **{field: getattr(MetadataDelta(), field)})
    with pytest.raises(SafetyViolation, match=complaint):
        check.published("node-1", image, hidden)


@pytest.mark.parametrize(
    ("field", "complaint"),
    [
        ("changed_acls", "the rule"),
        ("changed_configs", "the configuration of"),
        ("changed_quotas", "the quota"),
        ("deleted_topics", "the deletion of topic"),
        ("changed_brokers", "broker 1"),
    ],
)
def test_a_snapshot_that_would_hide_a_change(
    field: str, complaint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A comparison of two images that leaves out changes is noticed, although no snapshot was loaded."""
    compared = difference
    check = PublishedImages(1)
    before, _ = built(*RECORDS)
    check.begin("node-1", before)
    image, delta = built(*LATER, wire.RemoveTopicRecord(TOPIC), after=before)
    monkeypatch.setattr(
        published_images,
        "difference",
        lambda start, end: attrs.evolve(compared(start, end), **{field: getattr(MetadataDelta(), field)}),
    )
    with pytest.raises(SafetyViolation, match=f"a snapshot takes.*{complaint}"):
        check.published("node-1", image, delta)


def test_a_snapshot_of_a_later_image() -> None:
    """Nothing is said against a true comparison; the older image stays until it is far behind."""
    check = PublishedImages(1)
    before, _ = built(*RECORDS)
    check.begin("node-1", before)
    image, delta = built(*LATER, wire.RemoveTopicRecord(TOPIC), after=before)
    check.published("node-1", image, delta)
    assert check.jumps_seen == 1


def test_a_topic_that_gets_more_partitions() -> None:
    """An added partition is no removal when the images are exchanged, since topics keep their partitions."""
    check = PublishedImages(1)
    before, _ = built(*RECORDS)
    check.begin("node-1", before)
    added = wire.PartitionRecord(1, TOPIC, [1, 2], [1], [], [], 1, 0, 0, 0, DIRS, [], [])
    check.published("node-1", *built(added, after=before))
    assert check.jumps_seen == 1
