"""Attacks on TLS listeners. The node serves no attacker, its memory stays limited, and honest clients are served.

`make test` runs the short attacks. `make test-security` also runs those that are marked `attack`.
"""

from __future__ import annotations

import random
import select
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress

import pytest

from bench.tls.handshakes import Handshaking, Shaker
from odradek.node.connections.entrance import HALF_OPEN_MAX
from tests.security.certificates import Authority, Issued, self_signed
from tests.security.tls.tls_node import ASK, HOST, TIMEOUT_SECONDS, TlsNode, ask
from tests.security.tls.tls_records import RecordWriter, shake_hands

GROWTH_KIB_MAX = 40 * 1024
"""Memory in KiB that attacks may cost for good: OpenSSL keeps sessions of TLSv1.2, and malloc keeps freed memory."""


def client_hello(name: str = HOST) -> bytes:
    """Return the first bytes of an honest client's handshake."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    with suppress(ssl.SSLWantReadError):
        context.wrap_bio(incoming, outgoing, server_hostname=name).do_handshake()
    return outgoing.read()


def raw(port: int) -> socket.socket:
    return socket.create_connection((HOST, port), TIMEOUT_SECONDS)


def read_to_end(connection: socket.socket) -> bytes:
    """Read until the node closes or resets the connection, and return the bytes."""
    found = b""
    with suppress(ConnectionError):
        while data := connection.recv(65_536):
            found += data
    return found


@contextmanager
def undisturbed(node: TlsNode, growth_kib_max: int = GROWTH_KIB_MAX) -> Iterator[None]:
    """Check that an attack in this block disturbs nothing. Old and new clients are served, and memory is limited."""
    context = node.context()
    with node.connect(context) as inside:
        assert ask(inside)
        before = node.process.rss_kib()
        yield
        assert ask(inside)
    with node.connect(context) as after:
        assert ask(after)
    assert node.process.rss_kib() - before < growth_kib_max
    assert "connection.bug" not in node.log


# -- certificates -----------------------------------------------------------------------------------------------


def _refused(node: TlsNode, certificate: Issued | None) -> None:
    """Check that the listener that requires certificates serves nothing to a client with this certificate."""
    with undisturbed(node), suppress(OSError), node.connect(node.context(certificate), node.mutual) as inside:
        # In TLSv1.3 the client finishes its handshake before it gets the refusal.
        assert ask(inside) == b""


def test_a_certificate_of_the_right_authority_is_taken(tls_node: TlsNode) -> None:
    """A correct client certificate is accepted, so the attacks below fail for their own reasons."""
    with tls_node.connect(tls_node.context(tls_node.authority.issue("honest")), tls_node.mutual) as inside:
        assert ask(inside)


def test_no_certificate_is_refused(tls_node: TlsNode) -> None:
    _refused(tls_node, None)


def test_a_certificate_of_another_authority_is_refused(tls_node: TlsNode) -> None:
    """A certificate of another authority is refused, even if the authority has the same name."""
    _refused(tls_node, Authority().issue("honest"))


def test_a_certificate_that_signs_itself_is_refused(tls_node: TlsNode) -> None:
    _refused(tls_node, self_signed("authority"))


@pytest.mark.parametrize("days", [(-9, -1), (1, 9)], ids=["expired", "not yet"])
def test_a_certificate_out_of_its_time_is_refused(tls_node: TlsNode, days: tuple[float, float]) -> None:
    _refused(tls_node, tls_node.authority.issue("late", days=days))


def test_a_client_is_no_authority(tls_node: TlsNode) -> None:
    """A certificate is signed by a client's certificate. It is refused, as a client may not sign."""
    client = tls_node.authority.issue("client")
    forged = Authority(client).issue("forged")
    chain = Issued(forged.key, forged.certificate, (client.certificate, tls_node.authority.own.certificate))
    _refused(tls_node, chain)


# -- the protocol -----------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_old_versions_are_refused(tls_node: TlsNode) -> None:
    """TLS 1.0 and 1.1 are refused (RFC 8996)."""
    for version in (ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1):
        context = tls_node.context()
        context.set_ciphers("ALL:@SECLEVEL=0")
        context.minimum_version = ssl.TLSVersion.TLSv1
        context.maximum_version = version
        with pytest.raises(ssl.SSLError, match=r"(?i)version|protocol"):
            tls_node.connect(context).close()


