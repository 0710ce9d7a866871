"""SCRAM without a network, both ends: the test vectors of the RFCs, and attacks on each end."""

from __future__ import annotations

import base64
import re

import pytest

from odradek.security.scram import (
    ITERATIONS_MIN,
    MECHANISMS,
    ScramClient,
    ScramError,
    ScramServer,
    ServerKeys,
    server_keys,
)

SHA256 = MECHANISMS["SCRAM-SHA-256"]
SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
NONCE = "rOprNGfwEbeRWgbNEkqO"
SERVER_NONCE = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
SECRET = b"a secret of all brokers"
NAMES = ("user", "jürgen", "пользователь", "a,b=c", "=2C", "名前", "ⅸ", "space here")


def keys_of(password: str, iterations: int = ITERATIONS_MIN, salt: bytes = SALT) -> ServerKeys:
    return server_keys(SHA256, SHA256.salted_password(password, salt, iterations), salt, iterations)


def server(users: dict[str, ServerKeys], secret: bytes = SECRET, nonce: str = SERVER_NONCE) -> ScramServer:
    return ScramServer(SHA256, users.get, secret, nonce)


def test_the_vector_of_rfc_7677() -> None:
    """The example of RFC 7677, section 3, gives the same messages byte by byte, from both ends."""
    client = ScramClient(SHA256, "user", "pencil", NONCE)
    ours = server({"user": keys_of("pencil")})
    first = client.first()
    assert first == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    challenge = ours.answer(first)
    assert challenge == (
        b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    )
    proof = client.final(challenge)
    assert proof == (
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
        b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    signature = ours.answer(proof)
    assert signature == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    client.check(signature)
    assert (ours.user, ours.is_done) == ("user", True)


@pytest.mark.parametrize("name", NAMES)
def test_names_are_taken_as_they_are(name: str) -> None:
    """Commas and equal signs in names are escaped. As in Kafka, names are used as UTF-8, without normalization."""
    for each in MECHANISMS.values():
        keys = server_keys(each, each.salted_password("pass wörd", SALT, 4096), SALT, 4096)
        ours = ScramServer(each, {name: keys}.get, SECRET, SERVER_NONCE)
        client = ScramClient(each, name, "pass wörd", NONCE)
        client.check(ours.answer(client.final(ours.answer(client.first()))))
        assert ours.user == name


def _refused(ours: ScramServer, message: bytes) -> str:
    with pytest.raises(ScramError) as caught:
        ours.answer(message)
    return str(caught.value)


def test_an_unknown_user_looks_like_a_wrong_password() -> None:
    """An unknown user gets the same challenge each time and at each broker, and the refusal of a wrong password."""
    users = {"known": keys_of("right")}
    challenges, refusals = {}, set()
    for name in ("known", "unknown", "unknown"):
        for broker in range(2):
            ours = server(users, nonce=f"nonce-of-{broker}")
            client = ScramClient(SHA256, name, "wrong", NONCE)
            challenge = ours.answer(client.first())
            shown = re.sub(rb"nonce-of-\d", b"", challenge)
            assert challenges.setdefault(name, shown) == shown
            refusals.add(_refused(ours, client.final(challenge)))
    assert refusals == {"invalid credentials"}
    salts = {
        name: base64.b64decode(each.split(b",s=")[1].split(b",")[0]) for name, each in challenges.items()
    }
    assert len(set(salts.values())) == 2
    assert {len(each) for each in challenges.values()} == {len(challenges["unknown"])}


def test_the_salt_of_nobody_needs_the_secret() -> None:
    """Made-up salts depend on the node's secret, so nobody else can recognize them."""
    first = ScramClient(SHA256, "nobody", "x", NONCE).first()
    assert server({}).answer(first) == server({}).answer(first)
    assert server({}).answer(first) != server({}, b"another secret").answer(first)


def test_nobody_comes_in_by_the_proof_of_nobody() -> None:
    """A proof that would fit made-up keys of zeros is refused."""
    signed_nonce = (NONCE + SERVER_NONCE).encode()
    for proof in (bytes(32), b"\xff" * 32):
        text = b"c=biws,r=" + signed_nonce + b",p=" + base64.b64encode(proof)
        again = server({})
        again.answer(ScramClient(SHA256, "nobody", "x", NONCE).first())
        assert _refused(again, text) == "invalid credentials"


def test_a_replayed_exchange_is_refused() -> None:
    """An exchange is replayed. It is refused, since the server's nonce is new each time."""
    users = {"user": keys_of("pencil")}
    client = ScramClient(SHA256, "user", "pencil", NONCE)
    first = client.first()
    proof = client.final(server(users).answer(first))
    later = server(users, nonce="another")
    later.answer(first)
    assert _refused(later, proof) == "the client's final message has a wrong nonce"


def test_nothing_follows_the_last_message() -> None:
    """A message after the last one is refused, after a success and after a failure."""
    users = {"user": keys_of("pencil")}
    client = ScramClient(SHA256, "user", "pencil", NONCE)
    ours = server(users)
    proof = client.final(ours.answer(client.first()))
    ours.answer(proof)
    assert "after the last message" in _refused(ours, proof)
    other = server(users)
    other.answer(client.first())
    _refused(other, b"nonsense")
    assert "after the last message" in _refused(other, proof)


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"n,,",
        b"n,,n=user",
        b"n,,r=abc,n=user",
        b"n,,n=user,r=",
        b"n,,n=us=er,r=abc",
        b"n,,n=us\0er,r=abc",
        b"n,,n=user,r=a\x7fc",
        b"n,,n=user,r=abc\n",
        b"p=tls-exporter,,n=user,r=abc",
        b"y,,n=user,r=abc",
        b"n,,m=x,n=user,r=abc",
        b"n,,n=user,r=" + b"x" * 513,
        b"n,,n=\xff\xfe,r=abc",
        b"\0" * 400_000,
        b"n,,n=" + b"a=2C" * 3_000 + b"=",
        b"n,,n=" + b"a" * 16_000,
        b"n,,n=" + b"a" * 20_000 + b",r=abc",
    ],
)
def test_a_malformed_first_message_is_refused(message: bytes) -> None:
    """A malformed first message is refused, even if a careless pattern would take long to search it."""
    _refused(server({"user": keys_of("pencil")}), message)


