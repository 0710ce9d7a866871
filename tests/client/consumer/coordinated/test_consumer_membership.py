"""A consumer in a group of the new protocol (KIP-848), without sockets or clock: heartbeats, callbacks and commits."""

from __future__ import annotations

import re
from contextlib import suppress
from random import Random
from typing import Any

import pytest

from odradek.client.consumer.consumer_types import OffsetAndMetadata, SubscriptionPattern
from odradek.client.errors import ClientError, UnsupportedByBroker
from odradek.wire.api import ApiKey
from odradek.wire.errors import ErrorCode, KafkaError
from odradek.wire.messages.join_group import JoinGroupRequest
from odradek.wire.messages.offset_commit import OffsetCommitRequest
from odradek.wire.messages.offset_fetch import OffsetFetchRequest
from odradek.wire.topic_partition import TopicPartition
from tests.client.consumer.consumers import T0, fill, numbers
from tests.client.consumer.coordinated.fake_coordinator import (
    INTERVAL_SECONDS,
    CoordinatorBroker,
    new_consumer,
)
from tests.client.consumer.fake_group import FakeConsumer
from tests.client.fake_broker import HANG_UP, SILENCE
from tests.schedule import seeds

BEAT = ApiKey.CONSUMER_GROUP_HEARTBEAT
T1 = TopicPartition("t", 1)


def member(count: int = 0, partitions: int = 2, **keys: Any) -> tuple[FakeConsumer, CoordinatorBroker]:
    """Make a consumer that owns all partitions of topic `t`. Partition 0 has records."""
    found, broker = new_consumer({"t": partitions}, **keys)
    fill(broker, count)
    found.join()
    found.sleep(0.1)
    assert len(found.machine.subscription.partitions) == partitions
    return found, broker


def state(found: FakeConsumer) -> str:
    assert found.machine.membership is not None
    return str(found.machine.membership.state.value)


def commit(found: FakeConsumer, offset: int) -> None:
    found.run(found.machine.commits.commit({T0: OffsetAndMetadata(offset)}, timeout=20))


def test_a_member_reads_what_the_coordinator_assigns() -> None:
    """A member joins with epoch 0 and all fields, and acknowledges its assignment at once.

    Then it sends small heartbeats at the coordinator's interval, and calls no other API of groups.
    """
    found, broker = member(3, max_poll_interval_ms=60_000, client_rack="r", group_remote_assignor="range")
    assert found.values() == numbers(0, 2)
    assert found.events == [("assigned", ["t-0", "t-1"])]
    join, acknowledgement = broker.heartbeats()[:2]
    assert (join.member_epoch, join.rebalance_timeout_ms, join.subscribed_topic_names) == (0, 60_000, ["t"])
    assert (join.rack_id, join.server_assignor, join.topic_partitions) == ("r", "range", [])
    assert len(join.member_id) == 22
    assert acknowledgement.member_epoch == 2
    assert (acknowledgement.subscribed_topic_names, acknowledgement.rebalance_timeout_ms) == (None, -1)
    assert [topic.partitions for topic in acknowledgement.topic_partitions] == [[0, 1]]
    assert state(found) == "stable"
    before = len(broker.heartbeats())
    found.sleep(10 * INTERVAL_SECONDS + 1)
    later = broker.heartbeats()[before:]
    assert len(later) == 10
    assert all(beat.topic_partitions is None for beat in later)
    assert not broker.asked(JoinGroupRequest)


def test_only_partitions_that_go_are_revoked() -> None:
    """When one of two partitions has to go, only this one is committed and revoked.

    The member acknowledges that after the listener has returned.
    """
    found, broker = member(3)
    found.values()
    broker.assign(t=[1])
    found.sleep(INTERVAL_SECONDS)
    epochs = broker.epoch
    event = found.run(found.machine.wait(5.0))
    assert event is not None
    assert (event.kind.value, event.partitions) == ("revoked", [T0])
    assert broker.commits[T0] == (3, 0, "")
    found.sleep(2 * INTERVAL_SECONDS)
    assert [*broker.owned.values()] == [[0, 1]]
    assert broker.epoch == epochs
    found.machine.notified(event)
    found.poll(1)
    assert [*broker.owned.values()] == [[1]]
    assert broker.epoch > epochs
    assert list(found.machine.subscription.partitions) == [T1]
    assert found.events == [("assigned", ["t-0", "t-1"]), ("assigned", [])]


