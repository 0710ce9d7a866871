"""Counts the instructions that a node executes per request, by valgrind's callgrind: a figure with very little noise.

    python -m bench.instructions                                          # this tree
    python -m bench.instructions --before /other/checkout/.venv/bin/odradek   # and the ratio to another one
    python -m bench.instructions --kinds metadata                         # only some requests

CPU time on a shared machine differs by a tenth between two runs of the same code. Counted instructions of the node's
user code differ by less than a hundredth, so they can show a change of two percent. They are not a measure of time:
kernel, caches and the processor's efficiency are left out. One connection sends one request at a time, or eight in
one write, so that the node does the same in every run. The node's own work (timers, quorum) is counted without
requests, and subtracted per second.

Two environment variables of the node make the count stable. `PYTHONHASHSEED` fixes the order of sets.
`GLIBC_TUNABLES` keeps the C library from copying by one repeated instruction, which callgrind counts once per byte.
The library's choice depends on the addresses of both buffers. So a Fetch of 16 KiB took 249,000 instructions in one
process and 266,000 in the next.

Processes of the same code may still differ by a percent. So each tree is measured in several processes, in turns, and
a figure is their median. Run this on an idle machine. On a shared processor too much is subtracted for the node's own
work: up to eight percent of a figure.
"""

from __future__ import annotations

import argparse
import math
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import attrs

from bench.hot_path.small_requests import KINDS, STORED, Kind, request_frame
from testkit.odradek_server import ODRADEK
from testkit.processes import ServerProcess, combined_node_properties, free_ports, wait_until_serving
from testkit.raw_requests import check_answer, connect, exchange

COUNTED_KINDS = (
    *KINDS,
    Kind(
        "produce-100-partitions",
        "Produce of one 100 B record for each of 100 partitions",
        170,
        1,
        partitions=100,
    ),
    Kind("produce-codec", "Produce of one 100 B record to a topic that compresses it", 170, 1, codec="zstd"),
)
REQUESTS_WARMING = 300
START_SECONDS = 900.0
HELD_STILL = {
    "PYTHONHASHSEED": "0",
    "GLIBC_TUNABLES": "glibc.cpu.x86_rep_movsb_threshold=1073741824:glibc.cpu.x86_rep_stosb_threshold=1073741824",
}
"""Environment variables that make the number of instructions stable."""
_TOTALS = re.compile(rb"^(?:totals|summary): (\d+)", re.MULTILINE)


@attrs.frozen
class Window:
    """The instructions and the seconds of one measured period."""

    instructions: int
    seconds: float


@attrs.define
class CountedNode:
    """A node under callgrind, whose counter can be reset and read while it runs."""

    server: ServerProcess
    directory: Path
    _dumps: int = 0

    @contextmanager
    def counted(self) -> Iterator[list[Window]]:
        """Count the instructions of the node during the block. Afterwards, the yielded list has one `Window`."""
        windows: list[Window] = []
        self._control("--zero")
        started = time.monotonic()
        yield windows
        seconds = time.monotonic() - started
        self._control("--dump")
        self._dumps += 1
        windows.append(Window(self._dumped(), seconds))

    def _control(self, what: str) -> None:
        subprocess.run(
            ["callgrind_control", what, str(self.server.pid)],
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def _dumped(self) -> int:
        """Return the number of instructions in the newest dump, added up over all threads."""
        files = sorted(self.directory.glob(f"counted.{self._dumps}*"))
        if not files:
            raise FileNotFoundError(f"callgrind wrote no dump {self._dumps} in {self.directory}")
        return sum(int(found) for file in files for found in _TOTALS.findall(file.read_bytes())[:1])


@contextmanager
def counted_node(odradek: Path, directory: Path) -> Iterator[CountedNode]:
    """Run a node with the command `odradek` under callgrind, for the block."""
    port, controller_port = free_ports(2)
    settings = combined_node_properties(directory, port, controller_port)
    path = directory / "server.properties"
    path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    subprocess.run([odradek, "storage", "format", path], check=True, stdout=subprocess.DEVNULL)
    log_path = directory / "server.log"
    command = ["valgrind", "--tool=callgrind", "--cache-sim=no", f"--callgrind-out-file={directory}/counted"]
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            [*command, odradek.with_name("python"), odradek, "server", path],
            stdout=log,
            stderr=log,
            env={**os.environ, **HELD_STILL},
        )
    server = ServerProcess("Odradek", process, f"127.0.0.1:{port}", log_path)
    try:
        wait_until_serving(server, START_SECONDS)
        yield CountedNode(server, directory)
    finally:
        server.kill()


