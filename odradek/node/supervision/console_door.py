"""The console's door: a listening socket of the node. Its process starts with the first connection. SHELL.

Theory of operation
-------------------
While nobody looks, the door is one task that waits for the socket. There is neither a process nor a timer. When a browser
connects, the door starts `odradek.console` and passes the socket on (as inetd does with `wait`). The process accepts this
connection and all later ones. The node reads nothing from them. The process ends when it has been idle for long enough.
Then the door waits again. A connection that arrives in between stays in the socket's queue, and starts the next process.

A pipe has the settings, and is the process's lifeline afterwards: it ends with its node (`end_with_parent` of `odradek/env/child_python.py`).

A process that fails cannot answer the browser. So the door closes the waiting connections, and pauses before the next
start, longer each time.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import subprocess
from collections.abc import Mapping
from importlib.util import find_spec

import attrs
import trio

from odradek.env.child_python import child_environment, child_program
from odradek.env.ports import Log
from odradek.env.real_net import listening_socket
from odradek.metadata_quorum.config.java_properties import MalformedProperties, parse_properties
from odradek.node.configuration.console_config import (
    CLIENT_CONFIG,
    ConsoleConfig,
    certificate_login_refusal,
    console_refusal,
    credentials_refusal,
)
from odradek.node.configuration.node_config import NodeConfig
from odradek.node.node import NodeCannotStart, NodeCannotStartYet

__all__ = ["ConsoleDoor", "open_console"]

PAUSE_SECONDS = 1.0
PAUSE_SECONDS_MAX = 60.0
GOOD_SECONDS = 60.0
"""A process that has run for so long was no failed start, however it has ended."""
END_SECONDS_MAX = 3.0
PORT_SECONDS_MAX = 5.0
"""How long a node waits for the port. If the node was killed a moment ago, its console may still be ending, and holds
the port until then.
"""
PORT_LOOK_SECONDS = 0.05
_EVERY_INTERFACE = ("", "0.0.0.0", "::")


async def open_console(config: NodeConfig, log: Log) -> ConsoleDoor | None:
    """Open the listener of the console, if it is configured. Waits at most `PORT_SECONDS_MAX` for its port. Raises
    `NodeCannotStart`.
    """
    settings = config.console
    if settings is None:
        return None
    if find_spec("h11") is None:
        raise NodeCannotStart(
            "odradek.console.listener needs the package h11: pip install 'odradek[console]', or remove the key"
        )
    client = {**settings.client, **_client_file(settings)}
    protocol = client.get("security.protocol", "PLAINTEXT").upper()
    refusal = (
        certificate_login_refusal(client, settings.tls, knows_super_users=True)
        or credentials_refusal(client)
        or console_refusal(
            settings.host, is_encrypted=settings.tls is not None, needs_login=protocol.startswith("SASL")
        )
    )
    if refusal is not None:
        raise NodeCannotStart(refusal)
    listening = await _listening_socket(settings.host, settings.port)
    return ConsoleDoor(settings, client, config.node_id, listening, log)


async def _listening_socket(host: str, port: int) -> socket.socket:
    """Listen for browsers. Raises `NodeCannotStartYet`."""
    give_up_at = trio.current_time() + PORT_SECONDS_MAX
    while True:
        try:
            return listening_socket(host, port)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or trio.current_time() >= give_up_at:
                raise NodeCannotStartYet(
                    f"cannot listen on {host or '*'}:{port} for the console: {error.strerror or error}"
                ) from error
        await trio.sleep(PORT_LOOK_SECONDS)


def _client_file(settings: ConsoleConfig) -> Mapping[str, str]:
    """Read the file with keys of clients. Raises `NodeCannotStart`."""
    if not settings.client_config:
        return {}
    try:
        with open(settings.client_config, encoding="utf-8") as file:
            return parse_properties(file.read())
    except (OSError, UnicodeDecodeError, MalformedProperties) as error:
        raise NodeCannotStart(f"{CLIENT_CONFIG}: {settings.client_config} cannot be read: {error}") from error


@attrs.define
class _Process:
    """A console's process, with the node's end of its lifeline."""

    process: subprocess.Popen[bytes]
    lifeline: int

    def release(self) -> None:
        """Close the lifeline, which ends the process if it still runs. A second call has no effect."""
        lifeline, self.lifeline = self.lifeline, -1
        if lifeline >= 0:
            os.close(lifeline)


class ConsoleDoor:
    """Waits for browsers, and lets a process serve them."""

    def __init__(
        self,
        settings: ConsoleConfig,
        client: Mapping[str, str],
        node_id: int,
        listening: socket.socket,
        log: Log,
    ) -> None:
        self._settings = settings
        self._client = client
        self._node_id = node_id
        self._socket = listening
        self._log = log
        self.starts = 0
        """How many processes were started."""

    @property
    def port(self) -> int:
        port: int = self._socket.getsockname()[1]
        return port

    @property
    def link(self) -> str:
        """The address for a browser on this machine."""
        host = "127.0.0.1" if self._settings.host in _EVERY_INTERFACE else self._settings.host
        shown = f"[{host}]" if ":" in host else host
        return f"{'http' if self._settings.tls is None else 'https'}://{shown}:{self.port}/"

    def statistics(self) -> dict[str, int]:
        """Return the number of processes that were started."""
        return {"console_starts": self.starts}

    def close(self) -> None:
        """Close the listener."""
        self._socket.close()

    async def serve(self, bootstrap: str) -> None:
        """Start a process whenever a browser connects, until the task is cancelled. `bootstrap` is the node's address
        for clients.
        """
        pause = PAUSE_SECONDS
        while True:
            await trio.lowlevel.wait_readable(self._socket)
            began = trio.current_time()
            status = await self._run_process(bootstrap)
            if status == 0 or trio.current_time() - began >= GOOD_SECONDS:
                pause = PAUSE_SECONDS
            if status == 0:
                continue
            self._log.warning("console.failed", status=status, pause_seconds=pause)
            self._turn_away()
            await trio.sleep(pause)
            pause = min(2 * pause, PAUSE_SECONDS_MAX)

    async def _run_process(self, bootstrap: str) -> int:
        """Run a process to its end. Return its exit status, or 1 if the system cannot start one."""
        try:
            running = await trio.to_thread.run_sync(self._start, bootstrap)
        except (OSError, RuntimeError, MemoryError) as error:
            # Descriptors, processes, threads or memory are used up.
            self._log.warning("console.not_started", error=str(error))
            return 1
        self.starts += 1
        self._log.info("console.started", pid=running.process.pid)
        descriptor = -1
        try:
            descriptor = os.pidfd_open(running.process.pid)
            await trio.lowlevel.wait_readable(descriptor)
            return running.process.wait()
        except OSError as error:
            self._log.warning("console.not_started", error=str(error))
            return 1
        finally:
            if descriptor >= 0:
                os.close(descriptor)
            running.release()
            if running.process.poll() is None:
                self._end(running.process)

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        """Reap a process that the kernel is ending. It does not block for long, even if the process is stopped."""
        process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(END_SECONDS_MAX)

    def _start(self, bootstrap: str) -> _Process:
        """Start the process. It blocks. Raises `OSError`."""
        theirs, mine = os.pipe()
        try:
            process = subprocess.Popen(
                [
                    *child_program("odradek.console"),
                    f"--socket={self._socket.fileno()}",
                    f"--settings={theirs}",
                    "--in-node",
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(self._socket.fileno(), theirs),
                env=child_environment(),
            )
        except BaseException:
            os.close(mine)
            raise
        finally:
            os.close(theirs)
        running = _Process(process, mine)
        try:
            with open(mine, "wb", closefd=False) as stream:
                stream.write(self._document(bootstrap))
        except BrokenPipeError:
            # The process has ended already. Its status says so.
            pass
        return running

    def _document(self, bootstrap: str) -> bytes:
        """Write the settings of the process (`odradek.console.settings`) in one line."""
        settings = {
            "bootstrap": bootstrap,
            "host": self._settings.host,
            "hosts": list(self._settings.hosts),
            "client": dict(self._client),
            "tls": None if self._settings.tls is None else dict(self._settings.tls),
            "idle_seconds": self._settings.idle_seconds,
            "super_users": list(self._settings.super_users),
            "audit": [] if self._settings.audit_directory is None else [self._settings.audit_directory],
            "node_id": self._node_id,
        }
        return json.dumps(settings).encode() + b"\n"

    def _turn_away(self) -> None:
        """Close the connections that wait."""
        while True:
            try:
                waiting, _ = self._socket.accept()
            except OSError:
                return
            waiting.close()
