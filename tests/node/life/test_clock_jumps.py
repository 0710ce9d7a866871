"""The wall clock of a whole node jumps. For its clients, sessions neither end early nor last too long."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from odradek.wire.errors import ErrorCode
from odradek.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from odradek.wire.messages.find_coordinator import FindCoordinatorRequest
from odradek.wire.messages.heartbeat import HeartbeatRequest
from odradek.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from odradek.wire.messages.metadata import MetadataRequest
from odradek.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from sim.machine.world import World
from testkit.lone_node import create_topic, play, request
from testkit.virtual import Client

DAY_MS = 86_400_000
SESSION_MS = 10_000
Connect = Callable[[], Awaitable[Client]]


def jump(world: World, milliseconds: int) -> None:
    """Move the server's wall clock. Its monotonic clock is unchanged."""
    world.node_env("server").clock.wall_offset_ms += milliseconds


async def fetch(client: Client, session_id: int = 0, epoch: int = 0) -> FetchResponse:
    """Open a fetch session, or continue an existing one; return the response."""
    topics = [] if session_id else [FetchTopic("t", bytes(16), [FetchPartition(0, -1, 0, -1, -1, 1 << 20)])]
    asked = FetchRequest(max_bytes=1 << 20, session_id=session_id, session_epoch=epoch, topics=topics)
    answer = await request(client, asked, 12)
    assert isinstance(answer, FetchResponse)
    return answer


def test_a_fetch_session_is_judged_by_time_that_passes() -> None:
    """A fetch session survives a jump ahead. After a jump back, an idle session still expires in real time."""

    async def script(world: World, connect: Connect) -> None:
        client, newcomer = await connect(), await connect()
        await create_topic(client)
        session_id = (await fetch(client)).session_id
        assert session_id
        jump(world, DAY_MS)
        assert (await fetch(newcomer)).session_id == 0
        assert (await fetch(client, session_id, 1)).error_code == ErrorCode.NONE
        jump(world, -2 * DAY_MS)
        await world.sleep(121)
        assert (await fetch(newcomer)).session_id != 0
        assert (await fetch(client, session_id, 2)).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND

    play(script, max_incremental_fetch_session_cache_slots="1")


async def join(world: World, client: Client) -> HeartbeatRequest:
    """Become the only member of group `g`; return the heartbeat that the member must send."""
    while (await request(client, FindCoordinatorRequest("g"), 3)).error_code != ErrorCode.NONE:
        await world.sleep(0.1)
    asked = JoinGroupRequest(
        "g", SESSION_MS, SESSION_MS, "", None, "consumer", [JoinGroupRequestProtocol("range", b"")]
    )
    joined = await request(client, asked, 3)
    while joined.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
        await world.sleep(0.1)
        joined = await request(client, asked, 3)
    assert joined.error_code == ErrorCode.NONE
    own, generation = joined.member_id, joined.generation_id
    assigned = [SyncGroupRequestAssignment(own, b"")]
    synced = await request(client, SyncGroupRequest("g", generation, own, assignments=assigned), 2)
    assert synced.error_code == ErrorCode.NONE
    return HeartbeatRequest("g", generation, own)


@pytest.mark.parametrize("jump_ms", [DAY_MS, -DAY_MS], ids=["ahead", "back"])
def test_a_member_of_a_group_lives_as_long_as_its_session(jump_ms: int) -> None:
    """A group member that sends heartbeats stays through a jump. A member without heartbeats is removed after its
    session timeout."""

    async def script(world: World, connect: Connect) -> None:
        client = await connect()
        heartbeat = await join(world, client)
        jump(world, jump_ms)
        for _ in range(3):
            await world.sleep(SESSION_MS / 2000)
            assert (await request(client, heartbeat, 2)).error_code == ErrorCode.NONE
        await world.sleep(SESSION_MS / 1000 + 1)
        assert (await request(client, heartbeat, 2)).error_code == ErrorCode.UNKNOWN_MEMBER_ID

    play(
        script,
        group_initial_rebalance_delay_ms="0",
        offsets_topic_num_partitions="1",
        offsets_topic_replication_factor="1",
    )


@pytest.mark.parametrize("jump_ms", [DAY_MS, -DAY_MS], ids=["ahead", "back"])
def test_a_broker_stays_registered_through_a_jump(jump_ms: int) -> None:
    """A jump of the clock does not end a broker's session, so the broker leads all the time."""

    async def script(world: World, connect: Connect) -> None:
        client = await connect()
        await create_topic(client)
        jump(world, jump_ms)
        for _ in range(40):
            await world.sleep(0.5)
            answer = await request(client, MetadataRequest(None), 12)
            assert [broker.node_id for broker in answer.brokers] == [1]
            assert answer.topics[0].partitions[0].leader_id == 1

    play(script)
