"""A client that claims a replica id: the node must not treat it as a follower."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from odradek.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ReplicaState
from sim.machine.world import World
from testkit.lone_node import create_topic, play, request
from testkit.virtual import Client


@pytest.mark.parametrize("replica_id", [1, 2, 2**31 - 1])
@pytest.mark.parametrize("version", [12, 15])
def test_a_stranger_is_no_follower(replica_id: int, version: int) -> None:
    """A fetch with the id of an unregistered broker, or of the node itself, gets no fetch session. Sessions of
    followers outlive those of consumers."""

    async def script(world: World, connect: Callable[[], Awaitable[Client]]) -> None:
        client = await connect()
        await create_topic(client)

        def fetch(replica_id: int) -> FetchRequest:
            topic = FetchTopic("t", bytes(16), [FetchPartition(0, -1, 0, -1, -1, 1 << 20)])
            asked = FetchRequest(
                max_wait_ms=0, min_bytes=0, max_bytes=1 << 20, session_epoch=0, topics=[topic]
            )
            if version < 15:
                asked.replica_id = replica_id
            else:
                asked.replica_state = ReplicaState(replica_id, 1)
            return asked

        assert (await request(client, fetch(replica_id), version)).session_id == 0
        assert (await request(client, fetch(-1), version)).session_id > 0

    play(script)
