"""A stranger tries to log in without the right password: broken messages, similar names, replays, foreign
certificates."""

from __future__ import annotations

import base64
import hmac
import os
import ssl
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from odradek.security.scram import MECHANISMS, ScramClient
from odradek.wire.codec import encode
from odradek.wire.messages.metadata import MetadataRequest
from odradek.wire.messages.sasl_authenticate import SaslAuthenticateRequest
from odradek.wire.messages.sasl_handshake import SaslHandshakeRequest
from tests.attacks.outcome import Outcome
from tests.attacks.place import PLAIN_USERS, Place
from tests.attacks.raw import ATTACKERS_HOST, Conn, LoginRefused
from tests.security.certificates import Authority

WHO = "stranger"
SHA_512 = MECHANISMS["SCRAM-SHA-512"]
ASK = MetadataRequest([], False, False, False)
CAROL = PLAIN_USERS["carol"].encode()
PLAIN_MESSAGES = {
    "an empty password": b"\0carol\0",
    "another authorization id": b"admin\0carol\0" + CAROL,
    "four parts": b"\0carol\0" + CAROL + b"\0x",
    "a NUL behind the password": b"\0carol\0" + CAROL + b"\0",
    "a password that is no UTF-8": b"\0carol\0" + CAROL + b"\xff",
    "a look-alike name": "\0\N{FULLWIDTH LATIN SMALL LETTER C}arol\0".encode() + CAROL,
    "a name in other case": b"\0Carol\0" + CAROL,
    "a blank behind the name": b"\0carol \0" + CAROL,
    "nothing": b"",
}
SCRAM_FIRSTS = {
    "a channel binding": b"p=tls-unique,,n=admin,r=abc",
    "the flag that the client could bind": b"y,,n=admin,r=abc",
    "a mandatory extension": b"n,,m=x,n=admin,r=abc",
    "no nonce": b"n,,n=admin,r=",
    "a NUL in the name": b"n,,n=ad\0min,r=abc",
    "a bad escape in the name": b"n,,n=ad=2Xmin,r=abc",
    "a nonce of 600 letters": b"n,,n=admin,r=" + b"a" * 600,
}
PROOFS = {
    "no proof": b"====",
    "a proof of zeros": base64.b64encode(bytes(64)),
    "a short proof": base64.b64encode(bytes(4)),
    "a long proof": base64.b64encode(bytes(600)),
}


def attack(place: Place, scale: float) -> Iterator[Outcome]:
    """Try each trick once, and also honest logins. The scale makes no difference."""
    ways: dict[str, Callable[[], object]] = {
        f"PLAIN with {what}": lambda text=text: _plain(place, text)  # type: ignore[misc]
        for what, text in PLAIN_MESSAGES.items()
    }
    ways |= {
        f"SCRAM with {what}": lambda text=text: _scram(place, text)  # type: ignore[misc]
        for what, text in SCRAM_FIRSTS.items()
    }
    ways |= {
        f"SCRAM with {what}": lambda proof=proof: _bad_proof(place, proof)  # type: ignore[misc]
        for what, proof in PROOFS.items()
    }
    ways |= {
        "PLAIN on a listener without it": lambda: _logged_in(place, "SASL_SSL", "carol", "PLAIN"),
        "a user of PLAIN by SCRAM": lambda: _logged_in(place, "SASL", "carol", "SCRAM-SHA-256"),
        "a SCRAM exchange that is played again": lambda: _replayed(place),
        "the made-up keys of an unknown user": lambda: _proof_of_nobody(place),
        "a request behind a wrong password": lambda: _pipelined(place),
        "a second login of a session that does not end": lambda: _second_login(place),
    }
    ways |= {
        f"no certificate at {listener}": lambda listener=listener: _ask(place, listener)  # type: ignore[misc]
        for listener in ("BROKERS", "CONTROLLER")
    }
    for what, way in ways.items():
        yield _refused(what, way)
    with tempfile.TemporaryDirectory() as directory:
        foreign = Path(
            Authority().issue("odradek-node", ["127.0.0.1"]).write(Path(directory) / "foreign.pem")
        )
        for listener in ("BROKERS", "CONTROLLER", "TLS"):
            what = f"another authority's certificate at {listener}"
            yield _refused(what, lambda listener=listener: _ask(place, listener, foreign))  # type: ignore[misc]
    with Conn(place.ports.SASL).login("carol", PLAIN_USERS["carol"], "PLAIN") as conn:
        yield Outcome("the right password comes in", conn.call(ASK, 12) is not None)
    with place.client() as conn:
        yield Outcome("the right proof comes in", conn.call(ASK, 12) is not None)


