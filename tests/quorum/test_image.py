"""Metadata images.

Replay in any batching gives the same image, deltas list the changes, and partitions need little memory.
"""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odradek.metadata_quorum.image.image_builder import ImageBuilder
from odradek.metadata_quorum.image.metadata_image import InvalidMetadata, MetadataDelta, MetadataImage
from odradek.metadata_quorum.replica.checkpoint_files import decode_snapshot
from odradek.metadata_quorum.replica.metadata_batches import read_batches
from odradek.wire.messages import metadata_records as records
from odradek.wire.messages.control_records import LeaderChangeMessage
from odradek.wire.structure import Message
from tests.schedule import examples

RECORDED = Path(__file__).parent.parent / "wire" / "data"
"""Metadata logs and snapshots that Apache Kafka 4.3 wrote."""
T1, T2, T3 = (name.encode().rjust(16, b"\1") for name in ("T1", "T2", "T3"))


def replayed(image: MetadataImage, *messages: Message) -> tuple[MetadataImage, MetadataDelta]:
    builder = ImageBuilder(image)
    for offset, message in enumerate(messages, image.offset + 1):
        builder.replay(offset, message, 1)
    return builder.build()


def partition(topic_id: bytes, number: int, **fields: object) -> records.PartitionRecord:
    values = {"replicas": [1], "isr": [1], "leader": 1, "leader_epoch": 0, "partition_epoch": 0, **fields}
    return records.PartitionRecord(partition_id=number, topic_id=topic_id, **values)


def random_access_record(random: Random) -> Message:
    """Make a record about users, ACLs, tokens or quotas.

    It draws from a few names, so that later records change earlier ones.
    """
    number = random.randrange(3)
    name = random.choice(["alice", "bob", ""])
    entity = [
        records.EntityData(kind, random.choice([None, name]))
        for kind in random.sample(["user", "client-id", "ip"], random.randrange(1, 3))
    ]
    return random.choice(
        [
            records.AccessControlEntryRecord(
                bytes([number]) * 16, 2, name, 3, f"User:{name}", "*", number, random.choice([2, 3])
            ),
            records.RemoveAccessControlEntryRecord(bytes([number]) * 16),
            records.UserScramCredentialRecord(name, number, b"salt", random.randbytes(4), b"server", 4096),
            records.RemoveUserScramCredentialRecord(name, number),
            records.ClientQuotaRecord(entity, "producer_byte_rate", random.random(), random.random() < 0.3),
            records.DelegationTokenRecord(
                "User:a", "User:b", ["User:c", "User:d"], 1, 3, 2, f"token-{number}"
            ),
            records.RemoveDelegationTokenRecord(f"token-{number}"),
        ]
    )


