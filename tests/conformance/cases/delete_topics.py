"""DeleteTopics: by name and by id."""

from __future__ import annotations

from functools import partial

from odradek.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from odradek.wire.structure import ZERO_UUID
from tests.conformance.asking.talk import Talk, case

NOBODYS_ID = bytes(range(16))


def _delete_by_name(talk: Talk, *, version: int) -> None:
    name, _ = talk.topic(f"delete{version}")
    unknown = talk.name("delete-unknown")
    if version >= 6:
        states = [DeleteTopicState(name, ZERO_UUID), DeleteTopicState(unknown, ZERO_UUID)]
        talk.ask(DeleteTopicsRequest(states, [], 10_000), version)
        talk.ask(DeleteTopicsRequest(states, [], 10_000), version)
    else:
        talk.ask(DeleteTopicsRequest([], [name, unknown], 10_000), version)
        talk.ask(DeleteTopicsRequest([], [name, "bad name", ""], 10_000), version)


for _version in range(1, 7):
    case(f"delete_topics v{_version}")(partial(_delete_by_name, version=_version))


def _delete(talk: Talk, *states: DeleteTopicState) -> None:
    talk.ask(DeleteTopicsRequest(list(states), [], 10_000), 6)


@case("delete_topics by id")
def _(talk: Talk) -> None:
    _, topic_id = talk.topic("delete-by-id")
    _delete(talk, DeleteTopicState(None, topic_id), DeleteTopicState(None, NOBODYS_ID))
    _delete(talk, DeleteTopicState(None, topic_id))


@case("delete_topics by name and id at once")
def _(talk: Talk) -> None:
    name, topic_id = talk.topic("delete-both")
    _delete(talk, DeleteTopicState(name, topic_id))


@case("delete_topics by neither name nor id")
def _(talk: Talk) -> None:
    _delete(talk, DeleteTopicState(None, ZERO_UUID))


@case("delete_topics names one twice")
def _(talk: Talk) -> None:
    name, topic_id = talk.topic("delete-twice")
    _delete(talk, DeleteTopicState(name, ZERO_UUID), DeleteTopicState(name, ZERO_UUID))
    _delete(talk, DeleteTopicState(None, topic_id), DeleteTopicState(None, topic_id))
    _delete(talk, DeleteTopicState(name, ZERO_UUID), DeleteTopicState(None, topic_id))
    _delete(talk, DeleteTopicState(name, ZERO_UUID))


@case("delete_topics none")
def _(talk: Talk) -> None:
    _delete(talk)


for _label, _name in {
    "an empty name": "",
    "a bad name": "bad name",
    "a dot": ".",
    "a name of 250 characters": "x" * 250,
    "the topic of the cluster's metadata": "__cluster_metadata",
}.items():

    def _of(talk: Talk, *, name: str) -> None:
        _delete(talk, DeleteTopicState(name, ZERO_UUID))
        talk.ask(DeleteTopicsRequest([], [name], 10_000), 5)

    case(f"delete_topics of {_label}")(partial(_of, name=_name))


@case("delete_topics of some good and some unknown")
def _(talk: Talk) -> None:
    name, topic_id = talk.topic("delete-some")
    other, _ = talk.topic("delete-other")
    _delete(
        talk,
        DeleteTopicState(None, NOBODYS_ID),
        DeleteTopicState(None, topic_id),
        DeleteTopicState(talk.name("delete-unknown"), ZERO_UUID),
        DeleteTopicState(other, ZERO_UUID),
        DeleteTopicState("bad name", NOBODYS_ID),
    )
    _delete(talk, DeleteTopicState(name, ZERO_UUID))


@case("delete_topics and make them again")
def _(talk: Talk) -> None:
    name, first_id = talk.topic("delete-again")
    talk.delete_topic(name)
    talk.topic("delete-again", 2)
    _delete(talk, DeleteTopicState(None, first_id))
    _delete(talk, DeleteTopicState(name, ZERO_UUID))


@case("delete_topics names one twice before version 6")
def _(talk: Talk) -> None:
    name, _ = talk.topic("delete-early-twice")
    for version in (1, 3, 5):
        talk.ask(DeleteTopicsRequest([], [name, name], 10_000), version)
    talk.ask(DeleteTopicsRequest([], [], 10_000), 1)
