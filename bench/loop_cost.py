"""The cost of the connection loop itself per request: only receive, dispatch, count and encode. Kernel, log and trio
are left out.

    python -m bench.loop_cost

One connection has a socket that costs nothing. It gets a Produce of one small batch again and again, alone or eight
to a receive. The handler always gives the same answer. Compare two versions of the code by it: the figure is the
least of many short runs, so a busy machine disturbs it little.

The same is measured with quotas that the client never reaches: one of bytes, then one of processor time as well. The
difference to the first figure is what a quota costs a request. A microsecond is wanted, without the reading of the
thread's processor clock, which is one a turn.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import structlog
import trio

from bench.small_requests import KINDS, request_frame
from data_plane.quotas.client_quotas import ClientQuotas, QuotaSettings
from metadata_quorum.quotas.quota_levels import CLIENT_ID, PRODUCER_BYTE_RATE, REQUEST_PERCENTAGE
from odradek.env.ports import Buffer, ConnectionLost, File
from odradek.env.real import RealEnv
from odradek.node.connections.buffers import ReceiveBuffers
from odradek.node.connections.charging import Charging
from odradek.node.connections.connection_loop import Connection
from odradek.node.connections.connection_services import ConnectionServices
from odradek.serving.api_table import ApiTable
from odradek.serving.contract import Context
from wire.api import ApiKey
from wire.messages.produce import PartitionProduceResponse, ProduceResponse, TopicProduceResponse

RUNS = 30
REQUESTS_PER_RUN = 16_000
DEPTHS = (1, 8)
TOPIC = "bench"
QUOTAS: dict[str, dict[str, float]] = {
    "no quotas": {},
    "a quota of bytes": {PRODUCER_BYTE_RATE: 1e12},
    "and one of processor time": {PRODUCER_BYTE_RATE: 1e12, REQUEST_PERCENTAGE: 1e6},
}


class FreeConn:
    """A connection whose peer sends the same bytes `turns` times, takes every answer, and leaves."""

    peer_host = "nobody"

    def __init__(self, data: bytes, turns: int) -> None:
        self._data = data
        self._turns = turns

    async def readable(self) -> None:
        if not self._turns:
            raise ConnectionLost("done")

    async def writable(self) -> None:
        raise AssertionError("it takes everything at once")

    def wait_for(self, count: int) -> None:
        """Everything is here at once."""

    def recv_into(self, buffer: memoryview) -> int:
        self._turns -= 1
        buffer[: len(self._data)] = self._data
        return len(self._data)

    def send(self, chunks: Sequence[Buffer], more: bool = False) -> int:
        return sum(map(len, chunks))

    def sendfile(self, file: File, offset: int, count: int) -> int:
        raise AssertionError("a Produce has no file in its answer")

    def close(self) -> None:
        self._turns = 0


class Nobody:
    """A task group that is never asked."""

    def start_soon(self, function: Any, *args: Any, name: str | None = None) -> None:
        raise AssertionError("nothing here waits")


def make_charging(values: Mapping[str, float]) -> Charging | None:
    """The charging of a listener on which these quotas hold for each client id; None where there are none."""
    if not values:
        return None
    quotas = ClientQuotas(QuotaSettings(11, 1))
    quotas.apply({(((CLIENT_ID, None),), key): value for key, value in values.items()}, time.monotonic())
    charging = Charging(
        quotas,
        is_of_nodes=False,
        is_node=lambda context: False,
        is_follower=lambda request: False,
    )
    charging.measures_cpu = quotas.charges_requests
    return charging


def make_services(env: RealEnv) -> ConnectionServices:
    answer = PartitionProduceResponse(0, 0, 1234, -1, 0)
    response = ProduceResponse([TopicProduceResponse(TOPIC, partition_responses=[answer])])

    def handle(context: Context, request: Any) -> ProduceResponse:
        return response

    versions = {int(ApiKey.PRODUCE): (3, 13)}
    return ConnectionServices(
        table=ApiTable({int(ApiKey.PRODUCE): handle}, versions, versions, handle),
        buffers=ReceiveBuffers(1 << 24),
        env=env,
        tasks=Nobody(),
        log=structlog.get_logger(),
        frame_bytes_max=1 << 24,
        after_turn=lambda: None,
    )


async def nanoseconds_per_request(depth: int, quotas: Mapping[str, float]) -> float:
    """The least of `RUNS` short runs, in CPU nanoseconds."""
    env = RealEnv()
    frame, _, _ = request_frame(KINDS[1], TOPIC)
    services = make_services(env)
    services.charging = make_charging(quotas)
    turns = REQUESTS_PER_RUN // depth
    best = float("inf")
    for _ in range(RUNS):
        connection = Connection(services, FreeConn(frame * depth, turns), "bench", lambda _: None)
        started = time.process_time_ns()
        await connection.run()
        best = min(best, (time.process_time_ns() - started) / (turns * depth))
    return best


def main() -> None:
    """Print the figures."""
    for depth in DEPTHS:
        least: dict[str, float] = {}
        for name, values in QUOTAS.items():
            cost = trio.run(nanoseconds_per_request, depth, values)
            more = cost - least.setdefault("no quotas", cost)
            print(
                f"{depth} per turn, {name}: {cost:,.0f} ns/request" + (f" (+{more:,.0f})" if values else "")
            )


if __name__ == "__main__":
    main()
