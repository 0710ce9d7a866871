"""Handlers of JoinGroup, SyncGroup, Heartbeat, LeaveGroup (passed to the coordinator), and ListGroups,
DescribeGroups, DeleteGroups (split by group).

Members' requests are passed to the group's coordinator; administrators' requests are split by group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from odradek.data_plane.coordination.asking import Ask
from odradek.data_plane.groups.classic_responses import sync_refused
from odradek.data_plane.groups.coordinator import GroupCoordinator
from odradek.data_plane.groups.listing import DeleteGroup, DescribeGroup, ListGroups
from odradek.data_plane.groups.membership import LeaveMembers
from odradek.data_plane.handlers.desk import Desk
from odradek.serving.answer_size import TOO_LARGE, TOO_LARGE_MESSAGE, RepeatedSize
from odradek.serving.contract import Context, Result
from odradek.serving.steps import SLICE_UNITS, Answers, Steps
from odradek.wire.errors import ErrorCode
from odradek.wire.messages.delete_groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
)
from odradek.wire.messages.describe_groups import (
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from odradek.wire.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberResponse
from odradek.wire.messages.list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse
from odradek.wire.messages.sync_group import SyncGroupRequest
from odradek.wire.schema.versions import LEAVE_GROUP_MEMBERS, SYNC_GROUP_PROTOCOL

GROUP_BYTES = 20
GROUP_OPERATIONS = sum(1 << code for code in (3, 6, 8, 10, 11))
"""The operations that exist for groups, as a bit field (KIP-430): read, delete, describe, describe configs,
alter configs.
"""


D = TypeVar("D")


def as_asked(
    group_ids: Iterable[str],
    described: Mapping[str, D],
    bytes_of: Callable[[D], int],
    refused: Callable[[int, str, str], D],
) -> Steps[list[D]]:
    """Return a description for each id, in the order of the request. An id that occurs twice is described
    twice.

    When repeated descriptions exceed the limit of an answer, `refused` makes error descriptions instead. Its
    arguments are an error code, the code's text and the id.
    """
    repeated = RepeatedSize()
    results: list[D] = []
    unanswered = dict(described)
    for group_id in group_ids:
        group = described[group_id]
        if unanswered.pop(group_id, None) is None and not repeated.has_room(bytes_of(group)):
            group = refused(TOO_LARGE, TOO_LARGE_MESSAGE, group_id)
        results.append(group)
        yield 1
    return results


class MemberRequestHandler:
    """Handler of JoinGroup and Heartbeat (APIs 11, 12)."""

    def __init__(self, groups: GroupCoordinator) -> None:
        self._groups = groups

    def handle(self, context: Context, request: Any) -> Result:
        return self._groups.answer(context, request.group_id, request)


class LeaveGroupHandler:
    """Handler of LeaveGroup (API 13). From version 3 on, a request may have many members (KIP-345)."""

    def __init__(self, desk: Desk, groups: GroupCoordinator) -> None:
        self._desk = desk
        self._groups = groups

    def handle(self, context: Context, request: LeaveGroupRequest) -> Result:
        if context.api_version < LEAVE_GROUP_MEMBERS or len(request.members) <= SLICE_UNITS:
            return self._groups.answer(context, request.group_id, request)
        return self._desk.steps.begin(self._answer_many(context.api_version, request), is_long=True)

    def _answer_many(self, version: int, request: LeaveGroupRequest) -> Steps[LeaveGroupResponse]:
        # All members leave in one decision, so that they cause only one rebalance.
        asked = [(request.group_id, LeaveMembers(request.group_id, request.members))]
        ((code, codes),) = yield from self._groups.ask_all(version, asked, SLICE_UNITS)
        if code:
            return LeaveGroupResponse(0, code)
        results = []
        for each, left in zip(request.members, codes, strict=True):
            results.append(MemberResponse(each.member_id, each.group_instance_id, left))
            yield 1
        return LeaveGroupResponse(0, ErrorCode.NONE, results)


class SyncGroupHandler:
    """Handler of SyncGroup (API 14). From version 5 on, a member must name its protocol (KIP-559)."""

    def __init__(self, groups: GroupCoordinator) -> None:
        self._groups = groups

    def handle(self, context: Context, request: SyncGroupRequest) -> Result:
        if context.api_version >= SYNC_GROUP_PROTOCOL and (
            request.protocol_type is None or request.protocol_name is None
        ):
            return sync_refused(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        return self._groups.answer(context, request.group_id, request)


LISTED_PER_UNIT = 10
"""The number of groups that are compared with the filters in one unit of work. (A unit is the time to
describe one partition.)
"""


class ListGroupsHandler:
    """Handler of ListGroups (API 16): lists the groups that this broker coordinates."""

    def __init__(self, desk: Desk, groups: GroupCoordinator) -> None:
        self._desk = desk
        self._groups = groups

    def handle(self, context: Context, request: ListGroupsRequest) -> Result:
        return self._desk.steps.begin(self._answer(context.api_version, request), is_long=True)

    def _answer(self, version: int, request: ListGroupsRequest) -> Steps[ListGroupsResponse]:
        states = {state.lower() for state in request.states_filter}
        types = {kind.lower() for kind in request.types_filter}
        answers, wall_ms = Answers(), self._desk.agreed_clock.latest_ms()
        for _, shard in sorted(self._groups.shards.items()):
            shard.submit(Ask(ListGroups(), version, answers.receiver(), wall_ms))
            yield 1 if (state := shard.state) is None else 1 + len(state.metadata) + len(state.offsets)
        groups: list[ListedGroup] = []
        for answer in (yield answers):
            if isinstance(answer, ErrorCode):
                if answer is ErrorCode.NOT_COORDINATOR:
                    continue
                return ListGroupsResponse(0, answer)
            groups += (
                group
                for group in answer
                if (not states or group.group_state.lower() in states)
                and (not types or group.group_type.lower() in types)
            )
            yield len(answer) // LISTED_PER_UNIT
        return ListGroupsResponse(0, ErrorCode.NONE, groups)


class DescribeGroupsHandler:
    """Handler of DescribeGroups (API 15)."""

    def __init__(self, desk: Desk, groups: GroupCoordinator) -> None:
        self._desk = desk
        self._groups = groups

    def handle(self, context: Context, request: DescribeGroupsRequest) -> Result:
        return self._desk.steps.begin(self._answer(context.api_version, request), is_long=True)

    def _answer(self, version: int, request: DescribeGroupsRequest) -> Steps[DescribeGroupsResponse]:
        named = dict.fromkeys(request.groups)
        answers = yield from self._groups.ask_all(version, ((each, DescribeGroup(each)) for each in named))
        described: dict[str, DescribedGroup] = {}
        for group_id, group in zip(named, answers, strict=True):
            described[group_id] = group
            if request.include_authorized_operations and not group.error_code:
                group.authorized_operations = GROUP_OPERATIONS
            yield 1
        results = yield from as_asked(request.groups, described, _described_bytes, DescribedGroup)
        return DescribeGroupsResponse(0, results)


def _described_bytes(group: DescribedGroup) -> int:
    return GROUP_BYTES + sum(
        len(each.member_id) + len(each.client_id) + len(each.member_metadata) + len(each.member_assignment)
        for each in group.members
    )


class DeleteGroupsHandler:
    """Handler of DeleteGroups (API 42)."""

    def __init__(self, desk: Desk, groups: GroupCoordinator) -> None:
        self._desk = desk
        self._groups = groups

    def handle(self, context: Context, request: DeleteGroupsRequest) -> Result:
        return self._desk.steps.begin(self._answer(context.api_version, request), is_long=True)

    def _answer(self, version: int, request: DeleteGroupsRequest) -> Steps[DeleteGroupsResponse]:
        names = dict.fromkeys(request.groups_names)
        answers = yield from self._groups.ask_all(version, ((each, DeleteGroup(each)) for each in names))
        results = []
        for name, code in zip(names, answers, strict=True):
            results.append(DeletableGroupResult(name, code))
            yield 1
        return DeleteGroupsResponse(0, results)
