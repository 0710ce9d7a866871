"""`flush.messages` on a follower: records are synced before the next fetch promises them, as in Kafka. PORTED.

A follower's fetch offset promises that it has all records below. If a topic has `flush.messages`, the flush comes
before that promise. If a device does not answer in time, only its own partitions are left out of the request.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from odradek.data_plane.replication.partition import Partition
from odradek.env.ports import Env
from odradek.wire.errors import KafkaError

__all__ = ["SYNC_AGAIN_SECONDS", "SYNC_SECONDS_MAX", "Sync", "sync_partitions"]

SYNC_SECONDS_MAX = 0.5
SYNC_AGAIN_SECONDS = 60.0
"""The longest time for which a late flush is taken to be under way."""

Sync: TypeAlias = "Callable[[Partition, Callable[[KafkaError | None], None]], None]"
"""Calls back after a flush of the partition's log that begins from now on."""


async def sync_partitions(
    env: Env, sync: Sync, partitions: list[Partition], late: Callable[[Partition], None]
) -> tuple[list[Partition], list[Partition]]:
    """Flush these partitions and wait for a bounded time. Return the partitions whose flush failed, and those whose
    flush still runs.

    `late` is called when a flush of the second list ends after all.
    """
    ended = env.event()
    running = dict.fromkeys(partitions)
    failed: list[Partition] = []
    is_over = False

    def begin(partition: Partition) -> None:
        def done(failure: KafkaError | None) -> None:
            del running[partition]
            if failure is not None or partition.log.needs_flush:
                failed.append(partition)
            if is_over:
                late(partition)
            elif not running:
                ended.set()

        sync(partition, done)

    for partition in partitions:
        begin(partition)
    with env.clock.timeout_at(env.clock.monotonic() + SYNC_SECONDS_MAX):
        await ended.wait()
    is_over = True
    return failed, list(running)