def test_renegotiation_is_refused(tls_node: TlsNode) -> None:
    """A client requests a renegotiation in TLS 1.2. It gets an alert, and nothing else."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("the openssl command is missing, and Python's ssl cannot request a renegotiation")
    command = [openssl, "s_client", "-connect", f"{HOST}:{tls_node.tls}", "-tls1_2", "-legacy_renegotiation"]
    with undisturbed(tls_node):
        done = subprocess.run(command, input=b"R\n", capture_output=True, timeout=30, check=False)
    assert b"RENEGOTIATING" in done.stdout + done.stderr
    assert b"no renegotiation" in done.stderr


def test_a_stream_that_is_cut_off_is_a_lost_connection(tls_node: TlsNode) -> None:
    """A connection ends within a request and without close_notify. It counts as lost, as after a reset."""
    complaints = tls_node.metric("odradek_protocol_errors_total")
    with undisturbed(tls_node), tls_node.connect(tls_node.context()) as inside:
        inside.sendall(ASK[:10])
        with socket.socket(fileno=inside.detach()) as plain:
            plain.settimeout(TIMEOUT_SECONDS)
            plain.shutdown(socket.SHUT_WR)
            # Session tickets and an alert may still arrive. An answer would be longer.
            assert len(read_to_end(plain)) < 1_000
    assert tls_node.metric("odradek_protocol_errors_total") == complaints


def test_an_end_of_one_side_ends_both(tls_node: TlsNode) -> None:
    """A client sends close_notify. The node answers with its own and closes the connection."""
    connection = tls_node.connect(tls_node.context())
    assert ask(connection)
    plain = connection.unwrap()
    assert plain.recv(1) == b""
    plain.close()


def _lines(node: TlsNode, text: str) -> int:
    """Return the number of log lines with this text, after waiting for the first. Lines are held back for a second."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while text not in node.log and time.monotonic() < deadline:
        time.sleep(0.05)
    return sum(text in line for line in node.log.splitlines())


def test_a_plaintext_client_is_told_of_in_one_line(tls_node: TlsNode) -> None:
    """Many clients send plaintext to a TLS listener. The log says so, but not for each connection."""
    with undisturbed(tls_node):
        for _ in range(50):
            with raw(tls_node.tls) as connection:
                connection.sendall(ASK)
                assert read_to_end(connection) == b""
    assert 1 <= _lines(tls_node, "speaks plaintext to a TLS listener") < 25


def test_a_tls_client_of_plaintext_is_told_of_in_one_line(tls_node: TlsNode) -> None:
    hello = client_hello()
    with undisturbed(tls_node):
        for _ in range(50):
            with raw(tls_node.plaintext) as connection:
                connection.sendall(hello)
                assert read_to_end(connection) == b""
    assert 1 <= _lines(tls_node, "speaks TLS to a plaintext listener") < 25


def test_any_server_name_is_taken(tls_node: TlsNode) -> None:
    """Any server name in the handshake (SNI) is accepted, as in Kafka, since the listener decides on the
    certificate."""
    context = tls_node.context()
    context.check_hostname = False
    with tls_node.connect(context, name="kafka.example.org") as inside:
        assert ask(inside)


# -- half-open handshakes ---------------------------------------------------------------------------------------


def _half_open(node: TlsNode, count: int, first: bytes) -> None:
    with undisturbed(node), ExitStack() as ending:
        for _ in range(count):
            with suppress(OSError):
                connection = ending.enter_context(raw(node.tls))
                connection.sendall(first)
        for _ in range(5):
            with node.connect(node.context()) as inside:
                assert ask(inside)


@pytest.mark.parametrize("first", [b"", b"\x16", client_hello()[:100]], ids=["silent", "a byte", "half"])
def test_half_open_handshakes(tls_node: TlsNode, first: bytes) -> None:
    """Hundreds of connections stop in the middle of their first message. Other clients are served."""
    _half_open(tls_node, 300, first)


@pytest.mark.attack
@pytest.mark.parametrize("first", [b"", client_hello()], ids=["silent", "hello"])
def test_more_half_open_handshakes_than_there_is_room(tls_node: TlsNode, first: bytes) -> None:
    _half_open(tls_node, 2 * HALF_OPEN_MAX, first)


def _slow(node: TlsNode, connections: int, bytes_each: int) -> None:
    """Send handshakes byte by byte on several connections."""
    hello = client_hello()
    with undisturbed(node), ExitStack() as ending:
        lines = [ending.enter_context(raw(node.tls)) for _ in range(connections)]
        for line in lines:
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        begun = node.process.cpu_seconds()
        for at in range(min(bytes_each, len(hello) - 1)):
            for line in lines:
                with suppress(OSError):
                    line.sendall(hello[at : at + 1])
        assert node.process.cpu_seconds() - begun < 0.002 * connections * bytes_each


def test_handshakes_byte_by_byte(tls_node: TlsNode) -> None:
    """A handshake comes byte by byte. It costs almost nothing until a record is complete."""
    _slow(tls_node, 20, 60)


