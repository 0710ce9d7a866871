"""A fake broker that coordinates a group of the new protocol (KIP-848), with one member: the consumer under test.

`assign` sets the partitions that the member is to have. The broker hands them over as Kafka's coordinator does. First
it takes away the partitions that the member has to give up. When the member reports that it has done so, the broker
assigns the rest under a new epoch.
"""

from __future__ import annotations

from typing import Any

from odradek.wire.api import ApiKey, api_versions
from odradek.wire.errors import ErrorCode
from odradek.wire.framing.connection import RequestReceived
from odradek.wire.messages.api_versions import ApiVersionsResponse, FinalizedFeatureKey
from odradek.wire.messages.consumer_group_heartbeat import (
    Assignment,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)
from odradek.wire.messages.describe_groups import DescribedGroup, DescribeGroupsResponse
from odradek.wire.messages.offset_fetch import OffsetFetchResponse, OffsetFetchResponseGroup
from tests.client.consumer.fake_group import FakeConsumer, GroupBroker
from tests.client.fake_broker import HANG_UP, SILENCE

__all__ = ["INTERVAL_SECONDS", "CoordinatorBroker", "new_consumer"]

INTERVAL_SECONDS = 2.0
"""The interval of heartbeats that the coordinator sets."""


class CoordinatorBroker(GroupBroker):
    """A broker with one group. `classic_state` is the state of a classic group of the same name."""

    def __init__(self) -> None:
        super().__init__()
        self.versions |= {
            int(key): api_versions(key) for key in (ApiKey.CONSUMER_GROUP_HEARTBEAT, ApiKey.DESCRIBE_GROUPS)
        }
        self.group_version = 1
        self.classic_state = "Dead"
        self.member: str | None = None
        self.epoch = 0
        self.group_epoch = 0
        self.wanted: dict[str, list[int]] | None = None
        """The partitions that the member is to have, or None for all partitions of its topics."""
        self.topics_wanted: list[str] = []
        self.given: dict[bytes, list[int]] = {}
        """The partitions that the broker has assigned to the member, by topic id."""
        self.owned: dict[bytes, list[int]] = {}
        """The partitions that the member reports as its own, by topic id."""
        self.left: list[int] = []
        """The epochs of the heartbeats by which the member has left."""

    def assign(self, **wanted: list[int]) -> None:
        """Set the partitions that the member is to have, by topic. Its next heartbeats bring them."""
        self.wanted = wanted
        self.group_epoch += 1

    def forget(self) -> None:
        """Forget the member, as a coordinator does when the member's session has expired."""
        self.member = None
        self.group_epoch += 1

    def answer(self, event: RequestReceived) -> Any:
        """Answer as `FakeBroker` does, and answer requests of the new group protocol."""
        key = ApiKey(event.api_key)
        if key is ApiKey.API_VERSIONS:
            response = super().answer(event)
            if isinstance(response, ApiVersionsResponse) and self.group_version:
                response.finalized_features_epoch = 1
                response.finalized_features = [
                    FinalizedFeatureKey("group.version", self.group_version, self.group_version)
                ]
            return response
        if key not in (ApiKey.CONSUMER_GROUP_HEARTBEAT, ApiKey.DESCRIBE_GROUPS):
            return super().answer(event)
        request = event.request()
        self.requests.append(request)
        trouble = self.trouble[key].popleft() if self.trouble[key] else 0
        if trouble is SILENCE or trouble is HANG_UP:
            return trouble
        if key is ApiKey.DESCRIBE_GROUPS:
            code = trouble or (0 if self.classic_state != "Dead" else int(ErrorCode.GROUP_ID_NOT_FOUND))
            return DescribeGroupsResponse(
                groups=[DescribedGroup(code, group_id="g", group_state=self.classic_state)]
            )
        if trouble:
            return ConsumerGroupHeartbeatResponse(error_code=trouble, error_message="so it is")
        return self._beat(request)

    def heartbeats(self) -> list[ConsumerGroupHeartbeatRequest]:
        """Return the heartbeats that have arrived."""
        return self.asked(ConsumerGroupHeartbeatRequest)

    def _beat(self, request: ConsumerGroupHeartbeatRequest) -> ConsumerGroupHeartbeatResponse:
        if request.member_epoch < 0:
            self.left.append(request.member_epoch)
            self.member = None
            self.group_epoch += 1
            return ConsumerGroupHeartbeatResponse(
                member_id=request.member_id, member_epoch=request.member_epoch
            )
        if request.member_epoch == 0:
            self.member, self.given, self.owned, self.epoch = request.member_id, {}, {}, 0
            self.group_epoch += 1
        elif request.member_id != self.member:
            return ConsumerGroupHeartbeatResponse(error_code=int(ErrorCode.UNKNOWN_MEMBER_ID))
        elif request.member_epoch != self.epoch:
            return ConsumerGroupHeartbeatResponse(error_code=int(ErrorCode.FENCED_MEMBER_EPOCH))
        self._note(request)
        is_full = request.rebalance_timeout_ms >= 0
        changed = self._advance()
        return ConsumerGroupHeartbeatResponse(
            member_id=self.member,
            member_epoch=self.epoch,
            heartbeat_interval_ms=int(INTERVAL_SECONDS * 1000),
            assignment=self._assignment() if changed or is_full else None,
        )

    def _note(self, request: ConsumerGroupHeartbeatRequest) -> None:
        if request.subscribed_topic_names is not None:
            self.topics_wanted = request.subscribed_topic_names
            if request.subscribed_topic_regex:
                self.topics_wanted = [
                    name for name in self.topics if name.startswith(request.subscribed_topic_regex[0])
                ]
            self.group_epoch += 1
        if request.topic_partitions is not None:
            self.owned = {topic.topic_id: topic.partitions for topic in request.topic_partitions}

    def _advance(self) -> bool:
        """Go one step towards the wanted partitions. Return True if the member's assignment changes."""
        if self.epoch == self.group_epoch:
            return False
        wanted = self.wanted
        if wanted is None:
            wanted = {name: [*range(len(self.topics[name].partitions))] for name in self.topics_wanted}
        target = {self.topics[name].topic_id: indexes for name, indexes in wanted.items() if indexes}
        reduced = {
            topic_id: [index for index in indexes if index in target.get(topic_id, ())]
            for topic_id, indexes in self.given.items()
        }
        reduced = {topic_id: indexes for topic_id, indexes in reduced.items() if indexes}
        if any(set(indexes) - set(reduced.get(key, ())) for key, indexes in self.owned.items()):
            changed, self.given = self.given != reduced, reduced
            return changed
        self.epoch = self.group_epoch
        changed, self.given = self.given != target, target
        return changed or self.epoch == 1

    def _assignment(self) -> Assignment:
        return Assignment([TopicPartitions(*each) for each in self.given.items()])

    def _refusal(self, request: Any) -> int:
        """Check the member and epoch of a commit as Kafka's coordinator does. Return the error code."""
        return self._member_error(request.member_id, request.generation_id_or_member_epoch)

    def _member_error(self, member_id: str | None, epoch: int) -> int:
        if epoch < 0 and not member_id:
            return 0
        if member_id != self.member:
            return int(ErrorCode.UNKNOWN_MEMBER_ID)
        return 0 if epoch == self.epoch else int(ErrorCode.STALE_MEMBER_EPOCH)

    def _fetch_offsets(self, request: Any, code: int) -> OffsetFetchResponse:
        (group,) = request.groups
        refusal = code or self._member_error(group.member_id, group.member_epoch)
        if refusal:
            return OffsetFetchResponse(groups=[OffsetFetchResponseGroup(group.group_id, [], refusal)])
        return super()._fetch_offsets(request, code)


def new_consumer(
    topics: dict[str, int], *, subscribe: bool = True, protocol: str = "consumer", **keys: Any
) -> tuple[FakeConsumer, CoordinatorBroker]:
    """Make a broker with these topics (name to partition count), and its consumer in group `g` of the new protocol."""
    broker = CoordinatorBroker()
    for name, partitions in topics.items():
        broker.add_topic(name, partitions)
    found = FakeConsumer(broker=broker, group_id="g", group_protocol=protocol, **keys)
    if subscribe:
        found.machine.subscribe(list(topics))
    return found, broker
