"""AlterClientQuotas (KIP-546): valid entities, keys and values, and the effects of a request."""

from __future__ import annotations

import math
from typing import Any

from odradek.wire.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasRequestEntryData,
    EntityData,
    OpData,
)
from odradek.wire.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from odradek.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from odradek.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from odradek.wire.messages.describe_client_quotas import ComponentData, DescribeClientQuotasRequest
from testkit.raw_requests import frame
from tests.conformance.asking.talk import Talk, case

EXACT, DEFAULT, ANY = 0, 1, 2
PRODUCE, FETCH = "producer_byte_rate", "consumer_byte_rate"


def _entry(
    entity: dict[str, str | None], *ops: tuple[str, float | None]
) -> AlterClientQuotasRequestEntryData:
    named = [EntityData(kind, name) for kind, name in entity.items()]
    changes = [OpData(key, 0.0 if value is None else value, value is None) for key, value in ops]
    return AlterClientQuotasRequestEntryData(named, changes)


def _alter(
    talk: Talk, *entries: AlterClientQuotasRequestEntryData, only_checks: bool = False, version: int = 1
) -> None:
    talk.ask(AlterClientQuotasRequest(list(entries), only_checks), version)


def _wait(talk: Talk, kind: str, name: str, *keys: str) -> None:
    """Wait until the broker's image has exactly these keys of the entity."""
    request = DescribeClientQuotasRequest([ComponentData(kind, EXACT, name)], True)
    wanted = sorted(keys)
    talk.ask_until(
        request,
        1,
        lambda answer: sorted(each.key for entry in answer.entries for each in entry.values) == wanted,
    )


@case("alter_client_quotas sets, describes, replaces and removes")
def _(talk: Talk) -> None:
    user = talk.name("user")
    describe = DescribeClientQuotasRequest([ComponentData("user", EXACT, user)], False)
    _alter(talk, _entry({"user": user}, (PRODUCE, 1e6), (FETCH, 2.0**41)))
    _wait(talk, "user", user, PRODUCE, FETCH)
    _alter(talk, _entry({"user": user}, (PRODUCE, 5e5), ("request_percentage", 12.5)), version=0)
    _wait(talk, "user", user, PRODUCE, FETCH, "request_percentage")
    _alter(talk, _entry({"user": user}, (PRODUCE, None), (FETCH, None)))
    _wait(talk, "user", user, "request_percentage")
    talk.ask(describe, 1)
    _alter(talk, _entry({"user": user}, ("request_percentage", None), ("controller_mutation_rate", 0.5)))
    _wait(talk, "user", user, "controller_mutation_rate")
    _alter(talk, _entry({"user": user}, ("controller_mutation_rate", None)))
    _wait(talk, "user", user)
    talk.ask(describe, 0)


@case("alter_client_quotas of a user with a client id")
def _(talk: Talk) -> None:
    user, client = talk.name("user"), talk.name("client")
    _alter(talk, _entry({"user": user, "client-id": client}, (PRODUCE, 7.0)))
    _alter(talk, _entry({"client-id": None, "user": user}, (PRODUCE, 8.0)))
    both = DescribeClientQuotasRequest(
        [ComponentData("user", EXACT, user), ComponentData("client-id", ANY, None)], True
    )
    talk.ask_until(both, 1, lambda answer: len(answer.entries) == 2)
    for match in (
        [ComponentData("user", EXACT, user), ComponentData("client-id", EXACT, client)],
        [ComponentData("user", EXACT, user), ComponentData("client-id", DEFAULT, None)],
        [ComponentData("client-id", EXACT, client)],
    ):
        talk.ask(DescribeClientQuotasRequest(match, True), 1)
        talk.ask(DescribeClientQuotasRequest(match, False), 1)
    _alter(
        talk,
        _entry({"user": user, "client-id": client}, (PRODUCE, None)),
        _entry({"client-id": None, "user": user}, (PRODUCE, None)),
    )
    talk.ask_until(both, 1, lambda answer: not answer.entries)


@case("alter_client_quotas of an address")
def _(talk: Talk) -> None:
    address = DescribeClientQuotasRequest([ComponentData("ip", EXACT, "127.0.0.77")], True)
    _alter(talk, _entry({"ip": "127.0.0.77"}, ("connection_creation_rate", 50.0)))
    talk.ask_until(address, 1, lambda answer: len(answer.entries) == 1)
    _alter(talk, _entry({"ip": "127.0.0.77"}, ("connection_creation_rate", None)))
    talk.ask_until(address, 1, lambda answer: not answer.entries)
    for entity in (
        {"ip": "no address"},
        {"ip": ""},
        {"ip": "127.0.0.77", "user": "ann"},
        {"ip": None, "client-id": "c"},
    ):
        _alter(talk, _entry(entity, ("connection_creation_rate", 50.0)), only_checks=True)
    _alter(talk, _entry({"ip": "127.0.0.77"}, (PRODUCE, 50.0)), only_checks=True)
    _alter(talk, _entry({"ip": "127.0.0.77"}, ("connection_creation_rate", 0.5)), only_checks=True)
    _alter(talk, _entry({"ip": None}, ("connection_creation_rate", 50.0)), only_checks=True)


