"""One SASL conversation over a raw connection. Each answer becomes a JSON value without its random parts."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from typing import Any

import attrs

from odradek.security.scram import MECHANISMS, ScramClient
from odradek.wire.messages.api_versions import ApiVersionsRequest
from odradek.wire.messages.metadata import MetadataRequest
from odradek.wire.messages.sasl_authenticate import SaslAuthenticateRequest
from odradek.wire.messages.sasl_handshake import SaslHandshakeRequest
from testkit.raw_requests import RawClient, frame
from tests.conformance.sasl.servers import PASSWORDS, Place

__all__ = ["NONCE", "Talk", "conversation"]

NONCE = "fyko+d2lbbFgONRv9qkxdawL"
CLOSED = "closed"
_SCRAM_FIRST = re.compile(r"r=([^,]+),s=([A-Za-z0-9+/=]+),i=(\d+)\Z")


class Talk:
    """A connection, and the answers so far."""

    def __init__(self, client: RawClient, place: Place) -> None:
        self._client = client
        self.place = place
        self.answers: list[Any] = []
        self._scram: ScramClient | None = None
        self.last = b""
        """The last token that the server sent."""

    # -- requests, each with its answer in `answers` ------------------------------------------------------------

    def versions(self, version: int = 3) -> None:
        """Send ApiVersions, and keep only the error code."""
        self._ask(
            ApiVersionsRequest("conformance", "1"), version, lambda answer: {"error": answer.error_code}
        )

    def handshake(self, mechanism: str, version: int = 1) -> None:
        def noted(answer: Any) -> dict[str, Any]:
            return {"error": answer.error_code, "mechanisms": sorted(answer.mechanisms)}

        self._ask(SaslHandshakeRequest(mechanism), version, noted)

    def token(self, data: bytes, version: int = 2) -> None:
        """Send a token in SaslAuthenticate."""

        def noted(answer: Any) -> dict[str, Any]:
            self.last = bytes(answer.auth_bytes)
            return {
                "error": answer.error_code,
                "message": answer.error_message,
                "token": self._shown(self.last),
                "lifetime_s": round(answer.session_lifetime_ms, -4) // 1000,
            }

        self._ask(SaslAuthenticateRequest(data), version, noted)

    def bare(self, data: bytes) -> None:
        """Send a bare token, as after SaslHandshake version 0."""
        self.raw(struct.pack(">i", len(data)) + data)
        try:
            self.last = self._client.read_frame()
        except ConnectionError:
            self.answers.append(CLOSED)
        else:
            self.answers.append({"bare": self._shown(self.last)})

    def metadata(self) -> None:
        """Send Metadata, which needs a login. Kafka may answer with an empty response."""
        self._ask(MetadataRequest([]), 9, lambda answer: "served" if answer.brokers else "answered empty")

    def raw(self, data: bytes) -> None:
        """Send bytes without waiting for an answer."""
        try:
            self._client.send(data)
        except ConnectionError:
            return  # the server has closed the connection, as the answer to earlier bytes shows

    def skip(self) -> None:
        """Read an answer, and keep only that it came."""
        try:
            self._client.read_frame()
        except ConnectionError:
            self.answers.append(CLOSED)
        else:
            self.answers.append("answered")

    def end(self) -> None:
        """Send nothing, and record whether the server closes the connection or sends something."""
        try:
            self.answers.append({"unasked": self._client.read_frame().hex()})
        except ConnectionError:
            self.answers.append(CLOSED)

    # -- mechanisms ---------------------------------------------------------------------------------------------

    def plain(self, user: str, password: str | None = None, authorization_id: str = "") -> bytes:
        """Make a token of PLAIN."""
        return f"{authorization_id}\0{user}\0{PASSWORDS[user] if password is None else password}".encode()

    def begin_scram(self, mechanism: str, user: str, password: str | None = None) -> bytes:
        """Make the client's first SCRAM message. `finish_scram` makes the next one."""
        secret = PASSWORDS.get(user, "") if password is None else password
        self._scram = ScramClient(MECHANISMS[mechanism], user, secret, NONCE)
        return self._scram.first()

    def finish_scram(self) -> bytes:
        """Make the client's proof. If the server sent no challenge, make a wrong proof."""
        assert self._scram is not None
        if _SCRAM_FIRST.match(self.last.decode()) is None:
            return f"c=biws,r={NONCE}x,p={'A' * 43}=".encode()
        return self._scram.final(self.last)

    def _shown(self, token: bytes) -> str:
        """Return a token's text without its random parts."""
        text = token.decode("latin-1")
        if first := _SCRAM_FIRST.match(text):
            begins = "as sent" if first[1].startswith(NONCE) and first[1] != NONCE else "another"
            return f"nonce {begins}, salt, {first[3]} iterations"
        return "signature" if re.match(r"v=[A-Za-z0-9+/=]+\Z", text) else text

    # -- the wire -----------------------------------------------------------------------------------------------

    def _ask(self, request: Any, version: int, noted: Callable[[Any], Any]) -> None:
        self.raw(bytes(frame(request, version)))
        try:
            answer = self._client.receive(request.API_KEY, version)
        except ConnectionError:
            self.answers.append(CLOSED)
        else:
            self.answers.append(noted(answer))


@attrs.frozen
class Case:
    """A conversation, and the listener on which it runs."""

    name: str
    script: Callable[[Talk], None]
    listener: str = "sasl"


def conversation(case: Case, place: Place) -> list[Any]:
    """Run a case. Return its answers in order, up to the end of the connection."""
    with RawClient(getattr(place, case.listener)) as client:
        talk = Talk(client, place)
        case.script(talk)
        answers = talk.answers
    return answers[: answers.index(CLOSED) + 1] if CLOSED in answers else answers
