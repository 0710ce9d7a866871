"""`make costs`: what the most expensive legal frames cost a node, and whoever uses it beside them.

    python -m bench.budget.costs                                     # everything: an hour
    python -m bench.budget.costs --api Metadata --size 1M            # a part
    python -m bench.budget.costs --rates-seconds 0 --settle-seconds 0  # without clients beside it: minutes

Each frame comes alone first: a probe, a process of its own, asks ApiVersions every few milliseconds, and its longest wait
is the stall. Then it comes once a second from each of four connections, and back to back, while three ordinary clients
produce small records. A frame that nobody answers within a minute fails its row.
"""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path

import attrs

from bench.budget.frames import Costly, costly_request, framed
from bench.budget.lines import LINES
from bench.budget.stage import Client, Judged, judged_node
from bench.markdown import table
from bench.processes import memory_kib
from bench.small_requests import KINDS, record_batch
from bench.small_requests import framed as framed_by_client
from wire.api_keys import APIS, ApiKey
from wire.messages.api_versions import ApiVersionsRequest
from wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData

SIZES = {"1K": 1 << 10, "100K": 100 << 10, "1M": 1 << 20}
PROBE_SECONDS = 0.005
CLIENTS = 3
ATTACKERS = 4
STALL_MS_MAX = 100
MEMORY_MIB_MAX = 64
PACED_SHARE_MIN = 0.8
BACK_TO_BACK_SHARE_MIN = 0.4
WAIT_MS_MAX = 500


@attrs.frozen
class Frame:
    """One row: which frame, and where it is sent."""

    listener: str
    api_key: ApiKey
    version: int
    line: Costly
    size: str

    @property
    def title(self) -> str:
        name = "".join(word.capitalize() for word in APIS[self.api_key].module.split("_"))
        where = "" if self.listener == "broker" else " (controller)"
        return f"{name}{where} {self.line.name}".strip()

    def bytes(self, node: Judged) -> bytes:
        request = costly_request(self.line, self.api_key, self.version, SIZES[self.size], node.stage)
        return framed(request, self.version)


@attrs.define
class Cost:
    """What one frame costs; figures of rates are None where they were not measured."""

    frame: Frame
    stall_ms: float
    cpu_ms: float
    peak_mib: float
    left_mib: float
    outcome: str
    paced_share: float | None = None
    back_to_back_share: float | None = None
    wait_ms: float | None = None

    @property
    def holds(self) -> bool:
        return (
            self.stall_ms <= STALL_MS_MAX
            and self.peak_mib <= MEMORY_MIB_MAX
            and self.left_mib <= MEMORY_MIB_MAX / 4
            and self.outcome != "no answer"
            and (self.paced_share is None or self.paced_share >= PACED_SHARE_MIN)
            and (self.back_to_back_share is None or self.back_to_back_share >= BACK_TO_BACK_SHARE_MIN)
            and (self.wait_ms is None or self.wait_ms <= WAIT_MS_MAX)
        )


# -- who uses the node meanwhile ------------------------------------------------------------------------------------


def _ask_on(bootstrap: str, frame: bytes, pause_seconds: float, pipe: Connection) -> None:
    """Ask again and again until told to end; for each message on the pipe, tell (answers, longest wait) since the last."""
    answers, longest = 0, 0.0
    with Client(bootstrap) as client:
        pipe.send(None)
        while True:
            if pipe.poll():
                if pipe.recv() is None:
                    return
                pipe.send((answers, longest))
                answers, longest = 0, 0.0
            started = time.perf_counter()
            if client.exchange(frame) is None:
                raise ConnectionError("an ordinary client lost its connection")
            longest = max(longest, time.perf_counter() - started)
            answers += 1
            if pause_seconds:
                time.sleep(pause_seconds)


@attrs.define
class Asker:
    """A client in a process of its own."""

    process: multiprocessing.process.BaseProcess
    pipe: Connection

    def since_last(self) -> tuple[int, float]:
        """Answers, and the longest wait in seconds, since the last call."""
        self.pipe.send(0)
        found: tuple[int, float] = self.pipe.recv()
        return found


