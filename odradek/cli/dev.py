"""`odradek dev`: a local cluster of child processes, for trying things out.

Each node's properties stand in DIR/node-N.properties, its data in DIR/node-N, its log lines in DIR/node-N.log. A
node that dies stays dead, so that one can see what the others do; `odradek server DIR/node-N.properties` brings it
back. The children are in sessions of their own: Ctrl-C reaches only this process, which ends them in order.
"""

from __future__ import annotations

import argparse
import os
import selectors
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from odradek.cli.failure import USAGE, CliError
from odradek.cli.output import print_json
from odradek.cli.parsing import Groups, add_command, port, positive

__all__ = ["register"]

_CONTROLLER_PORT_DISTANCE = 1000
_METRICS_PORT_DISTANCE = 500
_STOP_SECONDS = 30.0
_FOR_ONE_PERSON = {"group.initial.rebalance.delay.ms": "300"}
"""Nobody waits for a crowd of consumers on one's own machine; written once, and then the user's. Not zero: kafka-python
learns of its topic's partitions 0.1 s after it starts, and a group that is complete before then is assigned nothing."""
_HEADER = "# Written by `odradek dev`, which keeps its own keys up to date and leaves all others alone.\n"


def register(groups: Groups) -> None:
    """Add the command."""
    parser = add_command(groups, "dev", _dev, "run a local cluster until Ctrl-C")
    parser.add_argument("--nodes", type=positive, default=1, metavar="N", help="default: 1")
    parser.add_argument("--port", type=port, default=9092, metavar="PORT", help="default: 9092")
    parser.add_argument(
        "--data",
        type=Path,
        default=Path("data"),
        metavar="DIR",
        help="where everything is kept (default: data)",
    )


def _dev(args: argparse.Namespace) -> int:
    if args.nodes != 1:
        raise CliError("this version runs one node: --nodes above 1 has to wait for replication", USAGE)
    if args.port + _CONTROLLER_PORT_DISTANCE > 65535:
        raise CliError(f"--port {args.port} leaves no room for the controller's port 1000 above it", USAGE)
    with _signals() as wakeup, _started(args.data.absolute(), 1, args.port) as node:
        _report_start(node, args.json)
        return _watch(node, wakeup, args.json)


