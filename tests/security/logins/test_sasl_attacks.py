"""Attacks on SASL logins. The node serves no attacker, its memory stays limited, and honest clients are served.

`make test` runs the short attacks, and `make test-security` the full ones.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import cycle, islice
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from joserfc import jws, jwt
from joserfc.jwk import RSAKey

from odradek.security.oauth.client_message import ClientMessage, encode_client_message
from odradek.security.scram import ITERATIONS_MIN, MECHANISMS, ScramClient
from odradek.wire.errors import ErrorCode
from odradek.wire.messages.create_delegation_token import CreateDelegationTokenRequest
from odradek.wire.messages.metadata import MetadataRequest
from odradek.wire.messages.sasl_authenticate import SaslAuthenticateRequest
from odradek.wire.messages.sasl_handshake import SaslHandshakeRequest
from testkit.raw_requests import RawClient, frame
from tests.security.logins.fuzzing import failing_logins, mutated
from tests.security.logins.issuer import Issuer, claims_at
from tests.security.secured_node import SecuredNode

MUTATIONS, MUTATIONS_FULL = 400, 10_000
ATTACKERS = 8
REFUSAL_DELAY_SECONDS = 0.01
GROWTH_BYTES_MAX = 64 << 20
INVALID_TOKEN = b'{"status":"invalid_token"}'


def _memory(secured: SecuredNode) -> int:
    """Return the resident memory of the node in bytes."""
    pages = Path(f"/proc/{secured.process.pid}/statm").read_text().split()[1]
    return int(pages) * 4096


def _logged_in(secured: SecuredNode) -> RawClient:
    client = RawClient(secured.sasl)
    client.send(frame(SaslHandshakeRequest("PLAIN"), 1))
    assert not client.receive(17, 1).error_code
    client.send(frame(SaslAuthenticateRequest(b"\0carol\0carol-secret"), 2))
    assert not client.receive(36, 2).error_code
    return client


@contextmanager
def _undisturbed(secured: SecuredNode) -> Iterator[None]:
    """Check that an attack in this block disturbs nothing.

    Old and new clients are served, the log has no bug, and memory hardly grows.
    """
    log, memory = len(secured.log), _memory(secured)
    over = threading.Event()
    served = 0

    def ask() -> None:
        nonlocal served
        while True:
            honest.send(frame(MetadataRequest([]), 9))
            assert honest.receive(3, 9).brokers
            served += 1
            if over.wait(0.01):
                return

    with _logged_in(secured) as honest, ThreadPoolExecutor(1) as pool:
        asking = pool.submit(ask)
        try:
            yield
            with _logged_in(secured) as later:
                later.send(frame(MetadataRequest([]), 9))
                assert later.receive(3, 9).brokers
        finally:
            over.set()
        asking.result()
    assert served
    assert "connection.bug" not in secured.log[log:]
    assert _memory(secured) - memory < GROWTH_BYTES_MAX


def _talk(address: str, data: bytes) -> bytes:
    """Send these bytes, and return all that the node answers until the connection ends."""
    host, _, port = address.rpartition(":")
    answers = bytearray()
    with socket.create_connection((host, int(port)), 20) as sock:
        try:
            sock.sendall(data)
            sock.shutdown(socket.SHUT_WR)
            while part := sock.recv(65_536):
                answers += part
        except TimeoutError:
            raise
        except OSError:  # the node has closed the connection; earlier bytes count
            return bytes(answers)
    return bytes(answers)


def _is_served(answers: bytes) -> bool:
    """True if the answers show the cluster: each answer about it contains a broker's address."""
    return b"127.0.0.1" in answers


def _fuzz(secured: SecuredNode, count: int, seed: int) -> None:
    random = Random(seed)
    logins = failing_logins()
    for login in logins:
        assert not _is_served(_talk(secured.sasl, b"".join(login)))
    data = [mutated(login, random) for login in islice(cycle(logins), count)]
    with ThreadPoolExecutor(ATTACKERS) as pool:
        for number, answers in enumerate(pool.map(lambda each: _talk(secured.sasl, each), data)):
            assert not _is_served(answers), f"seed {seed}, mutation {number}: {data[number].hex()}"


