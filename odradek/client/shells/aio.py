"""The async client: it runs the client core on the ports of `odradek.env`, in trio programs and in the simulator.
PORTED.

Each connection has a task that reads. If the kernel does not accept all bytes at once, a second task writes the rest
and ends. One more task waits for the core's next deadline. The tasks run in the `TaskGroup` of the client's owner,
and end with `close` or with that group. Several operations may run at a time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from odradek.client.core.client_config import ClientConfig
from odradek.client.core.client_core import ClientCore, Close, Compute, Connect, Send
from odradek.client.core.known_cluster import Cluster
from odradek.client.core.notes import ERROR
from odradek.client.core.operation import Operation, Work
from odradek.client.core.requests import refresh_metadata, request
from odradek.client.shells.client_log import write_error, write_notes
from odradek.client.shells.tls import opened_tls
from odradek.client.shells.tokens import opened_tokens
from odradek.env.ports import Conn, ConnectionLost, Env, Network, TaskGroup
from odradek.security.dialing import SecuredNetwork
from odradek.security.handshakes import Handshakes
from odradek.wire.framing.outgoing import drop_sent

__all__ = ["AsyncClient"]

T = TypeVar("T")
_RECEIVE_BYTES = 1 << 16


class _Connection:
    """The state of one connection of the core. `conn` is None while the connection is being opened."""

    def __init__(self, connection_id: int) -> None:
        self.connection_id = connection_id
        self.conn: Conn | None = None
        self.closed = False
        self.outgoing: deque[memoryview] = deque()
        self.writing = False


class AsyncClient:
    """A client that runs operations against the cluster at the `bootstrap` addresses, (host, port) pairs."""

    def __init__(
        self,
        env: Env,
        tasks: TaskGroup,
        bootstrap: Sequence[tuple[str, int]],
        config: ClientConfig | None = None,
    ) -> None:
        """Start the task that waits for deadlines. No connection is opened yet."""
        self._env = env
        self._tasks = tasks
        self._connections: dict[int, _Connection] = {}
        self._deadline_moved = env.event()
        self._awaited_deadline: float | None = None
        self.config = config or ClientConfig()
        self._network: Network = env.network
        if self.config.security is not None and self.config.security.tls is not None:
            tls = opened_tls(self.config.security.tls)
            self._network = SecuredNetwork(env, tls, None, Handshakes(env))
        self._is_speaking = False
        self._deferred: deque[Callable[[], None]] = deque()
        self.core = ClientCore(bootstrap, self.config, env.random, now=env.clock.monotonic())
        self.core.tokens = opened_tokens(self.config.security)
        tasks.start_soon(self._keep_deadlines, name="client deadlines")

    def close(self) -> None:
        """End all running operations, and close all connections."""
        self.core.close()
        self._perform_effects()
        self._deadline_moved.set()

    async def run(self, operation: Operation[T]) -> T:
        """Run an operation of the core (`odradek.client.core.operation`) to its end, and return its result.

        Other tasks get a turn before an error is raised. So a program that catches the error and tries again cannot
        keep them from running.
        """
        task = self.core.start(operation, self._env.clock.monotonic())
        if not task.done:
            finished = self._env.event()
            task.on_done = finished.set
            self._perform_effects()
            try:
                await finished.wait()
            finally:
                if not task.done:
                    self.core.abandon(task)
        else:
            self._perform_effects()
            if task.has_failed:
                await self.give_turn()
        return task.result()

    async def give_turn(self) -> None:
        """Let other tasks run."""
        clock = self._env.clock
        await clock.sleep_until(clock.monotonic())

    async def request(self, message: Any, *, node: int | None = None, timeout_ms: int | None = None) -> Any:
        """Send one request message to the broker `node` (None: any), and return the response."""
        timeout = self.config.request_timeout if timeout_ms is None else timeout_ms / 1000
        if node is not None and node not in self.core.cluster.brokers:
            await self.metadata([])
        return await self.run(request(self.core, message, node=node, timeout=timeout))

    async def metadata(self, topics: Sequence[str] | None = None) -> Cluster:
        """Fetch the metadata of these topics (None: of all) and of the brokers."""
        return await self.run(refresh_metadata(self.core, topics, timeout=self.config.request_timeout))

    def step(self) -> None:
        """Let the core take a step. Call this if your code has notified a `Signal`
        (`odradek.client.core.operation`) while no call of the core was running.
        """
        self.core.tick(self._env.clock.monotonic())
        self._perform_effects()

    # Effects

    def _perform_effects(self) -> None:
        while effects := self.core.effects():
            for effect in effects:
                match effect:
                    case Connect(connection_id, host, port):
                        connection = _Connection(connection_id)
                        self._connections[connection_id] = connection
                        self._tasks.start_soon(
                            self._serve, connection, host, port, name=f"client to {host}:{port}"
                        )
                    case Send(connection_id, data):
                        self._send(self._connections.get(connection_id), data)
                    case Close(connection_id):
                        self._close(self._connections.get(connection_id))
                    case Compute(work):
                        self._tasks.start_soon(self._compute, work, name="client work")
        self._speak()
        deadline = self.core.next_deadline()
        if deadline is not None and (self._awaited_deadline is None or deadline < self._awaited_deadline):
            self._deadline_moved.set()

    def defer(self, function: Callable[[], None]) -> None:
        """Call a function after the core's current step. Its exceptions are logged."""
        self._deferred.append(function)

    def _speak(self) -> None:
        """Write the core's notes to the log, and call the deferred callbacks. A callback that uses this
        client may cause further notes and callbacks, which are handled afterwards.
        """
        if not self._is_speaking:
            self._is_speaking = True
            on_error = self.config.on_error
            try:
                while (notes := self.core.notes.take()) or self._deferred:
                    write_notes(notes, on_error)
                    while self._deferred:
                        self._call(self._deferred.popleft())
            finally:
                self._is_speaking = False

    def _call(self, function: Callable[[], None]) -> None:
        try:
            function()
        except Exception as error:  # noqa: BLE001 - an error of the application is logged
            write_error(ERROR, "a callback failed", error, self.config.on_error)

    def _send(self, connection: _Connection | None, data: bytes | bytearray) -> None:
        if connection is not None and connection.conn is not None:
            connection.outgoing.append(memoryview(data))
            if not connection.writing:
                connection.writing = True
                self._tasks.start_soon(self._write, connection, connection.conn, name="client write")

    def _close(self, connection: _Connection | None) -> None:
        if connection is not None:
            connection.closed = True
            self._connections.pop(connection.connection_id, None)
            connection.outgoing.clear()
            if connection.conn is not None:
                connection.conn.close()

    # Tasks

    async def _keep_deadlines(self) -> None:
        clock = self._env.clock
        while not self.core.closed:
            self._awaited_deadline = self.core.next_deadline()
            if self._awaited_deadline is None:
                await self._deadline_moved.wait()
            else:
                with clock.timeout_at(self._awaited_deadline):
                    await self._deadline_moved.wait()
            self._deadline_moved = self._env.event()
            self.core.tick(clock.monotonic())
            self._perform_effects()

    async def _compute(self, work: Work) -> None:
        value, error = None, None
        try:
            value = await self._env.workers.run(work.function)
        except Exception as raised:  # noqa: BLE001 - raised in the task that waits for the work
            error = raised
        self.core.computed(work, value, error, self._env.clock.monotonic())
        self._perform_effects()

    async def _serve(self, connection: _Connection, host: str, port: int) -> None:
        """Open a connection, and read from it until it ends."""
        clock = self._env.clock
        try:
            conn = await self._network.connect(host, port)
        except ConnectionLost as error:
            if not connection.closed:
                self._close(connection)
                self.core.connect_failed(connection.connection_id, str(error), clock.monotonic())
                self._perform_effects()
            return
        if connection.closed:
            conn.close()
            return
        connection.conn = conn
        self.core.connected(connection.connection_id, clock.monotonic())
        self._perform_effects()
        buffer = memoryview(bytearray(_RECEIVE_BYTES))
        try:
            while not connection.closed:
                await conn.readable()
                count = conn.recv_into(buffer)
                if count is None:
                    continue
                if count == 0:
                    self._close(connection)
                self.core.receive_data(connection.connection_id, buffer[:count], clock.monotonic())
                self._perform_effects()
                if count == 0:
                    return
                if self._env.buggify("client.drop_connection"):
                    raise ConnectionLost("closed")
        except ConnectionLost as error:
            self._lost(connection, error)

    async def _write(self, connection: _Connection, conn: Conn) -> None:
        """Send the bytes that the kernel has not accepted yet, then end. The kernel accepts most requests at
        once, so most connections never need this task.
        """
        outgoing = connection.outgoing
        try:
            while outgoing:
                taken = conn.send(list(outgoing))
                if taken == 0:
                    await conn.writable()
                drop_sent(outgoing, taken)
        except ConnectionLost as error:
            self._lost(connection, error)
        finally:
            connection.writing = False

    def _lost(self, connection: _Connection, error: ConnectionLost) -> None:
        if not connection.closed:
            self._close(connection)
            self.core.connection_lost(connection.connection_id, str(error), self._env.clock.monotonic())
            self._perform_effects()
