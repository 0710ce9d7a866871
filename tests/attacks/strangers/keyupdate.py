"""A stranger or a client sends TLS 1.3 records with little or no data: key updates, empty records, single bytes."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

from odradek.wire.codec import encode
from odradek.wire.messages.api_versions import ApiVersionsRequest
from tests.attacks.outcome import Outcome
from tests.attacks.place import Place
from tests.attacks.raw import ATTACKERS_HOST, HOST, Conn
from tests.security.tls.tls_records import RawEnd, RecordWriter, shake_hands

WHO = "stranger"
RECORDS = 300_000
CPU_SECONDS_MAX = 0.5
"""A node that processes all records of a full attack needs 1.7 s. The limit leaves room for its other work."""
TIMEOUT_SECONDS = 60.0
PIECE_RECORDS = 1_000
MAKE_SECONDS_MAX = 5.0
"""The longest time for making records before they are sent. The node allows ten seconds for the whole login."""
LARGEST_FRAME_BYTES = 512 * 1024
ASK = ApiVersionsRequest("attack", "1.0")

Flood = Callable[[RecordWriter, int], bytes]


class RecordSocket:
    """A socket that writes its own TLS records, so that the attack can put others between them."""

    def __init__(self, port: int, source: str = ATTACKERS_HOST) -> None:
        self.plain = socket.create_connection((HOST, port), TIMEOUT_SECONDS, (source, 0))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        self._end: RawEnd
        self._end, self.writer = shake_hands(self.plain, context, HOST)
        self._read = b""

    def sendall(self, data: bytes) -> None:
        self.plain.sendall(
            b"".join(self.writer.record(data[at : at + 16_384]) for at in range(0, len(data), 16_384))
        )

    def recv(self, count: int) -> bytes:
        while not self._read:
            data = self.plain.recv(65_536)
            if not data:
                return b""
            self._read = self._end.read(data)
        found, self._read = self._read[:count], self._read[count:]
        return found

    def close(self) -> None:
        self.plain.close()


def attack(place: Place, scale: float) -> Iterator[Outcome]:
    """Send each kind of flood to each TLS listener, and measure what the node spends on it."""
    count = int(RECORDS * scale)
    floods: dict[str, Flood] = {
        "key updates": lambda writer, count: writer.key_updates(count),
        "key updates that ask for others": lambda writer, count: writer.key_updates(
            count, ask_for_others=True
        ),
        "key updates between requests": _between_requests,
        "empty records": lambda writer, count: b"".join(writer.record(b"") for _ in range(count)),
    }
    for what, flood in floods.items():
        yield _cut_off(place, f"before the login: {what}", RecordSocket(place.ports.SASL_SSL), flood, count)
        yield _cut_off(place, f"where none is asked for: {what}", RecordSocket(place.ports.TLS), flood, count)
        yield _cut_off(place, f"after the login: {what}", _logged_in(place), flood, count)
    what = "before the login: a frame byte by byte"
    yield _cut_off(place, what, _amid_a_frame(place), _byte_by_byte, count)


def _between_requests(writer: RecordWriter, count: int) -> bytes:
    body = bytes(encode(ASK, 3))
    frame = (len(body) + 11).to_bytes(4) + b"\0\x12\0\x03\0\0\0\x07\0\0\0" + body
    return b"".join(writer.record(frame) + writer.key_updates(20) for _ in range(count // 20))


def _byte_by_byte(writer: RecordWriter, count: int) -> bytes:
    return b"".join(writer.record(b"\0") for _ in range(count))


def _amid_a_frame(place: Place) -> RecordSocket:
    """Announce the largest frame that a node takes before a login."""
    through = RecordSocket(place.ports.SASL_SSL)
    through.sendall(LARGEST_FRAME_BYTES.to_bytes(4))
    return through


def _logged_in(place: Place) -> RecordSocket:
    conn = Conn(place.ports.SASL_SSL)
    conn.close()
    through = RecordSocket(place.ports.SASL_SSL)
    conn.socket = through  # type: ignore[assignment]
    conn.login("client", place.password("client"))
    return through


def _cut_off(place: Place, what: str, attacker: RecordSocket, flood: Flood, count: int) -> Outcome:
    """Send the flood. The node must close the connection and spend little CPU on it."""
    began = time.monotonic()
    made: list[bytes] = []
    while len(made) * PIECE_RECORDS < count and time.monotonic() < began + MAKE_SECONDS_MAX:
        made.append(flood(attacker.writer, PIECE_RECORDS))
    data = b"".join(made)
    is_cut = False
    before = place.node.process.cpu_seconds()
    attacker.plain.settimeout(TIMEOUT_SECONDS)
    try:
        attacker.plain.sendall(data)
        while attacker.plain.recv(65_536):
            pass
        is_cut = True
    except ConnectionError:
        is_cut = True
    except TimeoutError:
        pass
    spent = place.node.process.cpu_seconds() - before
    attacker.close()
    with suppress(OSError), place.stranger("TLS", source=HOST) as honest:
        is_cut = is_cut and honest.call(ASK, 3).error_code == 0
    held = is_cut and spent < CPU_SECONDS_MAX
    return Outcome(f"{what}: the connection is cut off", held, f"{len(data)} bytes, {spent:.2f} s of CPU")
