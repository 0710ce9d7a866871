"""OffsetFetch: what was committed, by one group and by several."""

from __future__ import annotations

from functools import partial

from odradek.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from tests.conformance.asking.members import STRANGER, stable
from tests.conformance.asking.offsets import commit, wait_until_forgotten
from tests.conformance.asking.talk import Talk, case
from tests.conformance.asking.transactions import in_state

NOBODYS_ID = bytes(range(16))
BATCHED_SINCE = 8
Wanted = list[tuple[str, bytes, list[int]]] | None


def _request(group: str, wanted: Wanted, *, stable_only: bool = False) -> OffsetFetchRequest:
    """Make a request that has the fields of old and new versions. Each version encodes only its own fields."""
    single = None if wanted is None else [OffsetFetchRequestTopic(name, parts) for name, _, parts in wanted]
    batched = None if wanted is None else [OffsetFetchRequestTopics(*topic) for topic in wanted]
    groups = [OffsetFetchRequestGroup(group, topics=batched)]
    return OffsetFetchRequest(group, single, groups, stable_only)


def _versions(talk: Talk, *, version: int) -> None:
    name, topic_id = talk.topic(f"of{version}", 3)
    group = talk.name(f"of{version}")
    commit(talk, group, name, 5, 0)
    talk.ask(_request(group, [(name, topic_id, [0, 1, 2, 7, -1])]), version)
    talk.ask(_request(group, [(talk.name("of-unknown"), NOBODYS_ID, [0])]), version)
    talk.ask(_request(group, [("bad name", bytes(16), [0])]), version)
    talk.ask(_request(group, [(name, topic_id, [])]), version)
    talk.ask(_request(group, []), version)
    talk.ask(_request(talk.name("of-no-group"), [(name, topic_id, [0])]), version)
    talk.ask(_request("", [(name, topic_id, [0])]), version)
    if version >= 2:
        talk.ask(_request(group, None), version)
        talk.ask(_request(talk.name("of-no-group"), None), version)
        talk.ask(_request("", None), version)


for _version in range(1, 11):
    case(f"offset_fetch v{_version}")(partial(_versions, version=_version))


def _stable(talk: Talk, *, version: int) -> None:
    name, topic_id = talk.topic(f"of-stable{version}", 2)
    group = talk.name(f"of-stable{version}")
    commit(talk, group, name, 5)
    for wanted in ([(name, topic_id, [0, 1])], None):
        talk.ask(_request(group, wanted, stable_only=True), version)


for _version in range(7, 11):
    case(f"offset_fetch v{_version} of stable offsets")(partial(_stable, version=_version))


def _groups(talk: Talk, *, version: int) -> None:
    name, topic_id = talk.topic(f"of-groups{version}", 2)
    other, other_id = talk.topic(f"of-groups-other{version}")
    one, two = talk.name(f"of-one{version}"), talk.name(f"of-two{version}")
    commit(talk, one, name, 1, 2)
    commit(talk, two, name, 3)
    commit(talk, two, other, 4)
    both = [OffsetFetchRequestTopics(name, topic_id, [0, 1]), OffsetFetchRequestTopics(other, other_id, [0])]
    groups = [
        OffsetFetchRequestGroup(one, topics=both),
        OffsetFetchRequestGroup(two, topics=None),
        OffsetFetchRequestGroup(talk.name("of-nobodys"), topics=both),
        OffsetFetchRequestGroup(talk.name("of-nobodys-all"), topics=None),
        OffsetFetchRequestGroup("", topics=both),
    ]
    talk.ask(OffsetFetchRequest(groups=groups), version)
    talk.ask(OffsetFetchRequest(groups=groups[:1] * 2), version)
    talk.ask(OffsetFetchRequest(groups=[]), version)


for _version in range(8, 11):
    case(f"offset_fetch v{_version} of several groups")(partial(_groups, version=_version))


@case("offset_fetch names topics and partitions twice")
def _(talk: Talk) -> None:
    name, topic_id = talk.topic("of-twice")
    group = talk.name("of-twice")
    commit(talk, group, name, 5)
    for version in (1, 7, 9, 10):
        talk.ask(_request(group, [(name, topic_id, [0, 0]), (name, topic_id, [0])]), version)