def test_a_fetched_record_of_a_lost_partition_is_not_handed_out() -> None:
    """Records were fetched, and then their partition is revoked.

    The poll performs the rebalance first, and returns none of them.
    """
    found, broker = member(3, enable_auto_commit=False)
    found.sleep(0.5)
    broker.assign(t=[1])
    found.sleep(INTERVAL_SECONDS)
    assert found.values() == []
    assert found.events[1:] == [("revoked", ["t-0"]), ("assigned", [])]


@pytest.mark.parametrize("code", [ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID])
def test_a_fenced_member_loses_its_partitions_and_joins_again(code: ErrorCode) -> None:
    """After FENCED_MEMBER_EPOCH the listener's `lost` is called and nothing is committed.

    The member joins again with epoch 0 and the same id.
    """
    found, broker = member(3, auto_commit_interval_ms=100_000)
    found.values()
    broker.trouble[BEAT].append(int(code))
    found.sleep(INTERVAL_SECONDS)
    assert state(found) == "fenced"
    assert found.machine.group_metadata().generation_id == 2
    found.poll(1)
    assert found.events[1:] == [("lost", ["t-0", "t-1"]), ("assigned", ["t-0", "t-1"])]
    joins = [beat.member_id for beat in broker.heartbeats() if beat.member_epoch == 0]
    assert len(joins) == 2
    assert len(set(joins)) == 1
    assert broker.asked(OffsetCommitRequest) == []
    assert found.machine.group_metadata().generation_id == broker.epoch > 2


@pytest.mark.reaches("client.reconciliation_moved_on")
def test_a_member_that_is_fenced_while_it_commits_has_lost_its_partitions() -> None:
    """A member has to give up partitions, and the commit before that is refused.

    The listener's `lost` is called, but `revoked` is not.
    """
    found, broker = member(3, auto_commit_interval_ms=100_000)
    found.values()
    broker.assign(t=[1])
    found.sleep(INTERVAL_SECONDS)
    broker.forget()
    found.poll(1)
    assert [kind for kind, _ in found.events] == ["assigned", "lost", "assigned"]
    assert T0 not in broker.commits


@pytest.mark.reaches("client.fenced_by_a_heartbeat")
def test_a_coordinator_that_forgot_the_member_is_joined_again() -> None:
    """A heartbeat fails with UNKNOWN_MEMBER_ID. The member loses its partitions, and joins again."""
    found, broker = member(1)
    broker.forget()
    found.sleep(INTERVAL_SECONDS)
    found.poll(1)
    assert [kind for kind, _ in found.events] == ["assigned", "lost", "assigned"]


@pytest.mark.reaches("client.new_member_replaced")
def test_a_replaced_static_member_stays_out_for_good() -> None:
    """After FENCED_INSTANCE_ID a static member does not join again. If it did, it would fence its successor."""
    found, broker = member(1, group_instance_id="i")
    broker.trouble[BEAT].append(int(ErrorCode.FENCED_INSTANCE_ID))
    found.sleep(INTERVAL_SECONDS)
    beats = len(broker.heartbeats())
    for _ in range(3):
        with pytest.raises(KafkaError, match="FENCED_INSTANCE_ID"):
            found.poll(1)
        with pytest.raises(KafkaError, match="FENCED_INSTANCE_ID"):
            commit(found, 1)
    assert found.events[1:] == [("lost", ["t-0", "t-1"])]
    found.close()
    assert len(broker.heartbeats()) == beats


@pytest.mark.parametrize(
    ("code", "hint"),
    [
        (ErrorCode.UNRELEASED_INSTANCE_ID, "another consumer has this group.instance.id"),
        (ErrorCode.UNSUPPORTED_ASSIGNOR, "group.remote.assignor must name"),
        (ErrorCode.INVALID_REGULAR_EXPRESSION, "must be valid for RE2"),
        (ErrorCode.GROUP_MAX_SIZE_REACHED, "group.consumer.max.size"),
        (ErrorCode.GROUP_ID_NOT_FOUND, "group.protocol=classic joins it"),
        (ErrorCode.UNSUPPORTED_VERSION, "group.version=1"),
        (ErrorCode.GROUP_AUTHORIZATION_FAILED, "GROUP_AUTHORIZATION_FAILED"),
    ],
)
def test_a_refused_join_is_raised_and_tried_again_by_the_poll_behind_it(code: ErrorCode, hint: str) -> None:
    """A refused join raises the coordinator's message with a hint what to do. The next poll joins again."""
    found, broker = new_consumer({"t": 1})
    fill(broker, 1)
    broker.trouble[BEAT].extend([int(code), int(code)])
    for _ in range(2):
        with pytest.raises(KafkaError, match=f"so it is.*{hint}|{hint}.*so it is") as caught:
            found.poll(5)
        assert caught.value.code is code
    assert found.values(5) == [b"0"]
    assert found.events == [("assigned", ["t-0"])]


