"""A TLS connection over any other connection: encrypts, decrypts, and limits records without data. It has the
interface `odradek.env.ports.Conn`, so callers see no difference. PORTED.

* A send encrypts records one by one, and passes many of them to the connection below at once. Plain bytes
  count as sent only when that connection has accepted their encrypted form. So this object holds no unsent
  bytes once a caller has sent everything. A caller that has sent a part passes the rest again; bytes of it
  that were encrypted before are then skipped.
* A receive reads as much from the connection below as fits the caller's buffer. It feeds whole records to
  OpenSSL, about the bytes of one full record at a time. So OpenSSL's memory for a connection stays at about
  one record in each direction. Some clients send many small records: librdkafka makes two for each message.
  OpenSSL is only called when whole records are there, because otherwise it raises an exception, which costs 2
  us.
* A record of TLS 1.3 hides its type. One call of OpenSSL passes over all records without plain bytes: key
  updates, tickets, alerts. So a receive ends once the fed bytes exceed the received plain bytes by
  `SPARE_BYTES`. Further bytes wait for the next receive, so that other connections are served in between.
* Records without plain bytes are counted. A peer that sends more of them than `IdleRecords` allows is
  disconnected.
* File ranges are read and encrypted, because sendfile would send them unencrypted.
* A stream that ends without close_notify was cut off. The bytes before that are returned first; then
  `ConnectionLost` is raised.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

from odradek.env.ports import Buffer, Clock, Conn, ConnectionCut, ConnectionLost, DiskError, File, PeerEnd
from odradek.env.tls_ports import TlsFailed, TlsSession
from odradek.security.idle_records import IdleRecords

__all__ = ["RECORD_BYTES", "Scratch", "TlsConn"]

RECORD_BYTES = 16 * 1024
FEED_BYTES = RECORD_BYTES + 512
"""The maximum number of bytes that are fed to OpenSSL at a time: a full record with its header. OpenSSL would keep
further bytes in its memory, for each connection.
"""
HEADER_BYTES = 5
_unpack_size = struct.Struct(">H").unpack_from
RECEIVE_BYTES = 128 * 1024
SPARE_BYTES = 8 * 1024
"""The number of bytes by which fed bytes may exceed received plain bytes before a receive stops. One feed has
at most 600 key updates, which take 3 ms, or 700 records of one byte each.
"""
SEND_BYTES = 128 * 1024
"""The maximum number of plain bytes that are encrypted before they are sent together. This much memory is
held for a peer that reads nothing.
"""
ANSWERS_BYTES_MAX = 64 * 1024
"""The maximum number of bytes of TLS's own answers that may wait for a peer. If it reads none of them, it is
disconnected.
"""


class Scratch:
    """The buffer for encrypted bytes that all connections of one event loop share. A connection must not
    await while it uses the buffer.
    """

    __slots__ = ("view",)

    def __init__(self) -> None:
        self.view = memoryview(bytearray(RECEIVE_BYTES + HEADER_BYTES))


class TlsConn:
    """A connection (`Conn`) that encrypts with TLS."""

    __slots__ = (
        "_ahead",
        "_begun",
        "_clock",
        "_conn",
        "_end",
        "_has_more",
        "_held",
        "_idle",
        "_is_corked",
        "_missing",
        "_scratch",
        "_tls",
        "_unread",
        "_unsent",
        "overhead_left",
        "peer_host",
        "peer_port",
    )

    def __init__(
        self, conn: Conn, tls: TlsSession, clock: Clock, scratch: Scratch, head: bytes = b"", missing: int = 0
    ) -> None:
        """`head` has the first bytes of a record's header, which have arrived but were not fed to `tls`. If a
        record was fed only in part, `missing` is the number of bytes of this record that have not arrived
        yet.
        """
        self._conn = conn
        self._held = head
        """Received bytes that were not fed yet: an incomplete record header, or whole records for the next receive.
        """
        self._missing = missing
        self._begun = 0
        """The number of bytes of an incomplete record that have arrived."""
        self._unread = 0
        """The number of fed records that may still have plain bytes to read."""
        self._idle = IdleRecords()
        self._has_more = True
        """True if the session may have plain bytes to read."""
        self._tls = tls
        self._clock = clock
        self._scratch = scratch
        self._unsent: memoryview | None = None
        """Encrypted bytes that still have to be sent."""
        self._ahead = 0
        """The number of plain bytes of the next `send` that are encrypted in `_unsent` already."""
        self._is_corked = False
        """True if `_unsent` is kept to be sent together with bytes that follow at once."""
        self._end: TlsFailed | bool = False
        """True, or the failure, once the stream has ended. A failure is raised after the bytes before it were
        returned.
        """
        self.overhead_left: int | None = None
        """The number of encrypted bytes beyond the plain ones that the peer may still send; None means no limit."""
        self.peer_host = conn.peer_host
        self.peer_port = conn.peer_port

    def peer_certificate(self) -> bytes | None:
        """Return the peer's certificate (DER); None if the peer has shown none."""
        return self._tls.peer_certificate()

    async def readable(self) -> None:
        if self._has_more or self._end or len(self._held) >= HEADER_BYTES:
            await self._clock.sleep_until(0.0)
        else:
            await self._conn.readable()

    async def writable(self) -> None:
        await self._conn.writable()

    def wait_for(self, count: int) -> None:
        """Do nothing. Some of these bytes may have been received already, so waiting for `count` more could last for
        ever.
        """

    def recv_into(self, buffer: memoryview) -> int | None:
        if isinstance(self._end, TlsFailed):
            raise ConnectionLost(f"TLS: {self._end}") from self._end
        filled, is_ended = 0, False
        spare = SPARE_BYTES
        try:
            if self._has_more or self._end:
                filled, is_ended = self._decrypt(buffer, 0)
            while not is_ended and filled < len(buffer) and spare > 0:
                data, is_all = self._receive(len(buffer) - filled)
                if data is None:
                    break
                if not data:
                    self._end = True
                    self._tls.feed(b"")
                    filled, is_ended = self._decrypt(buffer, filled)
                    break
                filled, spare, is_ended = self._take_records(data, buffer, filled, spare)
                if is_all and filled:
                    break
        except TlsFailed as error:
            raise ConnectionLost(f"TLS: {error}") from error
        if self.overhead_left is not None:
            self._spend_overhead(SPARE_BYTES - spare)
        if self._tls.outgoing:
            self._send_answers()
        return filled if filled or is_ended else None

    def _spend_overhead(self, count: int) -> None:
        """Count encrypted bytes without plain ones. Raises `ConnectionCut` if they are too many."""
        assert self.overhead_left is not None
        self.overhead_left -= count
        if self.overhead_left < 0:
            raise ConnectionCut("TLS: the peer sends too many small records")

    def _receive(self, room: int) -> tuple[memoryview | None, bool]:
        """Receive encrypted bytes into the shared buffer, after bytes that were held back. Return a view of them, and
        True if no more bytes are available now.

        An empty view means the end of the stream; None means that a receive would block.
        """
        view, begin = self._scratch.view, len(self._held)
        view[:begin] = self._held
        if begin >= HEADER_BYTES:
            return view[:begin], False
        # Receive only as much as surely fits the buffer after decryption, together with a record that has
        # arrived in part.
        wanted = min(RECEIVE_BYTES, max(room - RECORD_BYTES, FEED_BYTES))
        count = self._conn.recv_into(view[begin : begin + wanted])
        if not count:
            return (None if count is None else view[:0]), True
        return view[: begin + count], count < wanted

    def peer_end(self) -> PeerEnd:
        end = PeerEnd.ENDED if self._end is True else self._conn.peer_end()
        has_more = self._has_more or len(self._held) >= HEADER_BYTES
        return PeerEnd.BEHIND_DATA if end is PeerEnd.ENDED and has_more else end

    def _take_records(
        self, data: memoryview, buffer: memoryview, filled: int, spare: int
    ) -> tuple[int, int, bool]:
        """Decrypt whole records into `buffer`, until the fed bytes exceed the plain ones by `spare`.

        Return the number of plain bytes in the buffer, the rest of `spare`, and whether the stream has ended.
        """
        tls, missing, at, end = self._tls, self._missing, 0, len(data)
        is_ended, begun, self._begun = False, self._begun, 0
        bound = spare - filled - begun
        while at < end and (at == 0 or at - filled < bound):
            begin, stop, records = at, at, 0
            if missing:
                begin, stop, records, missing = at - begun, at + missing, 1, 0
            limit = min(end, at + FEED_BYTES)
            while stop + HEADER_BYTES <= end:
                after = stop + HEADER_BYTES + _unpack_size(data, stop + 3)[0]
                if after > limit and records:
                    break
                begin, stop = stop, after
                records += 1
            if not records:
                break
            if stop > end:
                # An incomplete record is not counted until it is whole.
                self._begun = end - begin
                missing, stop, records = stop - end, end, records - 1
            tls.feed(data[at:stop])
            fed, at = stop - at, stop
            if not records or is_ended:
                continue
            if filled == len(buffer):
                self._has_more = True
                self._unread += records
                continue
            filled, is_ended = self._read_records(records, fed, buffer, filled)
        self._missing = missing
        self._held = bytes(data[at:])
        return filled, bound + filled - at + self._begun, is_ended

    def _read_records(self, records: int, fed: int, buffer: memoryview, filled: int) -> tuple[int, bool]:
        """Read the plain bytes of `records` whole records. Together, these records had `fed` encrypted bytes.
        Return the number of plain bytes in the buffer, and True if the stream has ended. Raises `TlsFailed`,
        `ConnectionCut`.
        """
        begin = filled
        filled, reads, end = self._tls.read_records(records, buffer, begin)
        if filled == len(buffer):
            # A record that fills the buffer may have more plain bytes; any other record was read completely.
            self._has_more = True
            self._unread += records - reads
        elif reads < records and not end:
            self._count_idle(records - reads, fed - (filled - begin))
        if isinstance(end, TlsFailed):
            self._end = end
            if not filled:
                raise end
        elif end:
            self._has_more = True
        return filled, end is not False

    def _count_idle(self, records: int, encrypted_bytes: int) -> None:
        """Count TLS records that carried no plain bytes. Raises `ConnectionCut` if they are too many."""
        if not self._idle.allow(records, encrypted_bytes, self._clock.monotonic()):
            raise ConnectionCut("TLS: the peer sends many records without data")

    def _decrypt(self, buffer: memoryview, filled: int) -> tuple[int, bool]:
        """Read all plain bytes that are available. Return the number of bytes in the buffer, and True if the stream
        has ended.
        """
        while filled < len(buffer):
            count = self._read(buffer, filled)
            if count is None:
                self._has_more = False
                if self._unread:
                    self._count_idle(self._unread, 0)
                    self._unread = 0
                return filled, False
            if count == 0:
                return filled, True
            filled += count
            self._unread -= self._unread > 0
        return filled, False

    def _read(self, buffer: memoryview, filled: int) -> int | None:
        """Read plain bytes into `buffer` after the first `filled` bytes; return as `read_into` does. An error after
        received bytes is raised by the next call.
        """
        try:
            return self._tls.read_into(buffer[filled:])
        except TlsFailed as error:
            self._end = error
            if not filled:
                raise
            return 0

    def _send_answers(self) -> None:
        """Send bytes of the TLS protocol itself, such as answers to key updates. Raises `ConnectionCut` if the peer
        reads none of them.
        """
        if self._unsent is None or len(self._unsent) < ANSWERS_BYTES_MAX + SEND_BYTES:
            self._push([])
        else:
            raise ConnectionCut("TLS: the peer does not read what this node sends")

    def _push(self, records: list[Buffer]) -> bool:
        """Send encrypted bytes over the connection below, the oldest first. Return True if all are sent."""
        if self._tls.outgoing:
            records.append(self._tls.take())
        if self._unsent is not None:
            records.insert(0, self._unsent)
        if not records:
            return True
        taken = self._conn.send(records)
        left: list[Buffer] = []
        for record in records:
            if taken >= len(record):
                taken -= len(record)
            else:
                left.append(memoryview(record)[taken:])
                taken = 0
        if not left:
            self._unsent = None
            return True
        self._unsent = memoryview(left[0] if len(left) == 1 else b"".join(left))
        return False

    def send(self, chunks: Sequence[Buffer], more: bool = False) -> int:
        if not self._is_corked and not self._push([]):
            return 0
        self._is_corked = False
        taken, self._ahead = self._ahead, 0
        records: list[Buffer] = []
        plain = 0
        try:
            for piece in _pieces(chunks, taken):
                self._tls.write(piece)
                records.append(self._tls.take())
                plain += len(piece)
                if plain >= SEND_BYTES:
                    if not self._push(records):
                        break
                    taken, plain, records = taken + plain, 0, []
            else:
                if more and self._cork(records, plain):
                    return taken + plain
                if self._push(records):
                    return taken + plain
        except TlsFailed as error:
            raise ConnectionLost(f"TLS: {error}") from error
        self._ahead = plain
        return taken

    def _cork(self, records: list[Buffer], plain: int) -> bool:
        """Keep the records of a small answer, to send them together with the next bytes. Return False if they are not
        small.
        """
        if self._unsent is not None or plain > RECORD_BYTES:
            return False
        self._unsent = memoryview(b"".join(records))
        self._is_corked = True
        return True

    def sendfile(self, file: File, offset: int, count: int) -> int:
        if not self._is_corked and not self._push([]):
            return 0
        if self._ahead:
            taken, self._ahead = self._ahead, 0
            return taken
        data = file.pread(min(count, SEND_BYTES), offset)
        if not data:
            raise DiskError(
                "",
                file.path,
                "read",
                0,
                f"the file ends before position {offset + count}, up to which bytes were to be sent",
            )
        return self.send((data,))

    def close(self) -> None:
        """Send close_notify if the connection accepts it now, and close the connection."""
        if not self._end and self._unsent is None:
            self._end = True
            self._tls.finish()
            try:
                self._push([])
            except ConnectionLost:
                self._unsent = None
        self._conn.close()


def _pieces(chunks: Sequence[Buffer], start: int) -> Iterator[Buffer]:
    """Yield the bytes of `chunks` from `start` on in pieces of at most a record; small chunks are joined."""
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
            yield joined
            joined = bytearray()
        for at in range(0, len(view), RECORD_BYTES):
            yield view[at : at + RECORD_BYTES]
    if joined:
        yield joined
