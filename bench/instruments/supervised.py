"""Runs a client in a separate process, and reads the server's CPU clock before and after its work.

The client prints `ready`, waits for a line on its standard input, works, and prints its figures as one line of JSON.
Connecting and checking are not measured.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import attrs

from testkit.processes import command_prefix


class Measured(Protocol):
    """An object with a CPU clock: one server process, or several."""

    @property
    def name(self) -> str: ...

    def cpu_seconds(self) -> float: ...


def run_client(
    module: str,
    task: Any,
    server: Measured,
    cpus: Sequence[int] | None,
    during: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> tuple[dict[str, Any], float]:
    """Run `python -m module JSON(task)`. Return its figures, and the CPU seconds that the server used during its work.

    `during` is entered when the client is connected, just before the measurement. Raises `RuntimeError` with the
    client's output if it fails.
    """
    command = [*command_prefix(cpus), sys.executable, "-m", module, json.dumps(attrs.asdict(task))]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as client:
        assert client.stdout is not None
        assert client.stdin is not None
        assert client.stderr is not None
        line = ""
        before = after = 0.0
        if client.stdout.readline().strip() == "ready":
            with during():
                before = server.cpu_seconds()
                client.stdin.write("go\n")
                client.stdin.flush()
                line = client.stdout.readline()
                after = server.cpu_seconds()
        complaint = client.stderr.read()
        if client.wait() or not line:
            raise RuntimeError(f"{module} against {server.name} failed: {complaint[-2000:]}")
    figures: dict[str, Any] = json.loads(line)
    return figures, after - before