def test_a_member_that_is_refused_later_has_lost_its_partitions() -> None:
    """A heartbeat fails with GROUP_AUTHORIZATION_FAILED.

    The poll raises it, the listener's `lost` is called, and the member joins again.
    """
    found, broker = member(1)
    broker.trouble[BEAT].append(int(ErrorCode.GROUP_AUTHORIZATION_FAILED))
    found.sleep(INTERVAL_SECONDS)
    with pytest.raises(KafkaError, match="GROUP_AUTHORIZATION_FAILED"):
        found.poll(1)
    found.poll(1)
    assert found.events[1:] == [("lost", ["t-0", "t-1"]), ("assigned", ["t-0", "t-1"])]


def test_a_topic_without_rights_does_not_end_the_membership() -> None:
    """TOPIC_AUTHORIZATION_FAILED is raised. The member keeps its partitions, and its next heartbeat has all fields."""
    found, broker = member(1)
    broker.trouble[BEAT].append(int(ErrorCode.TOPIC_AUTHORIZATION_FAILED))
    found.sleep(INTERVAL_SECONDS)
    with pytest.raises(KafkaError, match="TOPIC_AUTHORIZATION_FAILED"):
        found.poll(1)
    found.sleep(INTERVAL_SECONDS)
    assert state(found) == "stable"
    assert [kind for kind, _ in found.events] == ["assigned"]
    full = [beat for beat in broker.heartbeats() if beat.rebalance_timeout_ms >= 0]
    assert [beat.member_epoch for beat in full] == [0, 2]


@pytest.mark.parametrize("trouble", [SILENCE, int(ErrorCode.NOT_COORDINATOR)])
def test_after_trouble_the_next_heartbeat_has_all_fields(trouble: Any) -> None:
    """A heartbeat gets no answer or an error, so the coordinator's state is unknown.

    The next heartbeat has all fields, and the member keeps its partitions.
    """
    found, broker = member(1, request_timeout_ms=1000)
    broker.trouble[BEAT].append(trouble)
    before = len(broker.heartbeats())
    found.sleep(2 * INTERVAL_SECONDS + 1)
    again = broker.heartbeats()[before + 1]
    assert (again.member_epoch, again.subscribed_topic_names) == (2, ["t"])
    assert again.topic_partitions is not None
    found.poll(1)
    assert [kind for kind, _ in found.events] == ["assigned"]


@pytest.mark.reaches("client.new_member_left_for_not_polling")
def test_an_application_that_does_not_poll_leaves() -> None:
    """After `max.poll.interval.ms` without a poll the member leaves.

    The next poll calls the listener's `lost`, then joins again.
    """
    found, broker = member(1, max_poll_interval_ms=5000)
    found.sleep(6)
    assert broker.left == [-1]
    assert state(found) == "stale"
    beats = len(broker.heartbeats())
    found.sleep(20)
    assert len(broker.heartbeats()) == beats
    found.poll(1)
    assert [kind for kind, _ in found.events] == ["assigned", "lost", "assigned"]


@pytest.mark.parametrize(("keys", "epoch"), [({}, -1), ({"group_instance_id": "i"}, -2)])
def test_closing_leaves_the_group(keys: dict[str, str], epoch: int) -> None:
    """`close` commits, calls the listener, and then leaves the group.

    A static member leaves with the epoch that announces its return.
    """
    found, broker = member(3, **keys)
    found.values()
    found.close()
    assert broker.left == [epoch]
    assert broker.commits[T0] == (3, 0, "")
    assert found.events[1:] == [("revoked", ["t-0", "t-1"])]
    assert state(found) == "unsubscribed"


def test_unsubscribing_and_subscribing_again_keeps_the_id() -> None:
    """A consumer keeps its member id when it unsubscribes and subscribes again (KIP-848).

    A late answer to an old heartbeat changes nothing.
    """
    found, broker = member(1)
    broker.delays[BEAT] = 1.0
    found.sleep(INTERVAL_SECONDS)
    found.run(found.machine.leave("unsubscribed", 0.0))
    found.machine.subscribe(["t"])
    found.sleep(3)
    found.poll(5)
    joins = [beat.member_id for beat in broker.heartbeats() if beat.member_epoch == 0]
    assert len(joins) == 2
    assert len(set(joins)) == 1
    assert broker.left == [-1]


