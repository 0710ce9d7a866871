"""SaslAuthenticate on a listener without SASL."""

from __future__ import annotations

from functools import partial

from odradek.wire.messages.sasl_authenticate import SaslAuthenticateRequest
from tests.conformance.asking.talk import Talk, case


def _out_of_place(talk: Talk, *, version: int) -> None:
    talk.ask(SaslAuthenticateRequest(b"\0user\0password"), version)
    talk.ask(SaslAuthenticateRequest(b""), version)


for _version in range(3):
    case(f"sasl_authenticate v{_version} on a plaintext listener")(partial(_out_of_place, version=_version))
