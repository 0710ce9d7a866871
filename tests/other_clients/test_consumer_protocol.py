"""Unmodified librdkafka consumers with `group.protocol=consumer` (KIP-848): sharing, patterns, and the upgrade from
classic."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from odradek import Admin
from tests.node_process import RunningNode

SECONDS_MAX = 90.0
RECORDS = 40


class Member:
    """One consumer with its partitions and the records that it has read."""

    def __init__(self, bootstrap: str, group: str, topics: list[str], **settings: object) -> None:
        self.has: set[tuple[str, int]] = set()
        self.lost: list[tuple[str, int]] = []
        self.read: list[bytes] = []
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "group.protocol": "consumer",
                "auto.offset.reset": "earliest",
                **settings,
            }
        )
        self._consumer.subscribe(
            topics, on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._lost
        )

    def _assigned(self, _: object, partitions: list[TopicPartition]) -> None:
        self.has.update((each.topic, each.partition) for each in partitions)

    def _revoked(self, _: object, partitions: list[TopicPartition]) -> None:
        self.has.difference_update((each.topic, each.partition) for each in partitions)

    def _lost(self, _: object, partitions: list[TopicPartition]) -> None:
        self.lost += [(each.topic, each.partition) for each in partitions]
        self._revoked(None, partitions)

    def poll(self) -> None:
        """Read one record, if one has arrived."""
        message = self._consumer.poll(0.02)
        if message is not None:
            assert message.error() is None, message.error()
            value = message.value()
            assert isinstance(value, bytes)
            self.read.append(value)

    def close(self) -> None:
        self._consumer.close()


@contextmanager
def members(*some: Member) -> Iterator[None]:
    """Collect members, and close them after the test."""
    try:
        yield
    finally:
        for each in some:
            each.close()


def wait_until(is_so: Callable[[], bool], *some: Member) -> None:
    """Let the members poll until `is_so` is true."""
    deadline = time.monotonic() + SECONDS_MAX
    while not is_so():
        assert time.monotonic() < deadline, [(sorted(each.has), len(each.read)) for each in some]
        for each in some:
            each.poll()


def make_topic(bootstrap: str, name: str, partitions: int) -> None:
    """Create a topic."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(name, partitions, 1)])[name].result()


def write(bootstrap: str, topic: str, partitions: int) -> list[bytes]:
    """Write some records evenly to all partitions. Return them sorted."""
    producer = Producer({"bootstrap.servers": bootstrap})
    values = [f"{index:04}".encode() for index in range(RECORDS)]
    for index, value in enumerate(values):
        producer.produce(topic, value, partition=index % partitions)
    assert producer.flush(30) == 0
    return values


def test_members_share_a_topic_and_take_over(node: RunningNode, fresh_topic: Callable[[str], str]) -> None:
    """Two members divide the partitions. When one leaves, the other gets all of them, and each record is read once."""
    topic, group = fresh_topic("shared"), fresh_topic("group")
    make_topic(node.bootstrap, topic, 4)
    values = write(node.bootstrap, topic, 4)
    first = Member(node.bootstrap, group, [topic])
    with members(first):
        wait_until(lambda: len(first.read) == RECORDS, first)
        second = Member(node.bootstrap, group, [topic])
        with members(second):
            wait_until(lambda: len(first.has) == len(second.has) == 2, first, second)
            assert not first.has & second.has
            values += write(node.bootstrap, topic, 4)
            wait_until(lambda: len(first.read) + len(second.read) == 2 * RECORDS, first, second)
        wait_until(lambda: len(first.has) == 4, first)
    assert sorted(first.read + second.read) == sorted(values)
    assert not first.lost + second.lost


def test_a_pattern_is_matched_by_the_coordinator(
    node: RunningNode, fresh_topic: Callable[[str], str]
) -> None:
    """A member that subscribes to a pattern gets all topics that match, even those created later."""
    stem, group = fresh_topic("pattern"), fresh_topic("group")
    make_topic(node.bootstrap, f"{stem}-1", 1)
    member = Member(node.bootstrap, group, [f"^{stem}.*"])
    with members(member):
        wait_until(lambda: member.has == {(f"{stem}-1", 0)}, member)
        make_topic(node.bootstrap, f"{stem}-2", 1)
        wait_until(lambda: member.has == {(f"{stem}-1", 0), (f"{stem}-2", 0)}, member)


def test_a_group_changes_its_protocol_while_members_read(
    node: RunningNode, fresh_topic: Callable[[str], str]
) -> None:
    """A classic member and a member of the consumer protocol share a group. When the latter leaves, the classic member
    takes over. Each record is read once."""
    topic, group = fresh_topic("migrated"), fresh_topic("group")
    make_topic(node.bootstrap, topic, 4)
    values = write(node.bootstrap, topic, 4)
    classic = Member(
        node.bootstrap,
        group,
        [topic],
        **{"group.protocol": "classic", "heartbeat.interval.ms": 200, "session.timeout.ms": 10_000},
    )
    with members(classic), Admin({"bootstrap.servers": node.bootstrap}) as admin:
        wait_until(lambda: len(classic.read) == RECORDS, classic)
        assert _kind_of(admin, group) == "classic"
        consumer = Member(node.bootstrap, group, [topic])
        with members(consumer):
            wait_until(lambda: len(classic.has) == len(consumer.has) == 2, classic, consumer)
            assert _kind_of(admin, group) == "consumer"
            values += write(node.bootstrap, topic, 4)
            wait_until(lambda: len(classic.read) + len(consumer.read) == 2 * RECORDS, classic, consumer)
        wait_until(lambda: len(classic.has) == 4, classic)
        assert _kind_of(admin, group) == "classic"
    assert sorted(classic.read + consumer.read) == sorted(values)


def _kind_of(admin: Admin, group: str) -> str:
    (found,) = [each for each in admin.list_groups() if each.group_id == group]
    kind: str = found.group_type
    return kind
