"""Our node as a process: format a directory, start `odradek server`, wait until it serves."""

from __future__ import annotations

import functools
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from odradek.cli.commands.storage import format_storage_of
from testkit.nursery import Nursery
from testkit.processes import ServerProcess, combined_node_properties, free_ports, spawn, wait_until_serving

ODRADEK = Path(sys.executable).with_name("odradek")
"""The command `odradek` of this interpreter's environment."""

_nurseries: Callable[[], Nursery] | None = None


def use_nursery() -> None:
    """Start nodes in the nursery from now on (`nursery.py`), except nodes that are measured."""
    global _nurseries
    _nurseries = living_nursery


@functools.cache
def _nursery_of(process: int) -> list[Nursery]:
    """Return the list in which this process keeps its nursery; it is empty if there is none yet. (A forked process
    needs its own nursery.)
    """
    return []


def living_nursery() -> Nursery:
    """Return the nursery of this process; start a new one if there is none or it has died."""
    place = _nursery_of(os.getpid())
    if not place or not place[-1].is_alive:
        place[:] = [Nursery()]
    return place[-1]


def prepare_odradek(
    directory: Path, *, port: int | None = None, settings: Mapping[str, str] | None = None
) -> Path:
    """Write `directory`/server.properties and format the log directory. Return the path of the properties file."""
    spare = free_ports(2)
    directory.mkdir(parents=True, exist_ok=True)
    properties = {**combined_node_properties(directory, port or spare[0], spare[1]), **(settings or {})}
    path = directory / "server.properties"
    path.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
    # Format in this process: tests prepare hundreds of nodes, and each start of the command would cost a
    # quarter of a second of CPU.
    format_storage_of(str(path), cluster_id=None, ignore_formatted=False)
    return path


def launch_odradek(
    properties_path: Path,
    *,
    cpus: Sequence[int] | None = None,
    environment: dict[str, str] | None = None,
    timeout_seconds: float = 60.0,
    by_command: bool = False,
) -> ServerProcess:
    """Start a node with this properties file, whose directory is formatted, and wait until it serves.

    `by_command`: run the command `odradek` instead of forking the nursery.

    Raises `ServerFailed` if the node does not start.
    """
    lines = properties_path.read_text().splitlines()
    listeners = dict(line.split("=", 1) for line in lines if "=" in line)["advertised.listeners"]
    server = spawn_node(
        "Odradek",
        properties_path,
        bootstrap=_plaintext(listeners),
        log_path=properties_path.with_name("server.log"),
        cpus=cpus,
        environment=environment,
        by_command=by_command,
    )
    wait_until_serving(server, timeout_seconds)
    return server


def spawn_node(
    name: str,
    properties_path: Path,
    *,
    bootstrap: str,
    log_path: Path,
    cpus: Sequence[int] | None = None,
    environment: dict[str, str] | None = None,
    by_command: bool = False,
) -> ServerProcess:
    """Start a node with this properties file, in the nursery if it is in use. Do not wait until it serves."""
    if _nurseries is None or cpus is not None or environment is not None or by_command:
        return spawn(
            name,
            [ODRADEK, "server", properties_path],
            bootstrap=bootstrap,
            log_path=log_path,
            cpus=cpus,
            environment=environment,
        )
    return ServerProcess(name, _nurseries().start(["server", properties_path], log_path), bootstrap, log_path)


def _plaintext(listeners: str) -> str:
    """Return the address at which to wait for the start: the listener PLAINTEXT, or else the last listener."""
    addresses = dict(each.split("://", 1) for each in listeners.split(","))
    return addresses.get("PLAINTEXT", listeners.rpartition("//")[2])


def start_odradek(
    directory: Path,
    *,
    port: int | None = None,
    settings: Mapping[str, str] | None = None,
    cpus: Sequence[int] | None = None,
    environment: dict[str, str] | None = None,
) -> ServerProcess:
    """Format `directory` and start a node there.

    Raises `ServerFailed` if the node fails to start, and `CliError` if the format is refused.
    """
    return launch_odradek(
        prepare_odradek(directory, port=port, settings=settings), cpus=cpus, environment=environment
    )


@contextmanager
def odradek_server(
    *,
    port: int | None = None,
    settings: Mapping[str, str] | None = None,
    cpus: Sequence[int] | None = None,
) -> Iterator[ServerProcess]:
    """Run a node for the block, in a temporary directory."""
    with tempfile.TemporaryDirectory(prefix="odradek-") as name:
        server = start_odradek(Path(name), port=port, settings=settings, cpus=cpus)
        try:
            yield server
        finally:
            server.kill()