@contextmanager
def askers(bootstrap: str, frames: Sequence[bytes], pause_seconds: float) -> Iterator[list[Asker]]:
    """One client for each frame; they have their connections when this returns."""
    spawn = multiprocessing.get_context("spawn")
    started: list[Asker] = []
    try:
        for frame in frames:
            ours, theirs = spawn.Pipe()
            process = spawn.Process(
                target=_ask_on, args=(bootstrap, frame, pause_seconds, theirs), daemon=True
            )
            process.start()
            started.append(Asker(process, ours))
        for asker in started:
            asker.pipe.recv()
        yield started
    finally:
        for asker in started:
            asker.process.terminate()
            asker.process.join()


def small_produces(node: Judged) -> list[bytes]:
    """A Produce of one small record for each ordinary client, to a topic of its own."""
    frames = []
    for number in range(CLIENTS):
        data = PartitionProduceData(0, memoryview(record_batch(KINDS[1].batch_bytes, 1)))
        topic = TopicProduceData(node.stage.narrow[number], partition_data=[data])
        frames.append(framed_by_client(ApiKey.PRODUCE, 9, ProduceRequest(None, -1, 30_000, [topic])))
    return frames


# -- measuring ------------------------------------------------------------------------------------------------------


def measure_alone(node: Judged, frame: Frame, probe: Asker, settle_seconds: float) -> Cost:
    """One such frame, by itself."""
    pid = node.process.pid
    data = frame.bytes(node)
    address = node.address(frame.listener)
    with Client(address) as client:
        client.exchange(attrs.evolve(frame, size="1K").bytes(node))
    node.reset_peak()
    base = memory_kib(pid, "VmRSS")
    probe.since_last()
    cpu = node.process.cpu_seconds()
    with Client(address) as client:
        try:
            answer = client.exchange(data)
            outcome = "closed" if answer is None else f"{len(answer):,} B"
        except TimeoutError:
            outcome = "no answer"
    cpu = node.process.cpu_seconds() - cpu
    time.sleep(4 * PROBE_SECONDS)
    stall = probe.since_last()[1]
    peak = (memory_kib(pid, "VmHWM") - base) / 1024
    deadline = time.monotonic() + settle_seconds
    while (left := (memory_kib(pid, "VmRSS") - base) / 1024) > 1 and time.monotonic() < deadline:
        time.sleep(1)
    return Cost(frame, stall * 1000, cpu * 1000, peak, left, outcome)


def _attack(node: Judged, frame: Frame, data: bytes, pause_seconds: float, stop: threading.Event) -> None:
    client: Client | None = None
    while not stop.is_set():
        started = time.monotonic()
        if client is None:
            client = Client(node.address(frame.listener))
        try:
            closed = client.exchange(data) is None
        except TimeoutError:
            closed = True
        if closed:
            client.socket.close()
            client = None
        stop.wait(max(0.0, pause_seconds - (time.monotonic() - started)))


def rates(
    node: Judged, frame: Frame, clients: list[Asker], seconds: float, pause_seconds: float
) -> tuple[float, float]:
    """The share of their rate that ordinary clients keep, and the longest wait of any in seconds."""
    data = frame.bytes(node)
    for client in clients:
        client.since_last()
    time.sleep(seconds)
    before = sum(client.since_last()[0] for client in clients)
    stop = threading.Event()
    attackers = [
        threading.Thread(target=_attack, args=(node, frame, data, pause_seconds, stop), daemon=True)
        for _ in range(ATTACKERS)
    ]
    for thread in attackers:
        thread.start()
    time.sleep(seconds)
    found = [client.since_last() for client in clients]
    stop.set()
    for thread in attackers:
        thread.join()
    return sum(answers for answers, _ in found) / max(1, before), max(wait for _, wait in found)


