"""SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5802, RFC 7677; KIP-84): client and server, without IO. PURE.

A server stores no password, only a salt, a number of iterations and two keys derived from the password. Cryptography
is the standard library's: PBKDF2, HMAC, SHA-2. Nonces and salts are arguments.

An unknown user gets a salt, too, derived from the name and a secret that all brokers share. Its form and the
iterations are copied from some user (`salt_forms.py`). So an answer does not reveal which users exist; only the proof
at the end fails.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from binascii import Error as Base64Error
from collections.abc import Callable

import attrs

from odradek.security.salt_forms import NO_USERS, OUR_FORM, SaltForms

__all__ = [
    "ITERATIONS_MAX",
    "ITERATIONS_MIN",
    "MECHANISMS",
    "ScramClient",
    "ScramError",
    "ScramMechanism",
    "ScramServer",
    "ServerKeys",
    "mechanism_of_number",
    "server_keys",
]

ITERATIONS_MIN = 4096
ITERATIONS_MAX = 16_384
"""Kafka's limits for the iterations of a credential."""
CLIENT_ITERATIONS_MAX = 65_536
"""The maximum number of iterations that a client accepts from a server; each thousand takes the client most
of a millisecond.
"""
NONCE_MAX = 512
"""The maximum number of characters that a client's nonce may have."""

MESSAGE_BYTES_MAX = 16 * 1024
"""The maximum number of bytes of a message. The longest nonce and a name of thousands of letters fit. Parsing
half a megabyte would take a tenth of a second.
"""

_PRINTABLE = r"[\x21-\x2B\x2D-\x7E]+"
_NAME = r"(?:[^=,\x00]++|=2C|=3D)+"
_EXTENSIONS = r"(?:,[A-Za-z]+=[^\x00,]+)*"
_CLIENT_FIRST = re.compile(
    rf"(n,(?:a=({_NAME}))?,)((?:m=[^\x00,]+,)?n=({_NAME}),r=({_PRINTABLE})({_EXTENSIONS}))\Z"
)
_SERVER_FIRST = re.compile(rf"r=({_PRINTABLE}),s=([A-Za-z0-9+/=]+),i=([0-9]{{1,9}}){_EXTENSIONS}\Z")
_CLIENT_FINAL = re.compile(rf"(c=([A-Za-z0-9+/=]*),r=({_PRINTABLE}){_EXTENSIONS}),p=([A-Za-z0-9+/=]+)\Z")
_TOKEN_LOGIN = re.compile(r",tokenauth=[Tt][Rr][Uu][Ee](?:,|\Z)")
_SERVER_FINAL = re.compile(rf"(?:e=([^\x00,]+)|v=([A-Za-z0-9+/=]+)){_EXTENSIONS}\Z")


class ScramError(Exception):
    """Raised if the exchange has failed. The text is for logs, and has no secrets."""


@attrs.frozen
class ScramMechanism:
    """A SCRAM mechanism, with its number in Kafka's messages and records."""

    name: str
    number: int
    hash: str
    digest_bytes: int

    def salted_password(self, password: str, salt: bytes, iterations: int) -> bytes:
        """Compute `Hi(password, salt, i)` of RFC 5802. Costs about half a microsecond for each iteration."""
        return hashlib.pbkdf2_hmac(self.hash, password.encode(), salt, iterations)

    def hmac(self, key: bytes, data: bytes) -> bytes:
        return hmac.digest(key, data, self.hash)

    def digest(self, data: bytes) -> bytes:
        return hashlib.new(self.hash, data).digest()


MECHANISMS = {
    each.name: each
    for each in (
        ScramMechanism("SCRAM-SHA-256", 1, "sha256", 32),
        ScramMechanism("SCRAM-SHA-512", 2, "sha512", 64),
    )
}


def mechanism_of_number(number: int) -> ScramMechanism | None:
    """Return the mechanism with this number in records and requests; None for an unknown number."""
    return next((each for each in MECHANISMS.values() if each.number == number), None)


