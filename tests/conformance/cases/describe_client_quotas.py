"""DescribeClientQuotas (KIP-546): the entities that each filter selects."""

from __future__ import annotations

from odradek.wire.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasRequestEntryData,
    EntityData,
    OpData,
)
from odradek.wire.messages.describe_client_quotas import ComponentData, DescribeClientQuotasRequest
from tests.conformance.asking.talk import Talk, case

EXACT, DEFAULT, ANY = 0, 1, 2


def _describe(talk: Talk, *components: tuple[str, int, str | None], strict: bool, version: int = 1) -> None:
    talk.ask(DescribeClientQuotasRequest([ComponentData(*each) for each in components], strict), version)


@case("describe_client_quotas with filters that cannot be")
def _(talk: Talk) -> None:
    for strict in (False, True):
        _describe(talk, ("group", EXACT, "g"), strict=strict)
        _describe(talk, ("", EXACT, "g"), strict=strict)
        _describe(talk, ("user", 3, "ann"), strict=strict)
        _describe(talk, ("user", -1, None), strict=strict)
        _describe(talk, ("user", EXACT, None), strict=strict)
        _describe(talk, ("user", DEFAULT, "ann"), strict=strict)
        _describe(talk, ("user", ANY, "ann"), strict=strict)
        _describe(talk, ("user", EXACT, "a"), ("user", EXACT, "b"), strict=strict)
        _describe(talk, ("ip", EXACT, "127.0.0.9"), ("user", EXACT, "b"), strict=strict)
        _describe(talk, ("ip", ANY, None), ("client-id", ANY, None), strict=strict)


@case("describe_client_quotas of nobody")
def _(talk: Talk) -> None:
    name = talk.name("user")
    for version in (0, 1):
        _describe(talk, ("user", EXACT, name), strict=True, version=version)
        _describe(talk, ("client-id", EXACT, name), strict=False, version=version)
        _describe(talk, ("user", EXACT, name), ("client-id", DEFAULT, None), strict=False, version=version)
        _describe(talk, ("user", EXACT, ""), strict=False, version=version)


@case("describe_client_quotas by all kinds of filters")
def _(talk: Talk) -> None:
    entities: list[list[tuple[str, str | None]]] = [
        [("user", "q-ann")],
        [("user", None)],
        [("client-id", "q-app")],
        [("client-id", None)],
        [("user", "q-ann"), ("client-id", "q-app")],
        [("user", "q-ann"), ("client-id", None)],
        [("user", None), ("client-id", "q-app")],
        [("user", None), ("client-id", None)],
    ]
    for number, entity in enumerate(entities, 1):
        entry = AlterClientQuotasRequestEntryData(
            [EntityData(kind, name) for kind, name in entity], [OpData("producer_byte_rate", 1e12 + number)]
        )
        talk.ask(AlterClientQuotasRequest([entry], False), 1)
    everything = DescribeClientQuotasRequest([], False)
    talk.ask_until(everything, 1, lambda answer: len(answer.entries) == len(entities))
    filters: list[list[tuple[str, int, str | None]]] = [
        [],
        [("user", ANY, None)],
        [("user", DEFAULT, None)],
        [("user", EXACT, "q-ann")],
        [("client-id", ANY, None)],
        [("client-id", EXACT, "q-app")],
        [("client-id", DEFAULT, None)],
        [("user", ANY, None), ("client-id", ANY, None)],
        [("user", EXACT, "q-ann"), ("client-id", EXACT, "q-app")],
        [("user", DEFAULT, None), ("client-id", ANY, None)],
        [("ip", ANY, None)],
    ]
    for wanted in filters:
        for strict in (False, True):
            _describe(talk, *wanted, strict=strict)
    for entity in entities:
        entry = AlterClientQuotasRequestEntryData(
            [EntityData(kind, name) for kind, name in entity], [OpData("producer_byte_rate", 0.0, True)]
        )
        talk.ask(AlterClientQuotasRequest([entry], False), 1)
    talk.ask_until(everything, 1, lambda answer: not answer.entries)
