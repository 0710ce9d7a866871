"""OffsetDelete: removes a group's offsets of a topic, unless the group is subscribed to it."""

from __future__ import annotations

from functools import partial

from odradek.wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from tests.conformance.asking.members import Member, stable, subscription
from tests.conformance.asking.offsets import commit, committed
from tests.conformance.asking.talk import Talk, case
from tests.conformance.asking.transactions import in_state


def _delete(talk: Talk, group: str, *topics: tuple[str, list[int]]) -> None:
    asked = [
        OffsetDeleteRequestTopic(name, [OffsetDeleteRequestPartition(index) for index in indexes])
        for name, indexes in topics
    ]
    talk.ask(OffsetDeleteRequest(group, asked), 0)


def _group(talk: Talk, stem: str) -> tuple[str, str]:
    """Make a group with the offsets 5 and 6 in a topic of three partitions. Return the names of the group and the
    topic."""
    name, _ = talk.topic(stem, 3)
    commit(talk, talk.name(stem), name, 5, 6)
    return talk.name(stem), name


@case("offset_delete v0")
def _(talk: Talk) -> None:
    group, name = _group(talk, "od")
    _delete(talk, group, (name, [0]))
    committed(talk, group, name)
    _delete(talk, group, (name, [0, 1]))
    committed(talk, group, name)
    _delete(talk, group, (name, [0]))


@case("offset_delete of what was not committed")
def _(talk: Talk) -> None:
    group, name = _group(talk, "od-uncommitted")
    _delete(talk, group, (name, [2, 9, -1]), (talk.name("od-unknown"), [0]), ("bad name", [0]), ("", [0]))
    committed(talk, group, name)


@case("offset_delete of nothing")
def _(talk: Talk) -> None:
    group, name = _group(talk, "od-nothing")
    _delete(talk, group)
    _delete(talk, group, (name, []))
    committed(talk, group, name)


@case("offset_delete names topics and partitions twice")
def _(talk: Talk) -> None:
    group, name = _group(talk, "od-twice")
    _delete(talk, group, (name, [0, 0]), (name, [1]))
    committed(talk, group, name)


for _label, _name in (("empty", ""), ("unknown", "no-such-group"), ("blank", " "), ("long", "x" * 500)):
    case(f"offset_delete of a group whose id is {_label}")(
        partial(lambda talk, name: _delete(talk, name, ("no-such-topic", [0])), name=_name)
    )


@case("offset_delete of a topic that a member subscribes to")
def _(talk: Talk) -> None:
    group, name = _group(talk, "od-subscribed")
    other, _ = talk.topic("od-other")
    commit(talk, group, other, 7)
    (member,) = stable(talk, group, protocols=(("range", subscription(name)),))
    _delete(talk, group, (name, [0, 2, 9]), (other, [0]), (talk.name("od-unknown"), [0]))
    committed(talk, group, name)
    committed(talk, group, other)
    member.leave()
    _delete(talk, group, (name, [0, 1]))
    committed(talk, group, name)


@case("offset_delete while members wait for their shares")
def _(talk: Talk) -> None:
    group, name = _group(talk, "od-awaited")
    member = Member(talk, group, protocols=(("range", subscription(name)),))
    member.join(silently=True)
    _delete(talk, group, (name, [0]), (talk.name("od-unknown"), [0]))
    member.leave()


@case("offset_delete in a group of another protocol type")
def _(talk: Talk) -> None:
    group, name = _group(talk, "od-connect")
    (member,) = stable(talk, group, kind="connect")
    _delete(talk, group, (name, [0]))
    member.leave()
    _delete(talk, group, (name, [0]))
    committed(talk, group, name)


@case("offset_delete of a group that never had members or offsets any more")
def _(talk: Talk) -> None:
    group, name = _group(talk, "od-again")
    _delete(talk, group, (name, [0, 1]))
    _delete(talk, group, (name, [0, 1]))
    _delete(talk, group, (talk.name("od-unknown"), [0]))


@case("offset_delete with pending offsets")
def _(talk: Talk) -> None:
    """Delete offsets while others are pending, and fetch them after the transaction has ended."""
    for is_commit in (True, False):
        for committed_before in (True, False):
            stem = f"od-pending-{is_commit}-{committed_before}".lower()
            producer = in_state(talk, stem, "empty")
            group = talk.name(stem)
            if committed_before:
                commit(talk, group, producer.topic, 3)
            producer.ask(producer.commit_request(group, 7), 5)
            _delete(talk, group, (producer.topic, [0, 1]))
            committed(talk, group, producer.topic)
            producer.ask(producer.end_request(is_commit), 5)
            committed(talk, group, producer.topic)
            _delete(talk, group, (producer.topic, [0]))
            committed(talk, group, producer.topic)