@attrs.frozen
class ServerKeys:
    """The data that a server stores about one password (RFC 5802)."""

    salt: bytes = attrs.field(repr=False)
    stored_key: bytes = attrs.field(repr=False)
    server_key: bytes = attrs.field(repr=False)
    iterations: int


def server_keys(
    mechanism: ScramMechanism, salted_password: bytes, salt: bytes, iterations: int
) -> ServerKeys:
    """Derive a server's keys from a salted password. The password cannot be computed from the keys."""
    client_key = mechanism.hmac(salted_password, b"Client Key")
    server_key = mechanism.hmac(salted_password, b"Server Key")
    return ServerKeys(salt, mechanism.digest(client_key), server_key, iterations)


class ScramServer:
    """The server's side of one login, which answers two messages of the client."""

    def __init__(
        self,
        mechanism: ScramMechanism,
        keys_of: Callable[[str], ServerKeys | None],
        salt_secret: bytes,
        nonce: str,
        token_keys_of: Callable[[str], ServerKeys | None] = lambda _: None,
        forms: SaltForms = NO_USERS,
    ) -> None:
        """`keys_of` returns the keys of a user, `token_keys_of` the keys of a delegation token. `nonce` is random
        text without commas. `forms` has the forms of the users' salts.
        """
        self._forms = forms
        self._mechanism = mechanism
        self._keys_of = keys_of
        self._token_keys_of = token_keys_of
        self._salt_secret = salt_secret
        self._own_nonce = nonce
        self._first = ""
        self._header = ""
        self._nonce = ""
        self._server_first = ""
        self._keys: ServerKeys | None = None
        self._is_known = False
        self.user = ""
        """The name of the user who logs in; empty until the first message was read."""
        self.authorization_id = ""
        self.by_token = False
        """True if `user` is the id of a delegation token (KIP-48)."""
        self.is_done = False

    def answer(self, message: bytes) -> bytes:
        """Answer the client's next message. Raises `ScramError`; the exchange has then ended."""
        if self.is_done:
            raise ScramError("the peer sent a message after the last message of the login")
        text = _decoded(message)
        return self._answer_final(text) if self._keys is not None else self._answer_first(text)

    def _answer_first(self, text: str) -> bytes:
        match = _CLIENT_FIRST.match(text)
        if match is None:
            raise ScramError("the client's first message is malformed")
        self._header, authorization_id, self._first, name, nonce, extensions = match.groups()
        if self._first.startswith("m="):
            # RFC 5802, section 5.1: `m=` announces an extension that both sides must support.
            raise ScramError(
                "the client's first message has a mandatory extension, and no extensions are supported"
            )
        if len(nonce) > NONCE_MAX:
            raise ScramError("the client's nonce is too long")
        self.user = _unescape(name)
        self.authorization_id = _unescape(authorization_id or "")
        self.by_token = _TOKEN_LOGIN.search(extensions) is not None
        known, unknown = self._known_keys(), self._keys_of_nobody()
        self._is_known = known is not None
        keys = self._keys = unknown if known is None else known
        self._nonce = nonce + self._own_nonce
        salt = base64.b64encode(keys.salt).decode()
        self._server_first = f"r={self._nonce},s={salt},i={keys.iterations}"
        return self._server_first.encode()

    def _known_keys(self) -> ServerKeys | None:
        return (self._token_keys_of if self.by_token else self._keys_of)(self.user)

    def _keys_of_nobody(self) -> ServerKeys:
        """Make up the keys of a user who does not exist. They are the same on every broker and at each attempt."""
        name = f"{self._mechanism.name} {self.user}".encode()
        form = self._forms.of_nobody(self._mechanism.number, self._salt_secret, name)
        if self.by_token:
            form = OUR_FORM
        filler = bytes(self._mechanism.digest_bytes)
        return ServerKeys(form.salt(self._salt_secret, name), filler, filler, form.iterations)

    def _answer_final(self, text: str) -> bytes:
        keys, mechanism = self._keys, self._mechanism
        assert keys is not None
        self.is_done = True
        match = _CLIENT_FINAL.match(text)
        if match is None:
            raise ScramError("the client's final message is malformed")
        without_proof, binding, nonce, proof_text = match.groups()
        if not hmac.compare_digest(nonce, self._nonce):
            raise ScramError("the client's final message has a wrong nonce")
        if _from_base64(binding) != self._header.encode():
            raise ScramError("the client's final message has another channel binding than its first message")
        proof = _from_base64(proof_text)
        signed = f"{self._first},{self._server_first},{without_proof}".encode()
        signature = mechanism.hmac(keys.stored_key, signed)
        is_right = len(proof) == len(signature) and hmac.compare_digest(
            mechanism.digest(_xor(proof[: len(signature)].ljust(len(signature), b"\0"), signature)),
            keys.stored_key,
        )
        # A user that was removed since the first message, or got another password, is refused.
        if not (is_right and self._is_known and self._known_keys() == keys):
            raise ScramError("invalid credentials")
        return b"v=" + base64.b64encode(mechanism.hmac(keys.server_key, signed))


