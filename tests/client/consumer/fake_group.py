"""A fake broker that also coordinates a classic group, and a driver for a consumer without sockets or a clock.

The group has one member, the consumer under test. Tests put the effects of other members into `trouble`.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from odradek.client.consumer.consumer_machine import ConsumerMachine
from odradek.client.consumer.consumer_types import RebalanceEvent
from odradek.client.core.client_core import ClientCore
from odradek.client.core.client_keys import ConsumerSettings
from odradek.wire.api import ApiKey, api_versions
from odradek.wire.errors import ErrorCode
from odradek.wire.framing.connection import RequestReceived
from odradek.wire.messages.fetch import FetchResponse, LeaderIdAndEpoch
from odradek.wire.messages.find_coordinator import Coordinator, FindCoordinatorResponse
from odradek.wire.messages.heartbeat import HeartbeatResponse
from odradek.wire.messages.join_group import JoinGroupResponse, JoinGroupResponseMember
from odradek.wire.messages.leave_group import LeaveGroupResponse
from odradek.wire.messages.metadata import MetadataResponseBroker
from odradek.wire.messages.offset_commit import (
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from odradek.wire.messages.offset_fetch import (
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
)
from odradek.wire.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderTopicResult,
)
from odradek.wire.messages.sync_group import SyncGroupResponse
from odradek.wire.topic_partition import TopicPartition
from tests.client.fake_broker import HANG_UP, SILENCE, FakeBroker, Wire


class GroupBroker(FakeBroker):
    """A broker with one group, in memory.

    `leader_epoch` is the leader epoch of all partitions. `epoch_ends` maps older epochs to their end offsets in the
    log.
    """

    def __init__(self, host: str = "fake", port: int = 9092) -> None:
        super().__init__(host, port)
        self.versions |= {int(key): api_versions(key) for key in _GROUP_ANSWERS}
        self.generation = 0
        self.is_assigned = True
        """False from the join of a generation to its assignment. Meanwhile commits are refused."""
        self.member_ids = 0
        self.commits: dict[TopicPartition, tuple[int, int, str]] = {}
        self.more_brokers: list[MetadataResponseBroker] = []
        self.leader_epoch = 0
        self.epoch_ends: dict[int, int] = {}
        self.leader_hint: LeaderIdAndEpoch | None = None

    def answer(self, event: RequestReceived) -> Any:
        """Answer as `FakeBroker` does, and answer requests of groups."""
        key = ApiKey(event.api_key)
        handler = _GROUP_ANSWERS.get(key)
        if handler is None:
            response = super().answer(event)
            if key is ApiKey.METADATA:
                response.brokers.extend(self.more_brokers)
                for topic in response.topics:
                    for partition in topic.partitions:
                        partition.leader_epoch = self.leader_epoch
            elif key is ApiKey.FETCH and isinstance(response, FetchResponse):
                _fence(response, self.requests[-1], self.leader_epoch, self.leader_hint)
                _delay_if_empty(response, self.requests[-1].max_wait_ms)
            return response
        request = event.request()
        self.requests.append(request)
        trouble = self.trouble[key].popleft() if self.trouble[key] else None
        if trouble is SILENCE or trouble is HANG_UP:
            return trouble
        if trouble is not None and not isinstance(trouble, int):
            return trouble
        # The handler is looked up by name, so that a subclass can override it.
        return getattr(self, handler.__name__)(request, int(trouble or 0))

    def asked(self, kind: type) -> list[Any]:
        """Return the received requests of this type."""
        return [request for request in self.requests if type(request) is kind]

    def _find_coordinator(self, request: Any, code: int) -> FindCoordinatorResponse:
        found = Coordinator(request.coordinator_keys[0], 1, self.host, self.port, code)
        return FindCoordinatorResponse(coordinators=[found])

    def _join(self, request: Any, code: int) -> JoinGroupResponse:
        if code:
            return JoinGroupResponse(error_code=code, member_id=request.member_id)
        member_id = request.member_id
        if not member_id:
            self.member_ids += 1
            member_id = f"member-{self.member_ids}"
            if request.group_instance_id is None:
                return JoinGroupResponse(error_code=int(ErrorCode.MEMBER_ID_REQUIRED), member_id=member_id)
        self.generation += 1
        self.is_assigned = False
        protocol = request.protocols[0]
        return JoinGroupResponse(
            generation_id=self.generation,
            protocol_type=request.protocol_type,
            protocol_name=protocol.name,
            leader=member_id,
            member_id=member_id,
            members=[JoinGroupResponseMember(member_id, request.group_instance_id, protocol.metadata)],
        )

    def _sync(self, request: Any, code: int) -> SyncGroupResponse:
        mine = b"" if code else request.assignments[0].assignment
        self.is_assigned = self.is_assigned or not code
        return SyncGroupResponse(
            error_code=code,
            protocol_type=request.protocol_type,
            protocol_name=request.protocol_name,
            assignment=mine,
        )

    def _heartbeat(self, request: Any, code: int) -> HeartbeatResponse:
        return HeartbeatResponse(error_code=code)

    def _leave(self, request: Any, code: int) -> LeaveGroupResponse:
        return LeaveGroupResponse(error_code=code)

    def _commit(self, request: Any, code: int) -> OffsetCommitResponse:
        topics = []
        code = code or self._refusal(request)
        for topic in request.topics:
            answers = []
            name, unknown = self._named(topic)
            for asked in topic.partitions:
                if not code and not unknown:
                    self.commits[TopicPartition(name, asked.partition_index)] = (
                        asked.committed_offset,
                        asked.committed_leader_epoch,
                        asked.committed_metadata,
                    )
                answers.append(OffsetCommitResponsePartition(asked.partition_index, code or unknown))
            topics.append(OffsetCommitResponseTopic(topic.name, topic.topic_id, answers))
        return OffsetCommitResponse(topics=topics)

    def _refusal(self, request: Any) -> int:
        """Check a commit's generation as Kafka's coordinator does. Return the error code."""
        generation = request.generation_id_or_member_epoch
        if 0 <= generation != self.generation:
            return int(ErrorCode.ILLEGAL_GENERATION)
        return int(ErrorCode.NONE if generation < 0 or self.is_assigned else ErrorCode.REBALANCE_IN_PROGRESS)

    def _named(self, topic: Any) -> tuple[str, int]:
        """Return the name of a topic that a request names by name or id, and an error code if there is no such
        topic.
        """
        if topic.name:
            return topic.name, 0 if topic.name in self.topics else int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        name = next((name for name, each in self.topics.items() if each.topic_id == topic.topic_id), "")
        return name, 0 if name else int(ErrorCode.UNKNOWN_TOPIC_ID)

    def _fetch_offsets(self, request: Any, code: int) -> OffsetFetchResponse:
        (group,) = request.groups
        topics = []
        for topic in group.topics:
            partitions = []
            name, unknown = self._named(topic)
            for index in topic.partition_indexes:
                commit = self.commits.get(TopicPartition(name, index), (-1, -1, ""))
                code_of_one = unknown if not topic.name else 0
                partitions.append(OffsetFetchResponsePartitions(index, *commit, error_code=code_of_one))
            topics.append(OffsetFetchResponseTopics(topic.name, topic.topic_id, partitions))
        return OffsetFetchResponse(groups=[OffsetFetchResponseGroup(group.group_id, topics, code)])

    def _epoch_end(self, request: Any, code: int) -> OffsetForLeaderEpochResponse:
        topics = []
        for topic in request.topics:
            answers = []
            for asked in topic.partitions:
                epochs = [epoch for epoch in self.epoch_ends if epoch <= asked.leader_epoch]
                epoch = max(epochs, default=-1)
                answers.append(EpochEndOffset(code, asked.partition, epoch, self.epoch_ends.get(epoch, -1)))
            topics.append(OffsetForLeaderTopicResult(topic.topic, answers))
        return OffsetForLeaderEpochResponse(topics=topics)


def _fence(response: FetchResponse, request: Any, leader_epoch: int, hint: LeaderIdAndEpoch | None) -> None:
    """Answer a fetch with an older leader epoch by FENCED_LEADER_EPOCH (KIP-320), and maybe a hint (KIP-951)."""
    stale = {
        (topic.topic_id, asked.partition)
        for topic in request.topics
        for asked in topic.partitions
        if 0 <= asked.current_leader_epoch < leader_epoch
    }
    for topic in response.responses:
        for answer in topic.partitions:
            if (topic.topic_id, answer.partition_index) in stale:
                answer.error_code = int(ErrorCode.FENCED_LEADER_EPOCH)
                answer.records = b""
                if hint is not None:
                    answer.current_leader = hint


def _delay_if_empty(response: FetchResponse, max_wait_ms: int) -> None:
    """Set a throttle time in place of a long poll, since this broker cannot delay an answer."""
    if not any(a.records or a.error_code for topic in response.responses for a in topic.partitions):
        response.throttle_time_ms = max_wait_ms


_GROUP_ANSWERS: dict[ApiKey, Callable[[GroupBroker, Any, int], Any]] = {
    ApiKey.FIND_COORDINATOR: GroupBroker._find_coordinator,
    ApiKey.JOIN_GROUP: GroupBroker._join,
    ApiKey.SYNC_GROUP: GroupBroker._sync,
    ApiKey.HEARTBEAT: GroupBroker._heartbeat,
    ApiKey.LEAVE_GROUP: GroupBroker._leave,
    ApiKey.OFFSET_COMMIT: GroupBroker._commit,
    ApiKey.OFFSET_FETCH: GroupBroker._fetch_offsets,
    ApiKey.OFFSET_FOR_LEADER_EPOCH: GroupBroker._epoch_end,
}


class FakeConsumer:
    """A consumer's machine and a minimal driver for it. `events` has the calls that a rebalance listener would get."""

    def __init__(
        self,
        *,
        wall_ms: int = 0,
        brokers: dict[tuple[str, int], FakeBroker] | None = None,
        broker: GroupBroker | None = None,
        **keys: Any,
    ) -> None:
        self.broker = broker or GroupBroker()
        settings = ConsumerSettings.from_properties(
            {
                "bootstrap.servers": "fake:9092",
                "auto.offset.reset": "earliest",
                **{name.replace("_", "."): value for name, value in keys.items()},
            }
        )
        core = ClientCore(settings.bootstrap_servers, settings.client_config(), Random(7))
        self.wire = Wire(core, {("fake", 9092): self.broker, **(brokers or {})})
        self.machine = ConsumerMachine(core, settings, lambda: wall_ms + int(self.wire.now * 1000))
        self.events: list[tuple[str, list[str]]] = []
        for operation in self.machine.background():
            core.start(operation, 0.0)

    def join(self) -> None:
        """Poll until partitions are assigned, and take no records."""
        while not self.machine.subscription.partitions:
            event = self.wire.run(self.machine.wait(10.0))
            if event is not None:
                self._tell(event)

    def poll(self, timeout: float = 1.0) -> list[Any]:
        """Do as `Consumer.poll` does. Virtual time passes while no records come."""
        return self._poll(timeout, self.machine.take_records)

    def poll_batches(self, timeout: float = 1.0) -> list[Any]:
        """Do as `Consumer.poll_batches` does."""
        return self._poll(timeout, self.machine.take_batches)

    def values(self, timeout: float = 1.0) -> list[bytes]:
        """Poll once, and return the values of the records."""
        return [record.value for record in self.poll(timeout)]

    def sleep(self, seconds: float) -> None:
        """Let time pass without a poll, as an application does that is busy."""

        def idle() -> Any:
            from odradek.client.core.operation import Wait

            yield Wait(until=self.wire.core.now + seconds)

        self.wire.run(idle())

    def run(self, operation: Any) -> Any:
        """Run any other operation of the machine to its end."""
        return self.wire.run(operation)

    def close(self) -> None:
        """Do as `Consumer.close` does."""
        event = self.wire.run(self.machine.give_up(5))
        if event is not None:
            self._tell(event)
        self.wire.run(self.machine.leave("closed", 5))

    def _poll(self, timeout: float, what: Callable[[], list[Any]]) -> list[Any]:
        deadline = self.wire.now + timeout
        waited = False
        while True:
            found = self.machine.take(self.wire.now, what)
            if found or (waited and self.wire.now >= deadline):
                return found
            event = self.wire.run(self.machine.wait(max(0.0, deadline - self.wire.now)))
            waited = True
            if event is not None:
                self._tell(event)
                waited = False

    def _tell(self, event: RebalanceEvent) -> None:
        self.events.append((event.kind.value, [str(key) for key in event.partitions]))
        self.machine.notified(event)