@pytest.mark.attack
def test_many_handshakes_byte_by_byte(tls_node: TlsNode) -> None:
    _slow(tls_node, 300, 400)


# -- garbage ----------------------------------------------------------------------------------------------------


def _mutated(hello: bytes, source: random.Random) -> bytes:
    """Return a mutated ClientHello: some bytes are changed, cut, doubled or added."""
    data = bytearray(hello)
    for _ in range(source.choice((1, 1, 2, 5, 20))):
        at = source.randrange(len(data))
        kind = source.randrange(5)
        if kind == 0:
            data[at] = source.randrange(256)
        elif kind == 1:
            data[at] ^= 1 << source.randrange(8)
        elif kind == 2:
            del data[at : at + source.randrange(1, 9)]
        elif kind == 3:
            data[at:at] = source.randbytes(source.randrange(1, 9))
        else:
            data[at : at + 2] = source.choice((b"\0\0", b"\xff\xff", b"\x7f\xff"))
        if not data:
            return b"\x16"
    return bytes(data)


def _fuzz(node: TlsNode, count: int, make: Callable[[random.Random], bytes], at_once: int = 20) -> None:
    """Send `count` first messages. The node may answer with handshakes and alerts, and serves no request."""
    source = random.Random(21)
    served = node.metric("odradek_requests_total")
    with undisturbed(node):
        for start in range(0, count, at_once):
            with ExitStack() as ending:
                lines = [ending.enter_context(raw(node.tls)) for _ in range(min(at_once, count - start))]
                for line in lines:
                    with suppress(OSError):
                        line.sendall(make(source))
                        line.shutdown(socket.SHUT_WR)
                for line in lines:
                    answer = read_to_end(line)
                    assert answer == b"" or answer[0] in (20, 21, 22, 23)
    # The honest clients have sent these requests.
    assert node.metric("odradek_requests_total") - served <= 3


def test_mutated_hellos(tls_node: TlsNode) -> None:
    """300 mutated ClientHellos are refused."""
    hello = client_hello()
    _fuzz(tls_node, 300, lambda source: _mutated(hello, source))


@pytest.mark.attack
def test_ten_thousand_mutated_hellos(tls_node: TlsNode) -> None:
    hello = client_hello()
    _fuzz(tls_node, 10_000, lambda source: _mutated(hello, source))


def test_garbage(tls_node: TlsNode) -> None:
    """Random bytes, with or without a record's header, are refused."""

    def make(source: random.Random) -> bytes:
        data = source.randbytes(source.randrange(1, 2_000))
        header = b"\x16\x03\x01" + len(data).to_bytes(2)
        return header + data if source.random() < 0.7 else data

    _fuzz(tls_node, 200, make)


def test_records_that_are_too_large(tls_node: TlsNode) -> None:
    """A header announces a record above the limit. The connection is closed at once."""
    for size in (0, 16 * 1024 + 2049, 0xFFFF):
        with undisturbed(tls_node), raw(tls_node.tls) as connection:
            connection.sendall(b"\x16\x03\x01" + size.to_bytes(2))
            assert read_to_end(connection) == b""


def test_a_hello_without_end(tls_node: TlsNode) -> None:
    """A ClientHello of megabytes is cut off early."""
    record = b"\x16\x03\x01" + (16_384).to_bytes(2)
    with undisturbed(tls_node), raw(tls_node.tls) as connection:
        connection.sendall(record + b"\x01\xff\xff\xff" + bytes(16_380))
        sent = 0
        with suppress(ConnectionError):
            for _ in range(1_000):
                connection.sendall(record + bytes(16_384))
                sent += 16_384
        assert sent < 8 << 20
        assert read_to_end(connection)[:1] in (b"", b"\x15")


