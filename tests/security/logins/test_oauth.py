"""OAUTHBEARER: the client's message, the checks of a token, and the source of the keys (KIP-255, KIP-768)."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import trio
import trustme
from hypothesis import given
from hypothesis import strategies as st
from joserfc import jws
from joserfc.jwk import KeySet

from odradek.env import documents
from odradek.env.agreed_clock import Moment
from odradek.env.documents import fetch_document
from odradek.env.ports import DocumentMissing
from odradek.env.real import RealEnv
from odradek.env.token_ports import DocumentAddress
from odradek.security.oauth.client_message import (
    ClientMessage,
    MalformedClientMessage,
    decode_client_message,
    encode_client_message,
)
from odradek.security.oauth.key_source import KeySource, KeysUnusable, decode_keys
from odradek.security.oauth.login import INVALID_TOKEN, BearerLogin
from odradek.security.oauth.oauth_settings import KeySourceSettings
from odradek.security.oauth.token_rules import TokenRefused, TokenRules, UnknownKey
from odradek.security.sasl_server import BearerLoginFailed
from testkit.by_hand import KeptLog
from tests.security.logins.issuer import NOW, Issuer, claims_at

ISSUER = Issuer()
KEYS = decode_keys(ISSUER.document())
MOMENT = Moment.agreed(int(NOW * 1000))
RULES = TokenRules(expected_audience=frozenset({"kafka", "other"}), expected_issuer="https://issuer")
NAMES = st.text(st.characters(min_codepoint=1, max_codepoint=127, exclude_characters="\x01"), min_size=1)


@given(NAMES)
def test_a_message_comes_back(name: str) -> None:
    message = ClientMessage("header.payload.signature", name)
    assert decode_client_message(encode_client_message(message)) == message


@given(st.binary(max_size=300))
def test_any_bytes_are_decoded_or_refused(data: bytes) -> None:
    with suppress(MalformedClientMessage):
        assert decode_client_message(data).token


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"n,,",
        b"n,,\x01auth=Bearer t\x01",
        b"y,,\x01auth=Bearer t\x01\x01",
        b"n,a=,\x01auth=Bearer t\x01\x01",
        b"n,,\x01auth=Basic t\x01\x01",
        b"n,,\x01auth=Bearer\x01\x01",
        b"n,,\x01auth=Bearer t\x01auth=Bearer u\x01\x01",
        b"n,,\x01auth=Bearer t\x011=2\x01\x01",
        "n,,\x01auth=Bearer \u00fc\x01\x01".encode(),
        b"n,,\x01auth=Bearer " + b"t" * 70_000 + b"\x01\x01",
    ],
)
def test_a_malformed_message_is_refused(data: bytes) -> None:
    with pytest.raises(MalformedClientMessage):
        decode_client_message(data)


def test_extensions_are_passed_over() -> None:
    """Extensions in the client's message are ignored (KIP-342)."""
    data = b"n,,\x01auth=bearer  t.u.v\x01traceId=123\x01\x01"
    assert decode_client_message(data) == ClientMessage("t.u.v")


def test_a_token_is_taken() -> None:
    token = ISSUER.token(now=NOW, scope="read  write", aud=["else", "other"])
    bearer = RULES.judge(token, KEYS, MOMENT)
    assert (bearer.principal_name, bearer.expires_at) == ("alice", NOW + 600)
    assert bearer.scopes == {"read", "write"}


def test_other_claims_can_name_the_subject() -> None:
    rules = TokenRules(sub_claim_name="azp")
    assert rules.judge(ISSUER.token(now=NOW, azp="bob"), KEYS, MOMENT).principal_name == "bob"


