"""The client's view of the cluster, built from answers of brokers that may lag behind."""

from __future__ import annotations

import pytest

from odradek.client.core.known_cluster import ANSWERS_IN_A_ROW, STALE_TIMES, Broker, Cluster
from odradek.wire.errors import ErrorCode, KafkaError
from odradek.wire.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

ID, OTHER_ID = b"1" * 16, b"2" * 16


def response(*topics: MetadataResponseTopic) -> MetadataResponse:
    brokers = [MetadataResponseBroker(node_id=node, host=f"h{node}", port=9092) for node in (1, 2)]
    return MetadataResponse(brokers=brokers, cluster_id="c", controller_id=1, topics=list(topics))


def topic(name: str, leader: int, epoch: int, topic_id: bytes = ID) -> MetadataResponseTopic:
    partition = MetadataResponsePartition(
        partition_index=0, leader_id=leader, leader_epoch=epoch, replica_nodes=[1, 2], isr_nodes=[1, 2]
    )
    return MetadataResponseTopic(name=name, topic_id=topic_id, partitions=[partition])


def test_an_older_leader_epoch_is_no_news() -> None:
    """A Metadata answer with an older leader epoch does not replace the known leader (KIP-320)."""
    cluster = Cluster()
    cluster.update(response(topic("t", leader=2, epoch=7)))
    cluster.update(response(topic("t", leader=1, epoch=6)))
    assert cluster.leader("t", 0) == 2
    cluster.update(response(topic("t", leader=1, epoch=8)))
    assert cluster.leader("t", 0) == 1


def test_a_leader_of_an_older_epoch_than_a_commits_is_not_asked() -> None:
    """A commit names a newer leader epoch than metadata.

    The old leader is not used, since its log may end before the commit (KIP-320).
    """
    cluster = Cluster()
    cluster.update(response(topic("t", leader=2, epoch=1)))
    assert cluster.note_epoch("t", 0, 3)
    for _ in range(3):
        with pytest.raises(KafkaError, match="has no leader"):
            cluster.leader("t", 0)
        cluster.update(response(topic("t", leader=2, epoch=1)))
    assert not cluster.set_leader("t", 0, 2, 2)
    cluster.update(response(topic("t", leader=1, epoch=3)))
    assert cluster.leader("t", 0) == 1
    assert not cluster.note_epoch("t", 0, 3)


def test_a_commits_epoch_is_remembered_until_the_topic_is_known() -> None:
    cluster = Cluster()
    cluster.update(response())
    assert not cluster.note_epoch("t", 0, 3)
    cluster.update(response(topic("t", leader=2, epoch=1)))
    assert cluster.partition("t", 0).leader == -1


def test_the_commit_of_a_deleted_topic_does_not_hide_the_leader_for_ever() -> None:
    cluster = Cluster()
    cluster.update(response(topic("t", leader=2, epoch=0)))
    assert cluster.note_epoch("t", 0, 7)
    for _ in range(STALE_TIMES):
        cluster.update(response(topic("t", leader=2, epoch=0)))
        assert cluster.partition("t", 0).leader == -1
    cluster.update(response(topic("t", leader=2, epoch=0)))
    assert cluster.leader("t", 0) == 2
    assert cluster.note_epoch("t", 0, 7)
    cluster.update(response(topic("t", leader=1, epoch=0, topic_id=OTHER_ID)))
    assert cluster.leader("t", 0) == 1


def test_a_topic_with_a_new_id_starts_over() -> None:
    """A topic that is deleted and created again has a new id, and its leader epoch begins at 0."""
    cluster = Cluster()
    cluster.update(response(topic("t", leader=2, epoch=7)))
    cluster.update(response(topic("t", leader=1, epoch=0, topic_id=OTHER_ID)))
    assert cluster.leader("t", 0) == 1
    assert cluster.topic_name(OTHER_ID) == "t"
    assert cluster.topic_name(ID) is None


def test_a_broker_that_lags_does_not_bring_a_deleted_topic_back() -> None:
    """A lagging broker still answers with the id of a deleted topic. The replaced id is not accepted again at once."""
    cluster = Cluster()
    old, new = topic("t", leader=2, epoch=7), topic("t", leader=1, epoch=0, topic_id=OTHER_ID)
    for answer in (old, new, old, old, new, old):
        cluster.update(response(answer))
    assert (cluster.topics["t"].topic_id, cluster.leader("t", 0)) == (OTHER_ID, 1)


def test_an_id_that_all_brokers_tell_is_believed_again() -> None:
    """If several answers in a row have the replaced id, it is accepted again.

    The other id may have been the old one.
    """
    cluster = Cluster()
    for answer_id in (OTHER_ID, ID):
        cluster.update(response(topic("t", leader=1, epoch=0, topic_id=answer_id)))
    for times in range(1, ANSWERS_IN_A_ROW + 1):
        cluster.update(response(topic("t", leader=1, epoch=0, topic_id=OTHER_ID)))
        assert (cluster.topics["t"].topic_id == OTHER_ID) == (times == ANSWERS_IN_A_ROW)


def test_an_answer_about_some_topics_leaves_the_others() -> None:
    """A Metadata answer about some topics leaves the others as they are.

    Only an answer about all topics removes missing ones.
    """
    cluster = Cluster()
    cluster.update(response(topic("a", 1, 0), topic("b", 1, 0)))
    cluster.update(response(topic("a", 2, 1)))
    assert sorted(cluster.topics) == ["a", "b"]
    cluster.update(response(topic("a", 2, 1)), complete=True)
    assert sorted(cluster.topics) == ["a"]


def test_a_topics_error_takes_it_away_and_is_remembered() -> None:
    """A topic's error in Metadata removes the topic, and `topic` raises this error."""
    cluster = Cluster()
    cluster.update(response(topic("t", 1, 0)))
    denied = MetadataResponseTopic(error_code=int(ErrorCode.TOPIC_AUTHORIZATION_FAILED), name="t")
    cluster.update(response(denied))
    with pytest.raises(KafkaError) as caught:
        cluster.topic("t")
    assert caught.value.code is ErrorCode.TOPIC_AUTHORIZATION_FAILED
    cluster.update(response(topic("t", 1, 0)))
    assert cluster.topic("t").topic_id == ID


def test_a_leader_hint_counts_only_when_it_is_newer_and_reachable() -> None:
    """A leader hint (KIP-951) is used only if its epoch is newer and the address of its broker is known."""
    cluster = Cluster()
    cluster.update(response(topic("t", leader=1, epoch=5)))
    assert not cluster.set_leader("t", 0, 2, 5)
    assert not cluster.set_leader("t", 0, 3, 6), (
        "a hint was accepted, although the address of broker 3 is unknown"
    )
    assert not cluster.set_leader("gone", 0, 2, 6)
    cluster.add_brokers([Broker(3, "h3", 9092)])
    assert cluster.set_leader("t", 0, 3, 6)
    assert cluster.leader("t", 0) == 3


def test_errors_name_what_is_missing() -> None:
    """An unknown topic, an unknown partition and a missing leader are errors with different codes and texts."""
    cluster = Cluster()
    cluster.update(response(topic("t", leader=-1, epoch=5)))
    with pytest.raises(KafkaError, match="topic gone"):
        cluster.topic("gone")
    with pytest.raises(KafkaError, match=r"no partition 3 \(it has 1\)"):
        cluster.partition("t", 3)
    with pytest.raises(KafkaError, match="t-0 has no leader") as caught:
        cluster.leader("t", 0)
    assert caught.value.code is ErrorCode.LEADER_NOT_AVAILABLE