def random_history(random: Random, length: int) -> list[Message]:
    """Make a sequence of records that are valid one after another."""
    topics: dict[str, bytes] = {}
    partitions: dict[bytes, int] = {}
    brokers: dict[int, int] = {}
    history: list[Message] = []
    next_producer_id = 0
    open_transaction: tuple[dict, dict, dict, int] | None = None
    for step in range(length):
        choice = random.randrange(12)
        if choice == 0:
            name = f"t{random.choice('._-')}{random.randrange(6)}"
            if name in topics:
                partitions.pop(topics[name])
                history.append(records.RemoveTopicRecord(topics.pop(name)))
            else:
                topics[name] = step.to_bytes(16, "big")
                partitions[topics[name]] = 0
                history.append(records.TopicRecord(name, topics[name]))
        elif choice in (1, 2) and topics:
            topic_id = topics[random.choice(sorted(topics))]
            history.append(
                partition(topic_id, partitions[topic_id], replicas=[1, 2], leader=random.randrange(3))
            )
            partitions[topic_id] += 1
        elif choice in (3, 4) and any(partitions.values()):
            topic_id = random.choice([topic_id for topic_id in sorted(partitions) if partitions[topic_id]])
            number = random.randrange(partitions[topic_id])
            change = records.PartitionChangeRecord(partition_id=number, topic_id=topic_id)
            change.leader = random.choice([-2, -1, 1, 2])
            change.isr = random.choice([None, [], [1, 2]])
            history.append(change)
        elif choice == 5:
            broker_id = random.randrange(3)
            brokers[broker_id] = step
            history.append(records.RegisterBrokerRecord(broker_id=broker_id, broker_epoch=step))
        elif choice == 6 and brokers:
            broker_id = random.choice(sorted(brokers))
            fenced = random.choice([-1, 1])
            history.append(
                records.BrokerRegistrationChangeRecord(broker_id, brokers[broker_id], fenced, 0, [], None)
            )
        elif choice == 7:
            name = random.choice(["a", "b"])
            history.append(
                records.ConfigRecord(2, name, random.choice("xy"), random.choice([None, "1", "2"]))
            )
        elif choice == 8:
            next_producer_id += 1000
            history.append(records.ProducerIdsRecord(1, 1, next_producer_id))
        elif choice in (9, 10):
            history.append(random_access_record(random))
        elif open_transaction is None:
            open_transaction = dict(topics), dict(partitions), dict(brokers), next_producer_id
            history.append(records.BeginTransactionRecord("test"))
        elif random.randrange(2):
            open_transaction = None
            history.append(records.EndTransactionRecord())
        else:
            topics, partitions, brokers, next_producer_id = open_transaction
            open_transaction = None
            history.append(records.AbortTransactionRecord("test"))
    if open_transaction is not None:
        history.append(records.EndTransactionRecord())
    return history


@given(st.randoms(use_true_random=False), st.integers(1, 120))
@settings(max_examples=examples(120), deadline=None)
def test_replay_in_any_batching_gives_equal_images(random: Random, length: int) -> None:
    """A history is replayed in random batches. The image equals that of a replay in one batch."""
    history = random_history(random, length)
    at_once, _ = replayed(MetadataImage.empty("c"), *history)
    image = MetadataImage.empty("c")
    builder = ImageBuilder(image)
    for offset, record in enumerate(history):
        builder.replay(offset, record, 1)
        if random.randrange(3) == 0 and not builder.in_transaction:
            image, _ = builder.build()
            if random.randrange(2):
                builder = ImageBuilder(image)
    image, _ = builder.build()
    assert image == at_once


@given(st.randoms(use_true_random=False), st.integers(1, 80))
@settings(max_examples=examples(80), deadline=None)
def test_a_delta_names_everything_that_differs(random: Random, length: int) -> None:
    """An observer applies only the changes that the deltas list. After each delta its state equals the image."""
    topics: dict[str, object] = {}
    configs: dict[tuple[int, str], object] = {}
    brokers: dict[int, object] = {}
    image = MetadataImage.empty("c")
    builder = ImageBuilder(image)
    for offset, record in enumerate(random_history(random, length)):
        builder.replay(offset, record, 1)
        if builder.in_transaction or random.randrange(3):
            continue
        before = image
        image, delta = builder.build()
        for topic_id, topic in delta.deleted_topics.items():
            assert topic_id not in image.topics_by_id
            del topics[topic.name]
        for name, numbers in delta.changed_topics.items():
            topics[name] = image.topics[name]
            for number, found in image.topics[name].partitions.items():
                if number not in numbers:
                    assert name not in delta.created_topics
                    assert found is before.topics[name].partitions[number]
        for broker_id in delta.changed_brokers:
            brokers[broker_id] = image.brokers[broker_id]
        for resource in delta.changed_configs:
            configs.pop(resource, None)
            if resource in image.configs:
                configs[resource] = image.configs[resource]
        assert topics == dict(image.topics)
        assert brokers == image.brokers
        assert configs == dict(image.configs)
        assert delta.access_changed or image.access == before.access
        assert {topic.topic_id: topic for topic in image.topics.values()} == dict(image.topics_by_id)


