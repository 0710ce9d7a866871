"""OffsetCommit: offsets of members and of clients outside a group, and commits that are refused."""

from __future__ import annotations

from functools import partial
from typing import Any

from odradek.wire.messages.delete_groups import DeleteGroupsRequest
from odradek.wire.messages.offset_commit import OffsetCommitRequest, OffsetCommitRequestTopic
from tests.conformance.asking.members import STRANGER, Member, stable
from tests.conformance.asking.offsets import committed, partition, request, wait_until_forgotten
from tests.conformance.asking.talk import Talk, case

NOBODYS_ID = bytes(range(16))
VERSIONS = range(2, 11)


def _without_member(talk: Talk, *, version: int) -> None:
    group = talk.name(f"commit{version}")
    name, topic_id = talk.topic(f"commit{version}", 2)
    talk.ask(request(group, name, topic_id, partition(0, 5), partition(1, 0)), version)
    talk.ask(request(group, name, topic_id, partition(0, 7), partition(9, 1)), version)
    talk.ask(request(group, talk.name("commit-unknown"), NOBODYS_ID, partition(0, 5)), version)
    committed(talk, group, name)


def _as_member(talk: Talk, *, version: int) -> None:
    name, topic_id = talk.topic(f"commit-member{version}")
    (member,) = stable(talk, talk.name(f"commit-member{version}"))
    sent = partial(request, member.group, name, topic_id, partition(0, 5))
    talk.ask(sent(member=member.member_id, generation=member.generation), version)
    talk.ask(sent(member=member.member_id, generation=member.generation + 1), version)
    talk.ask(sent(member=member.member_id, generation=-1), version)
    talk.ask(sent(member=STRANGER, generation=member.generation), version)
    talk.ask(sent(member="", generation=member.generation), version)
    talk.ask(sent(), version)
    committed(talk, member.group, name)


def _static(talk: Talk, *, version: int) -> None:
    name, topic_id = talk.topic(f"commit-static{version}")
    (member,) = stable(talk, talk.name(f"commit-static{version}"), instance="instance-1")
    for member_id, instance in (
        (member.member_id, "instance-1"),
        (STRANGER, "instance-1"),
        (member.member_id, "instance-2"),
        (member.member_id, None),
    ):
        sent = request(member.group, name, topic_id, partition(0, 5), member=member_id, generation=1)
        sent.group_instance_id = instance
        talk.ask(sent, version)


for _version in VERSIONS:
    case(f"offset_commit v{_version} without a member")(partial(_without_member, version=_version))
    case(f"offset_commit v{_version} as a member")(partial(_as_member, version=_version))
for _version in range(7, 11):
    case(f"offset_commit v{_version} of a static member")(partial(_static, version=_version))


def _one(talk: Talk, *, stem: str, version: int = 9, **fields: Any) -> None:
    name, topic_id = talk.topic(f"commit-{stem}".replace(" ", "-"))
    group = talk.name(f"commit-{stem}")
    talk.ask(request(group, name, topic_id, partition(0, **fields)), version)
    committed(talk, group, name)


ODD: dict[str, dict[str, Any]] = {
    "no metadata": {"metadata": None},
    "empty metadata": {"metadata": ""},
    "metadata that is not ASCII": {"metadata": "ü"},
    "the longest metadata": {"metadata": "x" * 4_096},
    "metadata too long by one": {"metadata": "x" * 4_097},
    "metadata too long by its bytes": {"metadata": "ü" * 2_049},
    "offset -1": {"offset": -1},
    "offset -2": {"offset": -2},
    "the largest offset": {"offset": 2**63 - 1},
    "leader epoch 0": {"epoch": 0},
    "leader epoch 7": {"epoch": 7},
    "leader epoch -2": {"epoch": -2},
}
for _label, _fields in ODD.items():
    case(f"offset_commit with {_label}")(partial(_one, stem=_label, **_fields))


@case("offset_commit to an empty group id")
def _(talk: Talk) -> None:
    name, topic_id = talk.topic("commit-no-group")
    for version in (2, 9, 10):
        talk.ask(request("", name, topic_id, partition(0, 5)), version)
        talk.ask(request("", name, topic_id, partition(0, 5), member=STRANGER, generation=1), version)
    committed(talk, "", name)
    talk.ask(DeleteGroupsRequest([""]), 2)


@case("offset_commit to groups that nobody made")
def _(talk: Talk) -> None:
    name, topic_id = talk.topic("commit-strange-group")
    for version in (2, 8, 9, 10):
        group = talk.name(f"commit-nobodys{version}")
        for generation, member in ((1, STRANGER), (0, ""), (-1, STRANGER), (-2, "")):
            sent = request(group, name, topic_id, partition(0, 5), member=member, generation=generation)
            talk.ask(sent, version)
        committed(talk, group, name)


@case("offset_commit of nothing")
def _(talk: Talk) -> None:
    name, topic_id = talk.topic("commit-nothing")
    group = talk.name("commit-nothing")
    for version in (2, 9, 10):
        talk.ask(OffsetCommitRequest(group), version)
        talk.ask(OffsetCommitRequest(group, topics=[OffsetCommitRequestTopic(name, topic_id)]), version)
    committed(talk, group, name)