@case("offset_fetch by ids that are unknown or none")
def _(talk: Talk) -> None:
    name, topic_id = talk.topic("of-ids")
    group = talk.name("of-ids")
    commit(talk, group, name, 5)
    for wanted in (NOBODYS_ID, bytes(16)):
        talk.ask(_request(group, [("", wanted, [0, 1]), ("", topic_id, [0])]), 10)


@case("offset_fetch with a member and an epoch")
def _(talk: Talk) -> None:
    name, topic_id = talk.topic("of-member")
    (member,) = stable(talk, talk.name("of-member"))
    commit(talk, talk.name("of-member-less"), name, 5)
    for version in (9, 10):
        for group in (member.group, talk.name("of-member-less"), talk.name("of-member-none")):
            for member_id, epoch in (
                (member.member_id, 1),
                (member.member_id, 9),
                (STRANGER, 1),
                (STRANGER, -1),
                (None, 5),
                ("", -1),
                ("", 0),
            ):
                topics = [OffsetFetchRequestTopics(name, topic_id, [0])]
                asked = [OffsetFetchRequestGroup(group, member_id, epoch, topics)]
                talk.ask(OffsetFetchRequest(groups=asked), version)


@case("offset_fetch of a topic that is gone")
def _(talk: Talk) -> None:
    name, topic_id = talk.topic("of-gone")
    other, _ = talk.topic("of-stays")
    group = talk.name("of-gone")
    commit(talk, group, name, 5)
    commit(talk, group, other, 6)
    talk.delete_topic(name)
    wait_until_forgotten(talk, group, name)
    for version in (7, 9, 10):
        talk.ask(_request(group, [(name, topic_id, [0])]), version)
        talk.ask(_request(group, None), version)


@case("offset_fetch of many groups")
def _(talk: Talk) -> None:
    name, topic_id = talk.topic("of-many")
    groups = [talk.name(f"of-many{number}") for number in range(30)]
    for number, group in enumerate(groups):
        commit(talk, group, name, number)
    topics = [OffsetFetchRequestTopics(name, topic_id, [0])]
    for version in (8, 10):
        asked = [OffsetFetchRequestGroup(group, topics=topics) for group in groups]
        talk.ask(OffsetFetchRequest(groups=asked), version)


def _pending(talk: Talk, *, version: int) -> None:
    """Ask for stable offsets while some are pending: the answer says to ask again (KIP-447)."""
    producer = in_state(talk, f"of-pending-{version}", "empty")
    name, group = producer.topic, talk.name(f"of-pending-{version}")
    topic_id = talk.wait_for_topic(name)
    commit(talk, group, name, 3)
    for is_commit in (True, False):
        producer.ask(producer.commit_request(group, 7), 5)
        for stable_only in (False, True):
            talk.ask(_request(group, [(name, topic_id, [0, 1])], stable_only=stable_only), version)
            talk.ask(_request(group, [(name, topic_id, [1])], stable_only=stable_only), version)
            talk.ask(_request(group, None if version >= 2 else [], stable_only=stable_only), version)
        producer.learn(producer.ask(producer.end_request(is_commit), 5))
        talk.ask(_request(group, [(name, topic_id, [0, 1])], stable_only=True), version)


for _version in range(1, 11):
    case(f"offset_fetch v{_version} of pending offsets")(partial(_pending, version=_version))


@case("offset_fetch of a group that has pending offsets alone")
def _(talk: Talk) -> None:
    producer = in_state(talk, "of-alone", "empty")
    group = talk.name("of-alone")
    topic_id = talk.wait_for_topic(producer.topic)
    producer.ask(producer.commit_request(group, 7), 5)
    for version in (7, 9, 10):
        for stable_only in (False, True):
            talk.ask(_request(group, [(producer.topic, topic_id, [0])], stable_only=stable_only), version)
            talk.ask(_request(group, None, stable_only=stable_only), version)
    producer.ask(producer.end_request(False), 5)
    talk.ask(_request(group, None, stable_only=True), 9)
