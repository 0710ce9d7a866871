"""A client that keeps sending ListOffsets for the start, the end or a timestamp of partitions. PORTED.

The client checks nothing itself: `sim.checks.served_offsets` checks the answers to all clients.
"""

from __future__ import annotations

from contextlib import suppress
from random import Random

from odradek.client.core.partition_offsets import EARLIEST, LATEST, MAX_TIMESTAMP, list_offsets
from odradek.client.errors import ClientError
from odradek.wire.errors import KafkaError
from sim.load.workload import Workload

CALL_SECONDS = 2.0
CALM_SECONDS_MAX = 0.3
ISOLATION_LEVELS = (0, 1)

__all__ = ["Asking"]


class Asking:
    """One client that sends ListOffsets for all partitions of a run."""

    def __init__(self, load: Workload, name: str) -> None:
        self._load = load
        self._name = name
        self._random = Random(f"{load.world.seed}/{name}")
        self._client = load.client(name, CALL_SECONDS)

    async def run(self) -> None:
        """Send one request after another until the workload ends. Errors are ignored."""
        load, random = self._load, self._random
        clock = load.world.node_env(self._name).clock
        began_ms = clock.wall_ms()
        while not load.is_over:
            time_ms = random.randint(began_ms, max(began_ms, clock.wall_ms()))
            asked = random.choice((LATEST, LATEST, EARLIEST, time_ms, MAX_TIMESTAMP))
            question = list_offsets(
                self._client.core,
                dict.fromkeys(load.partitions, asked),
                timeout=CALL_SECONDS,
                isolation_level=random.choice(ISOLATION_LEVELS),
            )
            with suppress(KafkaError, ClientError):
                await self._client.run(question)
            await load.world.sleep(random.uniform(0.0, CALM_SECONDS_MAX) * load.pace)
        self._client.close()