REFUSED: dict[str, dict[str, Any]] = {
    "expired": {"exp": int(NOW) - 31},
    "without an expiry": {"exp": None},
    "an expiry as text": {"exp": "4000000000"},
    "an endless expiry": {"exp": 1e300},
    "without an issue time": {"iat": None},
    "issued after its expiry": {"iat": int(NOW) + 601},
    "not yet": {"nbf": int(NOW) + 31},
    "a name longer than a record's": {"sub": "\u00e9" * 16_001},
    "not from the expected issuer": {"iss": "https://else"},
    "no issuer": {"iss": None},
    "not for the expected audience": {"aud": "else"},
    "no audience": {"aud": None},
    "audience of numbers": {"aud": [1]},
    "no subject": {"sub": None},
    "empty subject": {"sub": " "},
    "subject as number": {"sub": 1},
}


@pytest.mark.parametrize("changes", REFUSED.values(), ids=REFUSED)
def test_a_token_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(TokenRefused):
        RULES.judge(ISSUER.token(now=NOW, **changes), KEYS, MOMENT)


def test_half_a_character_names_nobody() -> None:
    """A token's name has half of a surrogate pair, which JSON can escape. It is refused, as no text can contain it."""
    claims = json.dumps(claims_at(sub="a\ud800")).encode()
    token = jws.serialize_compact({"alg": ISSUER.algorithm, "kid": ISSUER.key.kid}, claims, ISSUER.key)
    with pytest.raises(TokenRefused, match="not valid text"):
        RULES.judge(token, KEYS, MOMENT)


def test_clocks_may_differ() -> None:
    token = ISSUER.token(now=NOW, exp=int(NOW) - 29, iat=int(NOW) - 100, nbf=int(NOW) + 29)
    assert RULES.judge(token, KEYS, MOMENT).principal_name == "alice"


