"""The hashes of topics: when they are computed again, and where."""

from __future__ import annotations

import attrs
import pytest

from odradek.data_plane.groups.consumers import topic_hashes
from odradek.data_plane.groups.consumers.topic_hashes import TopicHashes
from odradek.metadata_quorum.image.metadata_image import (
    BrokerImage,
    MetadataImage,
    PartitionImage,
    TopicImage,
)
from odradek.serving.layered_map import LayeredMap
from tests.groups.consumers.consumer_script import image_of, topic_id


def _image(offset: int, partition: PartitionImage, rack: str = "a") -> MetadataImage:
    """Make a cluster in which topic `t` has 100 partitions like `partition`. Broker 1 is in `rack`."""
    topic = TopicImage("t", topic_id("t"), dict.fromkeys(range(100), partition))
    brokers = {1: attrs.evolve(BROKER, rack=rack), 2: attrs.evolve(BROKER, broker_id=2, rack="b")}
    return attrs.evolve(
        image_of({}, offset),
        topics=LayeredMap({"t": topic}),
        topics_by_id=LayeredMap({topic.topic_id: topic}),
        brokers=LayeredMap(brokers),
    )


BROKER = BrokerImage(1, 1, bytes(16), (), (), "a", False, False, ())
LED_BY_1 = PartitionImage(1, 0, 0, (1, 2), (1, 2))
LED_BY_2 = PartitionImage(2, 1, 1, (1, 2), (1, 2))
MOVED = PartitionImage(2, 1, 2, (2,), (2,))


def test_a_new_leader_changes_no_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    """If a topic gets a new leader, its hash stays, without a computation. If it gets a new replica, the hash
    changes."""
    hashes = TopicHashes()
    first = hashes.of_group(["t"], _image(1, LED_BY_1))
    computed = []
    sound = topic_hashes.xxh3_64
    monkeypatch.setattr(topic_hashes, "xxh3_64", lambda data: computed.append(len(data)) or sound(data))
    assert hashes.changed(["t"], _image(2, LED_BY_2)) == []
    assert not computed
    assert hashes.unhashed(["t"], _image(2, LED_BY_2)) is None
    assert hashes.changed(["t"], _image(3, MOVED)) == ["t"]
    assert not computed
    work = hashes.unhashed(["t"], _image(3, MOVED))
    assert work is not None
    hashes.keep(work.values())
    assert hashes.of_group(["t"], work.image) == TopicHashes().of_group(["t"], work.image) != first


def test_other_racks_are_seen_with_the_next_image_of_a_topic() -> None:
    """After a change of racks, which are part of Kafka's hash, a topic is hashed again with its next change."""
    hashes = TopicHashes()
    before = _image(1, LED_BY_1)
    hashes.brokers_changed(before)
    first = hashes.of_group(["t"], before)
    after = _image(2, LED_BY_2, rack="c")
    hashes.brokers_changed(after)
    assert hashes.changed(["t"], after) == ["t"]
    assert hashes.of_group(["t"], after) == TopicHashes().of_group(["t"], after) != first


def test_more_topics_than_are_kept_are_hashed_by_decisions(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the cache has no room for further hashes, decisions compute them. Otherwise workers would compute them again
    and again."""
    monkeypatch.setattr(topic_hashes, "KEPT_MAX", 0)
    assert TopicHashes().unhashed(["t"], _image(1, LED_BY_1)) is None
