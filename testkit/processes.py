"""Server processes for tests and benchmarks: start on chosen CPUs, read CPU time and memory, end by pid.

A child dies with its parent (by `setpriv --pdeathsig`, if it is installed), so that an interrupted session leaves no
processes. `taskset` and `setpriv` replace themselves by the command, so the pid of the `Popen` is the pid of the
server.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import struct
import subprocess
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import attrs

_METADATA_V1 = struct.pack(">hhih", 3, 1, 1, -1) + struct.pack(">i", 0)


class ServerFailed(Exception):
    """Raised if a server has ended or did not serve in time. The message ends with the tail of its log."""


@attrs.define
class ServerProcess:
    """A running server process, with its address and log; it can be measured and stopped."""

    name: str
    process: subprocess.Popen[bytes]
    bootstrap: str
    log_path: Path
    ready_seconds: float = 0.0
    """The seconds from the start of the process until its answer to Metadata contained a broker."""

    @property
    def pid(self) -> int:
        return self.process.pid

    def cpu_seconds(self) -> float:
        """Return the CPU time (user and system) of all threads so far, in seconds.

        The process CPU clock counts nanoseconds, while /proc/PID/stat counts ticks of 10 ms. Both are the sum of utime
        and stime over all threads, including threads that have ended.
        """
        return time.clock_gettime(((~self.pid) << 3) | 2)

    def rss_kib(self) -> int:
        """Return resident memory, in KiB."""
        return memory_kib(self.pid, "VmRSS")

    def is_running(self) -> bool:
        return self.process.poll() is None

    def kill(self) -> None:
        """Send SIGKILL to the process, and reap it."""
        if self.is_running():
            self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self, timeout_seconds: float = 20.0) -> int:
        """Send SIGTERM, then SIGKILL if the process does not end in time; return the exit status."""
        if self.is_running():
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(timeout_seconds)
            except subprocess.TimeoutExpired:
                self.process.kill()
        return self.process.wait()

    def log_tail(self, count: int = 20) -> str:
        """Return the last `count` lines of the server's log."""
        text = self.log_path.read_text(errors="replace") if self.log_path.exists() else ""
        return "\n".join(text.splitlines()[-count:])


def memory_kib(pid: int, field: str) -> int:
    """Return a memory field of /proc/PID/status (`VmRSS`, `VmHWM`), in KiB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1])
    raise ProcessLookupError(pid)


def free_ports(count: int) -> list[int]:
    """Return `count` different loopback ports that have no listener at the moment."""
    return [base_port(1, (0,)) for _ in range(count)]


def base_port(nodes: int, distances: Sequence[int] = (0, 500, 552, 1000)) -> int:
    """Find a port p with free ports at several distances: for each distance d, the `nodes` ports from p + d on are
    free.

    The default distances are those of `odradek dev`: clients, metrics, console, controllers. The ports are below the range that
    the kernel uses for outgoing connections. Otherwise such a connection could take a port before a server starts, or
    while a node is dead. No port is returned to two callers, even in different processes, as long as the first process
    lives.
    """
    ephemeral, _ = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    while True:
        base = random.randrange(10_000, max(ephemeral, 20_000) - max(distances) - nodes)
        wanted = {base + distance + node for distance in distances for node in range(nodes)}
        if all(map(_is_free, wanted)) and _claim(wanted):
            return base


_claims: list[socket.socket] = []
"""Abstract Unix socket names that this process holds, one for each port that was returned to it."""


def _claim(ports: Iterable[int]) -> bool:
    """Reserve ports for this process. If one of them is reserved already, reserve none and return False.

    A check alone is not enough, because a port looks free while its node is down. The reservation is the name of a
    Unix socket, which the kernel releases when the process ends.
    """
    claims: list[socket.socket] = []
    for port in ports:
        claim = socket.socket(socket.AF_UNIX)
        claims.append(claim)
        try:
            claim.bind(f"\0odradek-test-port-{port}")
        except OSError:
            for each in claims:
                each.close()
            return False
    _claims.extend(claims)
    return True


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def combined_node_properties(directory: Path, port: int, controller_port: int) -> dict[str, str]:
    """Return the properties of one combined node with a single log directory; they suit our node and Apache Kafka."""
    return {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@127.0.0.1:{controller_port}",
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "controller.listener.names": "CONTROLLER",
        "log.dirs": str(directory / "data"),
        "offsets.topic.replication.factor": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "group.initial.rebalance.delay.ms": "0",
    }


def command_prefix(cpus: Sequence[int] | None = None) -> list[str]:
    """Return words to put before a command, so that it dies with its parent and runs only on `cpus`."""
    words: list[str] = []
    if shutil.which("setpriv"):
        words += ["setpriv", "--pdeathsig", "KILL"]
    if cpus is not None:
        words += ["taskset", "--cpu-list", ",".join(map(str, cpus))]
    return words


def spawn(
    name: str,
    command: Sequence[str | Path],
    *,
    bootstrap: str,
    log_path: Path,
    cpus: Sequence[int] | None = None,
    environment: dict[str, str] | None = None,
) -> ServerProcess:
    """Start a server process; its output is appended to `log_path`. Do not wait until it serves."""
    with log_path.open("ab") as log:
        process = subprocess.Popen(
            [*command_prefix(cpus), *map(str, command)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(environment or {})},
        )
    return ServerProcess(name=name, process=process, bootstrap=bootstrap, log_path=log_path)


def wait_until_serving(server: ServerProcess, timeout_seconds: float = 60.0) -> None:
    """Wait until the server's answer to Metadata has a broker. Set `ready_seconds`, counted from this call.

    Raises `ServerFailed` if the server ends, or does not answer in time; then it is killed.
    """
    started = time.monotonic()
    while not serves(server.bootstrap):
        if not server.is_running():
            raise ServerFailed(
                f"{server.name} ended with status {server.process.returncode}:\n{server.log_tail()}"
            )
        if time.monotonic() - started > timeout_seconds:
            server.kill()
            raise ServerFailed(
                f"{server.name} did not serve within {timeout_seconds:.0f} s:\n{server.log_tail()}"
            )
        time.sleep(0.01)
    server.ready_seconds = time.monotonic() - started


def serves(bootstrap: str, timeout_seconds: float = 2.0) -> bool:
    """True if the answer to a Metadata request (version 1, no topics) has at least one broker."""
    host, _, port = bootstrap.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=timeout_seconds) as connection:
            connection.sendall(struct.pack(">i", len(_METADATA_V1)) + _METADATA_V1)
            answer = connection.makefile("rb")
            size = answer.read(4)
            if len(size) < 4:
                return False
            body = answer.read(int.from_bytes(size, "big"))
    except OSError:
        return False
    return len(body) >= 8 and int.from_bytes(body[4:8], "big", signed=True) > 0
