"""A TLS connection keeps the rules of `Conn`, whatever the connection below it does."""

from __future__ import annotations

import random
import ssl
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import pytest
import trio

from odradek.env.ports import Buffer, ConnectionCut, ConnectionLost, DiskError, PeerEnd
from odradek.env.real import RealClock
from odradek.env.real_tls import RealTls, RealTlsSession
from odradek.env.tls_ports import TlsFailed, TlsSettings
from odradek.security.handshakes import HANDSHAKE_BYTES_MAX, RecordBounds
from odradek.security.idle_records import IDLE_RECORDS_MAX
from odradek.security.tls_conn import (
    ANSWERS_BYTES_MAX,
    FEED_BYTES,
    SEND_BYTES,
    SPARE_BYTES,
    Scratch,
    TlsConn,
)
from tests.security.certificates import Authority
from tests.security.tls.tls_records import ALERT, DATA, HANDSHAKE, RawEnd, RecordWriter

AUTHORITY = Authority()
OWN = AUTHORITY.issue("node", ("localhost",))
SETTINGS = TlsSettings(
    keystore_key=OWN.key_pem(), keystore_chain=OWN.chain_pem, truststore_certificates=AUTHORITY.pem
)


class Below:
    """A connection in memory that sends and receives parts of random sizes."""

    peer_host = "below"
    peer_port = 0
    waits = 0
    """The number of waits for bytes."""

    def __init__(self, source: random.Random, part_max: int = 1 << 30) -> None:
        self._source = source
        self.part_max = part_max
        self.sent = bytearray()
        self.to_come = bytearray()
        self.is_ended = False
        self.is_closed = False
        self.sends = 0

    async def readable(self) -> None:
        self.waits += 1

    async def writable(self) -> None:
        """Return at once, since this connection is always writable."""

    def wait_for(self, count: int) -> None:
        """Return at once."""

    def recv_into(self, buffer: memoryview) -> int | None:
        if not self.to_come:
            return 0 if self.is_ended else None
        count = min(len(buffer), len(self.to_come), self._part())
        buffer[:count] = self.to_come[:count]
        del self.to_come[:count]
        return count or None

    def peer_end(self) -> PeerEnd:
        if not self.is_ended:
            return PeerEnd.OPEN
        return PeerEnd.BEHIND_DATA if self.to_come else PeerEnd.ENDED

    def send(self, chunks: Sequence[Buffer], more: bool = False) -> int:
        if self.is_closed:
            raise ConnectionLost("closed")
        self.sends += 1
        data = b"".join(chunks)
        taken = min(len(data), self._part())
        self.sent += data[:taken]
        return taken

    def sendfile(self, file: Any, offset: int, count: int) -> int:
        raise AssertionError("sendfile was called, which would send a file unencrypted")

    def close(self) -> None:
        self.is_closed = True

    def _part(self) -> int:
        return self._source.randrange(self.part_max + 1) if self.part_max < 1 << 30 else self.part_max


class Source:
    """A file in memory."""

    path = "file"

    def __init__(self, data: bytes) -> None:
        self._data = data

    def pread(self, count: int, offset: int) -> bytes:
        return self._data[offset : offset + count]


class Pair:
    """A server's `TlsConn` over a connection in memory, with OpenSSL as its client."""

    def __init__(self, seed: int = 1, part_max: int = 1 << 30) -> None:
        self.below = Below(random.Random(seed), part_max)
        self.session = RealTls(SETTINGS).server_session()
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        context = ssl.create_default_context(cadata=AUTHORITY.pem)
        self.client = context.wrap_bio(self._incoming, self._outgoing, server_hostname="localhost")
        is_done = False
        while not is_done:
            with suppress(ssl.SSLWantReadError):
                self.client.do_handshake()
            data = self._outgoing.read()
            if data:
                self.session.feed(data)
            is_done = self.session.handshake()
            self._incoming.write(self.session.take())
        self.conn = TlsConn(self.below, self.session, RealClock(), Scratch())

    def client_says(self, data: bytes) -> None:
        self.client.write(data)
        self.below.to_come += self._outgoing.read()

    def client_hears(self) -> bytes:
        """Return all decrypted bytes that have arrived at the client."""
        self._incoming.write(bytes(self.below.sent))
        self.below.sent.clear()
        found = b""
        try:
            while data := self.client.read(1 << 16):
                found += data
        except ssl.SSLWantReadError:
            pass
        return found


