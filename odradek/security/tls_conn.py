"""A connection with TLS, over any other: with the surface of `odradek.env.ports.Conn`, so that callers see no
difference. PORTED.

* A send encrypts records one by one, and gives many of them to the connection below at once. Plain bytes count as
  taken only when it has taken their encrypted form. So nothing is left here once a caller has sent everything. A
  caller that has sent a part offers the rest again, and the bytes that are encrypted already are skipped.
* A receive reads as much from the connection below as fits the caller's buffer. It feeds whole records, at a time
  about as many bytes as a full record has. So OpenSSL's own memory of a connection stays at about one record in each
  direction. Some clients send dozens of records of a few bytes each: librdkafka makes two of each message. OpenSSL is
  asked for whole records alone, since its "not yet" is an exception, which costs 2 us.
* A record of TLS 1.3 hides its type. One call of OpenSSL passes over all records without plain bytes: key updates,
  tickets, alerts. So a receive ends once it has fed `SPARE_BYTES` more than it got plain bytes. Further bytes wait
  for the next receive, so that other connections have their turn in between.
* Records that brought no plain bytes are counted. A peer with more of them than `IdleRecords` allows is cut off.
* Ranges of files are read and encrypted: sendfile would send them as they are.
* A stream that ends without close_notify was cut off. What came before is given first; then `ConnectionLost` is raised.
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
"""A whole record with its header, or smaller ones. More at a time would stay in OpenSSL's memory of each connection."""
HEADER_BYTES = 5
_unpack_size = struct.Struct(">H").unpack_from
RECEIVE_BYTES = 128 * 1024
SPARE_BYTES = 8 * 1024
"""A receive stops when the bytes fed exceed the plain bytes received by this number. The records of one feed are at
most 600 key updates, which take 3 ms, or 700 records of a byte.
"""
SEND_BYTES = 128 * 1024
"""Plain bytes that are encrypted before they are sent together. A peer that takes nothing holds so much memory."""
ANSWERS_BYTES_MAX = 64 * 1024
"""A peer that causes this number of bytes of TLS's own answers, and reads none of them, is disconnected."""


class Scratch:
    """The buffer for encrypted bytes that all connections of one event loop share: nothing awaits while it is in use."""

    __slots__ = ("view",)

    def __init__(self) -> None:
        self.view = memoryview(bytearray(RECEIVE_BYTES + HEADER_BYTES))


class TlsConn:
    """`Conn` with TLS."""

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
        """`head` has the first bytes of a record's header, which have arrived but were not fed to `tls`. `missing`
        is the number of bytes still to come of a record that `tls` has in part.
        """
        self._conn = conn
        self._held = head
        """Received bytes that were not fed yet: a part of a header, or whole records that wait for the next receive."""
        self._missing = missing
        self._begun = 0
        """The number of bytes that have arrived of a record that is not whole yet."""
        self._unread = 0
        """Fed records that may still have plain bytes to be read."""
        self._idle = IdleRecords()
        self._has_more = True
        """True if the session may have plain bytes to be read."""
        self._tls = tls
        self._clock = clock
        self._scratch = scratch
        self._unsent: memoryview | None = None
        """Encrypted bytes that the connection below has still to take."""
        self._ahead = 0
        """Plain bytes of the next `send` that are in `_unsent`."""
        self._is_corked = False
        """True if `_unsent` waits for bytes that follow at once, to go with them."""
        self._end: TlsFailed | bool = False
        """True once the connection below has ended; a failure is raised after the bytes that came before it."""
        self.overhead_left: int | None = None
        """The encrypted bytes beyond the plain ones that the peer may still send; None: any number."""
        self.peer_host = conn.peer_host
        self.peer_port = conn.peer_port

    def peer_certificate(self) -> bytes | None:
        """Return the peer's certificate as DER; None where it has shown none."""
        return self._tls.peer_certificate()

    async def readable(self) -> None:
        if self._has_more or self._end or len(self._held) >= HEADER_BYTES:
            await self._clock.sleep_until(0.0)
        else:
            await self._conn.readable()

    async def writable(self) -> None:
        await self._conn.writable()

    def wait_for(self, count: int) -> None:
        """Do nothing: some of these bytes may be here already, so waiting for them could last for ever."""

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
        """Charge encrypted bytes that carried no plain ones. Raises `ConnectionCut`."""
        assert self.overhead_left is not None
        self.overhead_left -= count
        if self.overhead_left < 0:
            raise ConnectionCut("TLS: the peer sends too many small records")

    def _receive(self, room: int) -> tuple[memoryview | None, bool]:
        """Receive encrypted bytes into the scratch. Also return True if the connection below has no more bytes now.

        Bytes that were held back come first. An empty view is the end of the stream; None means that it would block.
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
        """Decrypt the records that are whole, until `spare` bytes more were fed than are in the buffer.

        Returns the bytes in the buffer, the rest of `spare` (encrypted bytes less plain ones), and whether the
        stream has ended.
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
                # A record that has begun costs nothing until it is whole, and then counts by its plain bytes.
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
        """Read the plain bytes of whole records, which have `fed` bytes. Return the number of bytes in the
        buffer, and True if the stream has ended. Raises `TlsFailed`, `ConnectionCut`."""
        begin = filled
        filled, reads, end = self._tls.read_records(records, buffer, begin)
        if filled == len(buffer):
            # A record that fills the buffer may have more plain bytes; any other was read whole.
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
        """Count records that brought no plain bytes. Raises `ConnectionCut`."""
        if not self._idle.allow(records, encrypted_bytes, self._clock.monotonic()):
            raise ConnectionCut("TLS: the peer sends many records without data")

    def _decrypt(self, buffer: memoryview, filled: int) -> tuple[int, bool]:
        """Read all plain bytes that are there. Return the number of bytes in the buffer, and True if the stream
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
        """Read plain bytes behind `filled`, with the results of `read_into`. A failure behind received bytes
        comes with the next call.
        """
        try:
            return self._tls.read_into(buffer[filled:])
        except TlsFailed as error:
            self._end = error
            if not filled:
                raise
            return 0

    def _send_answers(self) -> None:
        """Send the bytes that TLS itself has to send."""
        if self._unsent is None or len(self._unsent) < ANSWERS_BYTES_MAX + SEND_BYTES:
            self._push([])
        else:
            raise ConnectionCut("TLS: the peer does not read what this node sends")

    def _push(self, records: list[Buffer]) -> bool:
        """Send encrypted bytes over the connection below, the oldest first. Return True when all are sent."""
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
        """Keep the records of a small answer, to send them with the next bytes. Return False if they are not small."""
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
        """Send close_notify, if there is room for it now, and close."""
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
