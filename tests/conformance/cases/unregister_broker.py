"""UnregisterBroker: brokers that are not registered."""

from __future__ import annotations

from odradek.wire.messages.unregister_broker import UnregisterBrokerRequest
from tests.conformance.asking.talk import Talk, case


@case("unregister_broker v0")
def _(talk: Talk) -> None:
    for broker in (7, 0, -1, (1 << 31) - 1):
        talk.ask(UnregisterBrokerRequest(broker), 0)
