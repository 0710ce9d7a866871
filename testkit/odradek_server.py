"""Our node as a process: format a directory, start `odradek server`, wait until it serves."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from odradek.cli.commands.storage import format_storage_of
from testkit.processes import ServerProcess, combined_node_properties, free_ports, spawn, wait_until_serving

ODRADEK = Path(sys.executable).with_name("odradek")
"""The command beside the interpreter that runs us, so that both are of one environment."""


def prepare_odradek(
    directory: Path, *, port: int | None = None, settings: Mapping[str, str] | None = None
) -> Path:
    """Write `directory`/server.properties and format the log directory; the path of the properties."""
    spare = free_ports(2)
    directory.mkdir(parents=True, exist_ok=True)
    properties = {**combined_node_properties(directory, port or spare[0], spare[1]), **(settings or {})}
    path = directory / "server.properties"
    path.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
    # In this process: tests prepare hundreds of nodes, and each start of the command costs a quarter of a second of CPU.
    format_storage_of(str(path), cluster_id=None, ignore_formatted=False)
    return path


def launch_odradek(
    properties_path: Path,
    *,
    cpus: Sequence[int] | None = None,
    environment: dict[str, str] | None = None,
    timeout_seconds: float = 60.0,
) -> ServerProcess:
    """Start a node from a formatted directory's properties, again or for the first time.

    Raises `ServerFailed` when it does not come up.
    """
    lines = properties_path.read_text().splitlines()
    listeners = dict(line.split("=", 1) for line in lines if "=" in line)["advertised.listeners"]
    server = spawn(
        "Odradek",
        [ODRADEK, "server", properties_path],
        bootstrap=_plaintext(listeners),
        log_path=properties_path.with_name("server.log"),
        cpus=cpus,
        environment=environment,
    )
    wait_until_serving(server, timeout_seconds)
    return server


def _plaintext(listeners: str) -> str:
    """Return the address of the listener PLAINTEXT, or else the last one, where the start is awaited."""
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

    Raises `ServerFailed` when it does not come up, `CliError` when the format is refused.
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
    """Run a node in a directory of its own that is deleted when the block ends."""
    with tempfile.TemporaryDirectory(prefix="odradek-") as name:
        server = start_odradek(Path(name), port=port, settings=settings, cpus=cpus)
        try:
            yield server
        finally:
            server.kill()