def frames_of(node: Judged, apis: Sequence[str], sizes: Sequence[str], every_version: bool) -> list[Frame]:
    """What is to be measured: of every served API, by listener."""
    wanted = {name.lower().replace("_", "") for name in apis}
    found = []
    for listener in ("broker", "controller"):
        for key, (low, high) in sorted(node.served(listener).items()):
            if wanted and APIS[key].module.replace("_", "") not in wanted:
                continue
            versions = range(low, high + 1) if every_version else sorted({low, high})
            found += [
                Frame(listener, ApiKey(key), version, line, size)
                for line in LINES[ApiKey(key)]
                for version in versions
                for size in sizes
            ]
    return found


def row(cost: Cost) -> list[str]:
    """The cells of the table."""

    def share(value: float | None) -> str:
        return "" if value is None else f"{value:.0%}"

    frame = cost.frame
    return [
        frame.title,
        str(frame.version),
        frame.size,
        f"{cost.stall_ms:.0f}",
        f"{cost.cpu_ms:.0f}",
        f"{cost.peak_mib:.0f}",
        f"{cost.left_mib:.0f}",
        share(cost.paced_share),
        share(cost.back_to_back_share),
        "" if cost.wait_ms is None else f"{cost.wait_ms:.0f}",
        cost.outcome,
        "holds" if cost.holds else "**over**",
    ]


HEAD = [
    "frame",
    "version",
    "size",
    "stall ms",
    "CPU ms",
    "peak MiB",
    "left MiB",
    "kept at 4/s",
    "kept back to back",
    "longest wait ms",
    "answer",
    "budget",
]


def run(arguments: argparse.Namespace) -> list[Cost]:
    """Measure; rows are printed as they come."""
    costs: list[Cost] = []
    with (
        tempfile.TemporaryDirectory(prefix="costs-") as name,
        judged_node(Path(name), arguments.partitions) as node,
    ):
        frames = frames_of(node, arguments.api, arguments.size, not arguments.ends_only)
        probe_frame = framed(ApiVersionsRequest("probe", "1"), 3)
        with askers(node.process.bootstrap, [probe_frame], PROBE_SECONDS) as (probe,):
            for frame in frames:
                cost = measure_alone(node, frame, probe, arguments.settle_seconds)
                costs.append(cost)
                print(" ".join(row(cost)), flush=True)
        if arguments.rates_seconds:
            _measure_rates(node, costs, arguments.rates_seconds)
    return costs


def _measure_rates(node: Judged, costs: list[Cost], seconds: float) -> None:
    """Measure with the largest frame of each line, at the version that took most CPU."""
    worst: dict[tuple[str, ApiKey, str], Cost] = {}
    for cost in costs:
        key = (cost.frame.listener, cost.frame.api_key, cost.frame.line.name)
        if key not in worst or cost.cpu_ms > worst[key].cpu_ms:
            worst[key] = cost
    with askers(node.process.bootstrap, small_produces(node), 0.0) as clients:
        for cost in worst.values():
            cost.paced_share, _ = rates(node, cost.frame, clients, seconds, 1.0)
            cost.back_to_back_share, wait = rates(node, cost.frame, clients, seconds, 0.0)
            cost.wait_ms = wait * 1000
            print(" ".join(row(cost)), flush=True)


def main() -> None:
    """Print the table; the exit status tells whether all of it holds."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--api", nargs="*", default=[], help="names, such as Metadata; all otherwise")
    parser.add_argument("--size", nargs="*", choices=SIZES, default=list(SIZES))
    parser.add_argument(
        "--ends-only", action="store_true", help="the oldest and the newest version of each API"
    )
    parser.add_argument("--partitions", type=int, default=1000)
    parser.add_argument(
        "--settle-seconds", type=float, default=60.0, help="memory may take so long to come back"
    )
    parser.add_argument("--rates-seconds", type=float, default=5.0, help="of each half of a rate; 0: none")
    costs = run(parser.parse_args())
    print(table(HEAD, [row(cost) for cost in costs]))
    over = sum(not cost.holds for cost in costs)
    print(f"{len(costs)} frames, {over} over the budget")
    raise SystemExit(1 if over else 0)


if __name__ == "__main__":
    main()
