"""Applies `flush.messages` on a follower: records are synced before the next fetch confirms them, as in
Kafka. PORTED.

A follower's fetch offset confirms that the follower has all records below this offset. If a topic has
`flush.messages`, the follower flushes these records before that fetch. If a device does not answer in time,
only the partitions on this device are left out of the request.
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
"""The time in seconds after which a late flush no longer counts as running, so that a new flush is tried."""

Sync: TypeAlias = "Callable[[Partition, Callable[[KafkaError | None], None]], None]"
"""A function that flushes the partition's log, and then calls the given callback with None or the error."""


async def sync_partitions(
    env: Env, sync: Sync, partitions: list[Partition], late: Callable[[Partition], None]
) -> tuple[list[Partition], list[Partition]]:
    """Flush the logs of these partitions, and wait a limited time. Returns the partitions whose flush has
    failed, and the partitions whose flush still runs. When such a late flush ends, `late` is called with its
    partition.
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
