"""TLS handshakes: their turns in one worker, and bounds for their cost. PORTED.

A handshake takes up to a millisecond of computing, so each step of it has its turn in one worker beside the event
loop. Steps that are cheap are done at once. A step begins only when a whole record has come: a peer that sends byte by
byte makes nobody work. A session is made only when the first bytes have come.

A limited number of handshakes may wait for their turn. Addresses have their turns one after the other, however
many handshakes each of them has. If all places are taken, the address with the most gives one up to another
that has fewer. So a flood delays only itself. Addresses of IPv6 that share 64 bits count as one. A step
receives a limited number of bytes, because the bytes behind the handshake may be anything.

Between two turns, other work (if any) has the loop for `OTHERS_SHARE` times the CPU of a turn. So a flood of
handshakes takes an eighth of a busy node, and all of an idle one. The CPU counts: on a busy node a turn mostly waits
for the interpreter, and by the clock it would be ten times as long.
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
"""Handshakes that wait for their turn."""
STEP_BYTES_MAX = 4 * 1024
"""Bytes that are received for one step: most flights fit, or 150 key updates behind the last flight."""
OTHERS_SHARE = 7
IDLE_PASS_SECONDS = 0.0002
"""A pass of the event loop that takes less time than this counts as idle."""
IDLE_PASSES = 3
"""The number of idle passes in a row that count as an idle loop. One is not enough, because tasks of one pass run
in any order.
"""
HANDSHAKE_BYTES_MAX = 256 * 1024
"""Bytes that a peer may send before the handshake is done; the longest chain of certificates needs a tenth of it."""
RECORD_BYTES_MAX = 16 * 1024 + 2048
SERVER_HELLO_BYTES = 256
_IS_TLS_1_3 = bytes.fromhex("002b00020304")
_RETRIES = bytes.fromhex("cf21ad74e59a6111be1d8c021e65b891c2a211167abb8c5e079e09e2c8a8339c")
_TOO_MANY = "too many TLS handshakes wait for their turn"
_RECORD_TYPES = frozenset((20, 21, 22, 23))
_FIRST_TYPES = frozenset((21, 22))
"""An alert, which a server may begin with, or a handshake."""


class RecordBounds:
    """The borders of records in the bytes of a handshake (RFC 8446, section 5.1). PURE."""

    __slots__ = ("head", "missing", "received")

    def __init__(self) -> None:
        self.head = b""
        """The bytes of a header that is not whole yet."""
        self.missing = 0
        """The bytes of the last record that are still to come."""
        self.received = 0

    def take(self, data: memoryview) -> bool:
        """Take bytes that came; true if a record has become whole.

        Raises `TlsFailed` if they are no records of TLS, or too many.
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
            raise TlsFailed("the peer sent bytes that are no TLS records")
        self.missing = size
        self.head = b""


def _not_tls(data: memoryview) -> str:
    """Name the likely mistake behind a first byte that TLS does not use."""
    if data[0] == 0:
        return "the peer speaks plaintext to a TLS listener: set its security.protocol to SSL or SASL_SSL"
    return "the peer does not speak TLS"


def _finished_comes_next(flight: bytes) -> bool:
    """True if the peer's next step is the Finished of TLSv1.3, which costs 60 us. The key exchange of TLSv1.2 costs
    100 us.

    A ServerHello names that version in an extension. A HelloRetryRequest differs only in its fixed "random" (RFC
    8446, section 4.1.3). The whole key exchange follows it.
    """
    begin = flight[:SERVER_HELLO_BYTES]
    return _IS_TLS_1_3 in begin and _RETRIES not in begin


def _feed(session: TlsSession, held: bytes, data: memoryview, bounds: RecordBounds) -> None:
    """Feed the bytes that were held back and the new ones, up to an incomplete header."""
    whole = held + data
    ready = whole[: len(whole) - len(bounds.head)]
    if ready:
        session.feed(ready)


