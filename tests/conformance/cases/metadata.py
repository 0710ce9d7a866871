"""Metadata: topics by name and by id, and topics that are auto-created."""

from __future__ import annotations

from functools import partial

from odradek.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from odradek.wire.structure import ZERO_UUID
from tests.conformance.asking.talk import Talk, case

NOBODYS_ID = bytes(range(16))


def _metadata(*topics: str | bytes | None, auto_create: bool = False) -> MetadataRequest:
    asked = [
        MetadataRequestTopic(topic, None)
        if isinstance(topic, bytes)
        else MetadataRequestTopic(ZERO_UUID, topic)
        for topic in topics
    ]
    return MetadataRequest(asked, auto_create)


def _known_and_unknown(talk: Talk, *, version: int) -> None:
    name, _ = talk.topic(f"metadata{version}", 3)
    request = _metadata(name, talk.name("unknown"), "bad name", "")
    request.include_topic_authorized_operations = version >= 8
    request.include_cluster_authorized_operations = 8 <= version <= 10
    if version < 4:
        request.allow_auto_topic_creation = True
        request.topics = [MetadataRequestTopic(ZERO_UUID, name), MetadataRequestTopic(ZERO_UUID, "bad name")]
    talk.ask(request, version)


def _no_topics(talk: Talk, *, version: int) -> None:
    talk.topic(f"metadata-none{version}")

    def how_many(response: object) -> str:
        return "none" if not response.topics else "some"  # type: ignore[attr-defined]  # any version's response

    talk.ask(MetadataRequest([], True), version, how_many)
    if version:
        talk.ask(MetadataRequest(None, True), version, how_many)


for _version in range(14):
    case(f"metadata v{_version}")(partial(_known_and_unknown, version=_version))
    case(f"metadata v{_version} of no topics and of all")(partial(_no_topics, version=_version))


@case("metadata by id")
def _(talk: Talk) -> None:
    name, topic_id = talk.topic("metadata-by-id")
    for version in (12, 13):
        talk.ask(_metadata(topic_id, NOBODYS_ID), version)
        talk.ask(MetadataRequest([MetadataRequestTopic(topic_id, name)], False), version)
        talk.ask(MetadataRequest([MetadataRequestTopic(topic_id, "other")], False), version)
        talk.ask(MetadataRequest([MetadataRequestTopic(ZERO_UUID, None)], False), version)
        talk.ask(_metadata(topic_id, name), version)


@case("metadata by id before version 12")
def _(talk: Talk) -> None:
    name, topic_id = talk.topic("metadata-by-id-early")
    for version in (10, 11):
        talk.ask(MetadataRequest([MetadataRequestTopic(topic_id, name)], False), version)
        talk.ask(MetadataRequest([MetadataRequestTopic(topic_id, None)], False), version)


@case("metadata names a topic twice")
def _(talk: Talk) -> None:
    name, _ = talk.topic("metadata-twice")
    talk.ask(_metadata(name, name), 12)


@case("metadata creates a topic on first use")
def _(talk: Talk) -> None:
    name = talk.name("auto")
    talk.ask(_metadata(name, auto_create=True), 9)
    talk.wait_for_topic(name)
    talk.ask(_metadata(name), 9)


@case("metadata does not create what has no good name")
def _(talk: Talk) -> None:
    talk.ask(_metadata("bad name", "", ".", "x" * 250, auto_create=True), 12)


@case("metadata creates nothing that collides")
def _(talk: Talk) -> None:
    talk.topic("auto.collides")
    talk.ask(_metadata(talk.name("auto_collides"), auto_create=True), 12)