def test_a_changed_subscription_goes_with_the_next_heartbeat_at_once() -> None:
    """A new subscription is sent at once. The member reads its old partitions until the coordinator takes them away."""
    found, broker = new_consumer({"t": 1, "u": 1}, subscribe=False)
    found.machine.subscribe(["t"])
    found.join()
    found.sleep(0.1)
    before = len(broker.heartbeats())
    found.machine.subscribe(["u"])
    assert list(found.machine.subscription.partitions) == [T0]
    found.poll(0.5)
    changed = broker.heartbeats()[before]
    assert changed.subscribed_topic_names == ["u"]
    assert changed.rebalance_timeout_ms == -1
    assert found.events[1:] == [("revoked", ["t-0"]), ("assigned", []), ("assigned", ["u-0"])]


def test_a_pattern_is_matched_by_the_coordinator_if_the_application_asks_for_it() -> None:
    """A `SubscriptionPattern` is sent to the coordinator, which matches it.

    A `re.compile` pattern is matched by the consumer itself.
    """
    found, broker = new_consumer({"t": 1, "u": 1}, subscribe=False)
    found.machine.subscribe(SubscriptionPattern("t.*"))
    found.join()
    (join,) = [beat for beat in broker.heartbeats() if beat.member_epoch == 0]
    assert (join.subscribed_topic_regex, join.subscribed_topic_names) == ("t.*", [])
    assert list(found.machine.subscription.partitions) == [T0]
    found.machine.subscribe(re.compile("u"))
    found.poll(1)
    found.poll(1)
    assert broker.topics_wanted == ["u"]
    assert list(found.machine.subscription.partitions) == [TopicPartition("u", 0)]
    named = [beat.subscribed_topic_regex for beat in broker.heartbeats() if beat.subscribed_topic_names]
    assert named == [""]


def test_a_topic_that_was_made_anew_goes_and_comes() -> None:
    """A topic is deleted and created again under the same name.

    Its partitions are revoked and assigned again, and positions of the old topic are dropped.
    """
    found, broker = member(3, partitions=1, enable_auto_commit=False)
    found.values()
    broker.add_topic("t", 1)
    fill(broker, 1)
    broker.assign(t=[0])
    found.machine._metadata.ask()
    found.sleep(2 * INTERVAL_SECONDS)
    assert found.values(3) == [b"0"]
    assert found.events[1:] == [("revoked", ["t-0"]), ("assigned", []), ("assigned", ["t-0"])]


# Commits


def test_commits_and_fetches_of_commits_name_the_member_and_its_epoch() -> None:
    """Commits and fetches of commits contain the member id and its current epoch (KIP-848)."""
    found, broker = member(3, enable_auto_commit=False)
    found.values()
    commit(found, 2)
    asked = broker.asked(OffsetCommitRequest)[-1]
    assert (asked.member_id, asked.generation_id_or_member_epoch) == (broker.member, 2)
    (group,) = broker.asked(OffsetFetchRequest)[-1].groups
    assert (group.member_id, group.member_epoch) == (broker.member, 2)
    found.run(found.machine.leave("unsubscribed", 1.0))
    assert found.run(found.machine.commits.committed([T0], 5.0)) == {T0: OffsetAndMetadata(2)}
    (group,) = broker.asked(OffsetFetchRequest)[-1].groups
    assert (group.member_id, group.member_epoch) == (None, -1)


