"""A follower's connection to one leader. It sends a request, then waits a limited time for the answer.
PORTED.

One timer serves all answers of a connection, because a timeout per round would cost as much as sending the
round's bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import attrs

from odradek.data_plane.replication.synced_promises import Sync
from odradek.env.ports import Conn, ConnectionLost, Env, Log, PeerEnd, renewal_time
from odradek.named_states import reached
from odradek.wire.framing.connection import ClientConnection, ConnectionClosed, ResponseReceived

if TYPE_CHECKING:
    from odradek.data_plane.replication.following.departures import Departures
    from odradek.data_plane.replication.peer_silence import PeerSilence
    from odradek.data_plane.replication.replication_settings import ReplicationSettings
    from odradek.data_plane.replication.throttle import ReplicationThrottle
    from odradek.serving.timers import Timer, Timers
    from odradek.wire.structure import Message

RECEIVE_BYTES = 64 * 1024
"""The size in bytes of the buffer for the beginning of an answer. The rest of a larger answer is received
into a buffer of its own.
"""
CONNECT_SECONDS_MAX = 2.0
LOW_WATER_BYTES_MAX = 1024 * 1024
"""The most bytes of a large answer that must arrive before the waiting task is woken. Otherwise each TCP
segment would wake the task.
"""
NEVER = float("inf")


@attrs.frozen
class SharedByFetchers:
    """The objects that all fetchers of a broker share."""

    node_id: int
    env: Env
    settings: ReplicationSettings
    broker_epoch: Callable[[], int]
    after_round: Callable[[], None]
    """Called after each round, to wake requests that wait for the appended records."""
    throttle: ReplicationThrottle
    silence: PeerSilence
    departures: Departures
    sync: Sync
    timers: Timers
    buffer: memoryview
    """A receive buffer that all fetchers share. A fetcher uses its contents before another fetcher receives."""
    log: Log


class LeaderConnection:
    """At most one connection to the leader at a time. The connection is closed automatically when an answer
    is overdue.
    """

    def __init__(
        self, leader_id: int, address: Callable[[], tuple[str, int] | None], shared: SharedByFetchers
    ) -> None:
        """Take the leader's id. `address` returns its host and port; None while they are unknown."""
        self._leader_id = leader_id
        self._address = address
        self._node_id = shared.node_id
        self._env = shared.env
        self._clock = shared.env.clock
        self._settings = shared.settings
        self._after_round = shared.after_round
        self._timers = shared.timers
        self._buffer = shared.buffer
        self._log = shared.log
        self._conn: Conn | None = None
        self._wire: ClientConnection | None = None
        self._connected_to: tuple[str, int] | None = None
        self._renew_at = NEVER
        self._answer_due = NEVER
        """The deadline, in monotonic seconds, for the answer to the last request."""
        self._missing_bytes = 0
        """The part of the present answer that was missing when the answer was overdue; 0 if no part had arrived."""
        self._watch: Timer | None = None
        """The timer that checks `_answer_due`."""
        self._low_water = 1
        """The number of bytes to wait for before the task is woken: the last argument of `_conn.wait_for`."""

    @property
    def is_open(self) -> bool:
        """True if there is a connection on which requests can be sent."""
        return self._conn is not None

    @property
    def is_astray(self) -> bool:
        """True if the leader's address has changed since the connection was opened."""
        return self._connected_to is not None and self._address() != self._connected_to

    def has_ended(self) -> bool:
        """Look whether the leader has closed this connection, without receiving anything."""
        try:
            return self._conn is not None and self._conn.peer_end() is not PeerEnd.OPEN
        except ConnectionLost:
            return True

    def close_if_old(self, now: float) -> None:
        """Close a connection whose authentication will expire soon (KIP-368). Call this between two rounds,
        when nothing is lost by closing.
        """
        if now >= self._renew_at:
            self.close()

    async def open(self) -> None:
        """Connect to the leader. Raises `ConnectionLost`."""
        address = self._address()
        if address is None:
            raise ConnectionLost(f"broker {self._leader_id} is not registered")
        with self._clock.timeout_at(self._clock.monotonic() + CONNECT_SECONDS_MAX):
            conn = await self._env.network.connect(*address)
            self._conn = conn
        if self._conn is None:
            raise ConnectionLost(
                f"broker {self._leader_id} did not accept a connection within {CONNECT_SECONDS_MAX:g} s"
            )
        self._connected_to = address
        self._renew_at = renewal_time(self._conn)
        self._low_water = 1
        self._wire = ClientConnection(
            self._settings.response_bytes_max + (64 << 20),
            client_id=f"broker-{self._node_id}-fetcher-0",
        )

    def close(self) -> None:
        """Close the connection, if there is one."""
        conn, self._conn, self._wire, self._connected_to = self._conn, None, None, None
        self._answer_due = self._renew_at = NEVER
        if conn is not None:
            conn.close()

    def stop_watching(self) -> None:
        """Remove the timer for overdue answers, because no request will be sent soon."""
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None

    async def send(self, request: Message, version: int, wait_ms: int, now: float) -> None:
        """Send a request; call `answer` next to receive its answer. Raises `ConnectionLost`.

        The leader may wait `wait_ms` before it answers. The answer is overdue when another
        `replica.socket.timeout.ms` have passed. While parts of it arrive, the time begins anew. A
        large answer takes long on a slow network, and the next attempt would not be faster.
        """
        conn, wire = self._conn, self._wire
        if conn is None or wire is None:
            raise ConnectionLost("closed")
        self._answer_due = now + (self._settings.socket_timeout_ms + wait_ms) / 1000
        self._missing_bytes = 0
        if self._watch is None:
            self._watch = self._timers.at(self._answer_due, self._look_for_answer)
        frame = wire.send(request, version)
        taken = conn.send((frame,))
        if taken < len(frame):
            self._after_round()
            rest = memoryview(frame)[taken:]
            while rest:
                await conn.writable()
                rest = rest[conn.send((rest,)) :]

    async def answer(self) -> Message:
        """Receive the answer to the request that was sent. After `ConnectionLost`, `ProtocolError` or
        `KafkaError` the caller must close the connection.
        """
        conn, wire = self._conn, self._wire
        if conn is None or wire is None:
            raise ConnectionLost("closed")
        while True:
            await conn.readable()
            self._receive(conn, wire)
            if wire.bytes_expected:
                # Usually the whole answer has arrived by now, and reading at once is cheaper than waiting to be
                # woken.
                self._receive(conn, wire)
            event = wire.next_event()
            # A slow answer wakes the task with each of its parts, so that `_look_for_answer` sees them arrive.
            bytes_max = 1 if self._missing_bytes else LOW_WATER_BYTES_MAX
            low_water = min(max(1, wire.bytes_expected), bytes_max)
            if low_water != self._low_water:
                self._low_water = low_water
                conn.wait_for(low_water)
            if isinstance(event, ResponseReceived):
                self._answer_due = NEVER
                return event.response
            if isinstance(event, ConnectionClosed):
                raise ConnectionLost("the leader closed the connection")

    def _look_for_answer(self) -> None:
        """Called by the timer. Closes the connection if its answer is overdue, and no part of the answer has
        arrived since the last look. The task that waits for the answer then gets an error.
        """
        self._watch = None
        due = self._answer_due
        if due == NEVER:
            return
        now = self._clock.monotonic()
        missing = 0 if self._wire is None else self._wire.bytes_expected
        if now >= due and missing and missing != self._missing_bytes:
            reached("replication.slow_answer_awaited")
            self._missing_bytes = missing
            if self._conn is not None:
                self._low_water = 1
                self._conn.wait_for(1)
            due = self._answer_due = now + self._settings.socket_timeout_ms / 1000
        if now < due:
            self._watch = self._timers.at(due, self._look_for_answer)
            return
        self._log.info("replication.leader_silent", leader=self._leader_id)
        self.close()

    def _receive(self, conn: Conn, wire: ClientConnection) -> None:
        place = wire.place_for_data()
        if place is not None:
            count = conn.recv_into(place)
            if count:
                wire.received_in_place(count)
                return
        else:
            count = conn.recv_into(self._buffer)
        if count is not None:
            wire.receive_data(self._buffer[:count])
