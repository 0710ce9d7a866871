"""Measures the cost of the connection loop per request: only receive, dispatch, count and encode, without kernel, log
and trio.

    python -m bench.hot_path.loop_cost

One connection has a fake socket that costs nothing. It receives a Produce of one small batch repeatedly, one or eight
per receive. The handler always returns the same answer. The figure is the minimum of many short runs, so that two
versions of the code can be compared even on a busy machine.

The cost is also measured with quotas that the client never reaches: first with a quota for bytes, then with another
quota for processor time. The difference from the figure without quotas is the cost of the quotas per request. The goal
is a microsecond. The code for quotas costs something even if no quota is set. This is measured by a connection without
that code (`without_quotas`, goal 0.3 us). All variants take turns, so that other work disturbs them equally.
"""

from __future__ import annotations

import ast
import inspect
import time
from collections.abc import Mapping, Sequence
from statistics import median
from types import ModuleType
from typing import Any

import structlog
import trio

from bench.hot_path.small_requests import KINDS, request_frame
from odradek.data_plane.quotas.client_quotas import ClientQuotas, QuotaSettings
from odradek.env.ports import Buffer, ConnectionLost, File, PeerEnd
from odradek.metadata_quorum.quotas.quota_levels import CLIENT_ID, PRODUCER_BYTE_RATE, REQUEST_PERCENTAGE
from odradek.node.connections import answer_queue, connection_loop
from odradek.node.connections.buffers import ReceiveBuffers
from odradek.node.connections.charging import Charging
from odradek.node.connections.connection_loop import Connection
from odradek.node.connections.connection_services import ConnectionServices
from odradek.node.real_node_env import RealNodeEnv
from odradek.serving.api_table import ApiTable
from odradek.serving.contract import Context
from odradek.wire.api import ApiKey
from odradek.wire.messages.produce import PartitionProduceResponse, ProduceResponse, TopicProduceResponse

RUNS = 30
REQUESTS_PER_RUN = 16_000
DEPTHS = (1, 8)
TOPIC = "bench"
QUOTAS: dict[str, dict[str, float]] = {
    "no quotas": {},
    "a quota of bytes": {PRODUCER_BYTE_RATE: 1e12},
    "and one of processor time": {PRODUCER_BYTE_RATE: 1e12, REQUEST_PERCENTAGE: 1e6},
}
BUILT_WITHOUT = "code without quotas"
QUOTA_NAMES = frozenset(("charging", "muted_until", "throttle_ms"))
"""Names that only steps for quotas use. So a statement or condition with one of these names is such a step."""
CUTS = {
    answer_queue: ("_answer", "_queue_slot", "_encode"),
    connection_loop: ("run", "_dispatch", "_dispatch_frame"),
}
"""The methods of a request's path that have steps for quotas."""
CUTS_COUNT = 9
"""The number of statements and conditions that `without_quotas` removes from these methods."""


class FreeConn:
    """A fake connection whose peer sends the same bytes `turns` times, accepts every answer, and closes."""

    peer_host = "nobody"
    peer_port = 0

    def __init__(self, data: bytes, turns: int) -> None:
        self._data = data
        self._turns = turns

    async def readable(self) -> None:
        if not self._turns:
            raise ConnectionLost("done")

    async def writable(self) -> None:
        raise AssertionError("the fake connection accepts every answer at once, so nothing waits for it")

    def wait_for(self, count: int) -> None:
        """Do nothing, because all bytes are available already."""

    def recv_into(self, buffer: memoryview) -> int:
        self._turns -= 1
        buffer[: len(self._data)] = self._data
        return len(self._data)

    def peer_end(self) -> PeerEnd:
        raise AssertionError("nobody is muted")

    def send(self, chunks: Sequence[Buffer], more: bool = False) -> int:
        return sum(map(len, chunks))

    def sendfile(self, file: File, offset: int, count: int) -> int:
        raise AssertionError("an answer to Produce contains no file")

    def close(self) -> None:
        self._turns = 0


class Nobody:
    """A task group that must stay unused, because no task is started here."""

    def start_soon(self, function: Any, *args: Any, name: str | None = None) -> None:
        raise AssertionError("nothing here waits")


def make_charging(values: Mapping[str, float]) -> Charging | None:
    """Make the charging of a listener with these quotas for each client id; None if there are no quotas."""
    if not values:
        return None
    quotas = ClientQuotas(QuotaSettings(11, 1))
    quotas.apply({(((CLIENT_ID, None),), key): value for key, value in values.items()})
    charging = Charging(
        quotas,
        is_of_nodes=False,
        is_node=lambda context: False,
        is_follower=lambda request: False,
    )
    charging.measures_cpu = quotas.charges_requests
    return charging


