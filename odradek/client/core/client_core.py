"""The client without IO, in the style of h11: connections, calls, operations, deadlines, backoff, the choice of
any broker, a new bootstrap. PURE.

Theory of operation
-------------------
A shell owns sockets and a clock; the core decides everything else.

* The shell starts an operation (`start`), and performs the `effects` after every call into the core:
  `Connect`, `Send`, `Close`, `Compute`. The shell reports events with `connected`, `connect_failed`,
  `receive_data`, `connection_lost`, `computed`, and calls `tick` when `next_deadline` has come. Every report
  includes the time, in seconds of some monotonic clock. An operation's outcome is in its `Task`.
* Operations (see `operation.py`) start `Call`s and wait for them or for a time. The core sends a call on a connection
  to its broker (or to any broker), and opens one if there is none.
* Connections are keyed by address and lane. So a bootstrap address and a broker's own address share a connection. A
  call that a broker answers late (a JoinGroup, a fetch) has its own lane, and delays no other calls. Each attempt to
  connect has a new id: reports about an earlier attempt are ignored.

Rules
-----
* If a connection ends before a call was sent, a call for any broker moves to another connection. A call for one
  broker fails with `BrokerUnavailable`. A call that was sent fails with `ConnectionBroken`. The broker may have
  performed it, so only the operation can decide whether to repeat it.
* If a call's deadline passes after it was sent, its connection is closed. Answers come in order, so later calls would
  be late, too.
* After a failure, an address is not tried again before a backoff has passed. Until then, calls to this
  address fail at once, and their operations wait. Each further attempt to connect has twice the timeout, up
  to a maximum.
* Without metadata for too long, the known brokers are forgotten, and the bootstrap addresses are used again (KIP-899,
  KIP-1102).
* A connection without calls for `connection_idle_max` is closed.

Deliberately absent: threads, locks, DNS, TLS (the shells have it), and any decision about acknowledgements or
offsets.
"""

from __future__ import annotations

import hashlib
import heapq
import random
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias, TypeVar

import attrs

from odradek.client.core.broker_connection import BrokerConnection, ConnectionState
from odradek.client.core.client_config import ClientConfig
from odradek.client.core.known_cluster import Cluster
from odradek.client.core.notes import DEBUG, ERROR, INFO, WARNING, Notes
from odradek.client.core.operation import Call, Operation, Signal, Task, Work
from odradek.client.core.retry import RetryPolicy
from odradek.client.errors import (
    AuthenticationFailed,
    BrokerUnavailable,
    ClientClosed,
    ConnectionBroken,
    RequestTimedOut,
)
from odradek.env.token_ports import Tokens, TokenUnavailable
from odradek.named_states import reached
from odradek.security.sasl_client import LoginFailed
from odradek.wire.errors import ProtocolError

__all__ = ["ClientCore", "Close", "Compute", "Connect", "Effect", "Send"]

_HTTP = b"HTTP/"
T = TypeVar("T")
Address: TypeAlias = tuple[str, int]


@attrs.frozen
class Connect:
    """An effect: open a connection, then report `connected` or `connect_failed`."""

    connection_id: int
    host: str
    port: int


@attrs.frozen
class Send:
    """An effect: send all of `data` after the data of earlier effects."""

    connection_id: int
    data: bytes | bytearray


@attrs.frozen
class Close:
    """An effect: close the connection, and report nothing more about it."""

    connection_id: int


@attrs.frozen
class Compute:
    """An effect: call `work.function` in a thread, then report `computed`."""

    work: Work


Effect: TypeAlias = Connect | Send | Close | Compute


@attrs.define
class _Trouble:
    """The recent failures of an address."""

    failures: int
    """The number of attempts to connect that failed in a row."""
    retry_at: float
    reason: str