def test_fuzzed_handshakes(secured: SecuredNode) -> None:
    """Mutations of failing logins fail, too."""
    with _undisturbed(secured):
        _fuzz(secured, MUTATIONS, 1)


@pytest.mark.attack
@pytest.mark.parametrize("seed", range(2, 5))
def test_fuzzed_handshakes_in_full(secured: SecuredNode, seed: int) -> None:
    """Ten thousand mutations of failing logins fail, for each seed."""
    with _undisturbed(secured):
        _fuzz(secured, MUTATIONS_FULL, seed)


# -- costs before a login --------------------------------------------------------------------------------------

MESSAGES = 20
CPU_SECONDS_MAX = 0.6
"""The node's CPU time for all `MESSAGES` together. To parse a single message takes up to 0.1 s."""


@pytest.mark.parametrize(
    "message",
    [b"n,,n=" + b"a" * 500_000, b"n,,n=" + b"=2C" * 160_000, b"n,,n=a,r=abc" + b",a=b" * 120_000],
    ids=["name", "escapes", "extensions"],
)
def test_long_messages_of_scram_cost_little(secured: SecuredNode, message: bytes) -> None:
    """A SCRAM message is longer than any user needs. It is refused before it is parsed."""
    with _undisturbed(secured):
        before = secured.process.cpu_seconds()
        for _ in range(MESSAGES):
            with RawClient(secured.sasl) as client:
                client.send(frame(SaslHandshakeRequest("SCRAM-SHA-512"), 1))
                assert not client.receive(17, 1).error_code
                assert _token(client, message)[0] == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert secured.process.cpu_seconds() - before < CPU_SECONDS_MAX


TOKENS = 60


def _loop_cpu_seconds(secured: SecuredNode) -> float:
    """Return the CPU time of the node's main thread, which runs the loop."""
    pid = secured.process.pid
    return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[0]) / 1e9


def _begin_logins(secured: SecuredNode, token_ids: list[str]) -> float:
    """Send the first message of a login for each token id, without a proof. Return the CPU time of the loop."""
    before = _loop_cpu_seconds(secured)
    for token_id in token_ids:
        with RawClient(secured.sasl) as client:
            client.send(frame(SaslHandshakeRequest("SCRAM-SHA-512"), 1))
            assert not client.receive(17, 1).error_code
            first = ScramClient(MECHANISMS["SCRAM-SHA-512"], token_id, "x", "nonce", by_token=True).first()
            code, answer = _token(client, first)
            assert (code, answer[:7]) == (0, b"r=nonce")
    return _loop_cpu_seconds(secured) - before


def test_the_keys_of_tokens_are_made_beside_the_loop(secured: SecuredNode) -> None:
    """A client knows many token ids. The keys of these tokens are computed in a worker, and not by the loop."""
    with _logged_in(secured) as client:
        token_ids = []
        for _ in range(TOKENS):
            client.send(frame(CreateDelegationTokenRequest(), 3))
            token_ids.append(client.receive(38, 3).token_id)
    before = time.thread_time()
    for token_id in token_ids:
        MECHANISMS["SCRAM-SHA-512"].salted_password(token_id, bytes(16), ITERATIONS_MIN)
    keys_seconds = time.thread_time() - before
    unknown = _begin_logins(secured, [f"unknown-{number}" for number in range(TOKENS)])
    assert _begin_logins(secured, token_ids) < unknown + keys_seconds / 2


# -- sizes ------------------------------------------------------------------------------------------------------


def _hold_open(secured: SecuredNode, count: int) -> None:
    """Announce a frame of the largest size on many connections, and send all but its last byte."""
    size = 524_288
    held = []
    try:
        for _ in range(count):
            client = RawClient(secured.sasl)
            held.append(client)
            try:
                client.send(struct.pack(">i", size) + bytes(size - 1))
            except ConnectionError:
                continue  # the node refuses further connections, as it should
    finally:
        for client in held:
            client.socket.close()