@pytest.mark.reaches("client.commit_waits_for_epoch")
def test_a_commit_under_a_stale_epoch_is_sent_again_behind_the_next_heartbeat(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A commit fails with STALE_MEMBER_EPOCH, since the answer to a heartbeat was lost.

    It is repeated after the next heartbeat, under the new epoch.
    """
    found, broker = member(3, enable_auto_commit=False)
    found.values()
    broker.epoch = broker.group_epoch = 3  # as if the answer with epoch 3 had been lost
    broker.trouble[BEAT].append(int(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS))
    original = CoordinatorBroker._beat

    def lenient(self: CoordinatorBroker, request: Any) -> Any:
        if request.member_epoch == 2:
            request.member_epoch = self.epoch
        return original(self, request)

    monkeypatch.setattr(CoordinatorBroker, "_beat", lenient)
    commit(found, 2)
    epochs = [each.generation_id_or_member_epoch for each in broker.asked(OffsetCommitRequest)]
    assert epochs == [2, broker.epoch]
    assert broker.epoch > 2
    assert broker.commits[T0] == (2, -1, "")
    assert [kind for kind, _ in found.events] == ["assigned"]


@pytest.mark.reaches("client.reader_refused")
def test_committed_offsets_are_fetched_again_under_the_new_epoch() -> None:
    """A fetch of commits is repeated after STALE_MEMBER_EPOCH and after UNKNOWN_MEMBER_ID."""
    found, broker = member(3, enable_auto_commit=False)
    commit(found, 2)
    broker.trouble[ApiKey.OFFSET_FETCH].append(int(ErrorCode.STALE_MEMBER_EPOCH))
    assert found.run(found.machine.commits.committed([T0], 5.0)) == {T0: OffsetAndMetadata(2)}
    broker.forget()
    assert found.run(found.machine.commits.committed([T0], 5.0)) == {T0: OffsetAndMetadata(2)}
    assert state(found) == "fenced"


@pytest.mark.reaches("client.fenced_by_a_commit")
def test_a_commit_of_an_unknown_member_is_refused_and_ends_the_membership() -> None:
    """A commit fails with UNKNOWN_MEMBER_ID.

    It is not repeated after the next join, since another member may have had the partitions.
    """
    found, broker = member(3, enable_auto_commit=False)
    found.values()
    broker.forget()
    with pytest.raises(KafkaError, match="UNKNOWN_MEMBER_ID"):
        commit(found, 2)
    assert state(found) == "fenced"
    found.poll(1)
    assert [kind for kind, _ in found.events] == ["assigned", "lost", "assigned"]
    assert T0 not in broker.commits
    commit(found, 3)
    assert broker.commits[T0] == (3, -1, "")


# The choice of the protocol


def protocol(found: FakeConsumer) -> str:
    assert found.machine.membership is not None
    return found.machine.membership.protocol


def notes(found: FakeConsumer) -> list[str]:
    return [note.text for note in found.machine.core.notes.take() if "protocol" in note.text]


@pytest.mark.parametrize("classic_state", ["Dead", "Empty"])
def test_auto_uses_the_new_protocol_where_nobody_speaks_the_classic_one(classic_state: str) -> None:
    """`group.protocol=auto`: the cluster has `group.version=1`, and the classic group is empty.

    The consumer uses the new protocol and logs that once.
    """
    found, broker = new_consumer({"t": 1}, protocol="auto")
    broker.classic_state = classic_state
    fill(broker, 1)
    assert found.values(5) == [b"0"]
    assert protocol(found) == "consumer"
    assert notes(found) == ["group g: this consumer uses the consumer protocol, since the cluster serves it"]
    broker.forget()
    found.sleep(INTERVAL_SECONDS)
    found.poll(1)
    assert [kind for kind, _ in found.events] == ["assigned", "lost", "assigned"]
    assert notes(found) == []


def test_auto_joins_a_running_classic_group_as_it_is() -> None:
    """`group.protocol=auto`: the classic group has members, so the consumer uses the classic protocol.

    Joining by the new one would convert the group.
    """
    found, broker = new_consumer({"t": 1}, protocol="auto")
    broker.classic_state = "Stable"
    fill(broker, 1)
    assert found.values(5) == [b"0"]
    assert protocol(found) == "classic"
    assert broker.heartbeats() == []
    found.run(found.machine.leave("unsubscribed", 1.0))
    broker.classic_state = "Dead"
    found.machine.subscribe(["t"])
    found.join()
    assert protocol(found) == "consumer"


@pytest.mark.reaches("client.classic_protocol_instead")
def test_auto_uses_the_classic_protocol_where_the_cluster_has_no_other() -> None:
    """With `group.protocol=auto`, the consumer uses the classic protocol if the cluster does not serve the new one.

    The cluster may have `group.version=0`, refuse the heartbeat, or lack its API.
    """
    found, broker = new_consumer({"t": 1}, protocol="auto")
    broker.group_version = 0
    fill(broker, 1)
    assert found.values(5) == [b"0"]
    assert protocol(found) == "classic"
    assert broker.heartbeats() == []
    found, broker = new_consumer({"t": 1}, protocol="auto")
    broker.trouble[BEAT].append(int(ErrorCode.UNSUPPORTED_VERSION))
    fill(broker, 1)
    assert found.values(5) == [b"0"]
    assert protocol(found) == "classic"
    found, broker = new_consumer({"t": 1}, protocol="auto")
    del broker.versions[int(BEAT)]
    fill(broker, 1)
    assert found.values(5) == [b"0"]
    assert protocol(found) == "classic"


def test_a_cluster_without_the_protocol_is_named() -> None:
    """`group.protocol=consumer`, but the broker does not serve its API. The error names the configuration key."""
    found, broker = new_consumer({"t": 1})
    del broker.versions[int(BEAT)]
    with pytest.raises(UnsupportedByBroker, match=r"group\.protocol=consumer requires"):
        found.poll(5)


def test_a_pattern_for_the_coordinator_is_matched_here_in_a_classic_group() -> None:
    """In a classic group, the consumer matches a `SubscriptionPattern` itself.

    A pattern that Python cannot compile is an error.
    """
    found, broker = new_consumer({"t": 1, "u": 1}, subscribe=False, protocol="classic")
    found.machine.subscribe(SubscriptionPattern("t.*"))
    found.join()
    assert list(found.machine.subscription.partitions) == [T0]
    found, broker = new_consumer({"t": 1, "u": 1}, subscribe=False, protocol="auto")
    broker.group_version = 0
    found.machine.subscribe(SubscriptionPattern(r"\pL"))
    with pytest.raises(ClientError, match=r"Python cannot: bad escape"):
        found.poll(5)


def test_a_rebalance_cannot_be_enforced() -> None:
    """`enforce_rebalance` sends nothing under the new protocol, since the coordinator decides. A log line says so."""
    found, broker = member(1)
    before = len(broker.heartbeats())
    found.machine.enforce_rebalance("because")
    found.sleep(0.5)
    assert len(broker.heartbeats()) == before
    assert any("enforce_rebalance" in note.text for note in found.machine.core.notes.take())


class Watched(CoordinatorBroker):
    """A coordinator that compares each member's report with the partitions that the consumer actually reads."""

    consumer: FakeConsumer

    def _note(self, request: Any) -> None:
        if request.topic_partitions is not None:
            names = {topic.topic_id: name for name, topic in self.topics.items()}
            reported = {
                TopicPartition(names[topic.topic_id], index)
                for topic in request.topic_partitions
                for index in topic.partitions
            }
            assert set(self.consumer.machine.subscription.partitions) <= reported
        super()._note(request)


TROUBLES = (
    SILENCE,
    HANG_UP,
    int(ErrorCode.NOT_COORDINATOR),
    int(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
    int(ErrorCode.FENCED_MEMBER_EPOCH),
    int(ErrorCode.UNKNOWN_MEMBER_ID),
    int(ErrorCode.GROUP_AUTHORIZATION_FAILED),
    int(ErrorCode.UNKNOWN_SERVER_ERROR),
)


@pytest.mark.parametrize("seed", seeds(20))
def test_whatever_happens_the_member_ends_with_its_target(seed: int) -> None:
    """Assignments, losses and refusals come in any order. No report omits a partition that is still read.

    The listener is called for each partition in turn: assigned, then revoked or lost. In the end the member owns its
    last target.
    """
    random = Random(seed)
    broker = Watched()
    broker.add_topic("t", 6)
    found = FakeConsumer(
        broker=broker,
        group_id="g",
        group_protocol="consumer",
        request_timeout_ms=3000,
        max_poll_interval_ms=9000,
    )
    broker.consumer = found
    found.machine.subscribe(["t"])
    for _ in range(60):
        match random.randrange(6):
            case 0:
                broker.assign(t=random.sample(range(6), random.randint(0, 6)))
            case 1:
                broker.forget()
            case 2:
                broker.trouble[random.choice((BEAT, ApiKey.OFFSET_COMMIT))].append(random.choice(TROUBLES))
            case 3:
                found.sleep(random.uniform(0, 12))
            case _:
                with suppress(KafkaError, ClientError):
                    found.poll(random.uniform(0, 3))
    broker.trouble.clear()
    broker.assign(t=[0, 3, 5])
    for _ in range(10):
        with suppress(KafkaError, ClientError):
            found.poll(3)
    wanted = {TopicPartition("t", index) for index in (0, 3, 5)}
    assert set(found.machine.subscription.partitions) == wanted
    assert [sorted(indexes) for indexes in broker.owned.values()] == [[0, 3, 5]]
    assert state(found) == "stable"
    heard: set[str] = set()
    for kind, keys in found.events:
        if kind == "assigned":
            assert not heard & set(keys)
            heard |= set(keys)
        else:
            assert set(keys) <= heard
            assert kind == "revoked" or set(keys) == heard
            heard -= set(keys)
    assert heard == set(map(str, wanted))