class ScramClient:
    """The client's side of one login: call `first`, then `final`, then `check`."""

    def __init__(
        self, mechanism: ScramMechanism, user: str, password: str, nonce: str, *, by_token: bool = False
    ) -> None:
        """`by_token` is true if `user` is the id of a delegation token, and `password` its HMAC in base64."""
        self._mechanism = mechanism
        self._password = password
        self._nonce = nonce
        self._first = f"n={_escape(user)},r={nonce}{',tokenauth=true' if by_token else ''}"
        self._signature = b""

    def first(self) -> bytes:
        return f"n,,{self._first}".encode()

    def final(self, server_first: bytes) -> bytes:
        """Return the client's final message, which proves that it knows the password. Raises `ScramError`."""
        mechanism = self._mechanism
        text = _decoded(server_first)
        match = _SERVER_FIRST.match(text)
        if match is None:
            raise ScramError("the server's first message is malformed")
        nonce, salt, iterations = match[1], _from_base64(match[2]), int(match[3])
        if not nonce.startswith(self._nonce) or nonce == self._nonce:
            raise ScramError("the server did not add its part to the nonce")
        if not ITERATIONS_MIN <= iterations <= CLIENT_ITERATIONS_MAX:
            raise ScramError(
                f"the server asks for {iterations} iterations, and {ITERATIONS_MIN} to "
                f"{CLIENT_ITERATIONS_MAX} are allowed"
            )
        salted = mechanism.salted_password(self._password, salt, iterations)
        client_key = mechanism.hmac(salted, b"Client Key")
        without_proof = f"c=biws,r={nonce}"
        signed = f"{self._first},{text},{without_proof}".encode()
        proof = _xor(client_key, mechanism.hmac(mechanism.digest(client_key), signed))
        self._signature = mechanism.hmac(mechanism.hmac(salted, b"Server Key"), signed)
        return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()

    def check(self, server_final: bytes) -> None:
        """Check the server's final message: it must prove that the server knows the password, too. Raises
        `ScramError`.
        """
        match = _SERVER_FINAL.match(_decoded(server_final))
        if match is None:
            raise ScramError("the server's final message is malformed")
        if match[1] is not None:
            raise ScramError(f"the server refuses the login: {match[1]}")
        if not hmac.compare_digest(_from_base64(match[2]), self._signature):
            raise ScramError(
                "the server does not know the password, so another program may pose as the server"
            )


def _decoded(message: bytes) -> str:
    if len(message) > MESSAGE_BYTES_MAX:
        raise ScramError(
            f"the peer sent a message of {len(message)} bytes, but at most {MESSAGE_BYTES_MAX} are allowed"
        )
    try:
        return bytes(message).decode()
    except UnicodeDecodeError as error:
        raise ScramError("the peer's message is not UTF-8") from error


def _from_base64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (Base64Error, ValueError) as error:
        raise ScramError("the peer's message has a field that is not base64") from error


def _escape(name: str) -> str:
    return name.replace("=", "=3D").replace(",", "=2C")


def _unescape(name: str) -> str:
    return name.replace("=2C", ",").replace("=3D", "=")


def _xor(left: bytes, right: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(left, right, strict=True))
