"""LeaveGroup: one member, several at once, and static members by their instance id."""

from __future__ import annotations

from functools import partial

from odradek.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from tests.conformance.asking.members import STRANGER, Member, stable, synced, together
from tests.conformance.asking.talk import Talk, case


def _versions(talk: Talk, *, version: int) -> None:
    first, second = stable(talk, talk.name(f"leave{version}"), "AB")
    for member_id in (second.member_id, second.member_id, STRANGER, ""):
        request = LeaveGroupRequest(first.group, member_id, [MemberIdentity(member_id, None, "done")])
        talk.ask(request, version)
    first.wait_for_rebalance()
    first.join()
    talk.ask(LeaveGroupRequest(first.group, first.member_id, [MemberIdentity(first.member_id)]), version)
    talk.ask(LeaveGroupRequest(first.group, first.member_id, [MemberIdentity(first.member_id)]), version)
    talk.ask(LeaveGroupRequest("", first.member_id, [MemberIdentity(first.member_id)]), version)
    talk.ask(LeaveGroupRequest("no-such-group", STRANGER, [MemberIdentity(STRANGER)]), version)


for _version in range(6):
    case(f"leave_group v{_version}")(partial(_versions, version=_version))


def _leave(talk: Talk, group: str, *members: tuple[str, str | None], version: int = 5) -> None:
    talk.ask(LeaveGroupRequest(group, members=[MemberIdentity(*member) for member in members]), version)


def _static(talk: Talk, *, version: int) -> None:
    group = talk.name(f"leave-static{version}")
    first = Member(talk, group, "A", instance="instance-1")
    second = Member(talk, group, "B", instance="instance-2")
    first.join(silently=True)
    together(second, first, silently=True)
    synced(first, second, silently=True)
    _leave(talk, group, ("", "instance-9"), version=version)
    _leave(talk, group, (STRANGER, "instance-2"), version=version)
    _leave(talk, group, (first.member_id, "instance-2"), version=version)
    _leave(talk, group, ("", "instance-2"), ("", "instance-2"), version=version)
    first.wait_for_rebalance()
    _leave(talk, group, (first.member_id, "instance-1"), version=version)
    second.heartbeat()


for _version in (3, 4, 5):
    case(f"leave_group v{_version} of static members")(partial(_static, version=_version))


@case("leave_group of several at once, some unknown")
def _(talk: Talk) -> None:
    members = stable(talk, talk.name("leave-several"), "ABC")
    _leave(
        talk,
        members[0].group,
        (members[0].member_id, None),
        (STRANGER, None),
        (members[2].member_id, None),
        (members[2].member_id, None),
        ("", None),
    )
    members[1].wait_for_rebalance()
    members[1].join()


@case("leave_group of nobody")
def _(talk: Talk) -> None:
    (member,) = stable(talk, talk.name("leave-nobody"))
    _leave(talk, member.group)
    _leave(talk, "no-such-group")
    member.heartbeat()


@case("leave_group of everybody at once")
def _(talk: Talk) -> None:
    members = stable(talk, talk.name("leave-all"), "AB")
    _leave(talk, members[0].group, *((member.member_id, None) for member in members))
    members[0].heartbeat()


@case("leave_group by a member that has an id only")
def _(talk: Talk) -> None:
    member = Member(talk, talk.name("leave-pending"))
    member.send_join()
    member.joined()
    member.leave()
    member.leave()
    member.send_join()
    member.joined()


@case("leave_group of a static member by id alone")
def _(talk: Talk) -> None:
    (member,) = stable(talk, talk.name("leave-static-id"), instance="instance-1")
    _leave(talk, member.group, (member.member_id, None))
    member.heartbeat()


@case("leave_group with an instance that a dynamic member never had")
def _(talk: Talk) -> None:
    (member,) = stable(talk, talk.name("leave-dynamic"))
    _leave(talk, member.group, (member.member_id, "instance-1"))
    _leave(talk, member.group, (member.member_id, ""))
    member.heartbeat()


@case("leave_group lets a waiting rebalance end")
def _(talk: Talk) -> None:
    first, second = stable(talk, talk.name("leave-rebalance"), "AB")
    leader, follower = (first, second) if first.leads else (second, first)
    leader.send_join()
    follower.wait_for_rebalance()
    follower.leave()
    leader.joined()


@case("leave_group of the leader whose shares are awaited")
def _(talk: Talk) -> None:
    first, second = stable(talk, talk.name("leave-awaited"), "AB")
    together(first, second, silently=True)
    leader, follower = (first, second) if first.leads else (second, first)
    follower.line.send(follower.sync_request(), 5)
    leader.leave()
    follower.line.answer()
    follower.join()


@case("leave_group with reasons")
def _(talk: Talk) -> None:
    members = stable(talk, talk.name("leave-reasons"), "ABC")
    for member, reason in zip(members, ("", "x" * 1_000, "ü"), strict=True):
        identity = MemberIdentity(member.member_id, None, reason)
        talk.ask(LeaveGroupRequest(member.group, members=[identity]), 5)
