"""The state machine of the groups in one partition of `__consumer_offsets`: due deadlines first, then the part
that decides the request. PURE.

`decide` takes an `Ask`. It first handles due deadlines. Then one of the machine's parts (`membership`,
`offsets`, `listing`) decides about the request. `decide` returns records, and answers that are sent once the
records are committed. Some answers may be to much earlier requests. `GroupsState` is replicated. Members in a
rebalance, sessions and timers are soft state, and a new coordinator starts them again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from odradek.data_plane.coordination.asking import Answers, Ask, Deadlines, TimePasses, refused
from odradek.data_plane.coordination.records import CoordinatorRecord, TransactionEnd
from odradek.data_plane.groups.answers import refusal, refused_like
from odradek.data_plane.groups.consumers.classic_members import ClassicMembers
from odradek.data_plane.groups.consumers.consumer_group import ConsumerKey
from odradek.data_plane.groups.consumers.consumer_membership import ConsumerMembership
from odradek.data_plane.groups.consumers.patterns import TopicsFound
from odradek.data_plane.groups.consumers.target_runs import TargetPart
from odradek.data_plane.groups.consumers.topic_hashes import TopicHashes
from odradek.data_plane.groups.group_settings import GroupSettings
from odradek.data_plane.groups.listing import (
    DeleteGroup,
    DescribeConsumerGroup,
    DescribeGroup,
    ListGroups,
    Listing,
)
from odradek.data_plane.groups.membership import LeaveMembers, Membership
from odradek.data_plane.groups.offsets import (
    CommitOffsets,
    DeleteOffsets,
    EndTransaction,
    ExpireOffsets,
    FetchOffsets,
    ForgetTopics,
    OffsetStore,
)
from odradek.data_plane.groups.records import GroupMetadataKey
from odradek.data_plane.groups.state import GroupsState
from odradek.data_plane.groups.turn import Turn
from odradek.metadata_quorum.image.metadata_image import MetadataImage
from odradek.metadata_quorum.state_machine import Decision, DecisionContext
from odradek.wire.errors import ErrorCode
from odradek.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from odradek.wire.messages.heartbeat import HeartbeatRequest
from odradek.wire.messages.join_group import JoinGroupRequest
from odradek.wire.messages.leave_group import LeaveGroupRequest
from odradek.wire.messages.sync_group import SyncGroupRequest


def is_of_transaction(request: object) -> bool:
    """True if the request needs a decision that is a batch of its own in the log: a transaction's offsets, or
    its marker.
    """
    return isinstance(request, EndTransaction) or (
        isinstance(request, CommitOffsets) and request.producer is not None
    )


class GroupMachine:
    """The state machine of the groups of one partition. A broker makes a new one each time it becomes leader of
    that partition.
    """

    def __init__(
        self,
        settings: GroupSettings,
        image: Callable[[], MetadataImage] = MetadataImage,
        hashes: TopicHashes | None = None,
    ) -> None:
        """`image` returns the newest metadata image: topics, and the configuration of groups.

        `hashes` is a cache that several machines may share.
        """
        self.deadlines = Deadlines()
        self.membership = Membership(settings, self.deadlines)
        self.consumers = ConsumerMembership(
            settings, self.deadlines, image, hashes or TopicHashes(), self.membership
        )
        members = ClassicMembers(settings, self.membership, self.consumers)
        offsets = OffsetStore(settings, self.membership, self.consumers)
        listing = Listing(self.membership, offsets)
        self._deciders: dict[type, Callable[[Turn, Ask], None]] = {
            ConsumerGroupHeartbeatRequest: self.consumers.heartbeat,
            TopicsFound: self.consumers.take_found_topics,
            TargetPart: self.consumers.take_target_part,
            HeartbeatRequest: members.heartbeat,
            JoinGroupRequest: members.join,
            SyncGroupRequest: members.sync,
            LeaveGroupRequest: members.leave,
            LeaveMembers: members.leave_many,
            CommitOffsets: offsets.commit,
            FetchOffsets: offsets.fetch,
            EndTransaction: offsets.end_transaction,
            DeleteOffsets: offsets.delete,
            ForgetTopics: offsets.forget_topics,
            ExpireOffsets: offsets.expire,
            ListGroups: listing.list_groups,
            DescribeGroup: listing.describe,
            DescribeConsumerGroup: listing.describe_consumers,
            DeleteGroup: listing.delete,
            TimePasses: lambda turn, ask: None,
        }

    def restore(self, state: GroupsState, now_ms: int, new_uuid: Callable[[], bytes]) -> None:
        """Prepare the soft state of a new coordinator. The sessions of the members in the log start now."""
        turn = Turn(state, now_ms, 0, new_uuid)
        self.membership.restore(turn)
        self.consumers.restore(turn)

    def decide(self, state: GroupsState, request: Ask, context: DecisionContext) -> Decision:
        turn = Turn(state, context.now_ms, request.wall_ms, context.new_uuid)
        deadlines = self.deadlines
        if deadlines.next_ms <= turn.now_ms and not is_of_transaction(request.request):
            while (action := deadlines.pop_due(turn.now_ms)) is not None:
                done = len(turn.records)
                action(turn)
                # Apply these records to the turn's state, because the next deadline's action and the request
                # depend on them.
                turn.catch_up(done)
        self._deciders[type(request.request)](turn, request)
        return Decision(turn.records, turn.answers)

    def replay(
        self,
        state: GroupsState,
        base_offset: int,
        epoch: int,
        records: Sequence[CoordinatorRecord | TransactionEnd],
    ) -> tuple[GroupsState, None]:
        return state.replay(records, base_offset), None

    def refuse(self, request: Ask, code: ErrorCode) -> Answers:
        """Build the answer that refuses a request.

        The runtime's code NOT_CONTROLLER becomes NOT_COORDINATOR.
        """
        return refused(request, code, refusal)

    def withdraw(
        self, state: GroupsState, request: Ask, decision: Decision, context: DecisionContext
    ) -> Answers:
        """Withdraw a decision whose records do not fit into the log.

        All groups in the decision are reset to their state in the log, and their members join again. Returns
        error responses for all requests that the decision answered.
        """
        code = ErrorCode.UNKNOWN_SERVER_ERROR
        turn = Turn(state, context.now_ms, request.wall_ms, context.new_uuid)
        for reply, response in decision.response:
            turn.answer(
                reply, refusal(request, code) if reply is request.reply else refused_like(response, code)
            )
        keys = [record.key for record in decision.records if isinstance(record, CoordinatorRecord)]
        for group_id in dict.fromkeys(key.group for key in keys if isinstance(key, GroupMetadataKey)):
            self.membership.begin_anew(turn, group_id, code)
        for group_id in dict.fromkeys(key.group_id for key in keys if isinstance(key, ConsumerKey)):
            self.consumers.begin_anew(turn, group_id)
        return turn.answers

    def topics_created(self, offset: int) -> None:
        """Record that the metadata at this offset has new topics, so that the topics of patterns are searched
        again.
        """
        self.consumers.topics_created(offset)

    def topics_changed(self, topics: Sequence[str], state: GroupsState) -> None:
        """Mark the consumer groups that read these topics. Then the next heartbeat of each such group
        compares the hash of the group's topics.
        """
        self.consumers.topics_changed(list(state.consumers.values()), topics)

    def statistics(self) -> dict[str, int]:
        """Return the numbers of groups, of members and of timers, for metrics."""
        groups = self.membership.groups.values()
        return {
            "groups_in_memory": len(groups),
            "members": sum(len(group.members) for group in groups) + self.consumers.member_count,
            "timers": len(self.deadlines),
        }
