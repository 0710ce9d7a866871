"""Heartbeat: says whether a member still belongs to the group, and whether it must join again."""

from __future__ import annotations

from functools import partial
from typing import Any

from odradek.wire.messages.heartbeat import HeartbeatRequest
from tests.conformance.asking.members import STRANGER, Member, stable
from tests.conformance.asking.talk import Talk, case


def _versions(talk: Talk, *, version: int) -> None:
    """Send heartbeats in each state of the group: waiting for assignments, stable, rebalancing, empty."""
    member = Member(talk, talk.name(f"heartbeat{version}"))
    member.join(silently=True)
    member.heartbeat(version)
    member.sync({member.member_id: b"x"})
    member.heartbeat(version)
    member.heartbeat(version, generation_id=member.generation - 1)
    second = Member(talk, member.group, "B")
    second.send_join()
    second.joined()
    second.send_join()
    member.wait_for_rebalance()
    member.heartbeat(version)
    second.line.send(second.heartbeat_request(), version)
    member.join()
    second.joined()
    second.line.answer()
    for left in (member, second):
        left.leave()
    member.heartbeat(version)


def _static(talk: Talk, *, version: int) -> None:
    (member,) = stable(talk, talk.name(f"heartbeat-static{version}"), instance="instance-1")
    member.heartbeat(version)
    member.heartbeat(version, group_instance_id="instance-2")
    member.heartbeat(version, group_instance_id=None)
    member.heartbeat(version, member_id=STRANGER)
    member.heartbeat(version, member_id="")


for _version in range(5):
    case(f"heartbeat v{_version}")(partial(_versions, version=_version))
for _version in (3, 4):
    case(f"heartbeat v{_version} of a static member")(partial(_static, version=_version))


def _odd(talk: Talk, *, stem: str, version: int, changes: dict[str, Any]) -> None:
    (member,) = stable(talk, talk.name(f"heartbeat-{stem}{version}".replace(" ", "-")))
    member.heartbeat(version, **changes)
    member.heartbeat(version)


BAD: dict[str, dict[str, Any]] = {
    "an empty group id": {"group_id": ""},
    "an unknown group": {"group_id": "no-such-group"},
    "an unknown member": {"member_id": STRANGER},
    "an empty member id": {"member_id": ""},
    "an old generation": {"generation_id": 0},
    "a generation to come": {"generation_id": 2},
    "a negative generation": {"generation_id": -1},
    "the largest generation": {"generation_id": 2**31 - 1},
    "an instance that is none": {"group_instance_id": "instance-9"},
    "an empty instance id": {"group_instance_id": ""},
    "a wrong generation and an unknown member": {"generation_id": 7, "member_id": STRANGER},
}
for _label, _changes in BAD.items():
    case(f"heartbeat with {_label}")(partial(_odd, stem=_label, version=4, changes=_changes))
for _label in ("an empty group id", "an unknown group", "an unknown member", "an old generation"):
    case(f"heartbeat v0 with {_label}")(partial(_odd, stem=_label, version=0, changes=BAD[_label]))


@case("heartbeat by a member that has an id only")
def _(talk: Talk) -> None:
    member = Member(talk, talk.name("heartbeat-pending"))
    member.send_join()
    member.joined()
    member.heartbeat(generation_id=0)
    member.heartbeat(generation_id=-1)


@case("heartbeat keeps a member that has a short session")
def _(talk: Talk) -> None:
    (member,) = stable(talk, talk.name("heartbeat-keeps"), session=2_000)
    for _ in range(3):
        member.heartbeat()
    member.wait_until_forgotten()
    member.heartbeat()


@case("heartbeat to a group that only has offsets")
def _(talk: Talk) -> None:
    group = talk.name("heartbeat-never")
    talk.ask(HeartbeatRequest(group, 0, STRANGER), 4)
    talk.ask(HeartbeatRequest(group, -1, ""), 4)