def test_records_that_are_changed_on_the_way(tls_node: TlsNode) -> None:
    """A record is changed on its way. Its checksum is wrong, so the connection ends and the request is not served."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    session = tls_node.context().wrap_bio(incoming, outgoing, server_hostname=HOST)
    with undisturbed(tls_node), raw(tls_node.tls) as connection:
        while True:
            try:
                session.do_handshake()
                break
            except ssl.SSLWantReadError:
                connection.sendall(outgoing.read())
                incoming.write(connection.recv(65_536))
        session.write(ASK)
        data = bytearray(outgoing.read())
        data[-1] ^= 1
        connection.sendall(data)
        incoming.write(read_to_end(connection))
        with pytest.raises(ssl.SSLError):
            session.read(1)


def _some(connection: socket.socket) -> bytes:
    data = connection.recv(65_536)
    assert data, "the node closed a connection that should be served"
    return data


def test_a_request_may_come_with_the_end_of_the_handshake(tls_node: TlsNode) -> None:
    """A request comes together with the end of the handshake, cut at any byte. It is served."""
    context = tls_node.context()
    for cut in (1, 60, 79, 80, 81, 82, 84, 90, 100):
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        session = context.wrap_bio(incoming, outgoing, server_hostname=HOST)
        with raw(tls_node.tls) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with suppress(ssl.SSLWantReadError):
                session.do_handshake()
            while session.version() is None:
                connection.sendall(outgoing.read())
                incoming.write(_some(connection))
                with suppress(ssl.SSLWantReadError):
                    session.do_handshake()
            session.write(ASK)
            data = outgoing.read()
            connection.sendall(data[:cut])
            # This read of a metric makes sure that the node has processed these bytes before the others come.
            assert tls_node.metric("odradek_connections_entering") >= 0
            connection.sendall(data[cut:])
            found = b""
            while len(found) < 10:
                incoming.write(_some(connection))
                with suppress(ssl.SSLWantReadError):
                    found += session.read(65_536)
            assert int.from_bytes(found[4:8]) == 7


# -- records without data -----------------------------------------------------------------------------------------

KEY_UPDATES = 60_000
FLOOD_CPU_SECONDS_MAX = 0.15
"""The limit for a flood, half of the time for reading all of it. The node reads about 1 % of it, in one turn."""


def _flood(node: TlsNode, flood: Callable[[RecordWriter], bytes], cpu_seconds_max: float) -> None:
    """Send the output of `flood` after a handshake. Check that the node closes the connection, and counts it."""
    cut = node.metric("odradek_protocol_errors_total")
    with undisturbed(node), raw(node.tls) as connection:
        _, writer = shake_hands(connection, node.context(), HOST)
        data = flood(writer)
        before = node.process.cpu_seconds()
        with suppress(ConnectionError):
            connection.sendall(data)
        read_to_end(connection)
        assert node.process.cpu_seconds() - before < cpu_seconds_max
    assert node.metric("odradek_protocol_errors_total") == cut + 1


@pytest.mark.parametrize("ask", [False, True], ids=["silent", "asking"])
def test_a_flood_of_key_updates(tls_node: TlsNode, ask: bool) -> None:
    """A flood of TLS 1.3 records without data ends the connection within a turn, even if they request answers."""
    _flood(
        tls_node, lambda writer: writer.key_updates(KEY_UPDATES, ask_for_others=ask), FLOOD_CPU_SECONDS_MAX
    )


def test_key_updates_between_requests(tls_node: TlsNode) -> None:
    """A flood of key updates between requests also ends the connection."""
    _flood(
        tls_node,
        lambda writer: b"".join(writer.record(ASK) + writer.key_updates(20) for _ in range(1_000)),
        FLOOD_CPU_SECONDS_MAX,
    )


def test_requests_in_records_of_a_byte_are_served(tls_node: TlsNode) -> None:
    """A request in records of one byte is served. It is slow, but correct."""
    with raw(tls_node.tls) as connection:
        client, writer = shake_hands(connection, tls_node.context(), HOST)
        connection.sendall(b"".join(writer.record(ASK[at : at + 1]) for at in range(len(ASK))))
        found = b""
        while len(found) < 8:
            found += client.read(_some(connection))
    assert int.from_bytes(found[4:8]) == 7


# -- numbers ----------------------------------------------------------------------------------------------------


def _shake(node: TlsNode, count: int) -> None:
    task = Handshaking(f"{HOST}:{node.tls}", str(node.directory / "authority.pem"), count)
    with undisturbed(node):
        shaken = Shaker(task, threading.Event()).run()
        assert shaken.done == count


def test_handshakes_and_nothing_else(tls_node: TlsNode) -> None:
    """200 clients shake hands one after another, and send nothing. Other clients are served."""
    _shake(tls_node, 200)


@pytest.mark.attack
def test_ten_thousand_handshakes(tls_node: TlsNode) -> None:
    _shake(tls_node, 10_000)


def test_answers_that_nobody_takes(tls_node: TlsNode) -> None:
    """A client sends requests and never reads the answers.

    The node stops reading from it, so that memory is limited.
    """
    with undisturbed(tls_node), tls_node.connect(tls_node.context()) as inside:
        inside.setblocking(False)
        writable = select.poll()
        writable.register(inside, select.POLLOUT)
        sent = 0
        is_stuck = False
        while sent < 64 << 20 and not is_stuck:
            try:
                sent += inside.send(ASK * 100)
            except ssl.SSLWantWriteError:
                is_stuck = not writable.poll(2000)
        assert is_stuck