def _send_all(pair: Pair, chunks: list[bytes], file: Source | None = None, file_bytes: int = 0) -> None:
    """Send as the send queue does: bytes that were not accepted are sent again."""
    rest = b"".join(chunks)
    source = random.Random(3)
    while rest:
        at = source.randrange(len(rest) + 1)
        rest = rest[pair.conn.send([rest[:at], rest[at:]], bool(file)) :]
    offset = 0
    while offset < file_bytes:
        offset += pair.conn.sendfile(file, offset, file_bytes - offset)  # type: ignore[arg-type]


@pytest.mark.parametrize("part_max", [7, 1_000, 100_000, 1 << 30])
@pytest.mark.parametrize("size", [1, 100, 16_384, 16_385, 700_000])
def test_what_is_sent_comes_once_and_in_order(part_max: int, size: int) -> None:
    """The connection below accepts few bytes at a time. The client receives all bytes once and in order."""
    if size // part_max > 20_000:
        part_max = 2_000
    pair = Pair(size, part_max)
    data = random.Random(size).randbytes(size)
    _send_all(pair, [data])
    assert pair.client_hears() == data


@pytest.mark.parametrize("part_max", [1_000, 1 << 30])
def test_ranges_of_files_come_behind_what_was_before_them(part_max: int) -> None:
    """A small answer with more to follow is sent together with the beginning of a file's range."""
    pair = Pair(5, part_max)
    content = random.Random(9).randbytes(300_000)
    pair.below.sends = 0
    _send_all(pair, [b"head"], Source(content), len(content))
    assert pair.client_hears() == b"head" + content
    if part_max == 1 << 30:
        assert pair.below.sends == -(-len(content) // SEND_BYTES)


def test_a_file_that_is_too_short_is_an_error() -> None:
    with pytest.raises(DiskError, match="ends before"):
        Pair().conn.sendfile(Source(b""), 0, 10)  # type: ignore[arg-type]


@pytest.mark.parametrize("part_max", [3, 5_000, 1 << 30])
@pytest.mark.parametrize("buffer_bytes", [1, 100, 20_000, 300_000])
def test_what_comes_is_received_once_and_in_order(part_max: int, buffer_bytes: int) -> None:
    """All bytes are received once and in order, with buffers of any size, however they arrive."""
    size = 300 if buffer_bytes == 1 or part_max == 3 else 500_000
    pair = Pair(size, part_max)
    data = random.Random(size).randbytes(size)
    pair.client_says(data)
    found = bytearray()
    buffer = memoryview(bytearray(buffer_bytes))
    while len(found) < size:
        count = pair.conn.recv_into(buffer)
        assert count != 0
        found += buffer[: count or 0]
    assert found == data
    assert pair.conn.recv_into(buffer) is None


@pytest.mark.parametrize("part_max", [3, 700, 30_000, 1 << 30])
@pytest.mark.parametrize("buffer_bytes", [5, 1_000, 20_000, 300_000])
def test_records_of_any_size_are_received_in_order(part_max: int, buffer_bytes: int) -> None:
    """Small records, as librdkafka sends them, and full ones are received in order."""
    pair = Pair(buffer_bytes, part_max)
    source = random.Random(part_max + buffer_bytes)
    sizes = [source.choice((1, 9, 9, 1_024, 1_024, 5_000, 16_384)) for _ in range(9 if part_max == 3 else 90)]
    if buffer_bytes == 5:
        sizes = [min(size, 1_024) for size in sizes[:20]]
    data = random.Random(1).randbytes(sum(sizes))
    at = 0
    for size in sizes:
        pair.client_says(data[at : at + size])
        at += size
    found = bytearray()
    buffer = memoryview(bytearray(buffer_bytes))
    while len(found) < len(data):
        count = pair.conn.recv_into(buffer)
        assert count != 0
        found += buffer[: count or 0]
    assert found == data
    assert pair.conn.recv_into(buffer) is None


def test_many_records_take_one_receive() -> None:
    """A large buffer is filled from many records by one receive."""
    pair = Pair()
    pair.client_says(bytes(100_000))
    assert pair.conn.recv_into(memoryview(bytearray(256 * 1024))) == 100_000


def test_an_end_with_close_notify_is_an_end() -> None:
    """After close_notify the receive returns 0, when all earlier bytes have been received."""
    pair = Pair()
    pair.client_says(b"last words")
    with pytest.raises(ssl.SSLWantReadError):
        pair.client.unwrap()
    pair.below.to_come += pair._outgoing.read()
    pair.below.is_ended = True
    buffer = memoryview(bytearray(100))
    assert pair.conn.recv_into(buffer) == 10
    assert pair.conn.recv_into(buffer) == 0


def test_an_end_without_close_notify_is_a_loss() -> None:
    """A stream that ends without close_notify raises ConnectionLost (RFC 8446, section 6.1).

    Earlier bytes are received first.
    """
    pair = Pair()
    pair.client_says(b"last words")
    pair.below.is_ended = True
    buffer = memoryview(bytearray(100))
    assert pair.conn.recv_into(buffer) == 10
    with pytest.raises(ConnectionLost, match="without close_notify"):
        pair.conn.recv_into(buffer)
    with pytest.raises(ConnectionLost, match="without close_notify"):
        pair.conn.recv_into(buffer)


def test_a_changed_record_ends_the_connection_behind_good_ones() -> None:
    pair = Pair()
    pair.client_says(b"good")
    good = len(pair.below.to_come)
    pair.client_says(b"changed")
    pair.below.to_come[good + 8] ^= 1
    buffer = memoryview(bytearray(100))
    assert pair.conn.recv_into(buffer) == 4
    with pytest.raises(ConnectionLost, match="TLS"):
        pair.conn.recv_into(buffer)


def test_a_close_says_so() -> None:
    """`close` sends close_notify, and closes the connection below."""
    pair = Pair()
    pair.conn.close()
    assert pair.below.is_closed
    assert pair.client_hears() == b""
    assert pair.client.read(1) == b""
    pair.conn.close()
    with pytest.raises(ConnectionLost):
        pair.conn.send([b"late"])


def test_a_slow_peer_holds_a_bounded_number_of_bytes() -> None:
    """A peer reads nothing. At most one group of encrypted records waits for it."""
    pair = Pair(part_max=0)
    data = bytes(8 << 20)
    for _ in range(10):
        assert pair.conn.send([data]) == 0
    assert pair.conn._unsent is not None
    assert len(pair.conn._unsent) < SEND_BYTES + ANSWERS_BYTES_MAX


def test_a_server_does_not_renegotiate() -> None:
    """Renegotiation of TLS 1.2 is disabled in the server."""
    context = RealTls(SETTINGS)._ends.server
    assert context is not None
    assert context.options & ssl.OP_NO_RENEGOTIATION


# -- the limits of records ----------------------------------------------------------------------------------------


def test_a_step_is_due_once_a_record_is_whole() -> None:
    """A record comes byte by byte. The session is only called when the record is complete."""
    bounds = RecordBounds()
    record = b"\x16\x03\x01\x00\x05hello"
    data = memoryview(record * 2)
    assert [bounds.take(data[at : at + 1]) for at in range(20)] == [at in (9, 19) for at in range(20)]
    assert RecordBounds().take(memoryview(record * 3 + b"\x16"))


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\0\0\0\x10", "plaintext"),
        (b"GET / HTTP/1.1", "does not speak TLS"),
        (b"\x80\x2e\x01", "does not speak TLS"),
        (b"\x16\x03\x01\xff\xff", "not TLS records"),
        (b"\x16\x03\x01\x00\x00", "not TLS records"),
        (b"\x16\x02\x01\x00\x05", "not TLS records"),
        (b"\x16\x03\x01\x00\x01a\x17\x04\x01\x00\x05", "not TLS records"),
    ],
)
def test_what_is_no_record_is_refused(data: bytes, reason: str) -> None:
    with pytest.raises(TlsFailed, match=reason):
        RecordBounds().take(memoryview(data))