@case("offset_commit names topics and partitions twice")
def _(talk: Talk) -> None:
    name, topic_id = talk.topic("commit-twice", 2)
    for version in (2, 9, 10):
        group = talk.name(f"commit-twice{version}")
        twice = request(group, name, topic_id, partition(0, 1), partition(0, 2))
        talk.ask(twice, version)
        committed(talk, group, name)
        twice.topics.append(OffsetCommitRequestTopic(name, topic_id, [partition(0, 3), partition(1, 4)]))
        talk.ask(twice, version)
        committed(talk, group, name)


@case("offset_commit to topics that cannot be")
def _(talk: Talk) -> None:
    for name in ("", "bad name", "x" * 250, "."):
        talk.ask(request(talk.name("commit-bad"), name, NOBODYS_ID, partition(0, 5)), 9)
    talk.ask(request(talk.name("commit-bad"), "", bytes(16), partition(0, 5)), 10)


@case("offset_commit to partitions that are not there")
def _(talk: Talk) -> None:
    name, topic_id = talk.topic("commit-partitions")
    for version in (2, 9, 10):
        sent = request(talk.name("commit-parts"), name, topic_id, *(partition(i, 5) for i in (-1, 0, 1, 99)))
        talk.ask(sent, version)


@case("offset_commit to the topic of offsets itself")
def _(talk: Talk) -> None:
    talk.ask(request(talk.name("commit-internal"), "__consumer_offsets", NOBODYS_ID, partition(0, 5)), 9)


@case("offset_commit of some good and some bad topics")
def _(talk: Talk) -> None:
    name, topic_id = talk.topic("commit-mixed")
    group = talk.name("commit-mixed")
    for version in (9, 10):
        sent = request(group, name, topic_id, partition(0, 5), partition(3, 5))
        sent.topics.append(OffsetCommitRequestTopic("no-such-topic", NOBODYS_ID, [partition(0, 1)]))
        talk.ask(sent, version)
    committed(talk, group, name)


@case("offset_commit of a thousand partitions")
def _(talk: Talk) -> None:
    name, topic_id = talk.topic("commit-thousand", 50)
    sent = request(talk.name("commit-thousand"), name, topic_id, *(partition(i, i) for i in range(50)))
    sent.topics *= 20
    talk.ask(sent, 2, lambda answer: len(answer.topics))
    committed(talk, talk.name("commit-thousand"), name)


@case("offset_commit with a retention of its own")
def _(talk: Talk) -> None:
    name, topic_id = talk.topic("commit-retention")
    for version in (2, 3, 4):
        for retention in (-1, 0, 3_600_000, -2):
            sent = request(talk.name("commit-retention"), name, topic_id, partition(0, 5))
            sent.retention_time_ms = retention
            talk.ask(sent, version)
    committed(talk, talk.name("commit-retention"), name)


@case("offset_commit in every state of a group")
def _(talk: Talk) -> None:
    name, topic_id = talk.topic("commit-states")
    member = Member(talk, talk.name("commit-states"))
    member.send_join()
    member.joined()
    sent = partial(request, member.group, name, topic_id, partition(0, 5))
    talk.ask(sent(member=member.member_id, generation=-1), 9)
    talk.ask(sent(member=member.member_id, generation=0), 9)
    member.join(silently=True)
    talk.ask(sent(member=member.member_id, generation=member.generation), 9)
    member.sync({member.member_id: b"x"})
    talk.ask(sent(member=member.member_id, generation=member.generation), 9)
    second = Member(talk, member.group, "B")
    second.send_join()
    second.joined()
    second.send_join()
    member.wait_for_rebalance()
    talk.ask(sent(member=member.member_id, generation=member.generation), 9)
    talk.ask(sent(member=second.member_id, generation=member.generation), 9)
    talk.ask(sent(), 9)
    member.join()
    second.joined()
    second.leave()
    member.leave()
    talk.ask(sent(member=member.member_id, generation=member.generation), 9)
    talk.ask(sent(), 9)


@case("offset_commit to a group of another protocol type")
def _(talk: Talk) -> None:
    name, topic_id = talk.topic("commit-connect")
    (member,) = stable(talk, talk.name("commit-connect"), kind="connect")
    sent = partial(request, member.group, name, topic_id, partition(0, 5))
    talk.ask(sent(member=member.member_id, generation=member.generation), 9)
    talk.ask(sent(), 9)


@case("offset_commit to a topic that is made again")
def _(talk: Talk) -> None:
    name, topic_id = talk.topic("commit-again")
    group = talk.name("commit-again")
    talk.ask(request(group, name, topic_id, partition(0, 5)), 9)
    talk.delete_topic(name)
    talk.ask(request(group, name, topic_id, partition(0, 5)), 9)
    talk.ask(request(group, name, topic_id, partition(0, 5)), 10)
    wait_until_forgotten(talk, group, name)
    _, second_id = talk.topic("commit-again")
    committed(talk, group, name)
    talk.ask(request(group, name, topic_id, partition(0, 6)), 10)
    talk.ask(request(group, name, second_id, partition(0, 7)), 10)
    committed(talk, group, name)
