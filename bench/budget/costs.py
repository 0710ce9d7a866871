"""`make costs`: measures what the most expensive legal frames cost a node and its other clients.

    python -m bench.budget.costs                                     # every API, version and size: 40 minutes
    python -m bench.budget.costs --ends-only --size 1M               # the oldest and newest versions: 25 minutes
    python -m bench.budget.costs --api Metadata --size 1M            # a part
    python -m bench.budget.costs --ends-only --size 1M --rates-seconds 0   # without other clients: two minutes
    python -m bench.budget.costs --instrument                        # the cost of the measurement itself

Each frame is sent alone first. Meanwhile a probe process sends ApiVersions every few milliseconds; its longest wait is
the stall. Then, for each kind of request, the most expensive version is sent from four connections, once a second and
back to back. Meanwhile three ordinary clients produce small records. Their rate is compared with the mean of the rates
just before and after. If these two differ by more than a fifth, or the goal is missed, the measurement is repeated. The
median of three measurements counts, because one run of three seconds has noise of 15 %. A frame that takes less than
two milliseconds is an ordinary request, and its rates are not measured. (Any four additional clients reduce the rate of
the three clients to 43 %.) A frame without an answer for a minute is over its budget.

The four connections belong to one process that has the frame's bytes and copies nothing (`bench.budget.attackers`).
Its own cost was measured with a sink instead of the node (`--instrument`, 2 cores). The attackers use 0.01 to 0.05
CPUs, the three clients 0.5. With 4 frames of 1 MiB a second, the clients keep their whole rate. With 40 they keep 90
to 96 %, because the kernel transfers the frames on the same cores.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import attrs

from bench.budget.attackers import ATTACKERS, Attack, Attackers, attackers, sink
from bench.budget.beside import Asker, askers
from bench.budget.figures import (
    BACK_TO_BACK_SHARE_MIN,
    LEFT_MIB_MAX,
    PACED_SHARE_MIN,
    SIZES,
    Cost,
    Frame,
    by_line,
    line_table,
    row,
    write_rows,
)
from bench.budget.frames import framed
from bench.budget.lines import LINES
from bench.budget.stage import Client, Judged, judged_node
from bench.hot_path.small_requests import KINDS
from odradek.wire.api_keys import APIS, ApiKey
from odradek.wire.messages.api_versions import ApiVersionsRequest
from odradek.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from testkit.processes import memory_kib
from testkit.raw_requests import framed as framed_by_client
from testkit.raw_requests import record_batch

PROBE_SECONDS = 0.005
CLIENTS = 3
WARM_UP_SECONDS = 0.3
"""The seconds between the end of an attack and a measurement without attack."""
QUIET_SHARE = 2 / 3
"""The duration of a measurement without attack, divided by the duration of a measurement with attack. Without attack
the rate is steadier, so a shorter measurement is enough.
"""
LONG_WINDOW_SECONDS = 6.0
"""The time limit, in seconds, of a measurement that waits until each attacking connection has had an answer."""
UNSTEADY = 0.2
ATTEMPTS = 3


def small_produces(node: Judged) -> list[bytes]:
    """Return one Produce frame with a small record for each ordinary client, each for a topic of its own."""
    frames = []
    for number in range(CLIENTS):
        data = PartitionProduceData(0, memoryview(record_batch(KINDS[1].batch_bytes, 1)))
        topic = TopicProduceData(node.stage.narrow[number], partition_data=[data])
        frames.append(framed_by_client(ApiKey.PRODUCE, 9, ProduceRequest(None, -1, 30_000, [topic])))
    return frames


# -- one frame alone ------------------------------------------------------------------------------------------------


def measure_alone(node: Judged, frame: Frame, probe: Asker, settle_seconds: float) -> Cost:
    """Measure the cost of one frame while nobody else sends anything, except the probe."""
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
    stall = probe.since_last().longest_seconds
    peak = (memory_kib(pid, "VmHWM") - base) / 1024
    deadline = time.monotonic() + settle_seconds
    while (left := (memory_kib(pid, "VmRSS") - base) / 1024) > LEFT_MIB_MAX and time.monotonic() < deadline:
        time.sleep(0.5)
    return Cost(frame, stall * 1000, cpu * 1000, peak, left, outcome)


# -- frames beside ordinary clients ---------------------------------------------------------------------------------


@attrs.frozen
class Window:
    """The rate, the longest wait and the CPU share of all ordinary clients together, during one measurement."""

    rate: float
    longest_seconds: float
    cpu_share: float
    """The CPU seconds of all clients per second."""


def _observe(clients: Sequence[Asker], *, pauses: bool = False) -> Window:
    found = [client.pause() if pauses else client.since_last() for client in clients]
    return Window(
        sum(each.rate for each in found),
        max(each.longest_seconds for each in found),
        sum(each.cpu_seconds / each.seconds for each in found),
    )


def undisturbed(clients: Sequence[Asker], seconds: float) -> Window:
    """Measure the rate and the waits of the ordinary clients without any attack."""
    time.sleep(WARM_UP_SECONDS)
    _observe(clients)
    time.sleep(seconds * QUIET_SHARE)
    return _observe(clients)


def attacked(
    clients: Sequence[Asker],
    attack: Attackers,
    address: str,
    data: bytes,
    seconds: float,
    pause_seconds: float,
) -> tuple[Window, Attack, float]:
    """Measure the ordinary clients while four connections send `data`. Return the clients' `Window`, the attackers'
    results, and the duration in seconds.

    If `pause_seconds` is 0, the measurement lasts until each connection has had an answer, at most
    `LONG_WINDOW_SECONDS`.
    """
    _observe(clients)
    attack.begin(address, data, pause_seconds)
    began = time.monotonic()
    time.sleep(seconds)
    until = began + (0.0 if pause_seconds else LONG_WINDOW_SECONDS)
    while attack.so_far().ended < ATTACKERS and time.monotonic() < until:
        time.sleep(0.05)
    met, took = attack.so_far(), time.monotonic() - began
    window = _observe(clients, pauses=True)
    # The ordinary clients are paused now, so the last exchanges of the attack end soon.
    unanswered = attack.end().unanswered
    for client in clients:
        client.resume()
    return window, attrs.evolve(met, unanswered=unanswered), took


@attrs.frozen
class Rates:
    """The rates that ordinary clients kept during attacks with one frame: once a second per connection, and back to
    back.
    """

    paced_share: float
    back_to_back_share: float
    wait_ms: float
    frames_per_second: float
    unanswered: bool
    unsteady: bool
    """True if the rates without attack, before and after, differ by more than a fifth."""

    @property
    def holds(self) -> bool:
        return self.paced_share >= PACED_SHARE_MIN and self.back_to_back_share >= BACK_TO_BACK_SHARE_MIN


def _rates_beside(
    clients: Sequence[Asker], attack: Attackers, address: str, data: bytes, seconds: float, before: Window
) -> tuple[Rates, Window]:
    """Measure the rates during attacks once. Also return the measurement without attack that follows."""
    paced, met_paced, _ = attacked(clients, attack, address, data, seconds, 1.0)
    between = undisturbed(clients, seconds)
    rushed, met, took = attacked(clients, attack, address, data, seconds, 0.0)
    after = undisturbed(clients, seconds)
    rates = [before.rate, between.rate, after.rate]
    measured = Rates(
        2 * paced.rate / (before.rate + between.rate),
        2 * rushed.rate / (between.rate + after.rate),
        rushed.longest_seconds * 1000,
        met.ended / took,
        bool(met.unanswered or met_paced.unanswered),
        max(rates) - min(rates) > UNSTEADY * max(rates),
    )
    return measured, after


def measure_rates(node: Judged, costs: Sequence[Cost], seconds: float) -> None:
    """Measure what share of their rate ordinary clients keep during attacks with each frame. Print each row when it
    is measured.
    """
    node.commit_offsets()
    with askers(node.process.bootstrap, small_produces(node), 0.0) as clients, attackers() as attack:
        undisturbed(clients, seconds)  # The clients and the node warm up here.
        before = undisturbed(clients, seconds)
        for cost in costs:
            data = cost.frame.bytes(node)
            address = node.address(cost.frame.listener)
            found = []
            for _ in range(ATTEMPTS):
                rates, before = _rates_beside(clients, attack, address, data, seconds, before)
                found.append(rates)
                if not rates.unsteady and rates.holds:
                    break
            # A single bad run may be due to the machine, so the median of three runs counts.
            cost.unsteady = found[-1].unsteady
            cost.paced_share = median(rates.paced_share for rates in found)
            cost.back_to_back_share = median(rates.back_to_back_share for rates in found)
            cost.wait_ms = median(rates.wait_ms for rates in found)
            cost.frames_per_second = median(rates.frames_per_second for rates in found)
            if any(rates.unanswered for rates in found):
                cost.outcome = "no answer"
            print(" ".join(row(cost)), flush=True)


def costliest(costs: Sequence[Cost], over_ms: float) -> list[Cost]:
    """Find the version of each kind of request that took the most CPU at the largest size. Return those versions whose
    CPU time was at least `over_ms`.
    """
    found = []
    for of_line in by_line(costs):
        largest = max(of_line, key=lambda cost: SIZES[cost.frame.size]).frame.size
        worst = max((cost for cost in of_line if cost.frame.size == largest), key=lambda cost: cost.cpu_ms)
        if worst.cpu_ms >= over_ms:
            found.append(worst)
    return found


# -- all frames -----------------------------------------------------------------------------------------------------


def frames_of(node: Judged, apis: Sequence[str], sizes: Sequence[str], every_version: bool) -> list[Frame]:
    """List the frames to measure: the expensive frames of every API that the node serves, on each listener."""
    wanted = {name.lower().replace("_", "") for name in apis}
    found = []
    for listener in ("broker", "controller"):
        for key, (low, high) in sorted(node.served(listener).items()):
            if wanted and APIS[key].module.replace("_", "") not in wanted:
                continue
            versions = range(low, high + 1) if every_version else sorted({low, high})
            found += [
                Frame("login" if line.needs_login else listener, ApiKey(key), version, line, size)
                for line in LINES[ApiKey(key)]
                if listener == "broker" or not line.needs_login
                for version in versions
                if version >= line.since
                for size in (sizes if line.grow else sizes[-1:])
            ]
    return found


def run(arguments: argparse.Namespace) -> list[Cost]:
    """Measure all selected frames, and return their costs. Rows are printed as they are measured."""
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
            measure_rates(node, costliest(costs, arguments.rates_over_ms), arguments.rates_seconds)
    return costs


def measure_instrument(partitions: int, seconds: float) -> None:
    """Print what share of their rate ordinary clients keep when the attackers' frames go to a sink instead of the
    node.
    """
    data = (SIZES["1M"] - 4).to_bytes(4, "big") + bytes(SIZES["1M"] - 4)
    cases = [(1.0, 0.05, 1 << 20), (0.0, 0.4, 1 << 20), (0.0, 0.1, 1 << 20), (0.0, 0.1, 8 << 20)]
    with (
        tempfile.TemporaryDirectory(prefix="costs-") as name,
        judged_node(Path(name), partitions) as node,
        askers(node.process.bootstrap, small_produces(node), 0.0) as clients,
        attackers() as attack,
    ):
        undisturbed(clients, seconds)
        for pause, answer_seconds, answer_bytes in cases:
            with sink(answer_bytes, answer_seconds) as address:
                before = undisturbed(clients, seconds)
                window, met, took = attacked(clients, attack, address, data, seconds, pause)
                after = undisturbed(clients, seconds)
            print(
                f"{met.ended / took:.0f} frames a second, answers of {answer_bytes >> 20} MiB: clients keep "
                f"{2 * window.rate / (before.rate + after.rate):.0%} of their {before.rate:.0f} requests/s before and "
                f"{after.rate:.0f} requests/s after; clients use {before.cpu_share:.2f} CPUs, "
                f"attackers {met.cpu_seconds / took:.2f} CPUs"
            )


def main() -> None:
    """Measure and print the table. The exit status is 0 only if no budget is exceeded."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--api", nargs="*", default=[], help="names of APIs, such as Metadata (default: all)")
    parser.add_argument("--size", nargs="*", choices=SIZES, default=list(SIZES))
    parser.add_argument(
        "--ends-only", action="store_true", help="measure only the oldest and the newest version of each API"
    )
    parser.add_argument("--partitions", type=int, default=1000)
    parser.add_argument(
        "--settle-seconds",
        type=float,
        default=60.0,
        help="how long the node may take to free a frame's memory (default: 60)",
    )
    parser.add_argument(
        "--rates-seconds",
        type=float,
        default=3.0,
        help="length of each measurement of the clients' rate (default: 3; 0: do not measure rates)",
    )
    parser.add_argument(
        "--rates-over-ms",
        type=float,
        default=2.0,
        help="measure rates only for frames that take at least this much CPU time (default: 2)",
    )
    parser.add_argument("--rows", type=Path, metavar="FILE", help="write a tab-separated row for each frame")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the table to this file")
    parser.add_argument(
        "--instrument", action="store_true", help="measure the cost of the measurement itself"
    )
    arguments = parser.parse_args()
    if arguments.instrument:
        measure_instrument(arguments.partitions, arguments.rates_seconds)
        return
    costs = run(arguments)
    if arguments.rows is not None:
        write_rows(arguments.rows, costs)
    found = line_table(costs)
    if arguments.markdown is not None:
        arguments.markdown.write_text(found)
    print(found)
    lines = by_line(costs)
    over = sum(any(cost.over for cost in of_line) for of_line in lines)
    print(f"{len(costs)} frames, {len(lines)} kinds of request, {over} of them over the budget")
    raise SystemExit(1 if over else 0)


if __name__ == "__main__":
    main()