@pytest.mark.parametrize(
    ("challenge", "reason"),
    [
        (f"r={NONCE}x,s=AAAA,i=1", "iterations"),
        (f"r={NONCE}x,s=AAAA,i=4095", "iterations"),
        (f"r={NONCE}x,s=AAAA,i=999999999", "iterations"),
        (f"r={NONCE}x,s=AAAA,i=-1", "malformed"),
        (f"r={NONCE},s=AAAA,i=4096", "did not add"),
        ("r=another,s=AAAA,i=4096", "did not add"),
        (f"r={NONCE}x,s=A,i=4096", "base64"),
        (f"r={NONCE}x,s=,i=4096", "malformed"),
        (f"m=x,r={NONCE}x,s=AAAA,i=4096", "malformed"),
        ("", "malformed"),
    ],
)
def test_our_client_is_not_led_astray(challenge: str, reason: str) -> None:
    """A server asks for few iterations, to learn the password, or for many, to stall the client. The client refuses."""
    client = ScramClient(SHA256, "user", "pencil", NONCE)
    client.first()
    with pytest.raises(ScramError, match=reason):
        client.final(challenge.encode())


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (b"v=" + base64.b64encode(bytes(32)), "does not know the password"),
        (b"v=AAAA", "does not know the password"),
        (b"e=other-error", "the server refuses the login: other-error"),
        (b"", "malformed"),
        (b"v=", "malformed"),
    ],
)
def test_our_client_wants_the_servers_proof(message: bytes, reason: str) -> None:
    """The client requires the server's proof, since a false server may accept any password."""
    client = ScramClient(SHA256, "user", "pencil", NONCE)
    client.final(server({"user": keys_of("pencil")}).answer(client.first()))
    with pytest.raises(ScramError, match=reason):
        client.check(message)