def test_oversized_frames(secured: SecuredNode) -> None:
    """A frame one byte above the limit closes the connection. Large frames share a limited memory."""
    with _undisturbed(secured):
        for size in (524_289, 0x7FFFFFFF, -1, -0x80000000):
            assert _talk(secured.sasl, struct.pack(">i", size) + bytes(100)) == b""
        _hold_open(secured, 64)


@pytest.mark.attack
def test_oversized_frames_in_full(secured: SecuredNode) -> None:
    """Many more large frames are open than the node's memory for logins allows."""
    with _undisturbed(secured):
        _hold_open(secured, 2_000)


def test_slow_starts(secured: SecuredNode) -> None:
    """Many connections are silent, or send two of the four bytes of a frame's size. Other clients can log in."""
    with _undisturbed(secured):
        silent = [RawClient(secured.sasl) for _ in range(200)]
        for client in silent[::2]:
            client.send(b"\0\0")
        with _logged_in(secured) as honest:
            honest.send(frame(MetadataRequest([]), 9))
            assert honest.receive(3, 9).brokers
        for client in silent:
            client.socket.close()


# -- replays ----------------------------------------------------------------------------------------------------


def _scram(client: RawClient, first: bytes) -> tuple[int, bytes]:
    client.send(frame(SaslHandshakeRequest("SCRAM-SHA-512"), 1))
    assert not client.receive(17, 1).error_code
    return _token(client, first)


def _token(client: RawClient, data: bytes) -> tuple[int, bytes]:
    client.send(frame(SaslAuthenticateRequest(data), 2))
    answer = client.receive(36, 2)
    return answer.error_code, bytes(answer.auth_bytes)


def test_a_replayed_login(secured: SecuredNode) -> None:
    """The messages of a successful login are sent again. They are refused, on the same listener and on another
    listener."""
    honest = ScramClient(MECHANISMS["SCRAM-SHA-512"], "alice", "alice-secret", "a-nonce-of-before")
    first = honest.first()
    with RawClient(secured.sasl) as client:
        _, challenge = _scram(client, first)
        proof = honest.final(challenge)
        assert _token(client, proof)[0] == 0
    for address in (secured.sasl, secured.renewing):
        with RawClient(address) as client:
            _scram(client, first)
            code, answer = _token(client, proof)
            assert (code, answer) == (ErrorCode.SASL_AUTHENTICATION_FAILED, b"")
            with pytest.raises(ConnectionError):
                client.read_frame()


def test_nobody_is_served_beside_a_login(secured: SecuredNode) -> None:
    """A request is pipelined after the first half of a login. It is not served."""
    honest = ScramClient(MECHANISMS["SCRAM-SHA-512"], "alice", "alice-secret", "another-nonce")
    data = frame(SaslHandshakeRequest("SCRAM-SHA-512"), 1)
    data += frame(SaslAuthenticateRequest(honest.first()), 2)
    data += frame(MetadataRequest([]), 9)
    assert not _is_served(_talk(secured.sasl, bytes(data)))


# -- tokens -----------------------------------------------------------------------------------------------------


def _signed(header: dict[str, Any], claims: dict[str, Any], secret: bytes) -> str:
    """Make a token with an HMAC by hand, since libraries refuse to make some of them."""
    parts = [base64.urlsafe_b64encode(json.dumps(each).encode()).rstrip(b"=") for each in (header, claims)]
    signed = b".".join(parts)
    signature = hmac.digest(secret, signed, hashlib.sha256) if secret else b""
    return (signed + b"." + base64.urlsafe_b64encode(signature).rstrip(b"=")).decode()