def _refused(what: str, way: Callable[[], object]) -> Outcome:
    try:
        return Outcome(f"{what} is refused", False, f"answered: {way()!r}"[:120])
    except (LoginRefused, ConnectionError, ssl.SSLError) as error:
        return Outcome(f"{what} is refused", True, f"{type(error).__name__}: {error}"[:120])


def _begun(place: Place, mechanism: str) -> Conn:
    conn = place.stranger()
    assert not conn.call(SaslHandshakeRequest(mechanism), 1).error_code
    return conn


def _plain(place: Place, text: bytes) -> object:
    with _begun(place, "PLAIN") as conn:
        return conn.authenticate(text)


def _scram(place: Place, text: bytes) -> object:
    with _begun(place, SHA_512.name) as conn:
        return conn.authenticate(text)


def _logged_in(place: Place, listener: str, user: str, mechanism: str) -> object:
    with place.stranger(listener) as conn:
        return conn.login(user, PLAIN_USERS[user], mechanism)


def _client(place: Place) -> ScramClient:
    nonce = base64.b64encode(os.urandom(18)).decode()
    return ScramClient(SHA_512, "admin", place.password("admin"), nonce)


def _bad_proof(place: Place, proof: bytes) -> object:
    client = _client(place)
    with _begun(place, SHA_512.name) as conn:
        final = client.final(conn.authenticate(client.first()).auth_bytes)
        return conn.authenticate(final[: final.index(b",p=")] + b",p=" + proof)


def _replayed(place: Place) -> object:
    client = _client(place)
    with _begun(place, SHA_512.name) as conn:
        final = client.final(conn.authenticate(client.first()).auth_bytes)
        conn.authenticate(final)
    with _begun(place, SHA_512.name) as again:
        again.authenticate(client.first())
        return again.authenticate(final)


def _proof_of_nobody(place: Place) -> object:
    """Prove that the client knows the keys of an unknown user. These keys are zeros, as the public source shows."""
    first = "n=nobody,r=abc"
    with _begun(place, SHA_512.name) as conn:
        told = conn.authenticate(f"n,,{first}".encode()).auth_bytes.decode()
        without_proof = f"c=biws,{told.partition(',')[0]}"
        proof = hmac.digest(bytes(64), f"{first},{told},{without_proof}".encode(), "sha512")
        return conn.authenticate(f"{without_proof},p={base64.b64encode(proof).decode()}".encode())


def _pipelined(place: Place) -> object:
    """Send all requests of a login that fails in one packet, with another request after them."""
    with place.stranger() as conn:
        requests = (
            (SaslHandshakeRequest("PLAIN"), 1),
            (SaslAuthenticateRequest(b"\0carol\0wrong"), 2),
            (ASK, 12),
        )
        conn.socket.sendall(
            b"".join(
                conn.frame(message.API_KEY or 0, version, bytes(encode(message, version)))
                for message, version in requests
            )
        )
        conn.receive_frame()
        conn.receive_frame()
        return conn.receive_frame()


def _second_login(place: Place) -> object:
    with Conn(place.ports.SASL).login("carol", PLAIN_USERS["carol"], "PLAIN") as conn:
        conn.login("dora", PLAIN_USERS["dora"], "PLAIN")
        return conn.call(ASK, 12)


def _ask(place: Place, listener: str, certificate: Path | None = None) -> object:
    port = getattr(place.ports, listener)
    with Conn(port, tls=True, certificate=certificate, source=ATTACKERS_HOST) as conn:
        return conn.call(ASK, 12)
