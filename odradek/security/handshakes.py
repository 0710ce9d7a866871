"""TLS handshakes: they take turns in one worker, and their cost is limited. PORTED.

A handshake takes up to a millisecond of computing, so its steps run in one worker, one at a time. Cheap steps run on
the event loop at once. A step begins only when a whole record has arrived, so single bytes cause no work. A session
is made only when the first bytes have arrived.

A limited number of handshakes may wait for their turn. Addresses take turns, regardless of how many
handshakes each has. If the queue is full, the address with the most waiting handshakes loses one of them to
an address with fewer. So a flood delays only itself. IPv6 addresses that share 64 bits count as one. A step
receives a limited number of bytes, because other data may follow the handshake.

Between two turns, other work (if there is any) runs for `OTHERS_SHARE` times the CPU time of a turn. So a
flood of handshakes takes an eighth of a busy node, and all of an idle one. CPU time is used instead of
duration, because on a busy node a turn mostly waits for the interpreter lock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import lru_cache
from ipaddress import IPv6Address
from typing import TypeVar

from odradek.env.ports import Clock, Conn, ConnectionLost, Env, Event
from odradek.env.tls_ports import TlsFailed, TlsSession
from odradek.security.tls_conn import HEADER_BYTES, Scratch, TlsConn

__all__ = ["Handshakes", "RecordBounds", "network_of"]

T = TypeVar("T")

WAITING_MAX = 256
"""The maximum number of handshakes that wait for their turn."""
STEP_BYTES_MAX = 4 * 1024
"""The maximum number of bytes that are received for one step. This is enough for most messages of a
handshake. It is also enough for 150 key updates that follow the last message.
"""
OTHERS_SHARE = 7
IDLE_PASS_SECONDS = 0.0002
"""A pass of the event loop that takes fewer seconds counts as idle."""
IDLE_PASSES = 3
"""The number of successive idle passes after which the loop counts as idle. One is not enough, because the tasks of a
pass run in any order.
"""
HANDSHAKE_BYTES_MAX = 256 * 1024
"""The maximum number of bytes that a peer may send before the handshake is done. The longest certificate chain needs a
tenth of this number.
"""
RECORD_BYTES_MAX = 16 * 1024 + 2048
SERVER_HELLO_BYTES = 256
_IS_TLS_1_3 = bytes.fromhex("002b00020304")
_RETRIES = bytes.fromhex("cf21ad74e59a6111be1d8c021e65b891c2a211167abb8c5e079e09e2c8a8339c")
_TOO_MANY = "too many TLS handshakes wait for their turn"
_RECORD_TYPES = frozenset((20, 21, 22, 23))
_FIRST_TYPES = frozenset((21, 22))
"""The types of the first TLS record: a handshake, or an alert, with which a server may begin."""


class RecordBounds:
    """Finds the boundaries of TLS records in the bytes of a handshake (RFC 8446, section 5.1). PURE."""

    __slots__ = ("head", "missing", "received")

    def __init__(self) -> None:
        self.head = b""
        """The bytes of an incomplete record header."""
        self.missing = 0
        """The number of bytes of the last record that have not arrived yet."""
        self.received = 0

    def take(self, data: memoryview) -> bool:
        """Count received bytes. Return true if they complete a record.

        Raises `TlsFailed` if they are not TLS records, or if they are too many for a handshake.
        """
        is_whole = False
        first = not self.received
        self.received += len(data)
        if first and data[0] not in _FIRST_TYPES:
            raise TlsFailed(_not_tls(data))
        if self.received > HANDSHAKE_BYTES_MAX:
            raise TlsFailed(
                f"the peer sent more than {HANDSHAKE_BYTES_MAX} bytes before the end of its TLS handshake"
            )
        at = 0
        while at < len(data):
            if self.missing:
                taken = min(self.missing, len(data) - at)
                self.missing -= taken
                is_whole = is_whole or not self.missing
            else:
                taken = min(HEADER_BYTES - len(self.head), len(data) - at)
                self.head += data[at : at + taken]
                if len(self.head) == HEADER_BYTES:
                    self._begin_record()
            at += taken
        return is_whole

    def _begin_record(self) -> None:
        kind, version, _, high, low = self.head
        size = high << 8 | low
        if kind not in _RECORD_TYPES or version != 3 or not 0 < size <= RECORD_BYTES_MAX:
            raise TlsFailed("the peer sent bytes that are not TLS records")
        self.missing = size
        self.head = b""


def _not_tls(data: memoryview) -> str:
    """Return an error text for data that is not TLS, with the likely mistake of the peer."""
    if data[0] == 0:
        return "the peer speaks plaintext to a TLS listener: set its security.protocol to SSL or SASL_SSL"
    return "the peer does not speak TLS"


def _finished_comes_next(flight: bytes) -> bool:
    """True if the peer's next step is the Finished of TLSv1.3. This step costs 60 us, whereas the key
    exchange of TLSv1.2 costs 100 us.

    A ServerHello of TLSv1.3 names its version in an extension. A HelloRetryRequest does so, too, but has a fixed "random" (RFC 8446, section 4.1.3), and the whole key exchange follows.
    """
    begin = flight[:SERVER_HELLO_BYTES]
    return _IS_TLS_1_3 in begin and _RETRIES not in begin


def _feed(session: TlsSession, held: bytes, data: memoryview, bounds: RecordBounds) -> None:
    """Feed the bytes `held` and then `data` to the session. Leave out an incomplete record header at the end."""
    whole = held + data
    ready = whole[: len(whole) - len(bounds.head)]
    if ready:
        session.feed(ready)


@lru_cache(maxsize=1024)
def network_of(host: str) -> str:
    """Return the part of an address that counts as one peer: a whole IPv4 address, or the first 64 bits of an IPv6
    address.

    An IPv6 host may use any address with the same 64 bits (RFC 4291, section 2.5.4).
    """
    if ":" not in host:
        return host
    try:
        whole = IPv6Address(host.partition("%")[0])
    except ValueError:
        return host
    return str(IPv6Address(int(whole) >> 64 << 64))


class _Waiter:
    """A handshake that waits for its turn."""

    __slots__ = ("event", "is_refused")

    def __init__(self, event: Event) -> None:
        self.event = event
        """Set when the turn of this handshake has come, or when it is refused."""
        self.is_refused = False


class WaitingByHost:
    """The handshakes that wait for their turn, by address of the peer. PURE."""

    def __init__(self) -> None:
        self._of_host: dict[str, deque[_Waiter]] = {}
        """The waiting handshakes of each address, in order of arrival. The address whose turn is next is first."""
        self.count = 0

    def has_room(self, host: str) -> bool:
        """True if another handshake may wait: the queue is not full, or an address with more handshakes can lose one."""
        return self.count < WAITING_MAX or self._of(host) + 1 < self._of(self._host_with_most())

    def add(self, host: str, waiter: _Waiter) -> _Waiter | None:
        """Add a handshake, for which `has_room` is true. If the queue is full, remove and return the last handshake
        of the address that has the most.
        """
        given_up = None
        if self.count >= WAITING_MAX:
            most = self._host_with_most()
            given_up = self._of_host[most][-1]
            self.remove(most, given_up)
        self._of_host.setdefault(host, deque()).append(waiter)
        self.count += 1
        return given_up

    def remove(self, host: str, waiter: _Waiter) -> None:
        """Remove a handshake that has stopped waiting."""
        waiting = self._of_host[host]
        waiting.remove(waiter)
        self.count -= 1
        if not waiting:
            del self._of_host[host]

    def pop(self) -> _Waiter | None:
        """Remove and return the handshake whose turn it is; None if none waits."""
        for host, waiting in self._of_host.items():
            del self._of_host[host]
            self.count -= 1
            waiter = waiting.popleft()
            if waiting:
                self._of_host[host] = waiting
            return waiter
        return None

    def _of(self, host: str) -> int:
        return len(self._of_host.get(host, ()))

    def _host_with_most(self) -> str:
        return max(self._of_host, key=lambda host: len(self._of_host[host]))


class _Turns:
    """Runs one function at a time in a worker, in turns by address, with pauses for other work in between."""

    def __init__(self, env: Env) -> None:
        self._workers = env.new_workers(1)
        self._clock: Clock = env.clock
        self._meter = env.meter
        self._new_event = env.event
        self.waiting = WaitingByHost()
        self.refused = 0
        self._is_taken = False
        self._free_at = float("-inf")
        """The time until which other work has priority."""

    async def run(self, host: str, step: Callable[[], T]) -> T:
        """Run a step in the worker when it is this address's turn, and return its result. Raises `ConnectionLost` if
        the queue is full.
        """
        await self._wait_for_turn(host)
        spent = 0.0

        def metered() -> T:
            nonlocal spent
            began = self._meter.thread_cpu_seconds()
            try:
                return step()
            finally:
                spent = self._meter.thread_cpu_seconds() - began

        try:
            await self._give_way()
            try:
                return await self._workers.run(metered)
            finally:
                self._free_at = self._clock.monotonic() + OTHERS_SHARE * spent
        finally:
            self._pass_on()

    async def _wait_for_turn(self, host: str) -> None:
        if not self._is_taken:
            self._is_taken = True
            return
        if not self.waiting.has_room(host):
            self.refused += 1
            raise ConnectionLost(_TOO_MANY)
        mine = _Waiter(self._new_event())
        given_up = self.waiting.add(host, mine)
        if given_up is not None:
            self.refused += 1
            given_up.is_refused = True
            given_up.event.set()
        try:
            await mine.event.wait()
        except BaseException:
            if not mine.event.is_set():
                self.waiting.remove(host, mine)
            elif not mine.is_refused:
                self._pass_on()
            raise
        if mine.is_refused:
            raise ConnectionLost(_TOO_MANY)

    def _pass_on(self) -> None:
        following = self.waiting.pop()
        if following is None:
            self._is_taken = False
        else:
            following.event.set()

    async def _give_way(self) -> None:
        """Let other work run on the event loop for its share of the time, or until the loop is idle."""
        clock = self._clock
        idle = 0
        while idle < IDLE_PASSES and (now := clock.monotonic()) < self._free_at:
            await clock.sleep_until(0.0)
            idle = idle + 1 if clock.monotonic() - now < IDLE_PASS_SECONDS else 0


class Handshakes:
    """Performs TLS handshakes, in turns; and owns the buffer that the TLS connections of this event loop share."""

    def __init__(self, env: Env) -> None:
        self.scratch = Scratch()
        self._clock = env.clock
        self._turns = _Turns(env)
        self.begun = 0

    def has_room(self, host: str) -> bool:
        """True if another handshake with this address may wait for its turn."""
        return self._turns.waiting.has_room(network_of(host))

    async def compute(self, host: str, step: Callable[[], T]) -> T:
        """Run another expensive step of a login from this address, in turns with handshakes. Raises `ConnectionLost`."""
        return await self._turns.run(network_of(host), step)

    async def accept(self, conn: Conn, new_session: Callable[[], TlsSession]) -> TlsConn:
        """Perform the server's side of a handshake; the caller limits the time. Raises `ConnectionLost`, `TlsFailed`."""
        bounds = RecordBounds()
        data = await self._receive(conn, bounds)
        self.begun += 1
        is_due = bounds.take(data)
        session = new_session()
        _feed(session, b"", data, bounds)
        return await self._run(conn, session, bounds, is_due=is_due)

    async def connect(self, conn: Conn, session: TlsSession) -> TlsConn:
        """Perform the client's side of a handshake; the caller limits the time. Raises `ConnectionLost`, `TlsFailed`."""
        self.begun += 1
        return await self._run(conn, session, RecordBounds(), is_due=True)

    async def _run(self, conn: Conn, session: TlsSession, bounds: RecordBounds, *, is_due: bool) -> TlsConn:
        is_cheap = False
        while True:
            if is_due:
                flight = await self._step(conn, session, is_cheap)
                if flight is None:
                    return TlsConn(conn, session, self._clock, self.scratch, bounds.head, bounds.missing)
                is_cheap = not session.asks_for_certificate and _finished_comes_next(flight)
            data = await self._receive(conn, bounds)
            held = bounds.head
            is_due = bounds.take(data)
            _feed(session, held, data, bounds)

    async def _receive(self, conn: Conn, bounds: RecordBounds) -> memoryview:
        """Receive bytes into the shared buffer; they must be used before the next await. Raises `ConnectionLost`."""
        count = None
        while count is None:
            await conn.readable()
            count = conn.recv_into(self.scratch.view[:STEP_BYTES_MAX])
        if count == 0:
            raise ConnectionLost(
                "the peer closed the connection during the TLS handshake"
                if bounds.received
                else "the peer closed the connection without sending anything"
            )
        return self.scratch.view[:count]

    async def _step(self, conn: Conn, session: TlsSession, is_cheap: bool) -> bytes | None:
        """Run one step of a handshake and send its output. Return the output, or None once the handshake is done.
        Raises `ConnectionLost`, `TlsFailed`.

        A failure is sent to the peer, too, as an alert.
        """
        is_done = False
        failure: TlsFailed | None = None
        try:
            is_done = session.handshake() if is_cheap else await self._turn(conn, session)
        except TlsFailed as error:
            failure = error
        flight = session.take()
        rest = memoryview(flight)
        while rest:
            rest = rest[conn.send((rest,)) :]
            if rest:
                await conn.writable()
        if failure is not None:
            raise failure
        return None if is_done else flight

    async def _turn(self, conn: Conn, session: TlsSession) -> bool:
        """Run a step in the worker when it is this address's turn; return true once the handshake is done. Raises
        `ConnectionLost`, `TlsFailed`.
        """
        return await self._turns.run(network_of(conn.peer_host), session.handshake)

    def statistics(self) -> dict[str, int]:
        """Return the number of handshakes that wait now, and of those begun and refused since the start."""
        return {"waiting": self._turns.waiting.count, "begun": self.begun, "refused": self._turns.refused}
