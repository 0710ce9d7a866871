"""Acknowledged records when one node, two nodes or all nodes lose power, with and without `flush.messages`."""

from __future__ import annotations

from itertools import permutations

import pytest

from odradek.data_plane.broker import Broker
from odradek.env.ports import ConnectionLost
from tests.replication.brokers import NODES, TOPIC, ReplicatedTopic

FLUSH_CYCLE_SECONDS = 70.0
"""The regular flush syncs each log once a minute. This leaves some time more."""


async def acknowledged(cluster: ReplicatedTopic, leader: int, values: range) -> None:
    for value in values:
        try:
            code, _ = await cluster.produce(leader, b"%d" % value)
        except ConnectionLost:
            # The connection is from before the power loss, so the node has not received the request.
            code, _ = await cluster.produce(leader, b"%d" % value)
        assert code == 0


async def lead(cluster: ReplicatedTopic) -> int:
    """Wait until the broker that the controller has elected leads."""
    leader = cluster.controller.partitions[0].leader
    await cluster.until(lambda: leader in cluster.members and cluster.members[leader].partition().is_leader)
    return leader


async def all_come_back(cluster: ReplicatedTopic, order: tuple[int, ...]) -> int:
    """Let all nodes lose power at once, and fence them in this order, so that the last one leads. Return its id."""
    for node_id in NODES:
        cluster.crash(node_id, "synced")
    for node_id in order:
        cluster.controller.fence(node_id)
    for node_id in NODES:
        await cluster.start(node_id)
    leader = await lead(cluster)
    assert leader == order[-1]
    return leader


def values(cluster: ReplicatedTopic, node_id: int) -> list[int]:
    return [int(value) for value in cluster.contents(node_id).values()]


@pytest.mark.parametrize("victims", [(1,), (2,), (1, 2), (2, 3)])
def test_a_replica_in_sync_that_lives_has_all(victims: tuple[int, ...]) -> None:
    """With acks=all, replicas that lose power fetch the records that they lost from a replica that stayed up."""

    async def script(cluster: ReplicatedTopic) -> None:
        await acknowledged(cluster, 1, range(20))
        for node_id in victims:
            cluster.crash(node_id, "synced")
        for node_id in victims:
            cluster.controller.fence(node_id)
        leader = await lead(cluster)
        assert values(cluster, leader) == list(range(20))
        for node_id in victims:
            await cluster.start(node_id)
        await cluster.in_sync(*NODES)
        await acknowledged(cluster, leader, range(20, 25))
        for node_id in NODES:
            assert values(cluster, node_id) == list(range(25))

    ReplicatedTopic(min_isr=1).play(script)


@pytest.mark.parametrize("order", list(permutations(NODES)))
def test_all_lose_power_with_flush_messages(order: tuple[int, ...]) -> None:
    """With flush.messages=1, each in-sync replica has each acknowledged record on its disk, so any of them may lead."""

    async def script(cluster: ReplicatedTopic) -> None:
        await acknowledged(cluster, 1, range(20))
        leader = await all_come_back(cluster, order)
        assert values(cluster, leader) == list(range(20))
        await cluster.in_sync(*NODES)
        await acknowledged(cluster, leader, range(20, 25))

    cluster = ReplicatedTopic(min_isr=2)
    cluster.controller.topic_configs = {"flush.messages": "1"}
    cluster.play(script)


def test_all_lose_power_without_flush_messages() -> None:
    """Without flush.messages, records older than a minute survive if all nodes lose power, and the newest may be
    lost."""

    async def script(cluster: ReplicatedTopic) -> None:
        await acknowledged(cluster, 1, range(20))
        await cluster.world.sleep(FLUSH_CYCLE_SECONDS)
        await acknowledged(cluster, 1, range(20, 25))
        leader = await all_come_back(cluster, (1, 2, 3))
        assert values(cluster, leader) == list(range(20))

    ReplicatedTopic(min_isr=2).play(script)


def test_a_start_commits_nothing_by_metadata_that_are_older_than_it() -> None:
    """A starting broker commits nothing by metadata from before its start. In these, the ISR may consist of the
    broker's dead predecessor alone. By that ISR the broker would commit records that it alone has, although a replica
    that lacks them may be elected leader.
    """

    async def script(cluster: ReplicatedTopic) -> None:
        await cluster.in_sync(1, 2, 3)
        assert await cluster.produce(1, b"committed") == (0, 0)
        cluster.controller.is_deaf = True
        for follower in (2, 3):
            cluster.crash(follower)
        assert await cluster.produce(1, b"never committed", acks=1) == (0, 1)
        partition = cluster.members[1].partition()
        assert (partition.log.high_watermark, partition.log.log_end_offset) == (1, 2)
        written = partition.leader_epoch
        cluster.crash(1)
        cluster.controller.elect(0, 1, isr=(1,))
        seen = []

        def look(broker: Broker) -> None:
            found = broker.topics[TOPIC].partitions[0]
            seen.append((found.is_leader, found.log.high_watermark, found.log.epochs.latest))

        cluster.before_registration = look
        await cluster.start(1)
        ((leads, high_watermark, epoch),) = seen
        assert not leads
        assert high_watermark <= 1
        assert epoch == written, "no record was written in the later epoch"
        partition = cluster.members[1].partition()
        assert partition.is_leader, "by metadata that know of this process"
        assert partition.log.high_watermark == 2

    ReplicatedTopic(min_isr=1).play(script)