def make_services(env: RealNodeEnv) -> ConnectionServices:
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


class WithoutQuotas(ast.NodeTransformer):
    """Removes the steps for quotas from each function whose name is in `methods`."""

    def __init__(self, methods: Sequence[str]) -> None:
        self.methods = methods
        self.count = 0

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return self.generic_visit(node) if node.name in self.methods else node

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        return self.generic_visit(node) if node.name in self.methods else node

    def visit_If(self, node: ast.If) -> ast.AST | None:
        test = node.test
        if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.Or):
            kept = [each for each in test.values if not asks_for_quotas(each)]
            self.count += len(test.values) - len(kept)
            test.values = kept
        elif asks_for_quotas(test):
            self.count += 1
            return None
        return self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> ast.AST | None:
        if any(map(asks_for_quotas, node.targets)):
            self.count += 1
            return None
        return node


def asks_for_quotas(node: ast.AST) -> bool:
    """True if an expression uses one of `QUOTA_NAMES`."""
    return any(
        (isinstance(each, ast.Attribute) and each.attr in QUOTA_NAMES)
        or (isinstance(each, ast.Name) and each.id in QUOTA_NAMES)
        for each in ast.walk(node)
    )


def without_quotas() -> type[Connection]:
    """Build the connection class without the steps for quotas in a request's path.

    Raises `RuntimeError` if the number of these steps is not `CUTS_COUNT`.
    """
    names: dict[str, Any] = {}
    count = 0
    for module, methods in CUTS.items():
        transformer = WithoutQuotas(methods)
        names.update(_rebuilt(module, transformer, names))
        count += transformer.count
    if count != CUTS_COUNT:
        raise RuntimeError(f"a request's path has {count} steps for quotas; CUTS_COUNT says {CUTS_COUNT}")
    made: type[Connection] = names["Connection"]
    return made


def _rebuilt(module: ModuleType, transformer: WithoutQuotas, bases: Mapping[str, Any]) -> dict[str, Any]:
    """Transform a module's source, and build its classes. `bases` has base classes from modules transformed before."""
    tree = transformer.visit(ast.parse(inspect.getsource(module)))
    names: dict[str, Any] = {**vars(module), **bases}
    tree.body = [each for each in tree.body if isinstance(each, ast.ClassDef)]
    code = compile(
        ast.fix_missing_locations(tree), f"{module.__name__} without quotas", "exec", dont_inherit=True
    )
    exec(code, names)
    return {name: value for name, value in names.items() if value is not vars(module).get(name)}


class Version:
    """A variant of the loop: a class of connections, and the quotas of their client."""

    def __init__(self, made: type[Connection], quotas: Mapping[str, float]) -> None:
        self._made = made
        self._services = make_services(RealNodeEnv())
        self._services.charging = make_charging(quotas)
        self.nanoseconds: list[float] = []
        """The CPU nanoseconds per request, for each run."""

    async def run(self, data: bytes, turns: int, depth: int) -> None:
        connection = self._made(self._services, FreeConn(data, turns), "bench", lambda _: None)
        started = time.process_time_ns()
        await connection.run()
        self.nanoseconds.append((time.process_time_ns() - started) / (turns * depth))


async def measure(depth: int) -> dict[str, Version]:
    """Measure all variants in turn, `RUNS` times."""
    frame, _, _ = request_frame(KINDS[1], TOPIC)
    versions = {BUILT_WITHOUT: Version(without_quotas(), {})}
    versions.update((name, Version(Connection, quotas)) for name, quotas in QUOTAS.items())
    for number in range(RUNS):
        order = list(versions.values())
        for version in order if number % 2 else reversed(order):
            await version.run(frame * depth, REQUESTS_PER_RUN // depth, depth)
    return versions


def main() -> None:
    """Print the minimum of each variant, and its extra cost as the median over pairs of runs."""
    for depth in DEPTHS:
        versions = trio.run(measure, depth)
        print(f"{depth} per turn:")
        for name, version in versions.items():
            base = versions[BUILT_WITHOUT if name == "no quotas" else "no quotas"]
            pairs = zip(version.nanoseconds, base.nanoseconds, strict=True)
            more = median(mine - other for mine, other in pairs)
            least, than = min(version.nanoseconds), BUILT_WITHOUT if name == "no quotas" else "no quotas"
            told = "" if name == BUILT_WITHOUT else f", {more:+,.0f} beside {than}"
            print(f"  {name}: {least:,.0f} ns/request{told}")


if __name__ == "__main__":
    main()
