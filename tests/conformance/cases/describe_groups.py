"""DescribeGroups: states, protocols, members and their assignments."""

from __future__ import annotations

from functools import partial

from odradek.wire.messages.describe_groups import DescribeGroupsRequest
from tests.conformance.asking.members import Member, stable, together
from tests.conformance.asking.offsets import commit
from tests.conformance.asking.talk import Talk, case


def _describe(talk: Talk, version: int, *groups: str, operations: bool = False) -> None:
    talk.ask(DescribeGroupsRequest(list(groups), operations), version)


def _versions(talk: Talk, *, version: int) -> None:
    """Describe a group in each state: unknown, waiting for assignments, stable, rebalancing, empty."""
    member = Member(talk, talk.name(f"dg{version}"), "A")
    _describe(talk, version, member.group)
    member.join(silently=True)
    _describe(talk, version, member.group)
    member.sync({member.member_id: b"a share"})
    _describe(talk, version, member.group)
    second = Member(talk, member.group, "B")
    second.send_join()
    second.joined(silently=True)
    second.send_join()
    member.wait_for_rebalance()
    _describe(talk, version, member.group)
    member.join()
    second.joined()
    _describe(talk, version, member.group)
    second.leave()
    member.leave()
    _describe(talk, version, member.group)


for _version in range(7):
    case(f"describe_groups v{_version}")(partial(_versions, version=_version))


def _operations(talk: Talk, *, version: int) -> None:
    (member,) = stable(talk, talk.name(f"dg-operations{version}"))
    _describe(talk, version, member.group, "no-such-group", "", operations=True)


for _version in range(3, 7):
    case(f"describe_groups v{_version} with operations")(partial(_operations, version=_version))


@case("describe_groups of none, of one twice, of unusual names")
def _(talk: Talk) -> None:
    (member,) = stable(talk, talk.name("dg-several"))
    for version in (0, 5, 6):
        _describe(talk, version)
        _describe(talk, version, member.group, member.group)
        _describe(talk, version, "", " ", "ü", "x" * 1_000, member.group)


@case("describe_groups of static members")
def _(talk: Talk) -> None:
    first = Member(talk, talk.name("dg-static"), "A", instance="instance-1")
    other = Member(talk, first.group, "B", instance="instance-2")
    first.join(silently=True)
    together(other, first, silently=True)
    for version in (3, 4, 6):
        _describe(talk, version, first.group)


@case("describe_groups of another protocol type, and of offsets alone")
def _(talk: Talk) -> None:
    name, _ = talk.topic("dg-kinds")
    commit(talk, talk.name("dg-offsets"), name, 5)
    (member,) = stable(talk, talk.name("dg-connect"), kind="connect", protocols=(("compatible", b"any"),))
    for version in (0, 6):
        _describe(talk, version, member.group, talk.name("dg-offsets"))


@case("describe_groups of many")
def _(talk: Talk) -> None:
    _describe(talk, 6, *(talk.name(f"dg-many{number}") for number in range(100)))