@case("alter_client_quotas of what there is not")
def _(talk: Talk) -> None:
    for entity in (
        {},
        {"user": ""},
        {"client-id": ""},
        {"group": "g"},
        {"user": "ann", "group": "g"},
        {"": "ann"},
    ):
        _alter(talk, _entry(entity, (PRODUCE, 50.0)), only_checks=True)
    twice = AlterClientQuotasRequestEntryData(
        [EntityData("user", "a"), EntityData("user", "b")], [OpData(PRODUCE, 5.0)]
    )
    _alter(talk, twice, only_checks=True)
    for key in ("producer_rate", "", "connection_creation_rate", "controller_mutation_rate"):
        _alter(talk, _entry({"user": "ann"}, (key, 50.0)), only_checks=True)
    _alter(talk, _entry({"user": "ann"}, ("nothing", None)), only_checks=True)
    _alter(talk, _entry({"user": "ann"}), only_checks=True)
    _alter(talk, only_checks=True)


@case("alter_client_quotas by values that mean nothing")
def _(talk: Talk) -> None:
    for key in (PRODUCE, FETCH, "request_percentage", "controller_mutation_rate"):
        for value in (0.0, -1.0, 0.5, 1.5, 1e300, math.nan, math.inf, -math.inf, 2.0**63, 9007199254740993.0):
            _alter(talk, _entry({"user": "ann"}, (key, value)), only_checks=True)
    for value in (0.0, 1.5, 2.0**31, 2.0**31 - 1, math.nan):
        _alter(talk, _entry({"ip": "127.0.0.1"}, ("connection_creation_rate", value)), only_checks=True)


@case("alter_client_quotas names an entity or a key twice")
def _(talk: Talk) -> None:
    user = talk.name("user")
    _alter(talk, _entry({"user": user}, (PRODUCE, 5.0)), _entry({"user": user}, (FETCH, 5.0)))
    talk.ask(DescribeClientQuotasRequest([ComponentData("user", EXACT, user)], True), 1)
    _alter(talk, _entry({"user": user}, (PRODUCE, 5.0), (PRODUCE, 6.0)))
    _alter(talk, _entry({"user": user}, (PRODUCE, 7.0), (PRODUCE, None)))
    _alter(talk, _entry({"user": user}, (PRODUCE, 8.0), (FETCH, 8.0), (PRODUCE, 9.0)))
    _alter(talk, _entry({"user": user}, (PRODUCE, None), (FETCH, None)))
    _wait(talk, "user", user)
    _alter(talk, _entry({"user": user}, (PRODUCE, None)))


@case("alter_client_quotas takes some entries and refuses others")
def _(talk: Talk) -> None:
    user = talk.name("user")
    _alter(talk, _entry({"user": user}, (PRODUCE, 5.0)), _entry({"user": ""}, (PRODUCE, 5.0)))
    _alter(talk, _entry({"user": user}, (PRODUCE, 5.0), ("nothing", 1.0)))
    _alter(talk, _entry({"user": user}, (FETCH, 5.0)), only_checks=True)
    _alter(talk, _entry({"user": user}, (FETCH, 5.0), (PRODUCE, None)))
    _wait(talk, "user", user, FETCH)
    _alter(talk, _entry({"user": user}, (FETCH, None), (PRODUCE, None)))
    _wait(talk, "user", user)


@case("alter_client_quotas by which changes of the metadata are refused")
def _(talk: Talk) -> None:
    client = "mutating"
    entity: dict[str, str | None] = {"client-id": client}
    _alter(talk, _entry(entity, ("controller_mutation_rate", 0.001)))
    _wait(talk, "client-id", client, "controller_mutation_rate")
    names = [talk.name(kind) for kind in ("first", "second", "third")]

    def ask(request: Any, version: int) -> None:
        # Each request has a connection of its own, since the server stops reading a throttled one for a long time.
        line = talk.line()
        line.send_frame(frame(request, version, client_id=client.encode()), request.API_KEY, version)
        line.answer()

    def create(version: int, *wanted: str) -> None:
        ask(CreateTopicsRequest([CreatableTopic(name, 1, 1) for name in wanted], 10_000, False), version)

    create(4, names[0])
    create(6, names[0], names[1])
    create(7, names[1], "bad/name")
    create(4, names[2])
    for version in (5, 4):
        ask(DeleteTopicsRequest(topic_names=[names[0]], timeout_ms=10_000), version)
    ask(DeleteTopicsRequest([DeleteTopicState(names[2])], timeout_ms=10_000), 6)
    for version in (3, 2):
        growth = CreatePartitionsRequest([CreatePartitionsTopic(names[2], 2, None)], 10_000, False)
        ask(growth, version)
    _alter(talk, _entry(entity, ("controller_mutation_rate", None)))
    _wait(talk, "client-id", client)
