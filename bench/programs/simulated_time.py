"""Measures the shares of a simulated run's CPU time, by kind of work.

    python -m bench.programs.simulated_time 101 102 105

Each kind is a few functions, including all functions that they call. So kinds overlap: a request's handler is also a
step of a task. The profiler slows down each call, so shares of code with many small calls are somewhat too large. How
often each kind happens depends only on the seed. The second table has the functions' own time by package.
"""

from __future__ import annotations

import argparse
import cProfile
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Mapping
from types import CodeType

from bench.instruments.tables import table
from sim.options import RunOptions
from sim.run import run

KINDS: Mapping[str, tuple[str, ...]] = {
    "steps of tasks": ("machine/task_loop.py:_run_batch",),
    "events between the steps": ("machine/events.py:Agenda.advance",),
    "looks of the checks": ("checks/watch.py:Watch._look_again", "availability.py:Availability._look_again"),
    "messages that checks read": ("checks/wiretap.py:Wiretap.sent",),
    "connections of nodes": ("connection_loop.py:Connection.run",),
    "connections and timers of clients": (
        "shells/aio.py:AsyncClient._serve",
        "shells/aio.py:AsyncClient._keep_deadlines",
        "shells/aio.py:AsyncClient._write",
    ),
    "quorum: votes, fetches, heartbeats": (
        "asking/quorum_peers.py:QuorumPeers.ask",
        "raft_quorum.py:RaftQuorum.report",
        "raft_quorum.py:RaftQuorum._keep_time",
    ),
    "metadata: replay and publishing": ("metadata_quorum/service.py:MetadataService._follow",),
    "fetches of followers": ("replication/following/fetcher.py:LeaderFetcher.run",),
    "cleaner's turns": ("cleaning/log_cleaner.py:LogCleaner._run_thread",),
    "work off the loop": ("machine/sim_env.py:SimWorkers.run",),
    "timeouts": (
        "machine/clock.py:_Timeout.__enter__",
        "machine/clock.py:_Timeout.__exit__",
        "machine/clock.py:_Timeout._expire",
    ),
    "segments sent and received": (
        "machine/network.py:SimConn.send",
        "machine/network.py:SimConn.deliver",
        "machine/network.py:SimConn.recv_into",
    ),
    "operations of disks": ("machine/disk.py:SimDisk.operate", "machine/disk.py:SimDisk.write"),
    "trace": ("machine/sim_env.py:SimEnv.record", "machine/trace.py:Trace._fold"),
    "hunts for transactions": ("transaction_troubles.py:_until",),
    "start of nodes": ("node/node.py:Node.start",),
    "logging": (":Logger.log",),
}
"""The functions that do each kind of work. A function is given by the end of its name in the profile, "FILE:FUNCTION".
Its time includes the functions that it calls.
"""
OTHERS = "libraries"

__all__ = ["KINDS", "package_of"]


def package_of(code: CodeType | str) -> str:
    """Return the package of a function, at most two folders deep."""
    if isinstance(code, str):
        return "built-in functions"
    found = re.search(r"/(sim|odradek|wire|data_plane|metadata_quorum)/(.*/)?[^/]*\.py$", code.co_filename)
    if found is None or "site-packages" in code.co_filename:
        return "generated codecs" if code.co_filename.startswith("<") else OTHERS
    above = (found[2] or "").split("/")[0]
    return "/".join(part for part in (found[1], above) if part)


def main() -> None:
    """Run seeds with the default profile under the profiler, and print both tables."""
    parser = argparse.ArgumentParser(prog="python -m bench.programs.simulated_time", description=__doc__)
    parser.add_argument("seeds", type=int, nargs="+")
    profiler = cProfile.Profile()
    for seed in parser.parse_args().seeds:
        result = profiler.runcall(run, seed, RunOptions.draw(seed))
        if result.verdict != "ok":
            sys.exit(f"seed {seed}: {result.verdict}: {result.message}")
    calls: Counter[str] = Counter()
    inclusive: dict[str, float] = defaultdict(float)
    own: dict[str, float] = defaultdict(float)
    for entry in profiler.getstats():
        own[package_of(entry.code)] += entry.inlinetime
        if isinstance(entry.code, CodeType):
            name = f"{entry.code.co_filename}:{entry.code.co_qualname}"
            for kind, ends in KINDS.items():
                if name.endswith(ends):
                    calls[kind] += entry.callcount
                    inclusive[kind] += entry.totaltime
    _print(sum(own.values()), calls, inclusive, own)


def _print(
    seconds: float, calls: Mapping[str, int], inclusive: Mapping[str, float], own: Mapping[str, float]
) -> None:
    rows = [[kind, str(calls[kind]), f"{inclusive[kind] / seconds:.1%}"] for kind in KINDS]
    sys.stdout.write(table(["kind of work", "calls", "share with all it calls"], rows) + "\n\n")
    rows = [
        [package, f"{spent / seconds:.1%}"]
        for package, spent in sorted(own.items(), key=lambda item: -item[1])
    ]
    sys.stdout.write(table(["package", "share of time in its own code"], rows) + "\n")


if __name__ == "__main__":
    main()
