"""JoinGroup: the members, the leader, and every member's answer."""

from __future__ import annotations

from functools import partial
from typing import Any

from odradek.wire.messages.join_group import JoinGroupRequestProtocol
from tests.conformance.asking.members import STRANGER, Member, stable, subscription, synced, together
from tests.conformance.asking.talk import Talk, case

VERSIONS = range(10)
MIB = 1 << 20


def _alone(talk: Talk, *, version: int) -> None:
    member = Member(talk, talk.name(f"join-alone{version}"), version=version)
    member.join()
    member.sync({member.member_id: b"everything"})
    member.join()


@case("join_group of a protocol type of its own, with any metadata")
def _(talk: Talk) -> None:
    for stem, data in (("empty", b""), ("text", b"text"), ("zeros", bytes(100))):
        member = Member(
            talk, talk.name(f"join-own-{stem}"), kind="connect", protocols=(("compatible", data),)
        )
        member.join()


def _two(talk: Talk, *, version: int) -> None:
    group = talk.name(f"join-two{version}")
    first, second = Member(talk, group, "A", version=version), Member(talk, group, "B", version=version)
    first.join()
    together(second, first)
    synced(first, second)
    together(first, second)


def _static(talk: Talk, *, version: int) -> None:
    member = Member(talk, talk.name(f"join-static{version}"), version=version, instance="instance-1")
    member.join()
    member.sync({member.member_id: b"everything"})
    back = Member(talk, member.group, "B", version=version, instance="instance-1")
    back.join()
    member.heartbeat()
    member.join()
    back.heartbeat()


for _version in VERSIONS:
    case(f"join_group v{_version} alone")(partial(_alone, version=_version))
    case(f"join_group v{_version} of two members")(partial(_two, version=_version))
for _version in range(5, 10):
    case(f"join_group v{_version} of a static member that returns")(partial(_static, version=_version))


def _once(talk: Talk, *, stem: str, version: int = 9, **changes: Any) -> None:
    """Send one request, then a good one whose answer shows the effects of the first."""
    member = Member(talk, talk.name("join-" + stem.replace(" ", "-")), version=version)
    member.send_join(**changes)
    member.joined()
    member.send_join(member_id=member.member_id)
    member.joined()


def _protocols(*names: str) -> list[JoinGroupRequestProtocol]:
    return [JoinGroupRequestProtocol(name, subscription(name)) for name in names]