@lru_cache(maxsize=1024)
def network_of(host: str) -> str:
    """Return the part of an address by which places are shared: all of an IPv4 address, 64 bits of an IPv6 address.

    A host of IPv6 may take any address that shares these bits (RFC 4291, section 2.5.4).
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
        """Set when its turn comes, or when it is refused."""
        self.is_refused = False


class WaitingByHost:
    """Handshakes that wait, by the address of the peer. PURE."""

    def __init__(self) -> None:
        self._of_host: dict[str, deque[_Waiter]] = {}
        """The waiting handshakes of each address in the order in which they came. The address whose turn is next is
        first.
        """
        self.count = 0

    def has_room(self, host: str) -> bool:
        """True if another handshake may wait: there is a place, or an address with more can give one up."""
        return self.count < WAITING_MAX or self._of(host) + 1 < self._of(self._host_with_most())

    def add(self, host: str, waiter: _Waiter) -> _Waiter | None:
        """Add a handshake, for which there is room. Return the handshake that loses its place to it, if any.

        The loser is the last handshake of the address that has the most.
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
        """Take out the handshake whose turn it is; None if none waits."""
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
    """Runs one function at a time in a worker, address by address, with room for other work between."""

    def __init__(self, env: Env) -> None:
        self._workers = env.new_workers(1)
        self._clock: Clock = env.clock
        self._meter = env.meter
        self._new_event = env.event
        self.waiting = WaitingByHost()
        self.refused = 0
        self._is_taken = False
        self._free_at = float("-inf")
        """The time until which other work may have the loop."""

    async def run(self, host: str, step: Callable[[], T]) -> T:
        """Run a step when it is the turn of this address, and return the step's result. Raises `ConnectionLost` if
        the queue refuses it.
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
        """Let other work have the loop for its share of the time, or until none is left."""
        clock = self._clock
        idle = 0
        while idle < IDLE_PASSES and (now := clock.monotonic()) < self._free_at:
            await clock.sleep_until(0.0)
            idle = idle + 1 if clock.monotonic() - now < IDLE_PASS_SECONDS else 0


class Handshakes:
    """The turns of handshakes, and the buffer that connections of this loop share."""

    def __init__(self, env: Env) -> None:
        self.scratch = Scratch()
        self._clock = env.clock
        self._turns = _Turns(env)
        self.begun = 0

    def has_room(self, host: str) -> bool:
        """True if another handshake with this address may wait for its turn."""
        return self._turns.waiting.has_room(network_of(host))

    async def compute(self, host: str, step: Callable[[], T]) -> T:
        """Run another step of a login with this address, in the turns of its handshakes. Raises `ConnectionLost`."""
        return await self._turns.run(network_of(host), step)

    async def accept(self, conn: Conn, new_session: Callable[[], TlsSession]) -> TlsConn:
        """Perform the server's side of a handshake; the caller bounds the time. Raises `ConnectionLost`, `TlsFailed`."""
        bounds = RecordBounds()
        data = await self._receive(conn, bounds)
        self.begun += 1
        is_due = bounds.take(data)
        session = new_session()
        _feed(session, b"", data, bounds)
        return await self._run(conn, session, bounds, is_due=is_due)

    async def connect(self, conn: Conn, session: TlsSession) -> TlsConn:
        """Perform the client's side. Raises `ConnectionLost`, `TlsFailed`."""
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
        """Receive bytes into the scratch, to be used before the next await. Raises `ConnectionLost`."""
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
        """Run one step, and send its bytes; None once the handshake is done, else these bytes. Raises as above.

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
        """Run a step in the worker, when it is this address's turn. Raises `ConnectionLost`, `TlsFailed`."""
        return await self._turns.run(network_of(conn.peer_host), session.handshake)

    def statistics(self) -> dict[str, int]:
        """Count handshakes that wait for their turn now, and the begun and refused ones since the start."""
        return {"waiting": self._turns.waiting.count, "begun": self.begun, "refused": self._turns.refused}
