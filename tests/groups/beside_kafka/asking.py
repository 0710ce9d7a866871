"""Conversations about groups of the consumer protocol: any server gets the same requests, and its answers can be
compared.

Ids of topics and names of topics and groups differ from run to run, so answers have `T`, `U` and `G` in their place.
Where the order of Kafka's hash map decides, only the number of each member's partitions is compared.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import attrs

from odradek.wire.errors import ErrorCode
from odradek.wire.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from odradek.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest, TopicPartitions
from odradek.wire.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from odradek.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from odradek.wire.messages.delete_groups import DeleteGroupsRequest
from odradek.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from odradek.wire.messages.describe_groups import DescribeGroupsRequest
from odradek.wire.messages.find_coordinator import FindCoordinatorRequest
from odradek.wire.messages.heartbeat import HeartbeatRequest
from odradek.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from odradek.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from odradek.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from odradek.wire.messages.list_groups import ListGroupsRequest
from odradek.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from odradek.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from odradek.wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from odradek.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from odradek.wire.messages.sync_group import SyncGroupRequest
from odradek.wire.structure import ZERO_UUID, Message, Structure
from testkit.raw_requests import RawClient

__all__ = ["CASES", "ERRORS", "Talk", "answers_of", "case"]

T = TypeVar("T")
WAIT_SECONDS = 30.0
GROUP_RESOURCE = 32
NO_TOPIC = b"\x07" * 16
"""A topic id that no topic has."""
STARTING = {
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
}
ERRORS = "errors that were answered"
Case = Callable[["Talk"], None]
CASES: dict[str, Case] = {}


def case(function: Case) -> Case:
    """Register a conversation under its name."""
    CASES[function.__name__] = function
    return function


def answers_of(bootstrap: str, tag: str) -> dict[str, list[Any]]:
    """Run all conversations with a server. `tag` makes the names of this run unique.

    Under `ERRORS`, the result lists each error with the name and version of the request that got it.
    """
    found: dict[str, list[Any]] = {}
    errors: set[tuple[str, int, str]] = set()
    for number, (name, talk) in enumerate(CASES.items()):
        with RawClient(bootstrap) as client:
            conversation = Talk(client, f"{tag}-{number}")
            talk(conversation)
        found[name] = conversation.answers
        errors |= conversation.errors
    return found | {ERRORS: sorted(map(list, errors))}


class Talk:
    """One conversation, with a group and topics of its own. The members `A`, `B`, ... have the ids `a`, `b`, ..."""

    def __init__(self, client: RawClient, tag: str) -> None:
        self._client = client
        self._tag = tag
        self.group = f"group-{tag}"
        self.topics = {"T": f"topic-t-{tag}", "U": f"topic-u-{tag}", "V": f"topic-v-{tag}"}
        self.ids: dict[str, bytes] = {}
        self.answers: list[Any] = []
        self.errors: set[tuple[str, int, str]] = set()
        """The errors of all answers, each with the name and version of its request. `NONE` counts as one."""
        self._probes = 0
        self.find_coordinator(0, self.group)
        self.ask_when_loaded(ConsumerGroupDescribeRequest([self.group]), 1)

    def find_coordinator(self, key_type: int, key: str) -> None:
        """Wait until the coordinator of a group (0) or of a transactional id (1) has an address."""
        asked = FindCoordinatorRequest("", key_type, [key])
        _repeat(lambda: self._client.request(asked, 4), lambda answer: not answer.coordinators[0].error_code)

    def ask_when_loaded(self, request: Message, version: int) -> Any:
        """Repeat a request until its coordinator has loaded its partition. Return the answer."""
        return _repeat(
            lambda: self._client.request(request, version),
            lambda answer: not STARTING & set(_codes_in(answer)),
        )

    def ask(self, request: Message, version: int) -> Any:
        """Send a request, and record the errors in its answer."""
        answer = self._client.request(request, version)
        name = type(request).__name__.removesuffix("Request")
        self.errors |= {(name, version, ErrorCode(code).name) for code in _codes_in(answer)}
        return answer

    def keep(self, answer: Structure, *, by_number: bool = False) -> Any:
        """Keep an answer for the comparison. With `by_number`, lists of partitions become their lengths."""
        plain = self._plain(answer, by_number)
        plain.pop("throttle_time_ms", None)
        self.answers.append(plain)
        return answer

    def _plain(self, value: Any, by_number: bool) -> Any:
        if isinstance(value, Structure):
            fields = {
                each.name: self._plain(getattr(value, each.name), by_number)
                for each in attrs.fields(type(value))
            }
            if by_number and isinstance(fields.get("partitions"), list):
                fields["partitions"] = len(fields["partitions"])
            return fields
        if isinstance(value, list):
            found = [self._plain(each, by_number) for each in value]
            return sorted(found, key=str)
        if isinstance(value, bytes):
            name = next((name for name, topic_id in self.ids.items() if topic_id == value), None)
            return name or value.hex()
        if isinstance(value, str):
            for name, topic in self.topics.items():
                value = value.replace(topic, name)
            value = value.replace(self.group, "G").replace(self._tag, "TAG")
            return value.replace("/127.0.0.1", "HOST")
        return value

    # -- the cluster --------------------------------------------------------------------------------------------

    def create(self, **counts: int) -> None:
        """Create topics, and wait until the broker knows them."""
        topics = [CreatableTopic(self.topics[name], count, 1, [], []) for name, count in counts.items()]
        answer = self._client.request(CreateTopicsRequest(topics, 10_000, False), 7)
        assert not any(each.error_code for each in answer.topics), answer
        for each in answer.topics:
            name = next(name for name, topic in self.topics.items() if topic == each.name)
            self.ids[name] = each.topic_id
        self._wait_for(dict(counts))

    def grow(self, **counts: int) -> None:
        """Give topics more partitions."""
        topics = [CreatePartitionsTopic(self.topics[name], count, None) for name, count in counts.items()]
        answer = self._client.request(CreatePartitionsRequest(topics, 10_000, False), 3)
        assert not any(each.error_code for each in answer.results), answer
        self._wait_for(dict(counts))

    def delete(self, name: str) -> None:
        """Delete a topic."""
        names = [DeleteTopicState(self.topics[name], ZERO_UUID)]
        answer = self._client.request(DeleteTopicsRequest(names, [], 10_000), 6)
        assert not any(each.error_code for each in answer.responses), answer
        self._wait_for({name: 0})

    def _wait_for(self, counts: Mapping[str, int]) -> None:
        for name, count in counts.items():
            _repeat(lambda name=name: self._described(name), lambda topic, count=count: _has(topic, count))
        if any(counts.values()):
            _repeat(lambda: self._assigned_to_probe(counts), lambda count: count == sum(counts.values()))

    def _described(self, name: str) -> Any:
        asked = MetadataRequest([MetadataRequestTopic(ZERO_UUID, self.topics[name])], False)
        (topic,) = self._client.request(asked, 12).topics
        return topic

    def _assigned_to_probe(self, counts: Mapping[str, int]) -> int:
        """Count the partitions that a member of a new group gets. Kafka's coordinators see topics later than its
        brokers."""
        self._probes += 1
        group, names = f"probe-{self._probes}-{self.group}", [self.topics[name] for name in counts]
        join = ConsumerGroupHeartbeatRequest(group, "p", 0, None, None, 60_000, names, None, None, [])
        answer = self._client.request(join, 1)
        assert not answer.error_code, answer
        self._client.request(ConsumerGroupHeartbeatRequest(group, "p", -1), 1)
        self._client.request(DeleteGroupsRequest([group]), 2)
        return sum(len(topic.partitions) for topic in answer.assignment.topic_partitions)

    def assign_at_once(self) -> None:
        """Remove the interval between computations of the group's assignment."""
        self.configure("consumer.assignment.interval.ms", "0")

    def configure(self, key: str, value: str, *, kept: bool = False) -> None:
        """Set a configuration key of the group."""
        change = AlterConfigsResource(GROUP_RESOURCE, self.group, [AlterableConfig(key, 0, value)])
        answer = self.ask(IncrementalAlterConfigsRequest([change], False), 1)
        if kept:
            self.keep(answer)
        else:
            assert not answer.responses[0].error_code, answer

    # -- members of the consumer protocol -----------------------------------------------------------------------

    def beat(
        self, member: str, epoch: int = 0, *, version: int = 1, by_number: bool = False, **fields: Any
    ) -> Any:
        """Send a heartbeat. `topics` and `owns` use the conversation's names. With epoch 0 the member joins and fills
        all fields."""
        names = fields.pop("topics", None if epoch else ["T"])
        owned = fields.pop("owns", None if epoch else {})
        request = ConsumerGroupHeartbeatRequest(
            fields.pop("group", self.group),
            member,
            epoch,
            fields.pop("instance", None),
            fields.pop("rack", None),
            fields.pop("rebalance_ms", -1 if epoch else 60_000),
            None if names is None else [self.topics.get(each, each) for each in names],
            fields.pop("pattern", None),
            fields.pop("assignor", None),
            None
            if owned is None
            else [TopicPartitions(self.ids[name], partitions) for name, partitions in owned.items()],
        )
        assert not fields, fields
        return self.keep(self.ask(request, version), by_number=by_number)

    def try_beat(self, member: str, epoch: int = 0, **fields: Any) -> Any:
        """Send a heartbeat without keeping its answer."""
        before = self.errors.copy()
        answer = self.beat(member, epoch, **fields)
        self.answers.pop()
        self.errors = before
        return answer

    def wait_for_refusal(self, attempt: Callable[[], Any]) -> None:
        """Repeat `attempt` until it gets an error, since the broker learns a moment later that a right was removed."""
        _repeat(attempt, lambda answer: bool(answer.error_code))

    def describe(self, *, version: int = 1, by_number: bool = False, groups: list[str] | None = None) -> None:
        request = ConsumerGroupDescribeRequest([self.group] if groups is None else groups, True)
        self.keep(self.ask(request, version), by_number=by_number)

    # -- members of the classic protocol ------------------------------------------------------------------------

    def join(self, member: str, metadata: bytes, *, version: int = 9, instance: str | None = None) -> Any:
        request = JoinGroupRequest(
            self.group,
            30_000,
            30_000,
            member,
            instance,
            "consumer",
            [JoinGroupRequestProtocol("range", metadata)],
        )
        return self.ask(request, version)

    def sync(self, member: str, generation: int, assignments: Any = ()) -> Any:
        request = SyncGroupRequest(
            self.group, generation, member, None, "consumer", "range", list(assignments)
        )
        return self.ask(request, 5)

    def heartbeat(self, member: str, generation: int) -> Any:
        return self.ask(HeartbeatRequest(self.group, generation, member), 4)

    def leave(self, *members: MemberIdentity) -> Any:
        return self.ask(LeaveGroupRequest(self.group, "", list(members)), 5)

    # -- offsets and groups -------------------------------------------------------------------------------------

    def commit(
        self,
        member: str,
        epoch: int,
        partition: int,
        *,
        version: int = 9,
        topic: str = "T",
        group: str | None = None,
        instance: str | None = None,
        metadata: str = "",
    ) -> Any:
        """Commit offset 5 of a partition. A topic name that the conversation did not create is sent unchanged."""
        named = OffsetCommitRequestTopic(
            self.topics.get(topic, topic),
            self.ids.get(topic, NO_TOPIC),
            [OffsetCommitRequestPartition(partition, 5, 0, metadata)],
        )
        group = self.group if group is None else group
        request = OffsetCommitRequest(group, epoch, member, instance, -1, [named])
        return self.keep(self.ask(request, version))

    def fetch(
        self,
        member: str | None,
        epoch: int,
        *,
        version: int = 9,
        topic: str = "T",
        group: str | None = None,
        stable: bool = False,
    ) -> Any:
        """Fetch the offset of partition 0. With `stable`, an offset that an open transaction may change is refused."""
        return self.keep(self.ask(self._fetch(member, epoch, topic, group, stable), version))

    def _fetch(
        self, member: str | None, epoch: int, topic: str, group: str | None, stable: bool
    ) -> OffsetFetchRequest:
        named = [OffsetFetchRequestTopics(self.topics.get(topic, topic), self.ids.get(topic, NO_TOPIC), [0])]
        asked = OffsetFetchRequestGroup(self.group if group is None else group, member, epoch, named)
        return OffsetFetchRequest("", None, [asked], stable)

    def fetch_when_stable(self, version: int) -> None:
        """Wait until no transaction can change the committed offset of partition 0, then keep it."""
        request = self._fetch(None, -1, "T", None, True)
        answer = _repeat(
            lambda: self._client.request(request, version),
            lambda answer: ErrorCode.UNSTABLE_OFFSET_COMMIT not in _codes_in(answer),
        )
        self.keep(answer)

    def delete_offset(self, topic: str, partition: int, *, group: str | None = None) -> None:
        name = self.topics.get(topic, topic)
        named = OffsetDeleteRequestTopic(name, [OffsetDeleteRequestPartition(partition)])
        self.keep(self.ask(OffsetDeleteRequest(group or self.group, [named]), 0))

    def describe_as_classic(self, version: int) -> None:
        self.keep(self.ask(DescribeGroupsRequest([self.group], False), version))

    def list_groups(self, states: list[str], types: list[str]) -> None:
        """Keep the entry of this group in the list of groups, if there is one."""
        answer = self.ask(ListGroupsRequest(states, types), 5)
        answer.groups = [each for each in answer.groups if each.group_id == self.group]
        self.keep(answer)

    def delete_group(self) -> None:
        self.keep(self.ask(DeleteGroupsRequest([self.group]), 2))

    def wait_until(self, member: str, epoch: int, is_so: Callable[[Any], bool]) -> Any:
        """Repeat a heartbeat until its answer is the wanted one, and keep that answer."""

        def beat() -> Any:
            answer = self._client.request(ConsumerGroupHeartbeatRequest(self.group, member, epoch), 1)
            assert answer.error_code == ErrorCode.NONE, answer
            return answer

        return self.keep(_repeat(beat, is_so))


def _repeat(attempt: Callable[[], T], is_so: Callable[[T], bool]) -> T:
    """Call `attempt` until its result is the wanted one, and return it. There is no event to wait for in another
    server."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not is_so(result := attempt()):
        assert time.monotonic() < deadline, result
        time.sleep(0.05)
    return result


def _has(topic: Any, count: int) -> bool:
    return len(topic.partitions) == count and (not count or not topic.error_code)


def _codes_in(value: Any) -> Iterator[int]:
    """Yield each error code of an answer. 0 stands for no error."""
    if isinstance(value, list):
        for each in value:
            yield from _codes_in(each)
    elif isinstance(value, Structure):
        for field in attrs.fields(type(value)):
            found = getattr(value, field.name)
            if field.name == "error_code":
                yield found
            else:
                yield from _codes_in(found)


def run_tag() -> str:
    """Return a name for one run."""
    return os.urandom(3).hex()
