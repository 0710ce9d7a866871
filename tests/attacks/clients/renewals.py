"""A client lets its login run out: it goes on, renews as somebody else, or sends a request during a renewal
(KIP-368)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from odradek.wire.codec import encode
from odradek.wire.errors import ErrorCode
from odradek.wire.messages.metadata import MetadataRequest
from odradek.wire.messages.sasl_authenticate import SaslAuthenticateRequest
from odradek.wire.messages.sasl_handshake import SaslHandshakeRequest
from tests.attacks.outcome import Outcome
from tests.attacks.place import PLAIN_USERS, Place
from tests.attacks.raw import Conn, LoginRefused

WHO = "client"
LOGIN_MS = 3000
SETTINGS = {"listener.name.sasl.connections.max.reauth.ms": str(LOGIN_MS)}
ASK = MetadataRequest([], False, False, False)
EARLIEST_SECONDS = 1.0
"""How old a login must be before it may be renewed. Kafka refuses more than one renewal a second."""


def attack(place: Place, scale: float) -> Iterator[Outcome]:
    """Try each way around the end of a login. The scale makes no difference, since the listener sets the times."""
    ways: dict[str, Callable[[Conn], object]] = {
        "a request behind the login's end": _never_renewed,
        "a renewal by another user": lambda conn: _renewed_as(conn, "dora"),
        "a renewal by another mechanism": lambda conn: _aged(conn).login("carol", "x", "SCRAM-SHA-512"),
        "a request in the middle of a renewal": _amid,
        "a request behind a renewal that failed": _behind_a_failure,
        "another user's renewal and a request in one packet": _in_one_packet,
    }
    for what, way in ways.items():
        with _carol(place) as conn:
            try:
                yield Outcome(f"{what} is refused", False, f"answered: {way(conn)!r}"[:120])
            except (LoginRefused, ConnectionError) as error:
                yield Outcome(f"{what} is refused", True, f"{type(error).__name__}: {error}"[:120])
    with _carol(place) as conn:
        conn.login("carol", PLAIN_USERS["carol"], "PLAIN")
        code = conn.call(SaslHandshakeRequest("PLAIN"), 1).error_code
        held = code == ErrorCode.ILLEGAL_SASL_STATE and conn.call(ASK, 12) is not None
        yield Outcome("a second renewal at once is refused, and the session goes on", held, f"code {code}")
    with _carol(place) as conn:
        _renewed_as(conn, "carol")
        _wait(conn, LOGIN_MS / 1000 - EARLIEST_SECONDS / 2)
        yield Outcome("a login that was renewed in time lasts", conn.call(ASK, 12) is not None)


def _carol(place: Place) -> Conn:
    return Conn(place.ports.SASL).login("carol", PLAIN_USERS["carol"], "PLAIN")


def _wait(conn: Conn, seconds: float) -> None:
    """Wait until the login has the age for the attempt. If the node closes the connection, return at once."""
    conn.socket.settimeout(seconds)
    try:
        if not conn.socket.recv(1):
            raise ConnectionError("closed by the node")
    except TimeoutError:
        conn.socket.settimeout(60)
    except OSError as error:
        raise ConnectionError(str(error)) from error


def _aged(conn: Conn) -> Conn:
    _wait(conn, EARLIEST_SECONDS * 1.2)
    return conn


def _never_renewed(conn: Conn) -> object:
    _wait(conn, LOGIN_MS / 1000 * 1.2)
    return conn.call(ASK, 12)


def _renewed_as(conn: Conn, user: str) -> object:
    _aged(conn).login(user, PLAIN_USERS[user], "PLAIN")
    return conn.call(ASK, 12)


def _amid(conn: Conn) -> object:
    _aged(conn).call(SaslHandshakeRequest("PLAIN"), 1)
    return conn.call(ASK, 12)


def _behind_a_failure(conn: Conn) -> object:
    _aged(conn).call(SaslHandshakeRequest("PLAIN"), 1)
    conn.call(SaslAuthenticateRequest(b"\0carol\0wrong"), 2)
    return conn.call(ASK, 12)


def _in_one_packet(conn: Conn) -> object:
    _aged(conn)
    token = f"\0dora\0{PLAIN_USERS['dora']}".encode()
    conn.socket.sendall(
        b"".join(
            conn.frame(message.API_KEY, version, bytes(encode(message, version)))
            for message, version in (
                (SaslHandshakeRequest("PLAIN"), 1),
                (SaslAuthenticateRequest(token), 2),
                (ASK, 12),
            )
        )
    )
    conn.receive(SaslHandshakeRequest.API_KEY, 1)
    conn.receive(SaslAuthenticateRequest.API_KEY, 2)
    return conn.receive(ASK.API_KEY, 12)
