"""A connection with TLS, over any other: the surface of `odradek.env.ports.Conn`, so that nobody else knows. PORTED.

* A send encrypts, then gives the encrypted bytes to the connection below. Bytes count as taken only when that has
  taken what they became. So a caller that has sent everything has nothing left here. Any other comes again
  with the same bytes: those that are encrypted already are passed over.
* A receive reads the connection below in records' sizes, until the caller's buffer is full or nothing more is there.
* Ranges of files are read and encrypted: sendfile would send them as they are.
* Handshakes take their turn in one worker (`Handshakes`), because each costs up to a millisecond.
"""

from __future__ import annotations

from collections.abc import Sequence

from odradek.env.ports import Buffer, Clock, Conn, ConnectionLost, DiskError, File, Workers
from odradek.env.tls_ports import TlsFailed, TlsSession

__all__ = ["Handshakes", "TlsConn", "shake_hands"]

RECORD_BYTES = 16 * 1024
RECEIVE_BYTES = RECORD_BYTES + 512
"""A whole record with its header. More at a time would stay in OpenSSL's memory of each connection."""
SEND_BYTES = 64 * 1024
ANSWERS_BYTES_MAX = 64 * 1024
"""A peer that makes TLS itself answer so much, and takes none of it, is cut off."""
WAITING_MAX = 256
"""Handshakes that wait for their turn; further ones are refused."""


class TlsConn:
    """`Conn` with TLS. All of a process share one buffer for encrypted bytes: nothing awaits while it is in use."""

    __slots__ = ("_ahead", "_clock", "_conn", "_ended", "_tls", "_unsent", "peer_host")

    _scratch = memoryview(bytearray(RECEIVE_BYTES))

    def __init__(self, conn: Conn, tls: TlsSession, clock: Clock) -> None:
        self._conn = conn
        self._tls = tls
        self._clock = clock
        self._unsent: memoryview | None = None
        """Encrypted bytes that the connection below has still to take."""
        self._ahead = 0
        """Plain bytes of the next `send` that are in `_unsent`."""
        self._ended = False
        self.peer_host = conn.peer_host

    async def readable(self) -> None:
        if self._tls.has_unread:
            await self._clock.sleep_until(0.0)
        else:
            await self._conn.readable()

    async def writable(self) -> None:
        await self._conn.writable()

    def wait_for(self, count: int) -> None:
        """Nothing: bytes of the peer may be in here already, so a wait for so many could last for ever."""

    def recv_into(self, buffer: memoryview) -> int | None:
        filled = 0
        try:
            while filled < len(buffer):
                count = self._tls.read_into(buffer[filled:])
                if count:
                    filled += count
                elif count == 0:
                    # The end comes with the next call, behind what was received.
                    return filled
                elif not self._refill():
                    break
        except TlsFailed as error:
            raise ConnectionLost(f"TLS: {error}") from error
        if self._tls.outgoing:
            self._send_answers()
        return filled or None

    def _refill(self) -> bool:
        """Feed what the connection below has; false where that is nothing now."""
        if self._ended:
            return False
        count = self._conn.recv_into(self._scratch)
        if count is None:
            return False
        self._ended = count == 0
        self._tls.feed(self._scratch[:count])
        return True

    def _send_answers(self) -> None:
        """Send what TLS itself has to say."""
        if self._unsent is None or len(self._unsent) < ANSWERS_BYTES_MAX:
            self._push()
        else:
            raise ConnectionLost("TLS: the peer takes none of its answers")

    def _push(self) -> bool:
        """Give encrypted bytes to the connection below; true when all are gone."""
        if self._tls.outgoing:
            fresh = self._tls.take()
            self._unsent = memoryview(fresh if self._unsent is None else bytes(self._unsent) + fresh)
        if self._unsent is not None:
            taken = self._conn.send((self._unsent,))
            self._unsent = self._unsent[taken:] if taken < len(self._unsent) else None
        return self._unsent is None

    def send(self, chunks: Sequence[Buffer], more: bool = False) -> int:
        if not self._push():
            return 0
        taken, self._ahead = self._ahead, 0
        try:
            for piece in _pieces(chunks, taken):
                self._tls.write(piece)
                if not self._push():
                    self._ahead = len(piece)
                    break
                taken += len(piece)
        except TlsFailed as error:
            raise ConnectionLost(f"TLS: {error}") from error
        return taken

    def sendfile(self, file: File, offset: int, count: int) -> int:
        if not self._push():
            return 0
        if self._ahead:
            taken, self._ahead = self._ahead, 0
            return taken
        data = file.pread(min(count, SEND_BYTES), offset)
        if not data:
            raise DiskError("", file.path, "read", 0, f"ends before {offset + count}")
        return self.send((data,))

    def close(self) -> None:
        self._conn.close()


def _pieces(chunks: Sequence[Buffer], start: int) -> list[Buffer]:
    """The bytes of `chunks` from `start` on, small ones joined, in pieces of `SEND_BYTES` at most."""
    pieces: list[Buffer] = []
    joined = bytearray()
    for chunk in chunks:
        view = memoryview(chunk)
        if start:
            skipped = min(start, len(view))
            view, start = view[skipped:], start - skipped
        if len(view) + len(joined) <= RECORD_BYTES:
            joined += view
            continue
        if joined:
            pieces.append(joined)
            joined = bytearray()
        pieces += (view[at : at + SEND_BYTES] for at in range(0, len(view), SEND_BYTES))
    if joined:
        pieces.append(joined)
    return pieces


class Handshakes:
    """The turns of handshakes in one worker. PORTED."""

    def __init__(self, workers: Workers) -> None:
        """`workers` is one thread, for this alone."""
        self._workers = workers
        self.waiting = 0
        self.refused = 0

    async def step(self, session: TlsSession) -> bool:
        """One step of a handshake; true once it is done. Raises `TlsFailed`, `ConnectionLost` if too many wait."""
        if self.waiting >= WAITING_MAX:
            self.refused += 1
            raise ConnectionLost("too many handshakes wait for their turn")
        self.waiting += 1
        try:
            return await self._workers.run(session.handshake)
        finally:
            self.waiting -= 1


async def shake_hands(conn: Conn, session: TlsSession, handshakes: Handshakes, *, begins: bool) -> None:
    """The handshake; the caller bounds its time. `begins` is true for the client.

    Raises `ConnectionLost`, `TlsFailed`.
    """
    is_done = False
    buffer = memoryview(bytearray(RECORD_BYTES))
    while True:
        if begins:
            failure: TlsFailed | None = None
            try:
                is_done = await handshakes.step(session)
            except TlsFailed as error:
                failure = error
            # An alert tells the peer why.
            rest = memoryview(session.take())
            while rest:
                rest = rest[conn.send((rest,)) :]
                if rest:
                    await conn.writable()
            if failure is not None:
                raise failure
        if is_done:
            return
        begins = True
        count = None
        while count is None:
            await conn.readable()
            count = conn.recv_into(buffer)
        if count == 0:
            raise ConnectionLost("closed during the handshake")
        session.feed(buffer[:count])