class _Node:
    """A node that runs as our child."""

    def __init__(self, node_id: int, client_port: int, properties: Path, log: Path) -> None:
        self.node_id = node_id
        self.address = f"127.0.0.1:{client_port}"
        self.metrics = f"http://127.0.0.1:{client_port + _METRICS_PORT_DISTANCE}/metrics"
        self.properties = properties
        self.log = log
        self.serving = False
        with log.open("ab") as stream:
            self._log_start = stream.tell()
            self.process = subprocess.Popen(
                [sys.executable, "-m", "odradek", "server", str(properties), "--json"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=stream,
                start_new_session=True,
            )

    def why_it_ended(self) -> str:
        """What the node wrote last, as one line, without the beginning that all its last words have."""
        with self.log.open("rb") as stream:
            stream.seek(self._log_start)
            lines = stream.read().decode(errors="replace").strip().splitlines()
        if not lines:
            return "it wrote nothing"
        return lines[-1].removeprefix("odradek: ").removeprefix(f"node {self.node_id} stops: ")

    def end(self) -> None:
        """SIGTERM, patience, SIGKILL; and reap."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self.process.wait()


@contextmanager
def _started(data: Path, node_id: int, client_port: int) -> Iterator[_Node]:
    """A node, ended on the way out. Unless it came to serve, its properties are then as they were before.

    The directory may belong to a node that runs: that node's file must not tell of our ports.
    """
    properties = data / f"node-{node_id}.properties"
    with _usable(data):
        data.mkdir(parents=True, exist_ok=True)
        before = properties.read_bytes() if properties.exists() else None
    node = None
    try:
        with _usable(data):
            node = _start(data, node_id, client_port, properties)
        yield node
    finally:
        if node is not None:
            node.end()
        if node is None or not node.serving:
            with _usable(data):
                _restore(properties, before)


@contextmanager
def _usable(data: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CliError(
            f"cannot use {data}: {error.strerror or error} (--data says where to keep the data)"
        ) from error


def _start(data: Path, node_id: int, client_port: int, properties: Path) -> _Node:
    directory = data / f"node-{node_id}"
    _write_properties(properties, _settings(node_id, client_port, directory))
    if not (directory / "meta.properties").exists():
        _format(properties)
    return _Node(node_id, client_port, properties, data / f"node-{node_id}.log")


def _restore(properties: Path, before: bytes | None) -> None:
    if before is None:
        properties.unlink(missing_ok=True)
    else:
        properties.write_bytes(before)


def _format(properties: Path) -> None:
    from odradek.cli.storage import format_storage_of

    format_storage_of(str(properties), cluster_id=None, ignore_formatted=True)


def _settings(node_id: int, client_port: int, directory: Path) -> dict[str, str]:
    controller = client_port + _CONTROLLER_PORT_DISTANCE
    return {
        "process.roles": "broker,controller",
        "node.id": str(node_id),
        "controller.quorum.voters": f"{node_id}@127.0.0.1:{controller}",
        "listeners": f"PLAINTEXT://127.0.0.1:{client_port},CONTROLLER://127.0.0.1:{controller}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{client_port}",
        "controller.listener.names": "CONTROLLER",
        "log.dirs": str(directory),
        "odradek.metrics.listener": f"127.0.0.1:{client_port + _METRICS_PORT_DISTANCE}",
        "offsets.topic.replication.factor": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
    }


def _write_properties(path: Path, settings: dict[str, str]) -> None:
    """Set our keys in the file; what else the user wrote there stays."""
    before = path.read_text().splitlines() if path.exists() else [_HEADER.rstrip()]
    theirs = {line.partition("=")[0].strip() for line in before}
    left = settings | {key: value for key, value in _FOR_ONE_PERSON.items() if key not in theirs}
    lines = []
    for line in before:
        key = line.partition("=")[0].strip()
        if key in settings:
            if key in left:
                lines.append(f"{key}={left.pop(key)}")
        else:
            lines.append(line)
    lines += [f"{key}={value}" for key, value in left.items()]
    path.write_text("\n".join(lines) + "\n")


@contextmanager
def _signals() -> Iterator[int]:
    """A descriptor that becomes readable with a byte per SIGINT, SIGTERM or SIGCHLD (each byte its number)."""
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    os.set_blocking(writer, False)
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD)
    old = {number: signal.signal(number, lambda *_: None) for number in numbers}
    old_wakeup = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    try:
        yield reader
    finally:
        signal.set_wakeup_fd(old_wakeup)
        for number, handler in old.items():
            signal.signal(number, handler)
        os.close(reader)
        os.close(writer)


def _watch(node: _Node, wakeup: int, as_json: bool) -> int:
    """Say when the node serves and when it died; return when a signal asks us to stop."""
    process = node.process
    assert process.stdout is not None
    reported = False
    selector = selectors.DefaultSelector()
    selector.register(wakeup, selectors.EVENT_READ)
    selector.register(process.stdout, selectors.EVENT_READ)
    with selector:
        while True:
            for key, _ in selector.select():
                if key.fileobj is process.stdout:
                    if not process.stdout.readline():
                        selector.unregister(process.stdout)
                    elif not node.serving:
                        node.serving = True
                        _report({"ready": True}, "ready", as_json)
                elif _stop_requested(wakeup):
                    return 0
            if process.poll() is None or reported:
                continue
            if not node.serving:
                raise CliError(_failed_start(node))
            reported = True
            _report_death(node, as_json)


def _failed_start(node: _Node) -> str:
    reason = node.why_it_ended()
    if reason.startswith("cannot listen on "):
        reason += " (--port says which; make run PORT=...)"
    return f"node {node.node_id} did not start: {reason}; its log: {node.log}"


def _stop_requested(wakeup: int) -> bool:
    received = os.read(wakeup, 512)
    return signal.SIGINT in received or signal.SIGTERM in received


def _report_start(node: _Node, as_json: bool) -> None:
    pid = node.process.pid
    document = {
        "node": node.node_id,
        "pid": pid,
        "address": node.address,
        "metrics": node.metrics,
        "properties": str(node.properties),
    }
    text = f"node={node.node_id} pid={pid} address={node.address} metrics={node.metrics}"
    _report(document, text, as_json)


def _report_death(node: _Node, as_json: bool) -> None:
    code = node.process.returncode
    how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"
    text = (
        f"node={node.node_id} pid={node.process.pid} ended: {how}; "
        f"to bring it back: {shlex.join([*_command(), 'server', str(node.properties)])}"
    )
    _report({"node": node.node_id, "pid": node.process.pid, "ended": how}, text, as_json)


def _command() -> list[str]:
    """How a shell in the current directory starts the `odradek` that this is, whatever its PATH has."""
    script = Path(sys.executable).parent / "odradek"
    if not script.exists():
        return [sys.executable, "-m", "odradek"]
    here = Path.cwd()
    if not script.is_relative_to(here):
        return [str(script)]
    # A name without a slash would be looked up in PATH.
    return [os.path.join(".", script.name) if script.parent == here else str(script.relative_to(here))]


def _report(document: dict[str, object], text: str, as_json: bool) -> None:
    if as_json:
        print_json(document)
    else:
        print(text)
    sys.stdout.flush()