def test_a_transaction_is_visible_as_a_whole_or_not_at_all() -> None:
    """Records between BeginTransaction and EndTransaction appear together. AbortTransaction drops them (KIP-868)."""
    image, _ = replayed(MetadataImage.empty("c"), records.TopicRecord("a", T1), partition(T1, 0))
    aborted, delta = replayed(
        image,
        records.BeginTransactionRecord(None),
        records.TopicRecord("b", T2),
        records.RemoveTopicRecord(T1),
        records.AbortTransactionRecord(None),
        records.NoOpRecord(),
    )
    assert aborted.topics == image.topics
    assert delta.is_empty
    assert aborted.offset == image.offset + 5
    builder = ImageBuilder(image)
    builder.replay(2, records.BeginTransactionRecord(None), 1)
    with pytest.raises(InvalidMetadata, match="transaction is open"):
        builder.build()


@pytest.mark.parametrize(
    "record",
    [
        records.TopicRecord("a", T2),
        records.RemoveTopicRecord(T2),
        partition(T2, 0),
        partition(T1, 2),
        records.PartitionChangeRecord(partition_id=7, topic_id=T1),
        records.PartitionChangeRecord(partition_id=0, topic_id=T2),
        records.BrokerRegistrationChangeRecord(broker_id=1),
        records.EndTransactionRecord(),
        records.AbortTransactionRecord(),
        records.ProducerIdsRecord(1, 1, 0),
        LeaderChangeMessage(),
    ],
    ids=lambda record: type(record).__name__,
)
def test_a_record_that_does_not_fit_stops_the_replay(record: Message) -> None:
    """A record that does not fit the image, or is of an unknown type, stops the replay. Such a record might be an
    access rule."""
    image, _ = replayed(MetadataImage.empty("c"), records.TopicRecord("a", T1), partition(T1, 0))
    with pytest.raises(InvalidMetadata):
        replayed(image, record)


def test_a_topic_made_anew_is_deleted_and_changed() -> None:
    """A batch deletes a topic and creates another topic of the same name.

    The delta lists both, and the old configuration is gone.
    """
    image, _ = replayed(
        MetadataImage.empty("c"),
        records.TopicRecord("a_b", T1),
        partition(T1, 0),
        records.ConfigRecord(2, "a_b", "retention.ms", "1"),
    )
    after, delta = replayed(
        image, records.RemoveTopicRecord(T1), records.TopicRecord("a_b", T2), partition(T2, 0)
    )
    assert list(delta.deleted_topics) == [T1]
    assert delta.created_topics == ("a_b",)
    assert delta.changed_topic_configs == ("a_b",)
    assert after.topic_configs("a_b") == {}
    assert after.colliding_names["a_b"] == ("a_b",)
    assert T1 not in after.topics_by_id


def test_leader_and_partition_epochs_only_rise() -> None:
    """Each change of a partition raises its partition epoch.

    If the leader changes, or there is none any more, the leader epoch rises.
    """
    image, _ = replayed(MetadataImage.empty("c"), records.TopicRecord("a", T1), partition(T1, 0))
    shrunk, _ = replayed(image, records.PartitionChangeRecord(partition_id=0, topic_id=T1, isr=[]))
    found = shrunk.partition("a", 0)
    assert found is not None
    assert (found.leader_epoch, found.partition_epoch, found.isr) == (0, 1, ())
    lost, _ = replayed(shrunk, records.PartitionChangeRecord(partition_id=0, topic_id=T1, leader=-1))
    found = lost.partition("a", 0)
    assert found is not None
    assert (found.leader, found.leader_epoch, found.partition_epoch) == (-1, 1, 2)


