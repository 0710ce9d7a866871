"""Divides a request's CPU time into stages: wake, receive, parse, dispatch, validate, append, read, encode, send.

A node runs in a process in which the functions of the request path are wrapped from outside, to measure their time.
Each wrapper counts the time of its function without that of wrapped functions inside. A wrapper's own cost is
measured at the start with an empty function, and subtracted. The rest of the CPU that a plain node needs for the same
request is `wake`: epoll, trio's scheduler, the connection's task.

    python -m bench.hot_path.stages CONFIG OUTPUT      run an instrumented node; on SIGTERM write its stages as JSON
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs

from odradek.node.main import serve
from odradek.serving.api_table import ApiEntry

STAGES = ("receive", "parse", "dispatch", "validate", "append", "read", "encode", "send")

POINTS: tuple[tuple[str, str], ...] = (
    ("receive", "odradek.env.real_net:TcpConn.recv_into"),
    ("parse", "odradek.node.connections.connection_loop:Connection._dispatch"),
    ("parse", "odradek.node.connections.connection_loop:Connection._dispatch_frame"),
    ("dispatch", "odradek.data_plane.replication.partition:Partition.append_as_leader"),
    ("validate", "odradek.data_plane.log.partition_log:parse_produced"),
    ("validate", "odradek.data_plane.log.partition_log:validate_for_append"),
    ("validate", "odradek.data_plane.log.partition_log:check_timestamps"),
    ("append", "odradek.data_plane.log.partition_log:PartitionLog.append"),
    ("append", "odradek.env.real_files:RealFile.append"),
    ("read", "odradek.data_plane.log.partition_log:PartitionLog.read"),
    ("encode", "odradek.node.connections.answer_queue:AnswerQueue._encode"),
    ("send", "odradek.node.connections.send_queue:SendQueue.flush"),
    ("send", "odradek.env.real_net:TcpConn.send"),
    ("send", "odradek.env.real_net:TcpConn.sendfile"),
)
"""Pairs of a stage and a function whose own time belongs to it. Decoders, handlers and encoders are wrapped per API
entry.
"""

REQUEST_POINT = "odradek.node.connections.connection_loop:Connection._dispatch_frame"
CALIBRATION_CALLS = 200_000


@attrs.define
class Tally:
    """The own time of one wrapped function. `inside` counts the wrapped calls that it made directly."""

    stage: str
    calls: int = 0
    own_ns: int = 0
    inside: int = 0


@attrs.define
class Stopwatch:
    """All tallies, and the stack of wrapped calls that are running. (No function of this path awaits.)"""

    tallies: dict[str, Tally] = attrs.field(factory=dict)
    _stack: list[list[int]] = attrs.field(factory=lambda: [[0, 0]])

    def wrap(self, name: str, stage: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a function so that its time is added to the tally `name` of a stage."""
        tally = self.tallies.setdefault(name, Tally(stage))
        stack, now = self._stack, time.perf_counter_ns

        def timed(*args: Any, **kwargs: Any) -> Any:
            frame = [0, 0]
            stack.append(frame)
            started = now()
            try:
                return function(*args, **kwargs)
            finally:
                elapsed = now() - started
                stack.pop()
                tally.calls += 1
                tally.own_ns += elapsed - frame[0]
                tally.inside += frame[1]
                parent = stack[-1]
                parent[0] += elapsed
                parent[1] += 1

        return timed

    def microseconds(self, requests: int) -> dict[str, float]:
        """Return microseconds per request by stage, without the wrappers' cost."""
        inner_ns, outer_ns = calibrate()
        found = dict.fromkeys(STAGES, 0.0)
        for tally in self.tallies.values():
            own_ns = tally.own_ns - inner_ns * tally.calls - outer_ns * tally.inside
            found[tally.stage] += max(0.0, own_ns) / 1000 / max(1, requests)
        return found


def calibrate() -> tuple[float, float]:
    """Measure the nanoseconds per call that a wrapper adds to its function's own time, and to that of the caller."""
    watch = Stopwatch()
    empty = watch.wrap("empty", "parse", _nothing)
    started = time.perf_counter_ns()
    for _ in range(CALIBRATION_CALLS):
        empty(1, 2)
    wrapped_ns = time.perf_counter_ns() - started
    started = time.perf_counter_ns()
    for _ in range(CALIBRATION_CALLS):
        _nothing(1, 2)
    plain_ns = time.perf_counter_ns() - started
    inner = watch.tallies["empty"].own_ns
    return inner / CALIBRATION_CALLS, max(0, wrapped_ns - plain_ns - inner) / CALIBRATION_CALLS


def _nothing(first: int, second: int) -> None:
    """Do nothing: the cheapest function with two arguments."""


def locate(point: str) -> tuple[Any, str]:
    """Return the module or class that has the function `module:Class.attribute` or `module:attribute`, and the
    attribute's name.
    """
    module_name, _, path = point.partition(":")
    holder: Any = importlib.import_module(module_name)
    *parents, name = path.split(".")
    for parent in parents:
        holder = getattr(holder, parent)
    return holder, name


def instrument(watch: Stopwatch) -> None:
    """Wrap every function in `POINTS`, and each API entry when it is built. Call this before the node starts."""
    for stage, point in POINTS:
        holder, name = locate(point)
        setattr(holder, name, watch.wrap(point, stage, getattr(holder, name)))
    build = ApiEntry.__init__

    def build_instrumented(entry: ApiEntry, *args: Any) -> None:
        build(entry, *args)
        entry.decode = watch.wrap("decode", "parse", entry.decode)
        entry.handle = watch.wrap("handle", "dispatch", entry.handle)
        entry.encode = watch.wrap("encode", "encode", entry.encode)

    setattr(ApiEntry, "__init__", build_instrumented)  # noqa: B010 - mypy forbids assignment to a method


def main() -> int:
    """Run an instrumented node until SIGTERM, then write its stages as JSON."""
    config_path, output_path = sys.argv[1:]
    watch = Stopwatch()
    instrument(watch)
    status = serve(config_path, complain=print)
    requests = watch.tallies[REQUEST_POINT].calls
    result = {"requests": requests, "microseconds": watch.microseconds(requests)}
    Path(output_path).write_text(json.dumps(result))
    return status


if __name__ == "__main__":
    sys.exit(main())
