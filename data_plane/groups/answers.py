"""Error responses: for each kind of request, the response that holds only an error code. PURE."""

from __future__ import annotations

from typing import Any

from odradek.data_plane.coordination.asking import Ask
from odradek.data_plane.groups.classic_responses import UNKNOWN_MEMBER, join_refused, sync_refused
from odradek.data_plane.groups.listing import DeleteGroup, DescribeConsumerGroup, DescribeGroup, ListGroups
from odradek.data_plane.groups.membership import LeaveMembers
from odradek.data_plane.groups.offsets import (
    CommitOffsets,
    DeleteOffsets,
    EndTransaction,
    FetchedOffsets,
    FetchOffsets,
)
from odradek.named_states import reached
from odradek.wire.errors import ErrorCode
from odradek.wire.messages.consumer_group_describe import DescribedGroup as DescribedConsumerGroup
from odradek.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatResponse
from odradek.wire.messages.describe_groups import DescribedGroup
from odradek.wire.messages.heartbeat import HeartbeatRequest
from odradek.wire.messages.join_group import JoinGroupRequest, JoinGroupResponse
from odradek.wire.messages.sync_group import SyncGroupResponse
from odradek.wire.schema.anatomy import refuse
from odradek.wire.structure import Message


def refused_like(response: Any, code: ErrorCode) -> Any:
    """Build an error response of the same type as `response`, for a group member that waits for such a
    response.
    """
    if isinstance(response, JoinGroupResponse):
        return join_refused(UNKNOWN_MEMBER, code, 0)
    if isinstance(response, ConsumerGroupHeartbeatResponse):
        return ConsumerGroupHeartbeatResponse(error_code=code)
    assert isinstance(response, SyncGroupResponse), (
        "a delayed answer was given to a request that no group member waits for"
    )
    return sync_refused(code)


def refusal(ask: Ask, code: ErrorCode) -> Any:
    """Build the response that refuses `ask` with `code`, because no decision was made."""
    request = ask.request
    if isinstance(request, HeartbeatRequest) and code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
        # As in Kafka, a heartbeat succeeds while the coordinator is loading, so that no member loses its
        # session.
        reached("groups.heartbeat_answered_while_loading")
        code = ErrorCode.NONE
    if isinstance(request, JoinGroupRequest):
        return join_refused(request.member_id, code, ask.version)
    if isinstance(request, Message):
        return refuse(request, code)
    if isinstance(request, CommitOffsets):
        return [code] * len(request.partitions)
    if isinstance(request, FetchOffsets):
        return FetchedOffsets(code, {})
    if isinstance(request, (DeleteOffsets, LeaveMembers)):
        return code, ()
    if isinstance(request, DescribeConsumerGroup):
        return DescribedConsumerGroup(code, None, request.group_id)
    if isinstance(request, DescribeGroup):
        return DescribedGroup(code, None, request.group_id)
    assert isinstance(request, (DeleteGroup, EndTransaction, ListGroups)), type(request)
    return code
