"""A node starts although its metadata log has invalid configuration values. It refuses such values from clients."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import trio

from odradek.env.ports import Env
from odradek.metadata_quorum.replica.checkpoint_files import BOOTSTRAP_FILE, encode_snapshot
from odradek.metadata_quorum.replica.storage_format import (
    bootstrap_records,
)
from odradek.node.configuration.node_config import NodeConfig
from odradek.node.run_node import run_node
from odradek.wire.errors import ErrorCode
from odradek.wire.messages import alter_configs as absolute
from odradek.wire.messages import incremental_alter_configs as incremental
from odradek.wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from odradek.wire.messages.metadata_records import ConfigRecord
from sim.machine.weather import Weather
from sim.machine.world import World
from testkit.by_hand import KeptLog
from testkit.lone_node import SETTINGS, connected, create_topic, format_lone, produce, request
from testkit.virtual import Client
from tests.node.requests.test_bad_batches import good_batch
from tests.node.test_metrics import samples

TOPIC, BROKER = 2, 4
UNREADABLE = (
    ConfigRecord(BROKER, "", "compression.type", "gzip"),
    ConfigRecord(BROKER, "", "compression.type", "lz5"),
    ConfigRecord(BROKER, "1", "log.roll.ms", "0"),
    ConfigRecord(BROKER, "1", "max.connections", "all"),
    ConfigRecord(TOPIC, "t", "leader.replication.throttled.replicas", "x:1,"),
)

Connect = Callable[[int], Awaitable[Client]]


def play(script: Callable[[World, Connect], Awaitable[None]], *, starts: int = 1) -> None:
    """Run a node whose first records contain `UNREADABLE`. Run the script at each of its starts."""
    world = World(1, Weather())
    config = NodeConfig.from_properties(SETTINGS | {"odradek.metrics.listener": "server:9404"})
    ready = trio.Event()

    async def serve(env: Env) -> None:
        directory = env.open_dir("/data", create=True)
        if not directory.list():
            format_lone(env, config)
            first = encode_snapshot((*bootstrap_records(), *UNREADABLE), epoch=0, timestamp_ms=1)
            directory.write_atomic(BOOTSTRAP_FILE, first)
        await run_node(config, env, started=lambda _: ready.set(), log=KeptLog(), poison=True)

    async def main() -> None:
        nonlocal ready
        for _ in range(starts):
            ready = trio.Event()
            world.start("server", serve)
            await ready.wait()
            await script(world, lambda port: connected(world, port))
            world.crash("server")

    world.run(main)


async def described(client: Client, kind: int, name: str, key: str) -> str | None:
    asked = DescribeConfigsRequest([DescribeConfigsResource(kind, name, [key])])
    value: str | None = (await request(client, asked, 4)).results[0].configs[0].value
    return value


def test_a_log_with_unreadable_values_is_opened_again_and_again() -> None:
    """Each invalid value is ignored in favour of the value before it and counted in a metric. The node serves."""

    async def script(world: World, connect: Connect) -> None:
        client = await connect(9092)
        if not world.machine("server").disk.peek("/data/t-0"):
            await create_topic(client)
        assert (await produce(client, good_batch(2, timestamp_ms=1))).error_code == ErrorCode.NONE
        assert await described(client, TOPIC, "t", "compression.type") == "gzip"
        assert await described(client, BROKER, "1", "max.connections") == str((1 << 31) - 1)
        assert (await samples(world))["odradek_metadata_errors_total{}"] == len(UNREADABLE) - 1

    play(script, starts=3)


def test_a_controller_takes_no_value_that_a_broker_cannot_act_by() -> None:
    """A controller refuses invalid values at its own listener (KIP-919), where no broker checks them before."""

    async def script(world: World, connect: Connect) -> None:
        client, controller = await connect(9092), await connect(9093)
        for key, value in (
            ("compression.type", "lz5"),
            ("min.insync.replicas", "0"),
            ("max.connections", "x"),
        ):
            messages: tuple[tuple[Any, int], ...] = (
                (
                    incremental.IncrementalAlterConfigsRequest(
                        [
                            incremental.AlterConfigsResource(
                                BROKER, "", [incremental.AlterableConfig(key, 0, value)]
                            )
                        ]
                    ),
                    1,
                ),
                (
                    absolute.AlterConfigsRequest(
                        [absolute.AlterConfigsResource(BROKER, "", [absolute.AlterableConfig(key, value)])]
                    ),
                    2,
                ),
            )
            for message, version in messages:
                answer = await request(controller, message, version)
                assert answer.responses[0].error_code == ErrorCode.INVALID_CONFIG
            assert await described(client, BROKER, "1", key) != value

    play(script)
