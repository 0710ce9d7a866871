"""DeleteGroups: empty groups are deleted together with their offsets."""

from __future__ import annotations

from functools import partial

from odradek.wire.messages.delete_groups import DeleteGroupsRequest
from odradek.wire.messages.describe_groups import DescribeGroupsRequest
from tests.conformance.asking.members import Member, stable
from tests.conformance.asking.offsets import commit, committed
from tests.conformance.asking.talk import Talk, case
from tests.conformance.asking.transactions import in_state


def _delete(talk: Talk, *groups: str, version: int = 2) -> None:
    talk.ask(DeleteGroupsRequest(list(groups)), version)


def _versions(talk: Talk, *, version: int) -> None:
    name, _ = talk.topic(f"del{version}")
    (member,) = stable(talk, talk.name(f"del{version}"))
    commit(talk, talk.name(f"del-offsets{version}"), name, 5)
    groups = (member.group, talk.name(f"del-offsets{version}"), "no-such-group", "")
    _delete(talk, *groups, version=version)
    member.leave()
    _delete(talk, *groups, version=version)
    _delete(talk, *groups, version=version)
    committed(talk, groups[1], name)
    talk.ask(DescribeGroupsRequest(list(groups)), 6)


for _version in range(3):
    case(f"delete_groups v{_version}")(partial(_versions, version=_version))


@case("delete_groups of none")
def _(talk: Talk) -> None:
    for version in (0, 2):
        _delete(talk, version=version)


@case("delete_groups names one twice")
def _(talk: Talk) -> None:
    name, _ = talk.topic("del-twice")
    group = talk.name("del-twice")
    commit(talk, group, name, 5)
    _delete(talk, group, group, "no-such-group", "no-such-group")
    _delete(talk, group)


@case("delete_groups of unusual names")
def _(talk: Talk) -> None:
    _delete(talk, " ", "ü", "x" * 1_000, ".")


@case("delete_groups in every state")
def _(talk: Talk) -> None:
    member = Member(talk, talk.name("del-states"))
    member.join(silently=True)
    _delete(talk, member.group)
    member.sync({member.member_id: b"x"})
    _delete(talk, member.group)
    member.send_join()
    member.joined()
    _delete(talk, member.group)
    member.leave()
    _delete(talk, member.group)
    member.heartbeat()


@case("delete_groups begins generations anew")
def _(talk: Talk) -> None:
    (member,) = stable(talk, talk.name("del-anew"))
    member.leave()
    _delete(talk, member.group)
    second = Member(talk, member.group, "B")
    second.join()


@case("delete_groups of many")
def _(talk: Talk) -> None:
    name, _ = talk.topic("del-many")
    groups = [talk.name(f"del-many{number}") for number in range(40)]
    for group in groups[::2]:
        commit(talk, group, name, 1)
    _delete(talk, *groups)


@case("delete_groups with pending offsets")
def _(talk: Talk) -> None:
    """Delete a group that has pending offsets, before and after the transaction's commit or abort."""
    for is_commit in (True, False):
        for committed_before in (True, False):
            stem = f"del-pending-{is_commit}-{committed_before}".lower()
            producer = in_state(talk, stem, "empty")
            group = talk.name(stem)
            if committed_before:
                commit(talk, group, producer.topic, 3)
            producer.ask(producer.commit_request(group, 7), 5)
            talk.ask(DescribeGroupsRequest([group]), 6)
            _delete(talk, group)
            committed(talk, group, producer.topic)
            producer.ask(producer.end_request(is_commit), 5)
            committed(talk, group, producer.topic)
            _delete(talk, group)
            committed(talk, group, producer.topic)
