"""SyncGroup: how the leader's assignments reach the members."""

from __future__ import annotations

from functools import partial
from typing import Any

from odradek.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from tests.conformance.asking.members import STRANGER, Member, stable, together
from tests.conformance.asking.talk import Talk, case


def _versions(talk: Talk, *, version: int) -> None:
    first, second = stable(talk, talk.name(f"sync{version}"), "AB")
    together(first, second, silently=True)
    shares = {first.member_id: b"first", second.member_id: b"second"}
    first.line.send(first.sync_request(shares), version)
    first.line.answer()
    second.sync(version=version)
    second.sync(version=version)
    first.sync({first.member_id: b"another"}, version=version)


def _static(talk: Talk, *, version: int) -> None:
    (member,) = stable(talk, talk.name(f"sync-static{version}"), instance="instance-1")
    member.sync(version=version)
    member.sync(version=version, member_id=STRANGER)
    member.sync(version=version, group_instance_id="instance-2")
    member.sync(version=version, group_instance_id=None)


for _version in range(6):
    case(f"sync_group v{_version}")(partial(_versions, version=_version))
for _version in range(3, 6):
    case(f"sync_group v{_version} of a static member")(partial(_static, version=_version))


def _refused(talk: Talk, *, stem: str, version: int, changes: dict[str, Any]) -> None:
    """Send refused requests while the group waits for the assignments, then when it is stable."""
    member = Member(talk, talk.name(f"sync-{stem}{version}".replace(" ", "-")))
    member.join(silently=True)
    member.sync({member.member_id: b"x"}, version, **changes)
    member.sync({member.member_id: b"y"}, version)
    member.sync(version=version, **changes)


BAD: dict[str, dict[str, Any]] = {
    "an empty group id": {"group_id": ""},
    "an unknown group": {"group_id": "no-such-group"},
    "an unknown member": {"member_id": STRANGER},
    "an empty member id": {"member_id": ""},
    "an old generation": {"generation_id": 0},
    "a generation to come": {"generation_id": 2},
    "a negative generation": {"generation_id": -1},
    "another protocol type": {"protocol_type": "connect"},
    "no protocol type": {"protocol_type": None},
    "an empty protocol type": {"protocol_type": ""},
    "another protocol": {"protocol_name": "roundrobin"},
    "no protocol": {"protocol_name": None},
    "neither type nor protocol": {"protocol_type": None, "protocol_name": None},
    "an instance that is none": {"group_instance_id": "instance-9"},
}
for _label, _changes in BAD.items():
    case(f"sync_group with {_label}")(partial(_refused, stem=_label, version=5, changes=_changes))
for _label in ("an empty group id", "an unknown member", "an old generation"):
    case(f"sync_group v0 with {_label}")(partial(_refused, stem=_label, version=0, changes=BAD[_label]))


@case("sync_group without shares for anybody")
def _(talk: Talk) -> None:
    member = Member(talk, talk.name("sync-nobody"))
    member.join(silently=True)
    member.sync({})
    member.sync()


@case("sync_group with shares for strangers and twice for one")
def _(talk: Talk) -> None:
    member = Member(talk, talk.name("sync-strangers"))
    member.join(silently=True)
    shares = [
        SyncGroupRequestAssignment(STRANGER, b"a stranger's"),
        SyncGroupRequestAssignment(member.member_id, b"first"),
        SyncGroupRequestAssignment(member.member_id, b"second"),
    ]
    member.sync(assignments=shares)
    member.sync()


@case("sync_group with an empty share and with a large one")
def _(talk: Talk) -> None:
    for stem, share in (("empty", b""), ("large", b"x" * 500_000)):
        member = Member(talk, talk.name(f"sync-{stem}"))
        member.join(silently=True)
        member.sync({member.member_id: share})
        member.sync()


@case("sync_group of a follower that brings shares")
def _(talk: Talk) -> None:
    first, second = stable(talk, talk.name("sync-follower"), "AB")
    together(first, second, silently=True)
    leader, follower = (first, second) if first.leads else (second, first)
    follower.line.send(follower.sync_request({follower.member_id: b"stolen"}), 5)
    leader.sync({leader.member_id: b"mine", follower.member_id: b"yours"})
    follower.line.answer()


@case("sync_group during a rebalance")
def _(talk: Talk) -> None:
    first, second = stable(talk, talk.name("sync-rebalance"), "AB")
    leader, follower = (first, second) if first.leads else (second, first)
    leader.send_join()
    follower.wait_for_rebalance()
    follower.sync()
    follower.send_join()
    leader.joined()
    follower.joined()


@case("sync_group that waits while the group rebalances again")
def _(talk: Talk) -> None:
    first, second = stable(talk, talk.name("sync-waits"), "AB")
    together(first, second, silently=True)
    leader, follower = (first, second) if first.leads else (second, first)
    follower.line.send(follower.sync_request(), 5)
    leader.join()
    newcomer = Member(talk, leader.group, "C")
    newcomer.send_join()
    newcomer.joined()
    newcomer.send_join()
    follower.line.answer()
    leader.sync()
    follower.send_join()
    leader.join()
    follower.joined()
    newcomer.joined()


@case("sync_group of a group that nobody is in")
def _(talk: Talk) -> None:
    (member,) = stable(talk, talk.name("sync-emptied"))
    member.leave()
    member.sync()
    talk.ask(SyncGroupRequest(talk.name("sync-never"), 1, STRANGER), 5)


@case("sync_group by a member that has an id only")
def _(talk: Talk) -> None:
    member = Member(talk, talk.name("sync-pending"))
    member.send_join()
    member.joined()
    member.sync(generation_id=0)
    member.sync(generation_id=-1)
