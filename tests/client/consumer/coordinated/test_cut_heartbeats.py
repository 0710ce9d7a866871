"""Members of the new protocol (KIP-848) whose heartbeats lose their answers, on Apache Kafka and on our own node.

Each heartbeat may lose its connection as soon as the server has it, so that nobody knows whether it counts. The next
one has all fields. Members come and go meanwhile.
"""

from __future__ import annotations

import random
import socket
from collections.abc import Callable, Iterator

import pytest

from odradek import Consumer
from odradek.client.consumer.consumer_membership import ConsumerMembership
from odradek.client.consumer.consumer_types import ConsumerRecord
from tests.client.consumer.clusters import SERVERS, Cluster, Told, poll_until

pytestmark = pytest.mark.long
"""These tests start their own servers, so `make quick` leaves them out."""

PARTITIONS = 6
MEMBERS_MAX = 4
STEPS = 16
RECORDS = 60


@pytest.fixture(params=SERVERS)
def cluster(request: pytest.FixtureRequest, fresh_topic: Callable[[str], str]) -> Iterator[Cluster]:
    """One of the servers."""
    found = Cluster(request.getfixturevalue(request.param).bootstrap, fresh_topic)
    yield found
    found.close()


class Cuts:
    """Shuts a consumer's connections down after some of its heartbeats, though never after two in succession.

    Two lost answers may hide two changes of the member epoch. Then the protocol itself fences the member.
    """

    def __init__(self, consumer: Consumer, rng: random.Random, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self._consumer = consumer
        self._rng = rng
        self._call: object = None
        self._was_cut = False
        self._sockets = consumer._io._sockets
        self._perform = self._sockets.perform_effects
        monkeypatch.setattr(self._sockets, "perform_effects", self._perform_and_cut)

    def _perform_and_cut(self) -> None:
        self._perform()
        membership = self._consumer._machine.membership
        assert isinstance(membership, ConsumerMembership)
        call = membership._call
        if call is None or call is self._call:
            return
        self._call = call
        self._was_cut = not self._was_cut and self._rng.random() < 0.5
        if self._was_cut:
            self.count += 1
            for each in self._sockets._connections.values():
                if each.socket is not None and each.connected:
                    each.socket.shutdown(socket.SHUT_RDWR)


def is_shared(members: list[Consumer]) -> bool:
    """True if all members are stable and have all partitions, each the same number or one less."""
    shares = sorted(len(each.assignment()) for each in members)
    is_stable = all(each.statistics()["member_state"] == "stable" for each in members)
    return is_stable and sum(shares) == PARTITIONS and shares[-1] - shares[0] <= 1


@pytest.mark.parametrize("seed", range(2))
def test_heartbeats_whose_answers_are_lost(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Members come and go while heartbeats lose their answers. Nobody is fenced, and each record is read exactly once."""
    rng = random.Random(seed)
    topic = cluster.topic(PARTITIONS)
    told = Told()
    cuts: list[Cuts] = []
    members: list[Consumer] = []
    found: list[ConsumerRecord] = []
    for step in range(STEPS):
        if len(members) < 2 or (len(members) < MEMBERS_MAX and rng.random() < 0.5):
            member = cluster.consumer(group_id=topic, group_protocol="consumer")
            cuts.append(Cuts(member, rng, monkeypatch))
            member.subscribe([topic], listener=told)
            members.append(member)
        else:
            members.pop(rng.randrange(len(members))).close()
        cluster.produce(topic, RECORDS, PARTITIONS, first=step * RECORDS)
        if rng.random() < 0.6:
            poll_until(members, lambda: is_shared(members), found)
    poll_until(members, lambda: is_shared(members) and len(found) >= STEPS * RECORDS, found)
    assert sorted(int(record.value) for record in found) == list(range(STEPS * RECORDS))
    assert [event for event in told.events if event[0] == "lost"] == []
    assert sum(each.count for each in cuts) > STEPS