class ClientCore:
    """The client without IO. `bootstrap` has at least one address; `rng` adds jitter to the backoffs."""

    def __init__(
        self, bootstrap: Sequence[Address], config: ClientConfig, rng: random.Random, now: float = 0.0
    ) -> None:
        if not bootstrap:
            raise ValueError("no bootstrap address was given (expected HOST:PORT)")
        self.config = config
        self.now = now
        self.rng = rng
        self.tokens: Tokens | None = None
        """The function that returns a token for each OAUTHBEARER login; set by the shell."""
        self.notes = Notes(lambda: self.now)
        self.cluster = Cluster()
        self.ever_connected = False
        self._ever_ready = False
        self.closed = False
        self._bootstrap = list(bootstrap)
        self._connections: dict[tuple[Address, int], BrokerConnection] = {}
        self._by_id: dict[int, BrokerConnection] = {}
        self._trouble: dict[Address, _Trouble] = {}
        self._connect_policy = RetryPolicy(
            config.connect_timeout, max(config.connect_timeout, config.connect_timeout_max)
        )
        self._metadata_missing_since: float | None = None
        self._last_connection_id = 0
        self._rotation = rng.randrange(1 << 16)
        self._effects: list[Effect] = []
        self._tasks: dict[Task[Any], None] = {}
        self._ready: deque[Task[Any]] = deque()
        self._timers: list[tuple[float, int, Task[Any], int]] = []
        self._timer_number = 0
        self._stepping = False

    # Called by operations

    def call(
        self,
        request: Any,
        *,
        deadline: float,
        node: int | None = None,
        version_max: int | None = None,
        expects_response: bool = True,
        lane: int = 0,
        patient: bool = False,
        version_min: int = 0,
    ) -> Call:
        """Start a request. The returned call may have failed already (`Call.error`).

        With `patient` the request timeout does not apply, because the broker may delay its answer until `deadline`.
        """
        if not patient:
            deadline = min(deadline, self.now + self.config.request_timeout)
        call = Call(request, node, deadline, version_max, expects_response, lane, version_min)
        self._place(call)
        return call

    def compute(self, function: Callable[[], Any]) -> Work:
        """Call `function` in a thread. An operation can wait for the returned work as for a call."""
        work = Work(function)
        self._effects.append(Compute(work))
        return work

    def signal(self) -> Signal:
        """Make a signal that operations of this core can wait for."""
        return Signal(self._signalled)

    def backoff(self, attempt: int) -> float:
        """Compute the seconds to wait before an operation's next attempt; `attempt` counts from 0."""
        return self.config.retry.delay(attempt, self.rng)

    def metadata_asked(self) -> None:
        """Record the time from which metadata is missing. If metadata was missing already, keep the earlier
        time.
        """
        if self._metadata_missing_since is None:
            self._metadata_missing_since = self.now

    def metadata_came(self) -> None:
        """Record that a broker has answered with metadata, so that metadata is no longer missing."""
        self._metadata_missing_since = None

    def rebootstrap(self, reason: str) -> None:
        """Forget the known brokers, close their connections, and start again with the bootstrap addresses."""
        self._metadata_missing_since = self.now
        self.cluster.brokers = {}
        for connection in list(self._by_id.values()):
            if connection.connection_id in self._by_id:
                self._effects.append(Close(connection.connection_id))
                self._end(
                    connection, f"the client closed its connection to {connection.address_text}: {reason}"
                )

    # Called by shells

    def start(self, operation: Operation[T], now: float) -> Task[T]:
        """Start an operation, and return its task."""
        task = Task(operation)
        self.adopt(task, now)
        return task

    def adopt(self, task: Task[Any], now: float) -> None:
        """Start the operation of a task that the caller has made."""
        self._at(now)
        if self.closed:
            raise ClientClosed("the client is closed")
        if not task.done:
            self._tasks[task] = None
            self._ready.append(task)
            self._run_ready()

    def abandon(self, task: Task[Any]) -> None:
        """Stop an operation whose result is no longer needed."""
        task.cancel(ClientClosed("the caller cancelled the operation"))
        self._tasks.pop(task, None)

    def effects(self) -> list[Effect]:
        """Return the effects that the shell must perform now, in this order. Each effect is returned only
        once.
        """
        effects, self._effects = self._effects, []
        return effects

    def next_deadline(self) -> float | None:
        """Compute the time at which the shell must call `tick`, unless it reports an event before. None means never."""
        while self._timers and self._timers[0][2].wait_number != self._timers[0][3]:
            heapq.heappop(self._timers)
        deadlines = [self._timers[0][0]] if self._timers else []
        for connection in self._by_id.values():
            due = connection.next_deadline()
            if due is not None:
                deadlines.append(due)
        return min(deadlines, default=None)

    def tick(self, now: float) -> None:
        """Process the passing of time: expire calls, end throttle times, wake sleeping operations."""
        self._at(now)
        for connection in list(self._by_id.values()):
            if connection.connection_id in self._by_id:
                self._expire(connection)
        while self._timers and self._timers[0][0] <= now:
            _, _, task, wait_number = heapq.heappop(self._timers)
            if task.wait_number == wait_number and not task.done:
                # A new `wait_number` makes the other events of this wait stale, so that the task becomes ready only
                # once.
                task.wait_number += 1
                self._ready.append(task)
        self._run_ready()

    def connected(self, connection_id: int, now: float) -> None:
        """Process the shell's report that a connection is open."""
        self._at(now)
        connection = self._by_id.get(connection_id)
        if connection is None:
            return
        self.ever_connected = True
        connection.established()
        self._flush(connection)
        self._run_ready()

    def connect_failed(self, connection_id: int, reason: str, now: float) -> None:
        """Process the shell's report that a connection could not be opened."""
        self._at(now)
        connection = self._by_id.get(connection_id)
        if connection is not None:
            self._end(connection, f"cannot connect to {connection.address_text}: {reason}")
            self._run_ready()

    def receive_data(self, connection_id: int, data: bytes | memoryview, now: float) -> None:
        """Process received bytes; an empty `data` means the end of the stream."""
        self._at(now)
        connection = self._by_id.get(connection_id)
        if connection is None:
            return
        if not data:
            self._end(connection, connection.closed_text())
        elif connection.state is ConnectionState.NEGOTIATING and bytes(data[:5]) == _HTTP:
            self._effects.append(Close(connection_id))
            reason = (
                f"{connection.address_text} speaks HTTP, so its port is not a broker's listener "
                "(perhaps it is the port of the metrics page)"
            )
            # No broker has ever answered properly, so waiting will not help.
            self.ever_connected = self._ever_ready
            self._end(connection, reason)
        else:
            self._received(connection, partial(connection.receive, data, now))
        self._run_ready()

    def place_for_data(self, connection_id: int) -> memoryview | None:
        """Return the buffer into which the next bytes of this connection should be received, to avoid a copy.
        None if the caller may use any buffer.
        """
        connection = self._by_id.get(connection_id)
        return None if connection is None else connection.place_for_data()

    def received_in_place(self, connection_id: int, count: int, now: float) -> None:
        """Process the first `count` bytes (at least one) of `place_for_data`, which have arrived."""
        self._at(now)
        connection = self._by_id.get(connection_id)
        if connection is not None:
            self._received(connection, partial(connection.received_in_place, count, now))
            self._run_ready()

    def _received(self, connection: BrokerConnection, take: Callable[[], None]) -> None:
        was_ready = connection.state is ConnectionState.READY
        try:
            take()
        except LoginFailed as error:
            self._end_login(connection, f"{connection.address_text} refuses the login: {error}")
        except ProtocolError as error:
            self._effects.append(Close(connection.connection_id))
            self._end(connection, f"{connection.address_text} does not speak Kafka's protocol: {error}")
        else:
            if connection.state is ConnectionState.READY:
                if not was_ready:
                    self._note_connected(connection)
                self._trouble.pop(connection.address, None)
                self._ever_ready = True
                if not was_ready:
                    self.cluster.note_features(connection.features, connection.features_epoch)
            if connection.wants_token:
                self._fetch_token(connection)
            self._flush(connection)

    def _note_connected(self, connection: BrokerConnection) -> None:
        if not self._ever_ready:
            self.notes.add(INFO, f"connected to {connection.address_text}")
        elif self.notes.settled(("connection", connection.address)):
            self.notes.add(INFO, f"connected to {connection.address_text} again")
        self.notes.settled(("login", connection.address))

    @property
    def trouble(self) -> str:
        """The reason why no broker is connected, if attempts to connect have failed. Empty while a broker is
        connected.
        """
        if not self._trouble or any(each.state is ConnectionState.READY for each in self._by_id.values()):
            return ""
        return "; ".join(dict.fromkeys(each.reason for each in self._trouble.values()))

    def _end_login(self, connection: BrokerConnection, reason: str) -> None:
        self.notes.add(ERROR, reason, key=("login", connection.address))
        self._effects.append(Close(connection.connection_id))
        self.ever_connected = self._ever_ready
        waiting = list(connection.waiting)
        connection.waiting.clear()
        self._end(connection, reason)
        for call in waiting:
            call.fail(AuthenticationFailed(reason))

    def _fetch_token(self, connection: BrokerConnection) -> None:
        """Start fetching a token for an OAUTHBEARER login. The login continues when the token has arrived."""
        assert self.tokens is not None, "a login by token must have a source of tokens"
        connection.wants_token = False
        work = self.compute(self.tokens)
        work.on_done = lambda: self._token_came(connection, work)

    def _token_came(self, connection: BrokerConnection, work: Work) -> None:
        if connection.state is not ConnectionState.AUTHENTICATING:
            reached("client.token_came_too_late")
            return
        if isinstance(work.error, TokenUnavailable):
            self._end_login(
                connection, f"the login at {connection.address_text} is not possible: {work.error}"
            )
            return
        connection.token_came(work.result())
        self._flush(connection)

    def bytes_expected(self, connection_id: int) -> int:
        """Return how many bytes of a large response are still missing on this connection; 0 if no large
        response has begun.
        """
        connection = self._by_id.get(connection_id)
        return connection.bytes_expected if connection is not None else 0

    def connection_lost(self, connection_id: int, reason: str, now: float) -> None:
        """Process the shell's report that a connection broke during a send or a receive."""
        self._at(now)
        connection = self._by_id.get(connection_id)
        if connection is not None:
            self._end(connection, f"lost the connection to {connection.address_text}: {reason}")
            self._run_ready()

    def computed(self, work: Work, value: Any, error: Exception | None, now: float) -> None:
        """Process the shell's report that the function of `work` has returned `value`, or raised `error`."""
        self._at(now)
        if not self.closed:
            work.finish(value, error)
            self._run_ready()

    def close(self, error: BaseException | None = None) -> None:
        """End all operations (with `error`, or else `ClientClosed`) and close all connections. The shell must
        still perform the remaining effects.
        """
        self.closed = True
        for task in list(self._tasks):
            task.cancel(error or ClientClosed("the client was closed"))
        self._tasks.clear()
        self._effects = [Close(connection_id) for connection_id in self._by_id]
        self._by_id.clear()
        self._connections.clear()

    def statistics(self) -> dict[str, int]:
        """Return counters by name: connections, calls in flight and waiting, running operations."""
        connections = list(self._by_id.values())
        return {
            "connections": len(connections),
            "calls_in_flight": sum(len(connection.in_flight) for connection in connections),
            "calls_waiting": sum(len(connection.waiting) for connection in connections),
            "operations": len(self._tasks),
        }

    # Operations

    def _at(self, now: float) -> None:
        self.now = max(self.now, now)

    def _run_ready(self) -> None:
        """Run every operation that can continue, until all are waiting. (A step may complete calls of other
        operations.)
        """
        if self._stepping:
            return
        self._stepping = True
        try:
            while self._ready:
                task = self._ready.popleft()
                if not task.done:
                    self._step(task)
        finally:
            self._stepping = False

    def _step(self, task: Task[Any]) -> None:
        wait = task.step()
        if wait is None:
            self._tasks.pop(task, None)
            return
        if wait.satisfied:
            self._ready.append(task)
            return
        number = task.wait_number
        for call in wait.calls:
            call.on_done = lambda: self._wake(task, number)
        for signal in wait.signals:
            signal.add(task, number)
        if wait.until is not None:
            self._timer_number += 1
            heapq.heappush(self._timers, (wait.until, self._timer_number, task, number))

    def _wake(self, task: Task[Any], wait_number: int) -> None:
        wait = task.wait
        if wait is not None and task.wait_number == wait_number and wait.satisfied:
            # A new `wait_number` makes the other events of this wait stale, so that the task becomes ready only once.
            task.wait_number += 1
            self._ready.append(task)

    def _signalled(self, task: Task[Any], wait_number: int) -> None:
        if task.wait_number == wait_number and not task.done:
            task.wait_number += 1
            self._ready.append(task)

    # Calls and connections

    def _place(self, call: Call) -> None:
        try:
            connection = (
                self._connection_to(call.node, call.lane)
                if call.node is not None
                else self._connection_to_any()
            )
        except BrokerUnavailable as error:
            call.fail(error)
            return
        connection.enqueue(call)
        self._flush(connection)

    def _connection_to(self, node: int, lane: int) -> BrokerConnection:
        broker = self.cluster.brokers.get(node)
        if broker is None:
            raise BrokerUnavailable(f"broker {node} is not in the cluster's metadata")
        address = (broker.host, broker.port)
        connection = self._connections.get((address, lane))
        if connection is not None:
            return connection
        trouble = self._trouble.get(address)
        if trouble is not None and trouble.retry_at > self.now:
            raise BrokerUnavailable(f"broker {node} cannot be reached: {trouble.reason}")
        return self._connect(address, lane)

    def _connection_to_any(self) -> BrokerConnection:
        """Choose a connection to any broker: the open one with the fewest calls, else a connection that is being
        opened, else a new connection to an address without recent failures.
        """
        missing_since = self._metadata_missing_since
        if (
            self.config.rebootstrap
            and self.cluster.brokers
            and missing_since is not None
            and self.now - missing_since >= self.config.rebootstrap_trigger
        ):
            self.rebootstrap(f"the brokers have sent no metadata for {self.now - missing_since:.0f} s")
        shared = [c for (_, lane), c in self._connections.items() if lane == 0]
        ready = [c for c in shared if c.state is ConnectionState.READY]
        if ready:
            return min(ready, key=lambda c: c.load)
        for connection in shared:
            return connection
        brokers = [(broker.host, broker.port) for broker in self.cluster.brokers.values()]
        tried = [brokers, self._bootstrap] if self.config.rebootstrap or not brokers else [brokers]
        for candidates in tried:
            for number in range(len(candidates)):
                address = candidates[(number + self._rotation) % len(candidates)]
                trouble = self._trouble.get(address)
                if trouble is None or trouble.retry_at <= self.now:
                    return self._connect(address)
        reasons = [self._trouble[address].reason for address in tried[-1]]
        raise BrokerUnavailable("; ".join(dict.fromkeys(reasons)))

    def _connect(self, address: Address, lane: int = 0) -> BrokerConnection:
        self._last_connection_id += 1
        trouble = self._trouble.get(address)
        connection = BrokerConnection(
            self._last_connection_id,
            address,
            self.config,
            now=self.now,
            connect_seconds=self._connect_policy.delay(0 if trouble is None else trouble.failures, self.rng),
            lane=lane,
            nonce=self._nonce,
        )
        self._connections[address, lane] = connection
        self._by_id[connection.connection_id] = connection
        self._effects.append(Connect(connection.connection_id, *address))
        return connection

    def _flush(self, connection: BrokerConnection) -> None:
        data = connection.data_to_send(self.now)
        if data:
            self._effects.append(Send(connection.connection_id, data))

    def _expire(self, connection: BrokerConnection) -> None:
        """Fail the calls of this connection whose deadline has passed. Close the connection if one of them was sent.
        Also close it if connecting took too long, or if it was idle for too long.
        """
        if connection.connect_overdue(self.now):
            self._effects.append(Close(connection.connection_id))
            reached("client.connection_not_opened_in_time")
            waited = connection.connect_seconds
            self._end(
                connection, f"{connection.address_text} did not accept a connection within {waited:.1f} s"
            )
            return
        if connection.is_idle(self.now):
            self._effects.append(Close(connection.connection_id))
            self._forget(connection)
            return
        overdue = connection.take_overdue(self.now)
        for call in overdue:
            call.fail(
                RequestTimedOut(
                    f"{connection.address_text} did not answer {type(call.request).__name__} in time"
                )
            )
        if any(call.connection_id is not None for call in overdue):
            self._effects.append(Close(connection.connection_id))
            self._end(connection, f"{connection.address_text} did not answer in time")
        else:
            self._flush(connection)

    def _end(self, connection: BrokerConnection, reason: str) -> None:
        """Remove a connection that is closed or will be closed by an effect. Move its calls to other
        connections, or fail the calls.
        """
        was_ready = connection.state is ConnectionState.READY
        self._forget(connection)
        old = self._trouble.get(connection.address)
        failures = 0 if was_ready else 1 + (0 if old is None else old.failures)
        retry_at = self.now if was_ready else self.now + self.config.reconnect.delay(failures - 1, self.rng)
        self._trouble[connection.address] = _Trouble(failures, retry_at, reason)
        is_idle = was_ready and not connection.in_flight and not connection.waiting
        self.notes.add(
            DEBUG if is_idle else WARNING, reason, key=None if is_idle else ("connection", connection.address)
        )
        sent, unsent = list(connection.in_flight), list(connection.waiting)
        connection.in_flight.clear()
        connection.waiting.clear()
        for call in sent:
            call.fail(ConnectionBroken(reason))
        for call in unsent:
            if call.node is None and not self.closed:
                self._place(call)
            else:
                call.fail(BrokerUnavailable(reason))

    def _nonce(self) -> str:
        """Return random text for a login. It is a digest, so it does not reveal the generator's state."""
        return hashlib.sha256(self.rng.getrandbits(256).to_bytes(32, "big")).hexdigest()

    def _forget(self, connection: BrokerConnection) -> None:
        connection.close()
        del self._by_id[connection.connection_id]
        del self._connections[connection.address, connection.lane]
