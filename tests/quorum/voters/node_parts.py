"""A controller node without a broker in the simulator: functions that format and start it, and send requests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import trio

from odradek.data_plane.metadata_log import MetadataLog
from odradek.env.ports import Dir, Env
from odradek.metadata_quorum.controller.controller_settings import ControllerSettings
from odradek.metadata_quorum.raft.voters import ReplicaKey
from odradek.metadata_quorum.replica.driver_protocol import QuorumSettings
from odradek.metadata_quorum.replica.quorum_state import FileQuorumStateStore
from odradek.metadata_quorum.replica.storage_format import (
    VoterEndpoint,
    find_meta_properties,
)
from odradek.metadata_quorum.service import MetadataService, MetadataSettings
from odradek.wire.messages.allocate_producer_ids import AllocateProducerIdsRequest
from odradek.wire.messages.broker_heartbeat import BrokerHeartbeatRequest
from odradek.wire.messages.broker_registration import BrokerRegistrationRequest, Feature, Listener
from odradek.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from odradek.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from sim.machine.weather import Weather
from sim.machine.world import World
from testkit.by_hand import KeptLog
from testkit.virtual import format_directory

CLUSTER_ID = "H5nlA7uKR0-zDRxvMJS5iw"
DIRECTORY_ID = b"directory-number"
NODE_ID = 1
PATH = "/data"
NODE = "n1"
"""The machine of the only controller."""


def format_node(root: Dir) -> None:
    voter = VoterEndpoint("CONTROLLER", "127.0.0.1", 9093)
    format_directory(root, NODE_ID, DIRECTORY_ID, cluster_id=CLUSTER_ID, voter=voter)


def make_world(seed: int = 1, weather: Weather | None = None) -> World:
    world = World(seed, weather or Weather())
    format_node(world.machine(NODE).disk.open_dir(PATH, create=True))
    return world


async def run(world: World, main: Callable[[Env], Awaitable[Any]]) -> None:
    """Start a process on the machine, and wait for its end."""
    await world.start(NODE, main).ended.wait()


def again(world: World) -> World:
    """Make a new world with the same disk, since each world runs once."""
    other = World(world.seed + 1, Weather())
    other.machine(NODE).disk = world.machine(NODE).disk
    return other


@asynccontextmanager
async def running_controller(
    env: Env, journal: KeptLog | None = None, *, path: str = PATH, **settings: Any
) -> AsyncIterator[MetadataService]:
    """Run a controller that leads. It stops cleanly when the block ends normally."""
    logger = journal or KeptLog()
    root = env.open_dir(path)
    meta = find_meta_properties(root)
    assert meta is not None
    log = await env.workers.run(lambda: MetadataLog.open(root, clock=env.clock, logger=logger))
    bootstrap = log.bootstrap()
    service = MetadataService(
        env,
        log,
        log.snapshots,
        FileQuorumStateStore(log.directory),
        MetadataSettings(
            QuorumSettings(ReplicaKey(meta.node_id, meta.directory_id), meta.cluster_id),
            ControllerSettings(**settings),
            bootstrap=() if bootstrap is None else bootstrap.records,
        ),
        logger,
    )
    async with trio.open_nursery() as nursery:
        await service.start(nursery)
        await service.caught_up()
        yield service
        await service.stop()
        log.close()
        nursery.cancel_scope.cancel()


def registration(incarnation: bytes, previous_epoch: int = -1) -> BrokerRegistrationRequest:
    return BrokerRegistrationRequest(
        NODE_ID,
        CLUSTER_ID,
        incarnation,
        [Listener("PLAINTEXT", "127.0.0.1", 9092, 0)],
        [
            Feature("metadata.version", 30, 30),
            Feature("eligible.leader.replicas.version", 0, 1),
            Feature("transaction.version", 0, 2),
            Feature("group.version", 0, 1),
        ],
        None,
        False,
        [DIRECTORY_ID],
        previous_epoch,
    )


def heartbeat(service: MetadataService, broker_epoch: int) -> BrokerHeartbeatRequest:
    return BrokerHeartbeatRequest(NODE_ID, broker_epoch, service.committed_image.offset)


def create(name: str, partitions: int = 1) -> CreateTopicsRequest:
    return CreateTopicsRequest([CreatableTopic(name, partitions, 1, [], [])], 1000, False)


def delete(name: str) -> DeleteTopicsRequest:
    return DeleteTopicsRequest([DeleteTopicState(name)], [], 1000)


def producer_ids(broker_epoch: int) -> AllocateProducerIdsRequest:
    return AllocateProducerIdsRequest(NODE_ID, broker_epoch)


async def ask(service: MetadataService, env: Env, request: Any) -> Any:
    """Send a request over the loopback channel, and return the response."""
    return await service.channel().request(request, env.clock.monotonic() + 60)


async def join(service: MetadataService, env: Env) -> int:
    """Register a new incarnation of a broker, wait until it is unfenced, and return its epoch."""
    epoch: int = (await ask(service, env, registration(env.new_uuid()))).broker_epoch
    response = await ask(service, env, heartbeat(service, epoch))
    assert not response.is_fenced
    return epoch
