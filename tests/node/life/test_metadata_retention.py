"""Retention of old metadata snapshots, and of the log before them: `metadata.max.retention.*`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from odradek.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from sim.machine.world import World
from testkit.lone_node import play, request
from testkit.virtual import Client

OFTEN = {"metadata_log_max_record_bytes_between_snapshots": "500"}
TOPICS = 30


def ends(world: World) -> list[int]:
    """Return the end offsets of the snapshots on disk."""
    names = world.machine("server").disk.peek("/data/__cluster_metadata-0")
    return sorted(int(name[:20]) for name in names if name.endswith(".checkpoint"))


def log_start(world: World) -> int:
    names = world.machine("server").disk.peek("/data/__cluster_metadata-0")
    return min(int(name[:20]) for name in names if name.endswith(".log"))


async def create_topics(client: Client) -> None:
    for number in range(TOPICS):
        created = await request(
            client, CreateTopicsRequest([CreatableTopic(f"t{number}", 3, 1, [], [])], 10_000, False), 5
        )
        assert created.topics[0].error_code == 0


def play_with(script: Callable[[World], Awaitable[None]], **settings: str) -> None:
    async def create(world: World, connect: Callable[[], Awaitable[Client]]) -> None:
        await create_topics(await connect())
        await world.sleep(5)
        await script(world)

    play(create, **OFTEN, **settings)


@pytest.mark.parametrize(
    "limit", [{}, {"metadata_max_retention_bytes": "-1", "metadata_max_retention_ms": "-1"}]
)
def test_what_is_within_the_limits_stays(limit: dict[str, str]) -> None:
    """Within Kafka's default limits (100 MiB and a week) everything is kept. A negative limit means no limit."""

    async def script(world: World) -> None:
        assert len(ends(world)) > 5
        assert log_start(world) == 0

    play_with(script, **limit)


@pytest.mark.parametrize("bytes_max", [0, 40_000])
def test_the_oldest_goes_while_all_is_too_large(bytes_max: int) -> None:
    """While log and snapshots exceed the size limit, the oldest snapshot and the log before the next one are deleted.
    The newest snapshot stays."""

    async def script(world: World) -> None:
        files = world.machine("server").disk.peek("/data/__cluster_metadata-0")
        kept = ends(world)
        assert 1 <= len(kept) < TOPICS
        assert 0 < log_start(world) <= kept[0]
        size = sum(len(data) for name, data in files.items() if name.endswith((".log", ".checkpoint")))
        assert size <= bytes_max or len(kept) == 1

    play_with(script, metadata_max_retention_bytes=str(bytes_max))


def test_what_is_too_old_goes_without_another_snapshot() -> None:
    """Snapshots older than `metadata.max.retention.ms` are deleted within minutes, except the newest one."""

    async def script(world: World) -> None:
        before = ends(world)
        assert len(before) > 5
        await world.sleep(1000)
        assert ends(world) == before[-1:]
        assert 0 < log_start(world) <= before[-1]

    play_with(script, metadata_max_retention_ms="600000", metadata_log_max_snapshot_interval_ms="0")