@pytest.mark.parametrize(
    "record",
    [
        partition(T1, 1, replicas=[1, 2], isr=[1, 3]),
        records.PartitionChangeRecord(partition_id=0, topic_id=T1, isr=[1, 2]),
        records.PartitionChangeRecord(partition_id=0, topic_id=T1, replicas=[2]),
    ],
)
def test_a_log_that_has_others_than_replicas_in_sync_is_refused(record: Message) -> None:
    """A record with an ISR that is no subset of the replicas is refused, even from a log of another program."""
    image, _ = replayed(MetadataImage.empty("c"), records.TopicRecord("a", T1), partition(T1, 0))
    with pytest.raises(InvalidMetadata, match="has the ISR"):
        replayed(image, record)


def test_a_recorded_kafka_log_replays() -> None:
    """A metadata log of Apache Kafka 4.3 is replayed. The image has the topics that were created."""
    builder = ImageBuilder(MetadataImage.empty("kafka"))
    data = (RECORDED / "cluster_metadata.log").read_bytes()
    known: list[tuple[int, Message, int]] = []
    for batch in read_batches(data, source="recorded log"):
        for offset, record in enumerate(batch.records, batch.base_offset):
            if not batch.is_control and record is not None:
                known.append((offset, record, batch.epoch))
    for offset, record, epoch in known:
        builder.replay(offset, record, epoch)
    image, _ = builder.build()
    assert image.metadata_version == 30
    assert image.topics
    assert image.offset <= known[-1][0]
    for name, topic in image.topics.items():
        assert image.topics_by_id[topic.topic_id] is topic
        assert list(topic.partitions) == list(range(len(topic.partitions)))
        assert image.topics[name].name == name
    removed = [record for _, record, _ in known if isinstance(record, records.RemoveTopicRecord)]
    created = [record for _, record, _ in known if isinstance(record, records.TopicRecord)]
    assert len(image.topics) == len(created) - len(removed)


def test_the_recorded_snapshot_of_voters_is_read() -> None:
    """The snapshot at offset 0 that Kafka's `format --standalone` writes is decoded, with its voters (KIP-853)."""
    snapshot = decode_snapshot((RECORDED / "0-0.checkpoint").read_bytes(), source="0-0.checkpoint")
    assert [type(record).__name__ for record in snapshot.control_records] == [
        "KRaftVersionRecord",
        "VotersRecord",
    ]
    bootstrap = decode_snapshot((RECORDED / "bootstrap.checkpoint").read_bytes(), source="bootstrap")
    assert bootstrap.records[0] == records.FeatureLevelRecord("metadata.version", 30)


def test_an_empty_partition_costs_less_than_700_bytes() -> None:
    """An empty partition needs less than 700 bytes, in 1,000 topics or in one topic."""
    for topics, partitions in ((1000, 1), (1, 1000)):
        tracemalloc.start()
        builder = ImageBuilder(MetadataImage.empty("c"))
        before = tracemalloc.get_traced_memory()[0]
        offset = 0
        for number in range(topics):
            topic_id = number.to_bytes(16, "big")
            builder.replay(offset, records.TopicRecord(f"topic-{number}", topic_id), 1)
            for index in range(partitions):
                offset += 1
                builder.replay(offset, partition(topic_id, index, directories=[T3]), 1)
            offset += 1
        image, _ = builder.build()
        used = tracemalloc.get_traced_memory()[0] - before
        tracemalloc.stop()
        assert len(image.topics) == topics
        assert used / (topics * partitions) < 700


def test_the_removal_of_eligible_leaders_is_a_change_of_the_partition() -> None:
    """ClearElrRecord raises the partition epoch of each partition that it changes, as in Kafka."""
    first, _ = replayed(
        MetadataImage.empty("c"),
        records.TopicRecord("t", T1),
        partition(T1, 0, eligible_leader_replicas=[2]),
        partition(T1, 1),
    )
    image, delta = replayed(first, records.ClearElrRecord("t"))
    changed, same = image.topics["t"].partitions.values()
    assert (changed.elr, changed.partition_epoch, changed.leader_epoch) == ((), 1, 0)
    assert same.partition_epoch == 0
    assert delta.changed_topics == {"t": (0,)}
