"""`odradek dev`: a local cluster of child processes, for trying things out.

Each node's properties are in DIR/node-N.properties, its data in DIR/node-N, its log lines in DIR/node-N.log. A node
that dies is not restarted, so that you can watch how the other nodes react. `odradek server DIR/node-N.properties`
starts it again. Each child process has its own session. So Ctrl-C reaches only this process, which then stops all
nodes.

All nodes are brokers and controllers. The voters are chosen from the nodes of the first start: an odd number of nodes,
at most `VOTERS_MAX`. `odradek quorum add` makes a later node a voter.
"""

from __future__ import annotations

import argparse
import os
import re
import selectors
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from odradek.cli.dev_security import USERS, DevSecurity
from odradek.cli.failure import USAGE, CliError
from odradek.cli.output import print_json, say
from odradek.cli.parsing import Groups, add_command, port, positive
from odradek.env.child_python import child_environment, child_program

__all__ = ["register"]

_CONTROLLER_PORT_DISTANCE = 1000
_METRICS_PORT_DISTANCE = 500
_CONSOLE_PORT_DISTANCE = 552
"""The first node's console is at 9644 by default, where users of other logs look for one."""
_BROKERS_PORT_DISTANCE = 1500
_STOP_SECONDS = 30.0
VOTERS_MAX = 5
REPLICATED_FROM = 3
"""From this number of nodes on, topics have three replicas, two of which must be in sync."""
_FOR_ONE_PERSON = {"group.initial.rebalance.delay.ms": "300"}
"""Settings for a development machine, where a group need not wait long for more consumers. They are written only at the
first start, so the user may change them. The rebalance delay is not zero, because kafka-python needs 0.1 s after its
join to learn its topic's partitions. If the group were balanced earlier, it would assign no partitions to kafka-python.
"""
_HEADER = "# Written by `odradek dev`, which keeps its own keys up to date and leaves all others alone.\n"


def register(groups: Groups) -> None:
    """Add the command `dev` to the parser of the command line."""
    parser = add_command(groups, "dev", _dev, "run a local cluster until Ctrl-C")
    parser.add_argument(
        "--nodes",
        type=positive,
        default=1,
        metavar="N",
        help="how many nodes to run; each is a broker and a controller (default: 1)",
    )
    parser.add_argument(
        "--port",
        type=port,
        default=9092,
        metavar="PORT",
        help="the first node's port for clients; the other nodes take the ports after it. A node's metrics port is 500 above, "
        "its console 552 above, its controller port 1000 above (default: 9092)",
    )
    parser.add_argument(
        "--data",
        type=Path,
        default=Path("data"),
        metavar="DIR",
        help="the directory for data, logs and properties of the nodes (default: data)",
    )
    parser.add_argument(
        "--secure",
        action="store_true",
        help="run the nodes with TLS and logins; clients use DIR/admin.properties or DIR/client.properties (--command-config). Brokers reach each other at another port: the client port plus 1500",
    )


def _dev(args: argparse.Namespace) -> int:
    data, count, first_port = args.data.absolute(), args.nodes, args.port
    if count > _METRICS_PORT_DISTANCE:
        raise CliError(
            f"--nodes {count} is too many: the ports suffice for at most {_METRICS_PORT_DISTANCE} nodes",
            USAGE,
        )
    distance = _BROKERS_PORT_DISTANCE if args.secure else _CONTROLLER_PORT_DISTANCE
    if first_port + count - 1 + distance > 65535:
        who = "brokers" if args.secure else "controllers"
        raise CliError(
            f"--port {first_port} is too high: {who} use the ports {distance} above, and 65535 is the last",
            USAGE,
        )
    security = DevSecurity(data) if args.secure else None
    with _signals() as wakeup, _started(data, count, first_port, security) as nodes:
        for node in nodes:
            _report_start(node, args.json)
        return _watch(nodes, wakeup, security, args.json)


def _has_console(count: int) -> bool:
    """True if the nodes get consoles: the package for it is installed, and the ports of so many nodes do not overlap."""
    return find_spec("h11") is not None and count <= _CONSOLE_PORT_DISTANCE - _METRICS_PORT_DISTANCE