def part(value: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()


def test_a_token_without_a_signature_is_refused() -> None:
    for algorithm in ("none", "None", "NONE", ""):
        with pytest.raises(TokenRefused):
            RULES.judge(f"{part({'alg': algorithm})}.{part(claims_at())}.", KEYS, MOMENT)


def test_the_public_key_is_no_secret() -> None:
    """A token is signed by HS256 with the public key as the secret (RFC 8725, section 2.1). It is refused."""
    body = f"{part({'alg': 'HS256', 'kid': 'one'})}.{part(claims_at())}"
    for secret in (
        ISSUER.document(),
        ISSUER.key.as_pem(private=False),
        ISSUER.key.as_pem(private=False).strip(),
    ):
        digest = hmac.digest(secret, body.encode(), hashlib.sha256)
        signature = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
        with pytest.raises(TokenRefused):
            RULES.judge(f"{body}.{signature}", KEYS, MOMENT)


def test_a_forged_or_foreign_signature_is_refused() -> None:
    header, payload, signature = ISSUER.token(now=NOW).split(".")
    forged = f"{header}.{part(claims_at(sub='admin'))}.{signature}"
    stranger = Issuer().token(now=NOW)
    for token in (
        forged,
        stranger,
        f"{header}.{payload}.",
        f"{header}.{payload}",
        "a.b.c",
        "..",
        "x" * 100_000,
    ):
        with pytest.raises(TokenRefused):
            RULES.judge(token, KEYS, MOMENT)


def test_a_key_within_the_token_does_not_count() -> None:
    stranger = Issuer()
    header = {"alg": "RS256", "jwk": stranger.key.as_dict(private=False)}
    with pytest.raises(TokenRefused):
        RULES.judge(stranger.token(header, now=NOW), KEYS, MOMENT)


def test_an_unknown_key_is_asked_for() -> None:
    other = Issuer()
    other.rotate("new")
    with pytest.raises(UnknownKey):
        RULES.judge(other.token(now=NOW), KEYS, MOMENT)
    asked: list[int] = []
    login = BearerLogin(RULES, lambda: KEYS, lambda: MOMENT, lambda: asked.append(1))
    assert login.answer(encode_client_message(ClientMessage(other.token(now=NOW)))) == INVALID_TOKEN
    assert asked == [1]


def test_a_token_may_leave_out_the_only_key() -> None:
    assert RULES.judge(ISSUER.token({"alg": "RS256"}, now=NOW), KEYS, MOMENT).principal_name == "alice"


def login() -> BearerLogin:
    return BearerLogin(RULES, lambda: KEYS, lambda: MOMENT, lambda: None)


def test_a_login_succeeds() -> None:
    found = login()
    assert found.answer(encode_client_message(ClientMessage(ISSUER.token(now=NOW), "alice"))) == b""
    assert found.bearer is not None


def test_a_refused_login_ends_with_the_second_answer() -> None:
    """A refused login gets the reason first, and ends with the client's second message (RFC 7628, section 3.2.3)."""
    found = login()
    assert found.answer(encode_client_message(ClientMessage(ISSUER.token(now=NOW, exp=1)))) == INVALID_TOKEN
    assert found.bearer is None
    with pytest.raises(BearerLoginFailed) as caught:
        found.answer(b"\x01")
    assert caught.value.answer == INVALID_TOKEN.decode()


def _token_of(claims: bytes) -> str:
    """Return an unsigned token with these claims."""
    return f"x.{base64.urlsafe_b64encode(claims).decode().rstrip('=')}.x"


@pytest.mark.parametrize(
    ("token", "name"),
    [
        pytest.param(ISSUER.token(now=NOW, exp=int(NOW) - 60), "alice", id="expired"),
        pytest.param(_token_of(b'{"sub": "mallory"}'), "mallory", id="forged"),
        pytest.param(_token_of(b"[" * 5000), "", id="deep"),
        pytest.param(_token_of(b'{"sub": 7}'), "", id="not valid text"),
        pytest.param(_token_of(b" " * 9000 + b'{"sub": "m"}'), "", id="too long"),
        pytest.param("x.e.x", "", id="not base64"),
        pytest.param("x", "", id="no token"),
    ],
)
def test_a_refused_login_names_who_was_claimed(token: str, name: str) -> None:
    """A refused token's name is kept for the audit log, as the unproven claim of the client."""
    found = login()
    assert found.answer(encode_client_message(ClientMessage(token))) == INVALID_TOKEN
    assert found.claimed_name == name


def test_nobody_asks_for_another_name_than_the_tokens() -> None:
    """An authorization id must be the subject of the token. Otherwise the login is refused."""
    found = login()
    with pytest.raises(BearerLoginFailed):
        found.answer(encode_client_message(ClientMessage(ISSUER.token(now=NOW), "bob")))
    assert not found.principal_name


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{}",
        b'{"keys": 1}',
        b'{"keys": []}',
        b'{"keys": [1, {}, {"kty": "RSA"}]}',
        b'{"keys": [{"kty": []}, {"kty": {}}, {"use": {}}, {"kty": "EC", "crv": []}]}',
        b"[" * 100_000,
    ],
)
def test_a_document_without_keys_is_refused(data: bytes) -> None:
    with pytest.raises(KeysUnusable):
        decode_keys(data)


def test_secrets_in_the_document_are_passed_over() -> None:
    secret = {"kty": "oct", "k": "c2VjcmV0", "kid": "one"}
    both = json.dumps({"keys": [secret, ISSUER.key.as_dict(private=False)]}).encode()
    assert [each.key_type for each in decode_keys(both).keys] == ["RSA"]


