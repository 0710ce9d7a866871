"""Responses to the requests of classic members: JoinGroup and SyncGroup, answered or refused. PURE."""

from __future__ import annotations

from odradek.data_plane.groups.classic_group import ClassicGroup, Member
from odradek.wire.errors import ErrorCode
from odradek.wire.messages.join_group import JoinGroupResponse
from odradek.wire.messages.sync_group import SyncGroupResponse
from odradek.wire.schema.versions import JOIN_GROUP_NULL_PROTOCOL, JOIN_GROUP_SKIP_ASSIGNMENT

__all__ = ["UNKNOWN_MEMBER", "assigned", "join_refused", "joined", "joined_again", "sync_refused"]

UNKNOWN_MEMBER = ""


def join_refused(member_id: str, code: ErrorCode, version: int) -> JoinGroupResponse:
    """Build the response to a refused JoinGroup.

    Before version 7 the name of the protocol must not be null, so the response has an empty name.
    """
    return JoinGroupResponse(
        error_code=code,
        member_id=member_id,
        protocol_name=None if version >= JOIN_GROUP_NULL_PROTOCOL else "",
    )


def joined(group: ClassicGroup, member: Member) -> JoinGroupResponse:
    """Build the response to a JoinGroup after the join phase. The leader also gets the metadata of all members."""
    return JoinGroupResponse(
        0,
        ErrorCode.NONE,
        group.generation,
        group.protocol_type,
        group.protocol,
        group.leader or "",
        False,
        member.member_id,
        group.described_members() if group.leader == member.member_id else [],
    )


def joined_again(group: ClassicGroup, member: Member, leader_before: str, version: int) -> JoinGroupResponse:
    """Build the response for a static member that returns under a new id, and stays in the generation.

    From version 9 on (KIP-814), a returning leader gets the list of all members, and a flag that forbids a new
    assignment. In earlier versions the response names `leader_before`, the leader from before the return. So even
    a returning leader computes no assignment.
    """
    skip = version >= JOIN_GROUP_SKIP_ASSIGNMENT
    leads = skip and group.leader == member.member_id
    return JoinGroupResponse(
        0,
        ErrorCode.NONE,
        group.generation,
        group.protocol_type,
        group.protocol,
        (group.leader or "") if skip else leader_before,
        leads,
        member.member_id,
        group.described_members() if leads else [],
    )


def sync_refused(code: ErrorCode) -> SyncGroupResponse:
    """Build the response to a refused SyncGroup."""
    return SyncGroupResponse(error_code=code)


def assigned(group: ClassicGroup, member: Member) -> SyncGroupResponse:
    """Build the response to a SyncGroup, with the member's assignment."""
    return SyncGroupResponse(0, ErrorCode.NONE, group.protocol_type, group.protocol, member.assignment)