def test_a_handshake_has_a_size() -> None:
    bounds = RecordBounds()
    record = memoryview(b"\x16\x03\x01\x40\x00" + bytes(16_384))
    for _ in range(HANDSHAKE_BYTES_MAX // len(record)):
        bounds.take(record)
    with pytest.raises(TlsFailed, match="before the end of its TLS handshake"):
        bounds.take(record)


def test_the_end_of_a_peer_is_seen_once_all_is_received() -> None:
    """The peer has ended, but decrypted or encrypted bytes wait.

    `peer_end` says BEHIND_DATA until they are received.
    """
    pair = Pair()
    assert pair.conn.recv_into(memoryview(bytearray(10))) is None
    assert pair.conn.peer_end() is PeerEnd.OPEN
    pair.client_says(b"a request")
    pair.below.is_ended = True
    assert pair.conn.peer_end() is PeerEnd.BEHIND_DATA
    assert pair.conn.recv_into(memoryview(bytearray(4))) == 4
    assert pair.conn.peer_end() is PeerEnd.BEHIND_DATA
    assert pair.conn.recv_into(memoryview(bytearray(5))) == 5
    with pytest.raises(ConnectionLost):
        pair.conn.recv_into(memoryview(bytearray(5)))


# -- records without data --------------------------------------------------------------------------------------------


class Clock(RealClock):
    """A clock that the test sets."""

    seconds = 0.0

    def monotonic(self) -> float:
        return self.seconds


class Counted:
    """A TLS session that counts the bytes that it is fed."""

    def __init__(self, session: RealTlsSession) -> None:
        self._session = session
        self.fed = 0

    def feed(self, data: Buffer) -> None:
        self.fed += len(data)
        self._session.feed(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)


class RawPair:
    """A server's `TlsConn` over a connection in memory, with a client that writes its own records."""

    def __init__(self) -> None:
        self.below = Below(random.Random(1))
        session = RealTls(SETTINGS).server_session()
        self.client = RawEnd(ssl.create_default_context(cadata=AUTHORITY.pem), "localhost")
        flight, writer = self.client.shake_hands()
        is_done = False
        while not is_done:
            session.feed(flight)
            is_done = session.handshake()
            if writer is None:
                flight, writer = self.client.shake_hands(session.take())
        assert writer is not None
        self.writer: RecordWriter = writer
        self.clock = Clock()
        self.session: Any = Counted(session)
        self.conn = TlsConn(self.below, self.session, self.clock, Scratch())
        self.buffer = memoryview(bytearray(256 * 1024))

    def receive(self) -> bytes | None:
        """Receive once, and return the bytes."""
        self.session.fed = 0
        count = self.conn.recv_into(self.buffer)
        return None if count is None else bytes(self.buffer[:count])


def _steps_until_cut(step: Callable[[], None], steps_max: int) -> int:
    """Return the number of steps until the connection is cut off."""
    for number in range(steps_max):
        try:
            step()
        except ConnectionCut:
            return number
    raise AssertionError(f"the connection was not cut off within {steps_max} steps")


def test_key_updates_end_the_connection_within_one_feed() -> None:
    """A flood of records without data cuts the connection off within one feed, however many more there are."""
    pair = RawPair()
    pair.below.to_come += pair.writer.key_updates(5_000)
    with pytest.raises(ConnectionCut, match="without data"):
        pair.receive()
    assert pair.session.fed <= FEED_BYTES
    assert len(pair.below.to_come) > 0


def test_key_updates_one_by_one_end_the_connection_as_well() -> None:
    """Key updates come one by one. They are counted for the whole connection, and too many cut it off."""
    pair = RawPair()

    def renew() -> None:
        pair.below.to_come += pair.writer.key_update()
        assert pair.receive() is None

    assert _steps_until_cut(renew, 2 * IDLE_RECORDS_MAX) == IDLE_RECORDS_MAX


@pytest.mark.parametrize("buffer_bytes", [7, 1_000, 256 * 1024])
def test_data_pays_for_no_key_updates(buffer_bytes: int) -> None:
    """Key updates between requests are counted, too, and too many of them cut the connection off."""
    pair = RawPair()
    pair.buffer = pair.buffer[:buffer_bytes]

    def say_and_renew() -> None:
        pair.below.to_come += pair.writer.record(b"a request") + pair.writer.key_updates(9)
        while pair.receive() is not None:
            pass

    assert _steps_until_cut(say_and_renew, IDLE_RECORDS_MAX) <= IDLE_RECORDS_MAX // 8


def test_key_updates_now_and_then_are_welcome() -> None:
    """One key update a second is allowed, as long as the connection lasts, with data before and after it."""
    pair = RawPair()
    for number in range(3 * IDLE_RECORDS_MAX):
        pair.below.to_come += pair.writer.record(b"before")
        pair.below.to_come += pair.writer.key_update(asks_for_another=number % 2 == 0)
        pair.below.to_come += pair.writer.record(b"behind")
        assert pair.receive() == b"beforebehind"
        pair.clock.seconds += 1.0


def test_records_of_a_byte_are_taken_in_many_turns() -> None:
    """Data in records of one byte is received completely and in order.

    Encrypted bytes that wait for the TLS session make the connection readable.
    """
    pair = RawPair()
    data = random.Random(2).randbytes(8_000)
    pair.below.to_come += b"".join(pair.writer.record(data[at : at + 1]) for at in range(len(data)))
    found = bytearray()
    turns = 0
    while len(found) < len(data):
        part = pair.receive()
        assert part
        assert pair.session.fed <= SPARE_BYTES + FEED_BYTES
        found += part
        turns += 1
        if not pair.below.to_come and len(found) < len(data):
            pair.below.is_ended = True
            assert pair.conn.peer_end() is PeerEnd.BEHIND_DATA
            trio.run(pair.conn.readable)
            assert not pair.below.waits
    assert found == data
    assert turns > 5


def test_padded_records_are_data() -> None:
    """Padded records count as data, since a peer may hide the length of its messages (RFC 8446, section 5.4)."""
    pair = RawPair()
    data = b"x" * 2 * IDLE_RECORDS_MAX
    pair.below.to_come += b"".join(pair.writer.record(b"x", padding=10_000) for _ in data)
    found = b""
    while len(found) < len(data):
        has_more = bool(pair.below.to_come)
        part = pair.receive()
        assert part or has_more
        found += part or b""
    assert found == data


@pytest.mark.parametrize(
    "kind_and_payload",
    [(DATA, b""), (ALERT, b"\x01\x5a"), (HANDSHAKE, b"\x04")],
    ids=["empty", "alert", "fragment"],
)
def test_other_records_without_data_end_the_connection(kind_and_payload: tuple[int, bytes]) -> None:
    """Empty records, warnings, and a handshake message that comes byte by byte cut the connection off."""
    kind, payload = kind_and_payload
    pair = RawPair()
    pair.below.to_come += b"".join(pair.writer.record(payload, kind) for _ in range(2_000))
    with pytest.raises(ConnectionLost):
        pair.receive()
    assert pair.session.fed <= FEED_BYTES


def test_answers_to_key_updates_are_bounded() -> None:
    """A peer requests key updates, and does not read the answers. It is cut off before they fill the memory."""
    pair = RawPair()

    def take_nothing(chunks: Sequence[Buffer], more: bool = False) -> int:
        return 0

    pair.below.send = take_nothing  # type: ignore[method-assign]

    def ask_for_one() -> None:
        pair.below.to_come += pair.writer.key_update(asks_for_another=True)
        assert pair.receive() is None
        pair.clock.seconds += 1.0

    assert _steps_until_cut(ask_for_one, (ANSWERS_BYTES_MAX + SEND_BYTES) // 20) > IDLE_RECORDS_MAX


@pytest.mark.parametrize("part_max", [50, 1 << 30])
def test_a_stranger_may_send_few_records(part_max: int) -> None:
    """Before a login, a connection has a limited overhead of records. Data in records of one byte exceeds it soon."""
    pair = RawPair()
    pair.below.part_max = part_max
    pair.conn.overhead_left = 2_000

    def say_letters() -> None:
        pair.below.to_come += b"".join(pair.writer.record(b"x") for _ in range(10))
        while pair.below.to_come:
            pair.receive()

    assert _steps_until_cut(say_letters, 100) == 2_000 // (10 * 22)


@pytest.mark.parametrize("part_max", [50, 5_000, 1 << 30])
def test_large_records_are_no_overhead(part_max: int) -> None:
    """A large record that comes in parts counts only its own overhead."""
    pair = RawPair()
    pair.below.part_max = part_max
    pair.conn.overhead_left = 30 * 22
    data = bytes(16_384 if part_max > 50 else 1_000)
    for _ in range(30):
        pair.below.to_come += pair.writer.record(data)
        while pair.below.to_come:
            pair.receive()
    assert pair.conn.overhead_left == 0
