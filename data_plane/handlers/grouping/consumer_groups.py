"""Handlers of ConsumerGroupHeartbeat and ConsumerGroupDescribe (KIP-848), with the checks that need no group."""

from __future__ import annotations

from odradek.data_plane.groups.consumers.consumer_group import (
    JOINING_EPOCH,
    LEAVING_EPOCH,
    STATIC_LEAVING_EPOCH,
    ConsumerGroup,
)
from odradek.data_plane.groups.consumers.consumer_membership import heartbeat_refused
from odradek.data_plane.groups.consumers.describing import describe_group
from odradek.data_plane.groups.consumers.patterns import MaySee, check_pattern
from odradek.data_plane.groups.coordinator import GroupCoordinator
from odradek.data_plane.groups.group_settings import GroupSettings
from odradek.data_plane.groups.listing import DescribeConsumerGroup
from odradek.data_plane.handlers.desk import Desk
from odradek.data_plane.handlers.grouping.group_requests import GROUP_OPERATIONS, as_asked
from odradek.metadata_quorum.features import GROUP_VERSION
from odradek.security.acls.authorizer import Authorizer
from odradek.security.acls.rules import Operation, ResourceType
from odradek.security.doors.door import rights_of
from odradek.serving.contract import Context, Result
from odradek.serving.steps import Answers, Steps, in_turn
from odradek.wire.errors import ErrorCode, KafkaError
from odradek.wire.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DescribedGroup,
)
from odradek.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from odradek.wire.schema.anatomy import refuse
from odradek.wire.schema.versions import CONSUMER_GROUP_HEARTBEAT_MEMBER_ID

__all__ = ["ConsumerGroupDescribeHandler", "ConsumerGroupHeartbeatHandler", "serves_consumer_groups"]

CONSUMER_PROTOCOL = "consumer"
TOPIC_NAMES_MAX = 5_000
"""The most topics that a member may name. Each name costs the coordinator some microseconds in one decision.
"""
GROUP_BYTES, MEMBER_BYTES, PARTITION_BYTES, TOPIC_BYTES = 40, 60, 4, 24


def serves_consumer_groups(desk: Desk, settings: GroupSettings) -> bool:
    """True if the cluster's `group.version` and this node's configuration allow groups of the consumer protocol."""
    return (
        desk.image.features.get(GROUP_VERSION, 0) >= 1 and CONSUMER_PROTOCOL in settings.rebalance_protocols
    )


class ConsumerGroupHeartbeatHandler:
    """Handler of ConsumerGroupHeartbeat (API 68)."""

    def __init__(self, desk: Desk, groups: GroupCoordinator, authorizer: Authorizer | None) -> None:
        self._desk = desk
        self._groups = groups
        self._authorizer = authorizer

    def handle(self, context: Context, request: ConsumerGroupHeartbeatRequest) -> Result:
        if not serves_consumer_groups(self._desk, self._groups.settings):
            return heartbeat_refused(KafkaError(ErrorCode.UNSUPPORTED_VERSION))
        error = _fault_of(request, context.api_version, self._groups.settings.consumer_assignors)
        if error is not None:
            return heartbeat_refused(error)
        if request.subscribed_topic_regex:
            return self._desk.steps.begin(self._with_pattern(context.for_later(), request))
        return self._groups.answer(context, request.group_id, request, self._sight_of(context))

    def _sight_of(self, context: Context) -> MaySee | None:
        """Return a function that returns True for a topic that the client may DESCRIBE. Workers may call it."""
        if self._authorizer is None:
            return None
        rights = rights_of(context, self._authorizer)
        return lambda name: rights.would_allow(Operation.DESCRIBE, ResourceType.TOPIC, name)

    def _with_pattern(
        self, context: Context, request: ConsumerGroupHeartbeatRequest
    ) -> Steps[ConsumerGroupHeartbeatResponse]:
        """Let a worker check the pattern. If the worker finds an error, the coordinator raises it after other
        checks, as Kafka does.
        """
        pattern = request.subscribed_topic_regex
        error: KafkaError | None = yield in_turn(self._desk.long_work, _error_of, pattern)

        def check(checked: str) -> None:
            assert checked == pattern, "the coordinator must check the pattern of this request"
            if error is not None:
                raise error

        answers = Answers()
        ask = self._groups.ask_of(context, request, answers.receiver(), self._sight_of(context), check)
        self._groups.submit(request.group_id, ask)
        responses: list[ConsumerGroupHeartbeatResponse] = yield answers
        return responses[0]


def _error_of(pattern: str) -> KafkaError | None:
    """Check a pattern in a worker. Returns the error; None for a valid pattern."""
    try:
        check_pattern(pattern)
    except KafkaError as error:
        return error
    return None


