"""A whole node (`run_node`), which is both broker and controller and runs alone on the simulated machine `server`. Also
functions for its clients.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio

from odradek.metadata_quorum.replica.storage_format import VoterEndpoint
from odradek.node.configuration.node_config import NodeConfig
from odradek.node.node import Node
from odradek.node.run_node import run_node
from odradek.serving.node_env import NodeEnv
from odradek.wire.api import response_class, response_header_version
from odradek.wire.codec import decode
from odradek.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from odradek.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from odradek.wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from odradek.wire.structure import Message
from sim.machine.weather import Weather
from sim.machine.world import World
from testkit.by_hand import KeptLog
from testkit.raw_requests import frame
from testkit.virtual import Client, format_disks

SETTINGS = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.quorum.voters": "1@server:9093",
    "listeners": "PLAINTEXT://server:9092,CONTROLLER://server:9093",
    "controller.listener.names": "CONTROLLER",
    "log.dirs": "/data",
}
Connect = Callable[[], Awaitable[Client]]
Script = Callable[[World, Connect], Awaitable[None]]


def format_lone(env: NodeEnv, config: NodeConfig) -> None:
    """Format the node's disks, with the node as the only voter."""
    format_disks(env, 1, paths=config.log_dirs, voter=VoterEndpoint("CONTROLLER", "server", 9093))


async def connected(world: World, port: int = 9092) -> Client:
    """Connect to a listener of the node, from another simulated machine without faults."""
    return Client(await world.node_env("client").network.connect("server", port))


def play(
    script: Script,
    weather: Weather | None = None,
    *,
    made: Callable[[Node], None] | None = None,
    stop: trio.Event | None = None,
    log: KeptLog | None = None,
    **settings: str,
) -> None:
    """Start a node with a new disk in a simulation, and run `script` at the same time.

    Each received frame is overwritten after its dispatch, to reveal handlers that keep a view of it. `made` is called
    with the node before it starts. The node stops cleanly once `stop` is set.
    """
    world = World(1, weather or Weather())
    properties = SETTINGS | {key.replace("_", "."): value for key, value in settings.items()}
    config = NodeConfig.from_properties(properties)
    ready = trio.Event()

    async def serve(env: NodeEnv) -> None:
        format_lone(env, config)
        await run_node(
            config,
            env,
            made=made,
            started=lambda _: ready.set(),
            stop=stop,
            log=log or KeptLog(),
            poison=True,
        )

    async def main() -> None:
        world.start("server", serve)
        await ready.wait()
        await script(world, lambda: connected(world))

    world.run(main)


async def request(client: Client, message: Message, version: int) -> Message:
    """Send a request, and return its decoded answer."""
    await client.send(bytes(frame(message, version)))
    return await answer_to(client, message, version)


async def answer_to(client: Client, message: Message, version: int) -> Message:
    """Wait for the answer to a request that was sent."""
    key = message.API_KEY
    assert key is not None
    body = await client.answer()
    return decode(response_class(key), version, body, 1 if response_header_version(key, version) else 0)


async def create_topic(client: Client) -> None:
    """Create the topic `t` with one partition, and assert success."""
    wanted = CreateTopicsRequest([CreatableTopic("t", 1, 1, [], [])], 10_000, False)
    created = await request(client, wanted, 5)
    assert isinstance(created, CreateTopicsResponse)
    assert created.topics[0].error_code == 0


def produce_request(batch: bytes | bytearray) -> ProduceRequest:
    """Make a Produce request with one batch for partition 0 of `t`, acks=all."""
    partition = PartitionProduceData(0, batch)
    return ProduceRequest(None, -1, 5000, [TopicProduceData("t", bytes(16), [partition])])


async def produce(client: Client, batch: bytes | bytearray) -> PartitionProduceResponse:
    """Produce one batch to partition 0 of `t`, and return the partition's answer."""
    answer = await request(client, produce_request(batch), 9)
    assert isinstance(answer, ProduceResponse)
    return answer.responses[0].partition_responses[0]


def fetch_request(offset: int, *, wait_ms: int = 0, min_bytes: int = 1) -> FetchRequest:
    """Make a Fetch request for partition 0 of `t` from an offset on, without a fetch session."""
    topic = FetchTopic("t", bytes(16), [FetchPartition(0, -1, offset, -1, -1, 1 << 20)])
    return FetchRequest(
        max_wait_ms=wait_ms, min_bytes=min_bytes, max_bytes=1 << 20, session_epoch=-1, topics=[topic]
    )
