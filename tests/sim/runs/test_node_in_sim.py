"""A single simulated node serves, dies at any moment, recovers, and keeps its promises."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest

from odradek.client.admin import NewTopic, create_topics
from odradek.client.core.client_config import ClientConfig
from odradek.client.errors import ClientError
from odradek.client.shells.aio import AsyncClient
from odradek.data_plane.log.partition_log import PartitionLog
from odradek.env.ports import Env
from odradek.node.run_node import run_node
from odradek.wire.errors import KafkaError
from sim import __main__ as command
from sim.history import SafetyViolation
from sim.load.fetching import FetchConfig, Fetcher
from sim.load.producing import ProduceConfig, Producing, RecordToSend
from sim.machine.disk import Keep
from sim.machine.members import TraceLog
from sim.machine.weather import Weather
from sim.machine.world import Running, World
from sim.scenarios.lone_node_scenario import NODE, PORT, Scenario, format_node, node_config
from tests.sim.runs.failures import Failure, in_each_way

CALM = Weather()


def start_node(world: World) -> Running:
    """Start the node's process. Clients wait until it listens."""

    async def serve(env: Env) -> None:
        await run_node(node_config(), env, log=TraceLog(world, NODE), poison=True)

    return world.start(NODE, serve)


async def connect(world: World, name: str = "client") -> AsyncClient:
    """Connect a client and create a topic `t` of one partition that syncs each batch."""
    config = ClientConfig(fail_fast=False)
    client = AsyncClient(world.node_env(name), world.tasks, [(NODE, PORT)], config)
    for topic in await client.run(
        create_topics(client.core, [NewTopic("t", 1, 1, {"flush.messages": "1"})], timeout=10.0)
    ):
        assert topic.error is None
    return client


async def produce(client: AsyncClient, values: Sequence[bytes]) -> list[int]:
    """Send values one by one; return the acknowledged offsets."""
    producing = Producing(client.core, ProduceConfig())
    offsets = []
    for value in values:
        for delivery in await client.run(producing.produce([RecordToSend("t", value)], timeout=10.0)):
            assert delivery.error is None
            offsets.append(delivery.base_offset)
    return offsets


async def read(client: AsyncClient, count: int) -> list[bytes | None]:
    """Read the first `count` values of the topic."""
    fetcher = Fetcher(client.core, FetchConfig())
    fetcher.assign("t", 0, 0)
    values: list[bytes | None] = []
    while len(values) < count:
        for fetched in await client.run(fetcher.poll(timeout=10.0)):
            values += [record.value for record in fetched.records()]
    return values


def test_a_node_serves_in_the_virtual_world() -> None:
    """The simulator runs a node by `run_node`, as production does, and it serves."""
    world = World(1, CALM)

    async def main() -> None:
        format_node(world, node_config())
        world.crash(NODE, "synced")
        start_node(world)
        client = await connect(world)
        assert await produce(client, [b"a", b"b", b"c"]) == [0, 1, 2]
        assert await read(client, 3) == [b"a", b"b", b"c"]

    world.run(main)


@pytest.mark.parametrize("keep", ["random", "synced"])
def test_a_crash_at_any_disk_operation_keeps_what_was_acknowledged(keep: Keep) -> None:
    """Power fails at the n-th disk operation, for many n. Each acknowledged and synced record survives."""
    survived: set[int] = set()
    for number in range(1, 120, 7):
        world = World(number, CALM)
        acknowledged: list[bytes] = []

        async def main(
            world: World = world, number: int = number, acknowledged: list[bytes] = acknowledged
        ) -> None:
            format_node(world, node_config())
            world.crash(NODE, "synced")
            running = start_node(world)
            client = await connect(world)
            disk = world.machine(NODE).disk
            disk.crash_at(disk.operation_count + number)
            producing = Producing(client.core, ProduceConfig())
            while not running.ended.is_set():
                value = b"%d" % len(acknowledged)
                try:
                    deliveries = await client.run(producing.produce([RecordToSend("t", value)], timeout=3.0))
                except (KafkaError, ClientError):
                    continue
                if deliveries[0].error is None:
                    assert deliveries[0].base_offset == len(acknowledged)
                    acknowledged.append(value)
            disk.crash(keep)
            start_node(world)
            assert (await read(client, len(acknowledged)))[: len(acknowledged)] == acknowledged
            survived.add(len(acknowledged))

        world.run(main)
    assert len(survived) > 5


@pytest.mark.parametrize("seed", range(12))
def test_storms_leave_every_promise_kept(seed: int) -> None:
    """With clean stops, kills and power losses, also within disk operations, every promise is kept."""
    summary = Scenario(seed).run()
    assert summary["starts"] >= 5
    assert summary["acknowledged"] > 0
    assert summary["records"] > 0


def test_a_node_that_acknowledges_before_it_syncs_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """If a node does not sync before it acknowledges, some seed loses a record."""
    monkeypatch.setattr(PartitionLog, "needs_flush", property(lambda log: False))
    for seed in range(12):
        try:
            Scenario(seed).run()
        except SafetyViolation:
            return
    pytest.fail("no seed lost a record, although the node acknowledges before it syncs")


def test_the_command_prints_its_verdict_last(capsys: pytest.CaptureFixture[str]) -> None:
    """`python -m sim --seed N` ends with lines for verdict, digest, virtual and real time. The same seed gives the
    same digest."""
    digests = []
    for _ in range(2):
        assert command.main(["--seed", "3", "--crashes", "1"]) == 0
        last = capsys.readouterr().out.splitlines()[-4:]
        assert last[0] == "verdict: ok"
        digests.append(re.fullmatch(r"digest: ([0-9a-f]{64})", last[1]))
        assert re.fullmatch(r"virtual: \d+\.\d+", last[2])
        assert re.fullmatch(r"real: \d+\.\d+", last[3])
    assert digests[0] is not None
    assert digests[1] is not None
    assert digests[0][1] == digests[1][1]


@in_each_way
def test_the_command_tells_how_to_run_a_failure_again(
    failure: Failure, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each way to fail has its own exit status and prints a command that replays it."""
    failure.befall(monkeypatch, Scenario)
    assert command.main(["--seed", "5", "--crashes", "3"]) == failure.status
    printed = capsys.readouterr().out
    assert "repeat with: python -m sim --seed 5" in printed
    assert f"verdict: {failure.verdict}" in printed


def test_a_command_that_is_not_understood_is_no_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    """A command line that is not understood ends with 64, since argparse's 2 means liveness here."""
    with pytest.raises(SystemExit) as ended:
        command.main(["--seed", "five"])
    assert ended.value.code == 64
    assert "invalid int value: 'five'" in capsys.readouterr().err