ODD: dict[str, dict[str, Any]] = {
    "an empty group id": {"group_id": ""},
    "no protocols": {"protocols": []},
    "an empty protocol type": {"protocol_type": ""},
    "a protocol type of its own": {"protocol_type": "connect"},
    "an empty protocol name": {"protocols": _protocols("")},
    "a protocol twice": {"protocols": _protocols("range", "range")},
    "twenty protocols": {"protocols": _protocols(*(f"p{number}" for number in range(20)))},
    "a subscription to nothing": {"protocols": [JoinGroupRequestProtocol("range", subscription())]},
    "metadata of 512 KiB": {
        "protocols": [JoinGroupRequestProtocol("range", subscription(user_data=b"x" * (MIB // 2)))]
    },
    "a session timeout of 0": {"session_timeout_ms": 0},
    "a negative session timeout": {"session_timeout_ms": -1},
    "a session timeout just too short": {"session_timeout_ms": 499},
    "a session timeout just long enough": {"session_timeout_ms": 500},
    "the longest session timeout": {"session_timeout_ms": 1_800_000},
    "a session timeout just too long": {"session_timeout_ms": 1_800_001},
    "a rebalance timeout of 0": {"rebalance_timeout_ms": 0},
    "a negative rebalance timeout": {"rebalance_timeout_ms": -1},
    "an unknown member id": {"member_id": STRANGER},
    "an unknown member id and an instance": {"member_id": STRANGER, "group_instance_id": "instance-1"},
    "an empty instance id": {"group_instance_id": ""},
    "a dot as instance id": {"group_instance_id": "."},
    "an instance id of 250 characters": {"group_instance_id": "x" * 250},
    "an instance id with a blank": {"group_instance_id": "a b"},
    "a reason": {"reason": "because"},
    "an empty reason": {"reason": ""},
    "a reason of 1,000 characters": {"reason": "x" * 1_000},
}
for _label, _changes in ODD.items():
    case(f"join_group with {_label}")(partial(_once, stem=_label.replace(",", ""), **_changes))
for _version in (0, 3, 4):
    for _label in ("an empty group id", "no protocols", "a negative session timeout", "an unknown member id"):
        case(f"join_group v{_version} with {_label}")(
            partial(_once, stem=f"{_label}{_version}", version=_version, **ODD[_label])
        )


@case("join_group of a group named by unusual characters")
def _(talk: Talk) -> None:
    for name in ("a/b", "ü", " ", "x" * 300, "line\nfeed"):
        member = Member(talk, talk.name(name))
        member.join()


@case("join_group where no protocol is common")
def _(talk: Talk) -> None:
    (first,) = stable(talk, talk.name("join-uncommon"))
    other = Member(talk, first.group, "B", protocols=(("roundrobin", subscription()),))
    other.join()
    first.heartbeat()
    kind = Member(talk, first.group, "C", kind="connect")
    kind.join()
    first.heartbeat()
    static = Member(
        talk, first.group, "D", instance="instance-1", protocols=(("roundrobin", subscription()),)
    )
    static.join()


@case("join_group elects the protocol that most members prefer")
def _(talk: Talk) -> None:
    group = talk.name("join-vote")
    orders = (("p", "q", "r"), ("r", "q", "p"), ("q", "r"))
    members = [
        Member(talk, group, label, protocols=tuple((name, subscription(name)) for name in order))
        for label, order in zip("ABC", orders, strict=True)
    ]
    members[0].join()
    together(members[1], members[0])
    together(members[2], *members[:2])


@case("join_group of a follower that changes nothing")
def _(talk: Talk) -> None:
    first, second = stable(talk, talk.name("join-follower"), "AB")
    follower, leader = (second, first) if first.leads else (first, second)
    follower.join()
    leader.heartbeat()
    follower.protocols = (("range", subscription("another")),)
    follower.send_join()
    leader.wait_for_rebalance()
    leader.join()
    follower.joined()


@case("join_group of a leader begins a generation")
def _(talk: Talk) -> None:
    first, second = stable(talk, talk.name("join-leader"), "AB")
    follower, leader = (second, first) if first.leads else (first, second)
    leader.send_join()
    follower.wait_for_rebalance()
    follower.heartbeat()
    follower.sync()
    follower.join()
    leader.joined()
    synced(leader, follower)


@case("join_group while the shares are awaited")
def _(talk: Talk) -> None:
    first = Member(talk, talk.name("join-awaited"), "A")
    first.join()
    first.join()
    second = Member(talk, first.group, "B")
    second.send_join()
    second.joined()
    second.send_join()
    first.wait_for_rebalance()
    first.sync({first.member_id: b"late"})
    first.join()
    second.joined()
    synced(first, second)


@case("join_group with an id that was given and not used")
def _(talk: Talk) -> None:
    pending = Member(talk, talk.name("join-pending"), "A")
    pending.send_join()
    pending.joined()
    pending.heartbeat()
    pending.sync()
    pending.send_join(group_instance_id="instance-1")
    pending.joined()
    pending.send_join()
    pending.joined()


@case("join_group waits for a member that only has an id")
def _(talk: Talk) -> None:
    (first,) = stable(talk, talk.name("join-waits"), "A")
    second, third = Member(talk, first.group, "B"), Member(talk, first.group, "C")
    second.send_join()
    second.joined()
    third.send_join()
    third.joined()
    first.heartbeat()
    second.send_join()
    first.wait_for_rebalance()
    first.send_join()
    third.send_join()
    answers = [member.joined(silently=True) for member in (first, second, third)]
    for answer in answers:
        talk.keep(answer, 9)


@case("join_group of more members than a group may have")
def _(talk: Talk) -> None:
    members = stable(talk, talk.name("join-full"), "ABCD")
    for version in (0, 3, 4, 9):
        Member(talk, members[0].group, "E", version=version).join()
    Member(talk, members[0].group, "E", instance="instance-1").join()
    members[0].heartbeat()
    members[3].leave()


@case("join_group with ids for more members than a group may have")
def _(talk: Talk) -> None:
    group = talk.name("join-full-pending")
    members = [Member(talk, group, label) for label in "ABCDE"]
    for member in members:
        member.send_join()
        member.joined()


@case("join_group throws out who does not join again in time")
def _(talk: Talk) -> None:
    group = talk.name("join-late")
    first = Member(talk, group, "A", rebalance=200)
    first.join()
    second = Member(talk, group, "B", rebalance=200)
    second.send_join()
    second.joined()
    second.send_join()
    second.joined()
    first.heartbeat()
    first.join(member_id=first.member_id)


@case("join_group throws out whose session ends")
def _(talk: Talk) -> None:
    group = talk.name("join-expired")
    first = Member(talk, group, "A", session=500)
    first.join()
    first.sync({first.member_id: b"everything"})
    first.wait_until_forgotten()
    first.heartbeat()
    first.sync()
    first.join(member_id=first.member_id)
    second = Member(talk, group, "B")
    second.join()


@case("join_group of a static member that another one replaces")
def _(talk: Talk) -> None:
    group = talk.name("join-replaced")
    first = Member(talk, group, "A", instance="instance-1")
    other = Member(talk, group, "B", instance="instance-2")
    first.join()
    together(other, first)
    synced(first, other)
    back = Member(talk, group, "C", instance="instance-2")
    back.join()
    other.heartbeat()
    other.sync()
    other.join()
    back.sync()
    first.heartbeat()


@case("join_group of a static leader that returns")
def _(talk: Talk) -> None:
    group = talk.name("join-static-leader")
    first = Member(talk, group, "A", instance="instance-1")
    other = Member(talk, group, "B", instance="instance-2")
    first.join()
    together(other, first)
    synced(first, other)
    back = Member(talk, group, "C", instance="instance-1")
    back.join()
    back.sync()
    other.heartbeat()


@case("join_group of a static member that returns with another subscription")
def _(talk: Talk) -> None:
    group = talk.name("join-static-changed")
    first = Member(talk, group, "A", instance="instance-1")
    first.join()
    first.sync({first.member_id: b"everything"})
    back = Member(talk, group, "B", instance="instance-1", protocols=(("range", subscription("another")),))
    back.join()
    again = Member(
        talk, group, "C", instance="instance-1", protocols=(("roundrobin", subscription("another")),)
    )
    again.join()


@case("join_group of a static member that returns while the shares are awaited")
def _(talk: Talk) -> None:
    group = talk.name("join-static-awaited")
    first = Member(talk, group, "A", instance="instance-1")
    first.join()
    back = Member(talk, group, "B", instance="instance-1")
    back.join()
    first.sync({first.member_id: b"mine"})
    back.sync({back.member_id: b"mine"})


@case("join_group of static members: id and instance that do not belong together")
def _(talk: Talk) -> None:
    group = talk.name("join-static-mixed")
    first = Member(talk, group, "A", instance="instance-1")
    other = Member(talk, group, "B", instance="instance-2")
    first.join()
    together(other, first)
    synced(first, other)
    other.join(member_id=first.member_id)
    other.join(member_id=STRANGER)
    other.join(group_instance_id="instance-3")
    other.join(group_instance_id=None)
    first.heartbeat(group_instance_id="instance-2")


@case("join_group of two groups with the same member id")
def _(talk: Talk) -> None:
    (first,) = stable(talk, talk.name("join-group-one"))
    other = Member(talk, talk.name("join-group-two"), "B")
    other.join(member_id=first.member_id)


@case("join_group counts generations on after all have left")
def _(talk: Talk) -> None:
    (first,) = stable(talk, talk.name("join-generations"))
    first.leave()
    second = Member(talk, first.group, "B")
    second.join()


@case("join_group of another protocol type after all have left")
def _(talk: Talk) -> None:
    (first,) = stable(talk, talk.name("join-types"))
    first.leave()
    second = Member(talk, first.group, "B", kind="connect", protocols=(("compatible", b""),))
    second.join()


@case("join_group of three members twice over")
def _(talk: Talk) -> None:
    members = stable(talk, talk.name("join-three"), "ABC")
    newcomer = Member(talk, members[0].group, "D")
    together(newcomer, *members)
    synced(newcomer, *members)
    newcomer.leave()
    members[0].wait_for_rebalance()
    together(*members)