def _fault_of(
    request: ConsumerGroupHeartbeatRequest, version: int, assignors: tuple[str, ...]
) -> KafkaError | None:
    """Return the error of a heartbeat that is invalid for any group, or None.

    The order of checks is Kafka's.
    """
    fault = _invalid_text(request) or _invalid_epoch(request) or _too_many_names(request)
    names_member = version >= CONSUMER_GROUP_HEARTBEAT_MEMBER_ID or request.member_epoch > 0
    if (names_member or request.member_epoch == LEAVING_EPOCH) and not request.member_id.strip():
        fault = "MemberId can't be empty."
    if fault is not None:
        return KafkaError(ErrorCode.INVALID_REQUEST, fault)
    if request.server_assignor is not None and request.server_assignor not in assignors:
        return KafkaError(
            ErrorCode.UNSUPPORTED_ASSIGNOR,
            f"ServerAssignor {request.server_assignor} is not supported. "
            f"Supported assignors: {', '.join(assignors)}.",
        )
    return None


def _invalid_text(request: ConsumerGroupHeartbeatRequest) -> str | None:
    if not request.group_id.strip():
        return "GroupId can't be empty."
    if request.instance_id is not None and not request.instance_id.strip():
        return "InstanceId can't be empty."
    if request.rack_id is not None and not request.rack_id.strip():
        return "RackId can't be empty."
    return None


def _too_many_names(request: ConsumerGroupHeartbeatRequest) -> str | None:
    if len(request.subscribed_topic_names or ()) > TOPIC_NAMES_MAX:
        return (
            f"A member names at most {TOPIC_NAMES_MAX} topics. For more, subscribe to a regular expression."
        )
    return None


def _invalid_epoch(request: ConsumerGroupHeartbeatRequest) -> str | None:
    if request.member_epoch == JOINING_EPOCH:
        if request.rebalance_timeout_ms == -1:
            return "RebalanceTimeoutMs must be provided in first request."
        if request.topic_partitions is None or request.topic_partitions:
            return "TopicPartitions must be empty when (re-)joining."
        if request.subscribed_topic_names is None and request.subscribed_topic_regex is None:
            return "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining."
    elif request.member_epoch == STATIC_LEAVING_EPOCH:
        return "InstanceId can't be null." if request.instance_id is None else None
    elif request.member_epoch < STATIC_LEAVING_EPOCH:
        return "MemberEpoch is invalid."
    return None


class ConsumerGroupDescribeHandler:
    """Handler of ConsumerGroupDescribe (API 69)."""

    def __init__(self, desk: Desk, groups: GroupCoordinator) -> None:
        self._desk = desk
        self._groups = groups

    def handle(self, context: Context, request: ConsumerGroupDescribeRequest) -> Result:
        if not serves_consumer_groups(self._desk, self._groups.settings):
            refused: ConsumerGroupDescribeResponse = refuse(request, ErrorCode.UNSUPPORTED_VERSION)
            return refused
        return self._desk.steps.begin(self._answer(context.api_version, request), is_long=True)

    def _answer(
        self, version: int, request: ConsumerGroupDescribeRequest
    ) -> Steps[ConsumerGroupDescribeResponse]:
        named = dict.fromkeys(request.group_ids)
        asked = ((each, DescribeConsumerGroup(each)) for each in named if each)
        answers = yield from self._groups.ask_all(version, asked)
        described: dict[str, DescribedGroup] = {}
        for group_id, answer in zip((each for each in named if each), answers, strict=True):
            group: DescribedGroup = answer
            if isinstance(answer, ConsumerGroup):
                offered = self._groups.settings.consumer_assignors
                group = yield from describe_group(answer, offered, self._desk.image)
                if request.include_authorized_operations:
                    group.authorized_operations = GROUP_OPERATIONS
            described[group_id] = group
            yield 1
        if "" in named:
            described[""] = DescribedGroup(ErrorCode.INVALID_GROUP_ID, None, "")
        results = yield from as_asked(request.group_ids, described, _described_bytes, DescribedGroup)
        return ConsumerGroupDescribeResponse(0, results)


def _described_bytes(group: DescribedGroup) -> int:
    return GROUP_BYTES + sum(
        MEMBER_BYTES
        + len(each.member_id)
        + len(each.client_id)
        + sum(map(len, each.subscribed_topic_names))
        + sum(
            TOPIC_BYTES + len(topic.topic_name) + PARTITION_BYTES * len(topic.partitions)
            for assignment in (each.assignment, each.target_assignment)
            for topic in assignment.topic_partitions
        )
        for each in group.members
    )