def ask(bootstrap: str, frame: bytes, requests: int, depth: int) -> None:
    """Send `requests` frames, `depth` in one write, and wait for their answers before the next write."""
    with connect(bootstrap) as connection:
        connection.settimeout(START_SECONDS)
        stream = connection.makefile("rb")
        for _ in range(requests // depth):
            connection.sendall(frame * depth)
            for _ in range(depth):
                stream.read(int.from_bytes(stream.read(4), "big"))


def instructions_per_request(node: CountedNode, kind: Kind, depth: int, requests: int) -> list[float]:
    """Count four periods of `requests` requests each. Return the instructions per request, without the instructions of
    an idle node.
    """
    bootstrap = node.server.bootstrap
    create_topic(bootstrap, topic := f"{kind.name}-{depth}", kind)
    frame, api_key, version = request_frame(kind, topic)
    if kind.name.startswith("fetch"):
        stored, *produce = request_frame(STORED, topic)
        check_answer(exchange(bootstrap, stored, *produce))
    wait_until_led(bootstrap, frame, api_key, version)
    ask(bootstrap, frame, REQUESTS_WARMING, depth)
    figures = []
    for _ in range(4):
        with node.counted() as idle:
            time.sleep(2.0)
        with node.counted() as busy:
            ask(bootstrap, frame, requests, depth)
        beside = idle[0].instructions / idle[0].seconds * busy[0].seconds
        figures.append((busy[0].instructions - beside) / requests)
    return figures


def measure(odradek: Path, requests: int, kinds: Sequence[str]) -> dict[str, float]:
    """Return thousands of instructions per request by kind and depth, in one process: the median of four periods."""
    figures = {}
    with (
        tempfile.TemporaryDirectory(prefix="odradek-bench-") as data,
        counted_node(odradek, Path(data)) as node,
    ):
        for kind in COUNTED_KINDS:
            for depth in (1, 8) if kind.name in kinds else ():
                counted = instructions_per_request(node, kind, depth, requests)
                figures[f"{kind.name}, {depth} in a write"] = statistics.median(counted) / 1000
    return figures


def wait_until_led(bootstrap: str, frame: bytes, api_key: int, version: int) -> None:
    """Send the frame until the answer has no error, because the many partitions of a topic are made in slices."""
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            check_answer(exchange(bootstrap, frame, api_key, version))
        except RuntimeError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.5)
        else:
            return


def create_topic(bootstrap: str, topic: str, kind: Kind) -> None:
    """Create a topic for one kind of request, so that these requests read no records of another kind."""
    codec = ["--config", f"compression.type={kind.codec}"] if kind.codec else []
    subprocess.run(
        [
            ODRADEK,
            "topic",
            "create",
            topic,
            "--partitions",
            str(kind.partitions),
            *codec,
            "--bootstrap-server",
            bootstrap,
        ],
        check=True,
        stdout=subprocess.DEVNULL,
    )


def main() -> None:
    """Print a table: kind, thousands of instructions, the spreads over the processes, and the ratio to the other
    tree.
    """
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--before", type=Path, help="command `odradek` of the checkout to compare with")
    parser.add_argument("--processes", type=int, default=3, help="node processes of each tree (default: 3)")
    parser.add_argument("--requests", type=int, default=400, help="requests in one period (default: 400)")
    names = [kind.name for kind in COUNTED_KINDS if kind.name != "produce-alone"]
    parser.add_argument("--kinds", nargs="+", choices=names, default=names, help="only these requests")
    arguments = parser.parse_args()
    if not shutil.which("valgrind"):
        sys.exit("valgrind is not installed; install it, for example with: apt-get install valgrind")
    now, before = [], []
    for _ in range(arguments.processes):
        now.append(measure(ODRADEK, arguments.requests, arguments.kinds))
        if arguments.before:
            before.append(measure(arguments.before, arguments.requests, arguments.kinds))
    print(
        "| request | thousand instructions | lowest to highest | before | lowest to highest | now / before |"
    )
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    for name in now[0]:
        middle, spread = _middle_and_spread([figures[name] for figures in now])
        other, other_spread = _middle_and_spread([figures[name] for figures in before] or [math.nan])
        print(f"| {name} | {middle:.1f} | {spread} | {other:.1f} | {other_spread} | {middle / other:.3f} |")


def _middle_and_spread(figures: list[float]) -> tuple[float, str]:
    return statistics.median(figures), f"{min(figures):.1f} to {max(figures):.1f}"


if __name__ == "__main__":
    main()
