"""A client with a very long name joins a group. The member id made from the name is longer than any string may be."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from odradek.security.acls.rules import ResourceType
from odradek.wire.errors import ErrorCode
from odradek.wire.messages.delete_groups import DeleteGroupsRequest
from odradek.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from odradek.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from odradek.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from tests.attacks.coordinators import GROUP, allowed, answered, at_coordinator
from tests.attacks.outcome import Outcome
from tests.attacks.place import Place
from tests.attacks.raw import Conn

WHO = "client"
LONG = tuple((size, version, None) for size in (32_731, 32_760, 32_767) for version in (3, 4))
"""Name sizes in bytes, and versions of JoinGroup. Such a name fits a request, but not with a dash and a random id after
it."""
TIMEOUT_MS = 6_000
GROUPS_IN_FULL = 20


def attack(place: Place, scale: float) -> Iterator[Outcome]:
    """Run a few groups: one member leads, one with a long name joins, and the leader hands in the assignment."""
    for number in range(max(1, round(GROUPS_IN_FULL * scale))):
        group = f"composed-{number}"
        with allowed(place, [(ResourceType.GROUP, group)]):
            yield from _one_group(place, group)
            place.check_alive()
            with place.admin() as admin:
                admin.call(DeleteGroupsRequest([group]), 2)


def _one_group(place: Place, group: str) -> Iterator[Outcome]:
    codes: list[Any] = []
    leader = at_coordinator(place, GROUP, group)
    joined = answered(lambda: _join(leader, group, ""), lambda answer: int(answer.error_code))
    member_id, generation = joined.member_id, _join(leader, group, joined.member_id).generation_id
    for size, version, instance_id in (*LONG, (10, 5, "i" * 32_760)):
        with at_coordinator(place, GROUP, group) as long:
            long.client_id = "a" * size
            long.send(_joining(group, "", instance_id), version)
            try:
                # If the node accepts the new member, its answer waits until the leader has joined again.
                generation = _join(leader, group, member_id).generation_id
            except ConnectionError:
                # The leader's answer lists all member ids, and the one made from the long name fits into no answer.
                leader, generation = at_coordinator(place, GROUP, group), generation + 1
            codes.append(_code(long, version))
            if codes[-1] != ErrorCode.UNKNOWN_SERVER_ERROR:
                break
    synced = _sync(leader, group, generation, member_id)
    leader.close()
    yield Outcome(
        "a member's id that fits no string is refused with an answer",
        all(each == ErrorCode.UNKNOWN_SERVER_ERROR for each in codes),
        f"codes {codes}",
    )
    yield Outcome("the leader of the group hands in its assignment", synced == "NONE", synced)


def _sync(leader: Conn, group: str, generation: int, member_id: str) -> str:
    assignment = SyncGroupRequestAssignment(member_id, b"a")
    request = SyncGroupRequest(group, generation, member_id, None, "consumer", "range", [assignment])
    try:
        code = leader.call(request, 5).error_code
        leader.call(LeaveGroupRequest(group, members=[MemberIdentity(member_id)]), 5)
    except ConnectionError as error:
        return str(error)
    return ErrorCode(code).name


def _joining(group: str, member_id: str, instance_id: str | None = None) -> JoinGroupRequest:
    protocols = [JoinGroupRequestProtocol("range", b"m")]
    return JoinGroupRequest(group, TIMEOUT_MS, TIMEOUT_MS, member_id, instance_id, "consumer", protocols)


def _join(conn: Conn, group: str, member_id: str) -> Any:
    return conn.call(_joining(group, member_id), 5)


def _code(conn: Conn, version: int) -> Any:
    """Return the error code that the member with the long name gets, or the text of the error if its connection is
    closed."""
    try:
        return conn.receive(JoinGroupRequest.API_KEY, version).error_code
    except ConnectionError as error:
        return str(error)