class _Place(NamedTuple):
    """The files and ports of one node of a local cluster."""

    data: Path
    node_id: int
    client_port: int

    @property
    def directory(self) -> Path:
        return self.data / f"node-{self.node_id}"

    @property
    def properties(self) -> Path:
        return self.data / f"node-{self.node_id}.properties"

    @property
    def log(self) -> Path:
        return self.data / f"node-{self.node_id}.log"

    @property
    def controller(self) -> str:
        return f"127.0.0.1:{self.client_port + _CONTROLLER_PORT_DISTANCE}"

    @property
    def console(self) -> str:
        return f"127.0.0.1:{self.client_port + _CONSOLE_PORT_DISTANCE}"

    @property
    def is_formatted(self) -> bool:
        return (self.directory / "meta.properties").exists()


class _Node:
    """A node that runs as a child process."""

    def __init__(self, place: _Place) -> None:
        self.node_id = place.node_id
        self.address = f"127.0.0.1:{place.client_port}"
        self.metrics = f"http://127.0.0.1:{place.client_port + _METRICS_PORT_DISTANCE}/metrics"
        self.console = place.console
        self.properties = place.properties
        self.log = place.log
        self.serving = False
        self.reported_dead = False
        with self.log.open("ab") as stream:
            self._log_start = stream.tell()
            self.process = subprocess.Popen(
                [*child_program("odradek"), "server", str(self.properties), "--json"],
                env=child_environment(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=stream,
                start_new_session=True,
            )

    def why_it_ended(self) -> str:
        """Return the last line that the node logged, without the prefix that every line has."""
        with self.log.open("rb") as stream:
            stream.seek(self._log_start)
            lines = stream.read().decode(errors="replace").strip().splitlines()
        if not lines:
            return "the node wrote no log lines"
        return lines[-1].removeprefix("odradek: ").removeprefix(f"node {self.node_id} stops: ")


def _end(nodes: list[_Node]) -> None:
    """Stop all nodes: send SIGTERM to all at once, wait, then send SIGKILL. (If the nodes were stopped one by one, the
    last nodes would stop without a majority of the quorum.)
    """
    for node in nodes:
        if node.process.poll() is None:
            node.process.terminate()
    deadline = time.monotonic() + _STOP_SECONDS
    for node in nodes:
        try:
            node.process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            node.process.kill()
            node.process.wait()


@contextmanager
def _started(data: Path, count: int, first_port: int, security: DevSecurity | None) -> Iterator[list[_Node]]:
    """Start the nodes for the block, and stop them after it. If some node does not begin to serve, restore
    the former properties files of all nodes. This matters if nodes from an earlier start still run in this
    directory, because their files must keep their ports.
    """
    places = [_Place(data, number + 1, first_port + number) for number in range(count)]
    with _usable(data):
        data.mkdir(mode=0o700, parents=True, exist_ok=True)
        before = {
            place.properties: place.properties.read_bytes() if place.properties.exists() else None
            for place in places
        }
    nodes: list[_Node] = []
    try:
        with _usable(data):
            _prepare(data, places, security)
            for place in places:
                nodes.append(_Node(place))
        yield nodes
    finally:
        _end(nodes)
        if len(nodes) < count or not all(node.serving for node in nodes):
            with _usable(data):
                for path, text in before.items():
                    _restore(path, text)


@contextmanager
def _usable(data: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CliError(
            f"the data directory {data} cannot be used: {error.strerror or error} (--data names "
            "another directory)"
        ) from error


def _prepare(data: Path, places: list[_Place], security: DevSecurity | None) -> None:
    """Write the properties files, and format the directories that are new. Raises `CliError` if `data` holds
    another cluster.
    """
    formatted = [place for place in places if place.is_formatted]
    more = _Place(data, len(places) + 1, 0)
    if more.is_formatted:
        known = len(places) + 1
        while _Place(data, known + 1, 0).is_formatted:
            known += 1
        raise CliError(
            f"{data} belongs to a cluster of {known} nodes: use --nodes {known}, or another --data"
        )
    if formatted and DevSecurity(data).exists != (security is not None):
        advice = "give another --data for a new cluster" if security is not None else "use --secure"
        raise CliError(
            f"{data} belongs to a cluster that was created {'without' if security else 'with'} --secure: {advice}"
        )
    if security is not None:
        security.make(",".join(f"127.0.0.1:{place.client_port}" for place in places))
    _check_majority(places)
    if len(formatted) > 1:
        _check_ports(formatted[0])
    for place in places:
        _write_properties(place.properties, _settings(place, places, security))
    if len(formatted) < len(places):
        _format(places, [] if security is None else security.first_users())


def _check_majority(places: list[_Place]) -> None:
    """Raise `CliError` if some nodes' directories are gone and the remaining nodes cannot elect a leader.

    Formatting new directories would then start a second cluster.
    """
    known = [place for place in places if place.is_formatted or place.properties.exists()]
    gone = [str(place.node_id) for place in known if not place.is_formatted]
    if not gone or len(gone) == len(known):
        return
    from odradek.cli.recovering.stopped_nodes import elects_leader

    if not elects_leader([str(place.properties) for place in known if place.is_formatted]):
        configs = " ".join(str(place.properties) for place in known)
        raise CliError(
            f"the directories of nodes {', '.join(gone)} are gone, and the remaining nodes cannot elect a leader. "
            f"To keep this cluster, run `odradek quorum recover {configs}`. To start a new one, name another --data"
        )


def _voters(places: list[_Place]) -> list[_Place]:
    """Choose the nodes that vote in a new cluster: an odd number, at most `VOTERS_MAX`."""
    return places[: min(VOTERS_MAX, len(places) - (1 - len(places) % 2))]


def _check_ports(first: _Place) -> None:
    """Raise `CliError` if the ports differ from those of the first start, because the metadata log holds the
    voters' addresses.
    """
    text = first.properties.read_text() if first.properties.exists() else ""
    found = re.search(r"^listeners=(?:PLAINTEXT|SASL_SSL)://127\.0\.0\.1:(\d+)", text, re.MULTILINE)
    if found is not None and int(found[1]) != first.client_port:
        raise CliError(f"the nodes of {first.data} were set up with other ports: use --port {found[1]}")


def _restore(properties: Path, before: bytes | None) -> None:
    if before is None:
        properties.unlink(missing_ok=True)
    else:
        properties.write_bytes(before)


def _format(places: list[_Place], users: list[str]) -> None:
    """Format the directories that are new. The first start chooses the voters; nodes that are added later do
    not vote.
    """
    from odradek.cli.commands.storage import format_storage_of
    from odradek.env.real import RealEnv
    from odradek.metadata_quorum.replica.meta_properties import MetaProperties
    from odradek.wire.uuid_text import uuid_to_text

    new_uuid = RealEnv().new_uuid
    formatted = [place for place in places if place.is_formatted]
    if formatted:
        meta = MetaProperties.decode((formatted[0].directory / "meta.properties").read_bytes())
        cluster_id, initial = meta.cluster_id, None
    else:
        cluster_id = uuid_to_text(new_uuid())
        initial = ",".join(
            f"{each.node_id}@{each.controller}:{uuid_to_text(new_uuid())}" for each in _voters(places)
        )
    for place in places:
        if not place.is_formatted:
            format_storage_of(
                str(place.properties),
                cluster_id=cluster_id,
                ignore_formatted=True,
                initial_controllers=initial,
                no_initial_controllers=initial is None,
                users=users,
            )


def _settings(place: _Place, places: list[_Place], security: DevSecurity | None) -> dict[str, str]:
    replicas, in_sync = ("3", "2") if len(places) >= REPLICATED_FROM else ("1", "1")
    secured = {}
    if security is not None:
        host, brokers = "127.0.0.1", place.client_port + _BROKERS_PORT_DISTANCE
        secured = security.node_settings(f"{host}:{place.client_port}", f"{host}:{brokers}", place.controller)
    return {
        "process.roles": "broker,controller",
        "node.id": str(place.node_id),
        "controller.quorum.bootstrap.servers": ",".join(each.controller for each in places),
        "listeners": f"PLAINTEXT://127.0.0.1:{place.client_port},CONTROLLER://{place.controller}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{place.client_port}",
        "controller.listener.names": "CONTROLLER",
        "log.dirs": str(place.directory),
        "odradek.metrics.listener": f"127.0.0.1:{place.client_port + _METRICS_PORT_DISTANCE}",
        # An empty value turns it off again where the package is gone.
        "odradek.console.listener": place.console if _has_console(len(places)) else "",
        "default.replication.factor": replicas,
        "min.insync.replicas": in_sync,
        "offsets.topic.replication.factor": replicas,
        "transaction.state.log.replication.factor": replicas,
        "transaction.state.log.min.isr": in_sync,
        **secured,
    }


def _write_properties(path: Path, settings: dict[str, str]) -> None:
    """Set these keys in the properties file, and keep all other lines that the user wrote."""
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
    # A file with secrets must be readable only by its owner from its first byte on.
    path.touch(mode=0o600)
    if path.stat().st_mode & 0o077 and "odradek.scram.secret" in settings:
        path.chmod(0o600)
    path.write_text("\n".join(lines) + "\n")


@contextmanager
def _signals() -> Iterator[int]:
    """Open a descriptor that becomes readable with one byte for each SIGINT, SIGTERM or SIGCHLD (the byte is the
    signal's number).
    """
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


def _watch(nodes: list[_Node], wakeup: int, security: DevSecurity | None, as_json: bool) -> int:
    """Print a line when all nodes serve, and when a node has died. Return 0 after SIGINT or SIGTERM; raise
    `CliError` if a node fails to start.
    """
    selector = selectors.DefaultSelector()
    selector.register(wakeup, selectors.EVENT_READ)
    for node in nodes:
        assert node.process.stdout is not None
        selector.register(node.process.stdout, selectors.EVENT_READ, node)
    ready = False
    with selector:
        while True:
            for key, _ in selector.select():
                if key.data is None:
                    if _stop_requested(wakeup):
                        return 0
                elif not (stream := key.data.process.stdout).readline():
                    selector.unregister(stream)
                else:
                    key.data.serving = True
            if not ready and all(node.serving for node in nodes):
                ready = True
                _report({"ready": True}, "ready", as_json)
                if security is not None:
                    _report_client_files(security, as_json)
                _report_console(nodes, security, as_json)
            for node in nodes:
                if node.reported_dead or node.process.poll() is None:
                    continue
                if not ready and not node.serving:
                    raise CliError(_failed_start(node))
                node.reported_dead = True
                _report_death(node, as_json)


def _failed_start(node: _Node) -> str:
    reason = node.why_it_ended()
    if reason.startswith("cannot listen on "):
        reason += " (give another --port; with make: make run PORT=...)"
    return f"node {node.node_id} did not start: {reason}; its log is {node.log}"


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


def _report_client_files(security: DevSecurity, as_json: bool) -> None:
    files: dict[str, object] = {user: str(security.client_file(user)) for user in USERS}
    _report(files, "for clients, --command-config may be " + " or ".join(map(str, files.values())), as_json)


def _report_console(nodes: list[_Node], security: DevSecurity | None, as_json: bool) -> None:
    if _has_console(len(nodes)):
        link = f"http://{nodes[0].console}/"
        text = f"look at the cluster in a browser: {link}"
        if security is not None:
            text += f" (users {' and '.join(USERS)}; the passwords are in {security.directory})"
        _report({"console": link}, text, as_json)


def _report_death(node: _Node, as_json: bool) -> None:
    code = node.process.returncode
    how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"
    text = (
        f"node={node.node_id} pid={node.process.pid} ended: {how}; "
        f"to bring it back: {shlex.join([*_command(), 'server', str(node.properties)])}"
    )
    _report({"node": node.node_id, "pid": node.process.pid, "ended": how}, text, as_json)


def _command() -> list[str]:
    """Return the words of a command that starts this same `odradek` from the current directory. (The word `odradek`
    alone may start another version, which comes first in PATH.)
    """
    script = Path(sys.executable).parent / "odradek"
    if not script.exists():
        return [sys.executable, "-m", "odradek"]
    here = Path.cwd()
    if not script.is_relative_to(here):
        return [str(script)]
    # Put `./` before the name, because a shell looks up a name without a slash in PATH.
    return [os.path.join(".", script.name) if script.parent == here else str(script.relative_to(here))]


def _report(document: dict[str, object], text: str, as_json: bool) -> None:
    if as_json:
        print_json(document)
    else:
        say(text)
    sys.stdout.flush()
