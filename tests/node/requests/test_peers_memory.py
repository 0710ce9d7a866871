"""The listener for brokers has its own memory, so requests of clients cannot block replication."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio

from odradek.env.ports import ConnectionLost
from odradek.node.connections.buffers import SMALL_FRAME_BYTES
from odradek.node.node import Node
from sim.machine.world import World
from testkit.lone_node import answer_to, create_topic, play, produce_request
from testkit.raw_requests import frame
from testkit.virtual import Client
from tests.node.requests.test_bad_batches import good_batch

MIB = 1 << 20
POOL_BYTES = 16 * MIB
HALF_SENT = 40
LARGE_BYTES = 7 * MIB

Connect = Callable[[], Awaitable[Client]]


def test_half_sent_frames_of_clients_take_no_memory_of_peers() -> None:
    """Half-sent frames of clients fill their memory pool. A large request on the brokers' listener is still
    answered."""
    nodes: list[Node] = []

    async def script(world: World, connect: Connect) -> None:
        client = await connect()
        await create_topic(client)
        async with trio.open_nursery() as tasks:
            for _ in range(HALF_SENT):
                tasks.start_soon(half_send, world, await connect())
            await world.sleep(1)
            contended = [services.buffers.contended for services in nodes[0].services]
            assert any(contended), "the clients' pool must be full"
            peer = Client(await world.node_env("peer").network.connect("server", 9094))
            before = world.now
            large = produce_request(
                good_batch(
                    1, timestamp_ms=world.node_env("peer").clock.wall_ms(), size=SMALL_FRAME_BYTES + MIB
                )
            )
            await peer.send(bytes(frame(large, 9)))
            answer = await answer_to(peer, large, 9)
            assert answer.responses[0].partition_responses[0].error_code == 0
            assert world.now - before < 1, "the peer's request had to wait"
            tasks.cancel_scope.cancel()

    play(
        script,
        made=nodes.append,
        listeners="PLAINTEXT://server:9092,PEERS://server:9094,CONTROLLER://server:9093",
        listener_security_protocol_map="PLAINTEXT:PLAINTEXT,PEERS:PLAINTEXT,CONTROLLER:PLAINTEXT",
        inter_broker_listener_name="PEERS",
        queued_max_request_bytes=str(POOL_BYTES),
        socket_request_max_bytes=str(8 * MIB),
        message_max_bytes=str(4 * MIB),
    )


async def half_send(world: World, client: Client) -> None:
    """Begin a large frame, then send one byte every three seconds."""
    data = bytes(frame(produce_request(bytes(LARGE_BYTES)), 9))
    try:
        await client.send(data[:MIB])
        for at in range(MIB, len(data)):
            await world.sleep(3)
            await client.send(data[at : at + 1])
    except ConnectionLost:
        return