@contextmanager
def served(issuer: Issuer, asked: list[str]) -> Iterator[str]:
    """Serve the issuer's document during the block, and yield the address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            if self.path == "/away":
                self.send_response(302)
                self.send_header("Location", "/keys")
                self.end_headers()
                return
            data = b"x" * (2 << 20) if self.path == "/huge" else issuer.document()
            self.send_response(200)
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_documents_are_bounded_and_redirects_not_followed() -> None:
    with served(ISSUER, asked := []) as address:
        assert decode_keys(fetch_document(DocumentAddress(f"{address}/keys"))).keys
        for path in ("huge", "away"):
            with pytest.raises(DocumentMissing):
                fetch_document(DocumentAddress(f"{address}/{path}"))
    assert asked == ["/keys", "/huge", "/away"]
    for url in ("ftp://127.0.0.1/x", "file:///nowhere/at/all", "http://127.0.0.1:1/x", "nonsense"):
        with pytest.raises(DocumentMissing):
            fetch_document(DocumentAddress(url))


@contextmanager
def listening(serve: Callable[[socket.socket], None]) -> Iterator[int]:
    """Listen on a new port and yield it. Run `serve` with the first connection."""

    def accept() -> None:
        conn, _ = listener.accept()
        with conn, suppress(OSError):
            serve(conn)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=accept)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            thread.join()


def test_a_slow_server_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server sends its answer byte by byte. The limit of time applies to the whole answer."""
    monkeypatch.setattr(documents, "FETCH_SECONDS_MAX", 0.2)
    gone = threading.Event()

    def drip(conn: socket.socket) -> None:
        conn.sendall(b"HTTP/1.0 200 OK\r\n\r\n")
        while not gone.wait(0.01):
            conn.sendall(b"x")

    with listening(drip) as port:
        try:
            with pytest.raises(DocumentMissing, match="whole answer"):
                fetch_document(DocumentAddress(f"http://127.0.0.1:{port}/keys"))
        finally:
            gone.set()


@pytest.mark.parametrize("is_trusted", [True, False])
def test_a_server_is_believed_by_its_authority_alone(tmp_path: Path, is_trusted: bool) -> None:
    """An `https` server's certificate must be signed by the given authority, and contain its name."""
    authority = trustme.CA()
    (authority if is_trusted else trustme.CA()).cert_pem.write_to_path(tmp_path / "authority.pem")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)

    def serve(conn: socket.socket) -> None:
        with context.wrap_socket(conn, server_side=True) as secured:
            secured.recv(4096)
            secured.sendall(b"HTTP/1.0 200 OK\r\n\r\n" + ISSUER.document())

    with listening(serve) as port:
        address = DocumentAddress(f"https://127.0.0.1:{port}/keys", str(tmp_path / "authority.pem"))
        if is_trusted:
            assert decode_keys(fetch_document(address)).keys
        else:
            with pytest.raises(DocumentMissing, match="certificate"):
                fetch_document(address)


async def first(find: Callable[[], KeySet | None]) -> KeySet:
    """Poll until `find` returns something, since no event announces the keys."""
    while (found := find()) is None:  # noqa: ASYNC110
        await trio.sleep(0.005)
    return found


@pytest.mark.trio
async def test_keys_are_rotated_and_outlive_their_issuer() -> None:
    issuer = Issuer()
    env, notes = RealEnv(), KeptLog()
    with served(issuer, asked := []) as address:
        settings = KeySourceSettings(
            DocumentAddress(f"{address}/keys"), retry_backoff_ms=1, retry_backoff_ms_max=20
        )
        source = KeySource(env, notes, settings, fetch_document, env.workers)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(source.run)
            with trio.fail_after(10):
                keys = await first(lambda: source.keys)
            issuer.rotate()
            with pytest.raises(UnknownKey):
                RULES.judge(issuer.token(now=NOW), keys, MOMENT)
            source.want()
            with trio.fail_after(10):
                keys = await first(lambda: source.keys if source.keys is not keys else None)
            nursery.cancel_scope.cancel()
    assert 2 <= len(asked) <= 4
    assert RULES.judge(issuer.token(now=NOW), keys, MOMENT)
    source = KeySource(env, notes, settings, fetch_document, env.workers)
    with trio.move_on_after(0.2):
        await source.run()
    assert source.keys is None
    assert set(notes.events) == {"sasl.keys_not_fetched"}


def test_a_document_takes_certificates_as_kafka_does() -> None:
    """A certificate without key identifiers is trusted on each Python; the host's name is still checked."""
    bare = trustme.CA().cert_pem.bytes().decode()
    for address in (
        DocumentAddress("https://issuer/keys"),
        DocumentAddress("https://issuer/keys", truststore_certificates=bare),
    ):
        context = documents._trusted(address)
        assert not context.verify_flags & ssl.VERIFY_X509_STRICT
        assert context.check_hostname
        assert context.verify_mode is ssl.CERT_REQUIRED
