"""Truncation of logs: three replicas in memory lead in turns, crash and follow. No committed record is ever cut."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odradek.data_plane.log.log_types import Origin
from odradek.data_plane.log.parts.leader_epochs import LeaderEpochs
from odradek.data_plane.replication.following.fetcher import parts_below_the_start
from odradek.data_plane.replication.truncation import truncation_offset
from odradek.wire.errors import KafkaError
from tests.log.support import append, batch, new_log
from tests.schedule import examples

NODES = range(3)


class Replica:
    """A log of (epoch, serial) records with its epochs, kept as a broker keeps them."""

    def __init__(self) -> None:
        self.records: list[tuple[int, int]] = []
        self.epochs = LeaderEpochs()

    def append(self, record: tuple[int, int]) -> None:
        if record[0] != self.epochs.latest:
            self.epochs.assign(record[0], len(self.records))
        self.records.append(record)

    def truncate(self, offset: int) -> None:
        del self.records[offset:]
        self.epochs.truncate_from_end(len(self.records))

    def follow(self, leader: Replica, limit: int) -> bool:
        """Fetch once, as FetchHandler answers and LeaderFetcher applies it. Return whether the replica has
        caught up."""
        end = len(self.records)
        if self.epochs.latest >= 0:
            epoch, end_offset = leader.epochs.end_offset_for(self.epochs.latest, len(leader.records))
            assert epoch >= 0, "a follower of a later epoch than its leader"
            if epoch < self.epochs.latest or end_offset < end:
                self.truncate(truncation_offset(self.epochs, end, epoch, end_offset))
                return False
        assert self.records == leader.records[:end], "it would append to a log that diverges"
        for record in leader.records[end : end + limit]:
            self.append(record)
        return len(self.records) == len(leader.records)


class Topic:
    """The replicas, and the rule of the ISR: a leader has all committed records."""

    def __init__(self) -> None:
        self.replicas = [Replica() for _ in NODES]
        self.isr = set(NODES)
        self.leader = 0
        self.epoch = 0
        self.serial = 0
        self.committed: list[tuple[int, int]] = []
        self.elect(0)

    def elect(self, node: int) -> None:
        if node not in self.isr:
            return
        self.leader = node
        self.epoch += 1
        replica = self.replicas[node]
        replica.epochs.assign(self.epoch, len(replica.records))

    def produce(self) -> None:
        self.serial += 1
        self.replicas[self.leader].append((self.epoch, self.serial))

    def fetch(self, node: int, limit: int) -> None:
        if node != self.leader:
            if self.replicas[node].follow(self.replicas[self.leader], limit):
                self.isr.add(node)
            self.commit()

    def commit(self) -> None:
        leader = self.replicas[self.leader]
        offset = len(leader.records)
        for node in sorted(self.isr):
            records = self.replicas[node].records
            same = 0
            while same < min(offset, len(records)) and records[same] == leader.records[same]:
                same += 1
            offset = min(offset, same)
        if offset > len(self.committed):
            self.committed = leader.records[:offset]

    def drop(self, node: int) -> None:
        if node != self.leader:
            self.isr.discard(node)
            self.commit()

    def check(self) -> None:
        for node in sorted(self.isr):
            assert self.replicas[node].records[: len(self.committed)] == self.committed


steps = st.lists(
    st.one_of(
        st.tuples(st.just("produce")),
        st.tuples(st.just("fetch"), st.sampled_from(NODES), st.integers(1, 3)),
        st.tuples(st.just("elect"), st.sampled_from(NODES)),
        st.tuples(st.just("drop"), st.sampled_from(NODES)),
    ),
    max_size=40,
)


@settings(max_examples=examples(300), deadline=None)
@given(steps)
def test_committed_records_stay_and_logs_agree(script: list[tuple[object, ...]]) -> None:
    """KIP-101 and KIP-279: followers that are cut by epochs agree with their leader and keep all committed records."""
    topic = Topic()
    for name, *details in script:
        getattr(topic, str(name))(*details)
        topic.check()
    for node in NODES:
        for _ in range(len(script) + 10):
            topic.fetch(node, 100)
    leader = topic.replicas[topic.leader]
    assert all(replica.records == leader.records for replica in topic.replicas)
    topic.check()


def test_an_epoch_without_records_is_cut_too() -> None:
    """A leader that appended nothing has recorded its epoch, and drops it when it follows the next leader."""
    topic = Topic()
    topic.produce()
    for node in (1, 2):
        topic.fetch(node, 9)
    topic.elect(1)
    topic.elect(2)
    topic.produce()
    for _ in range(3):
        topic.fetch(1, 9)
    assert topic.replicas[1].epochs.entries == topic.replicas[2].epochs.entries == ((1, 0), (3, 1))


@pytest.mark.reaches("replication.first_batch_cut_in_the_middle")
def test_a_log_that_parts_below_the_leaders_start_begins_anew() -> None:
    """If two logs part below the leader's start, the follower begins again. Here DeleteRecords has moved the leader's
    start into the middle of its first batch. The leader no longer knows the epoch of the follower's records (seed
    70671).

    The leader can only answer that this epoch ends where its log starts. A batch of the follower ends at this offset,
    but no batch of the leader begins there.
    """
    log = new_log()
    for _ in range(2):
        append(log, batch(1), epoch=0)
    leaders = batch(3, base_offset=1, leader_epoch=1)
    assert parts_below_the_start(log, memoryview(leaders), 2)
    assert not parts_below_the_start(log, memoryview(leaders), 1)
    assert not parts_below_the_start(log, memoryview(batch(3, base_offset=2, leader_epoch=1)), 2)
    with pytest.raises(KafkaError, match="a batch with the base offset 1 cannot follow the log end offset 2"):
        append(log, leaders, epoch=1, origin=Origin.REPLICA)
    log.truncate_fully_and_start_at(2)
    assert not parts_below_the_start(log, memoryview(leaders), 2)
    append(log, leaders, epoch=1, origin=Origin.REPLICA)
    assert (log.log_start_offset, log.log_end_offset) == (2, 4)