def _forgeries(issuer: Issuer) -> Iterator[tuple[str, str]]:
    """Yield forged tokens: of another issuer, for another audience, or not valid now."""
    now = time.time()
    claims = claims_at(now)
    assert isinstance(issuer.key, RSAKey)
    public = serialization.load_pem_public_key(issuer.key.as_pem(private=False))
    for alg in ("none", "None", "NONE", ""):
        yield f"algorithm {alg!r}", _signed({"alg": alg, "kid": "one"}, claims, b"")
    encodings = {
        "PEM": public.public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        ),
        "DER": public.public_bytes(
            serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
        ),
        "PKCS1": public.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.PKCS1),
        "JWK": issuer.document(),
    }
    for name, secret in encodings.items():
        yield f"HS256 by the public key in {name}", _signed({"alg": "HS256", "kid": "one"}, claims, secret)
    other = Issuer()
    yield "another's key of the same name", other.token()
    yield "another's key of an unknown name", other.token({"alg": "RS256", "kid": "unknown"})
    for kid in ("../../../../dev/null", "one\0", "http://127.0.0.1:1/keys", "' or 1=1"):
        yield f"key {kid!r}", other.token({"alg": "RS256", "kid": kid})
    own_key = other.key.as_dict(private=False)
    for extra in ({"jwk": own_key}, {"jku": "http://127.0.0.1:1/jwks"}, {"x5u": "http://127.0.0.1:1/x"}):
        header = {"alg": "RS256", "kid": "one", **extra}
        yield (
            f"a key that it brings along: {[*extra]}",
            jwt.encode(header, claims, other.key, algorithms=["RS256"]),
        )
    yield "crit", _signed({"alg": "RS256", "kid": "one", "crit": ["exp"]}, claims, b"x")
    right = issuer.token()
    head, body, signature = right.split(".")
    changed = base64.urlsafe_b64encode(json.dumps({**claims, "sub": "admin"}).encode()).rstrip(b"=").decode()
    yield "other claims under its signature", f"{head}.{changed}.{signature}"
    yield "no signature", f"{head}.{body}."
    yield "half a signature", f"{head}.{body}.{signature[: len(signature) // 2]}"
    yield "expired", issuer.token(iat=int(now) - 1_000, exp=int(now) - 100)
    yield "not yet", issuer.token(nbf=int(now) + 1_000)
    yield "no expiry", issuer.token(exp=None)
    yield "an expiry beyond all numbers", issuer.token(exp=1e300)
    yield "an expiry as text", issuer.token(exp="9999999999")
    yield "not for the expected audience", issuer.token(aud="them")
    yield "no audience", issuer.token(aud=None)
    yield "an audience within another", issuer.token(aud="kafka2")
    yield "not from the expected issuer", issuer.token(iss="https://issuer.example")
    yield "no issuer", issuer.token(iss=None)
    yield "nobody", issuer.token(sub="")
    yield "a subject that is a list", issuer.token(sub=["admin"])
    header = {"alg": issuer.algorithm, "kid": "one"}
    for nested in (b"[" * 20_000 + b"]" * 20_000, b'{"a":' * 8_000 + b"1" + b"}" * 8_000):
        yield "claims that are nested deeply", jws.serialize_compact(header, nested, issuer.key)
    yield "an encrypted token", "e30.e30.e30.e30.e30"


def _bearer(client: RawClient, token: str) -> tuple[int, bytes]:
    client.send(frame(SaslHandshakeRequest("OAUTHBEARER"), 1))
    assert not client.receive(17, 1).error_code
    return _token(client, encode_client_message(ClientMessage(token)))


def test_forged_and_expired_tokens(secured: SecuredNode) -> None:
    """Forged and expired tokens all get the answer that the token is invalid. The next message ends the login."""
    with _undisturbed(secured):
        for name, token in _forgeries(secured.issuer):
            with RawClient(secured.sasl) as client:
                assert _bearer(client, token) == (0, INVALID_TOKEN), name
                code, answer = _token(client, b"\x01")
                assert (code, answer) == (ErrorCode.SASL_AUTHENTICATION_FAILED, b""), name
                with pytest.raises(ConnectionError):
                    client.read_frame()
        with RawClient(secured.sasl) as client:
            assert _bearer(client, secured.issuer.token()) == (0, b"")


