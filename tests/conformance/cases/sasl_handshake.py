"""SaslHandshake and SaslAuthenticate on a listener without SASL."""

from __future__ import annotations

from functools import partial

from odradek.wire.messages.sasl_authenticate import SaslAuthenticateRequest
from odradek.wire.messages.sasl_handshake import SaslHandshakeRequest
from tests.conformance.asking.talk import Talk, case


def _out_of_place(talk: Talk, *, version: int) -> None:
    talk.ask(SaslHandshakeRequest("PLAIN"), version)
    talk.ask(SaslHandshakeRequest("no such mechanism"), version)
    talk.ask(SaslHandshakeRequest(""), version)


for _version in range(2):
    case(f"sasl_handshake v{_version} on a plaintext listener")(partial(_out_of_place, version=_version))


@case("sasl_handshake twice, and a token, on a plaintext listener")
def _(talk: Talk) -> None:
    talk.ask(SaslHandshakeRequest("PLAIN"), 1)
    talk.ask(SaslAuthenticateRequest(b"\0user\0password"), 2)
