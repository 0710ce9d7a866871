"""Strangers that fetch in a follower's name. A Fetch request states this name without proof."""

from __future__ import annotations

import pytest

from odradek.wire.errors import ErrorCode
from odradek.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ReplicaState
from tests.replication.brokers import LAG_MS_MAX, TOPIC_ID, ReplicatedTopic


async def fetch_as(cluster: ReplicatedTopic, replica_id: int, broker_epoch: int, offset: int) -> int:
    """Send the first request of a follower's session to broker 1. Return the partition's error code."""
    epoch = cluster.controller.partitions[0].leader_epoch
    topic = FetchTopic("", TOPIC_ID, [FetchPartition(0, epoch, offset, -1, 0, 1 << 20)])
    request = FetchRequest(
        replica_state=ReplicaState(replica_id, broker_epoch),
        max_wait_ms=0,
        min_bytes=1,
        max_bytes=1 << 20,
        session_epoch=0,
        topics=[topic],
    )
    response = await cluster.ask(1, request, version=17)
    return int(response.responses[0].partitions[0].error_code)


async def all_goes_on(cluster: ReplicatedTopic, first: int) -> None:
    """Check that acks=all writes succeed for longer than a follower may lag, and that the ISR stays complete."""
    for serial in range(2 * LAG_MS_MAX // 500):
        assert await cluster.produce(1, b"%d" % serial) == (0, first + serial)
        await cluster.world.sleep(0.5)
    await cluster.in_sync(1, 2, 3)
    assert cluster.controller.alterations == []


@pytest.mark.parametrize(
    ("ahead", "code"),
    [
        (-1, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (1, ErrorCode.NONE),
        (2**62, ErrorCode.NONE),
    ],
)
def test_a_made_up_broker_epoch_shuts_out_nobody(ahead: int, code: ErrorCode) -> None:
    """A forged broker epoch gets an error and does not affect the real follower, whose epoch is in the metadata."""

    async def script(cluster: ReplicatedTopic) -> None:
        assert await cluster.produce(1, b"first") == (0, 0)
        epoch = cluster.controller.brokers[2].epoch
        assert await fetch_as(cluster, 2, epoch + ahead, 1) == code
        await all_goes_on(cluster, 1)

    ReplicatedTopic(min_isr=3).play(script)


def test_another_session_of_a_follower_does_not_silence_its_own() -> None:
    """A stranger's session in a follower's name, or an old session that is read late, leaves the follower's session as
    it is."""

    async def script(cluster: ReplicatedTopic) -> None:
        assert await cluster.produce(1, b"first") == (0, 0)
        for follower in (2, 3):
            epoch = cluster.controller.brokers[follower].epoch
            assert await fetch_as(cluster, follower, epoch, 1) == ErrorCode.NONE
        await all_goes_on(cluster, 1)

    ReplicatedTopic(min_isr=3).play(script)


def test_registered_followers_have_sessions() -> None:
    """A follower that names its registered epoch gets a fetch session, even after a restart."""

    async def script(cluster: ReplicatedTopic) -> None:
        def followed_by() -> list[int]:
            sessions = cluster.members[1].broker.sessions.sessions
            return sorted({each.replica_id for each in sessions if each.privileged})

        await cluster.in_sync(1, 2, 3)
        await cluster.until(lambda: followed_by() == [2, 3])
        cluster.crash(3)
        await cluster.start(3)
        await cluster.in_sync(1, 2, 3)
        await cluster.until(lambda: followed_by() == [2, 3])

    ReplicatedTopic().play(script)