def test_keys_are_rotated_under_a_running_node(secured: SecuredNode) -> None:
    """The issuer's keys are rotated.

    A token with a new key is refused until the keys are fetched, and a broken document changes nothing.
    """
    path = secured.directory / "jwks.json"
    before = path.read_bytes()
    other = Issuer(RSAKey.generate_key(2048, {"kid": "new"}))

    def is_taken(issuer: Issuer) -> bool:
        with RawClient(secured.sasl) as client:
            return _bearer(client, issuer.token())[1] == b""

    try:
        assert not is_taken(other)
        keys = json.loads(before)["keys"] + json.loads(other.document())["keys"]
        path.write_text(json.dumps({"keys": keys}))
        while not is_taken(other):
            time.sleep(0.01)
        assert is_taken(secured.issuer)
        path.write_text("nonsense")
        unknown = Issuer(RSAKey.generate_key(2048, {"kid": "newer"}))
        log = len(secured.log)
        while "sasl.keys_not_fetched" not in secured.log[log:]:
            assert not is_taken(unknown)
        assert is_taken(secured.issuer)
        assert is_taken(other)
    finally:
        path.write_bytes(before)


def test_a_refusal_comes_late(secured: SecuredNode) -> None:
    """Refusals are delayed by `connection.failed.authentication.delay.ms`, for first logins and for renewals."""
    with RawClient(secured.renewing) as client:
        for password in ("carol-secret", "wrong"):
            client.send(frame(SaslHandshakeRequest("PLAIN"), 1))
            assert not client.receive(17, 1).error_code
            began = time.monotonic()
            code, _ = _token(client, f"\0carol\0{password}".encode())
        assert code
        assert time.monotonic() - began >= REFUSAL_DELAY_SECONDS
    with RawClient(secured.sasl) as client:
        client.send(frame(SaslHandshakeRequest("PLAIN"), 1))
        assert not client.receive(17, 1).error_code
        began = time.monotonic()
        assert _token(client, b"\0carol\0wrong")[0]
        assert time.monotonic() - began >= REFUSAL_DELAY_SECONDS


def test_a_session_ends_with_its_token(secured: SecuredNode) -> None:
    """A token expires during a session. Later requests close the connection, unless it was renewed (KIP-368)."""
    life_seconds = 2
    now = int(time.time())
    with RawClient(secured.sasl) as client:
        assert _bearer(client, secured.issuer.token(exp=now + life_seconds)) == (0, b"")
        client.send(frame(MetadataRequest([]), 9))
        assert client.receive(3, 9).brokers

        def ask_on() -> None:
            while time.time() < now + 60:
                client.send(frame(MetadataRequest([]), 9))
                client.receive(3, 9)
                time.sleep(0.05)

        with pytest.raises(ConnectionError):
            ask_on()
        assert time.time() >= now + life_seconds


# -- time -------------------------------------------------------------------------------------------------------


def _times(count: int, attempt: Callable[[str], None]) -> dict[str, list[float]]:
    """Return the seconds of attempts for a known and an unknown user, in turns."""
    found: dict[str, list[float]] = {"alice": [], "alicf": []}
    for _ in range(count):
        for user, times in found.items():
            began = time.perf_counter()
            attempt(user)
            times.append(time.perf_counter() - began)
    return found


@pytest.mark.attack
@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_time_tells_nothing_of_users(secured: SecuredNode, mechanism: str) -> None:
    """Challenges for unknown and known users take equally long. Their median times differ only by noise."""

    def attempt(user: str) -> None:
        with RawClient(secured.sasl) as client:
            client.send(frame(SaslHandshakeRequest(mechanism), 1))
            client.receive(17, 1)
            challenger = ScramClient(MECHANISMS[mechanism], user, "wrong", "a-nonce")
            code, _ = _token(client, challenger.first())
            assert code == 0

    def gap(times: dict[str, list[float]]) -> float:
        known, unknown = map(median, times.values())
        return abs(known - unknown) / min(known, unknown)

    # One comparison may differ by noise, but a real difference shows in each of the three.
    assert min(gap(_times(1_000, attempt)) for _ in range(3)) < 0.05
