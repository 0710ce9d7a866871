"""Scripts for groups of the consumer protocol. They have the commands of `group_script`, and these:

    topics NAME=PARTITIONS... [-NAME...]  the topics that the cluster has from now on; `-NAME` deletes a topic
    racks NODE=RACK...                    the racks of brokers
    beat NAME [topics=T+U|topics=] [pattern=P] [epoch=N] [owns=T-0+T-1|owns=] [instance=I] [assignor=A] [rack=R]
              [rebalance=MS] [group=G] [new]
                                          a heartbeat with only the given fields; the first one joins
    full NAME                             a heartbeat with all fields, as after a lost answer
    ack NAME                              a heartbeat that lists the partitions of the last assignment
    quit NAME                             a member leaves for good
    away NAME                             a static member leaves for a while
    resolve                               the workers finish: patterns get their topics, and large groups their targets
    show [GROUP]                          ConsumerGroupDescribe

A client uses the member id and the epoch of its last answer. `t-0` is partition 0 of topic `t`.
"""

from __future__ import annotations

from typing import Any

import attrs

from odradek.data_plane.coordination.records import CoordinatorRecord
from odradek.data_plane.groups.consumers.consumer_group import ConsumerGroup
from odradek.data_plane.groups.consumers.describing import describe_group
from odradek.data_plane.groups.group_settings import GroupSettings
from odradek.data_plane.groups.listing import DescribeConsumerGroup
from odradek.data_plane.groups.machine import GroupMachine
from odradek.metadata_quorum.image.metadata_image import MetadataImage, PartitionImage, TopicImage
from odradek.serving.layered_map import LayeredMap
from odradek.serving.steps import Work
from odradek.wire.errors import ErrorCode
from odradek.wire.messages import coordinator_records as records
from odradek.wire.messages.consumer_group_describe import Assignment, DescribedGroup
from odradek.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)
from tests.groups.group_script import GroupScript

STATES = {0: "stable", 1: "unrevoked", 2: "unreleased"}


def topic_id(name: str) -> bytes:
    """Make the id of a topic from its name, padded to 16 bytes."""
    return name.encode().ljust(16)


def image_of(topics: dict[str, int], offset: int) -> MetadataImage:
    """Make an image of a cluster of one broker with these topics, given by name and number of partitions."""
    images = {
        name: TopicImage(
            name,
            topic_id(name),
            {index: PartitionImage(1, 0, 0, (1,), (1,)) for index in range(count)},
        )
        for name, count in topics.items()
    }
    return MetadataImage(
        offset,
        topics=LayeredMap(images),
        topics_by_id=LayeredMap({each.topic_id: each for each in images.values()}),
    )


@attrs.define
class Client:
    """The member id, epoch and assignment that one client knows."""

    epoch: int = 0
    topics: list[str] | None = None
    pattern: str | None = None
    instance_id: str | None = None
    assignor: str | None = None
    rebalance_ms: int = 5_000
    assigned: list[TopicPartitions] = attrs.field(factory=list)


class ConsumerScript(GroupScript):
    """Runs the commands of one script."""

    def __init__(self) -> None:
        super().__init__()
        self._image = MetadataImage()
        self._counts: dict[str, int] = {}
        self._clients: dict[str, Client] = {}

    def new_machine(self, settings: GroupSettings) -> GroupMachine:
        self.machine = GroupMachine(settings, lambda: self._image)
        return self.machine

    # -- commands -----------------------------------------------------------------------------------------------

    def do_topics(self, words: list[str]) -> None:
        before = dict(self._counts)
        for word in words:
            if word.startswith("-"):
                del self._counts[word[1:]]
            else:
                name, _, count = word.partition("=")
                self._counts[name] = int(count)
        self._image = image_of(self._counts, self._image.offset + 1)
        if self._leads:
            if set(self._counts) - set(before):
                self.machine.topics_created(self._image.offset)
            changed = [
                name for name in {**before, **self._counts} if before.get(name) != self._counts.get(name)
            ]
            self.machine.topics_changed(sorted(changed), self.runtime.state)

    def do_beat(self, words: list[str]) -> None:
        name, options = words[0], dict(word.split("=", 1) for word in words[1:] if "=" in word)
        client = self._clients.setdefault(name, Client())
        if "new" in words:
            client = self._clients[name] = Client()
            self._ids.pop(name, None)
        member_id = self._ids.setdefault(name, f"{name}-{self._given.get(name, 0) + 1}")
        if member_id not in self._names:
            self._given[name] = self._given.get(name, 0) + 1
            self._names[member_id] = f"{name}{self._given[name]}"
        if "topics" in options:
            client.topics = options["topics"].split("+") if options["topics"] else []
        client.pattern = options.get("pattern", client.pattern)
        client.instance_id = options.get("instance", client.instance_id)
        client.assignor = options.get("assignor", client.assignor)
        epoch = int(options.get("epoch", client.epoch))
        joins = epoch == 0
        request = ConsumerGroupHeartbeatRequest(
            options.get("group", "g"),
            member_id,
            epoch,
            client.instance_id,
            options.get("rack"),
            int(options.get("rebalance", client.rebalance_ms if joins else -1)),
            client.topics if joins or "topics" in options else None,
            client.pattern if joins or "pattern" in options else None,
            client.assignor if joins or "assignor" in options else None,
            [] if joins else None,
        )
        if "owns" in options:
            request.topic_partitions = _owned(options["owns"])
        self.ask(f"{name} beat", request, 1, client_id=name)

    def do_full(self, words: list[str]) -> None:
        client = self._clients[words[0]]
        request = ConsumerGroupHeartbeatRequest(
            "g",
            self._ids[words[0]],
            client.epoch,
            client.instance_id,
            None,
            client.rebalance_ms,
            client.topics,
            client.pattern,
            client.assignor,
            client.assigned,
        )
        self.ask(f"{words[0]} full", request, 1, client_id=words[0])

    def do_ack(self, words: list[str]) -> None:
        client = self._clients[words[0]]
        request = ConsumerGroupHeartbeatRequest(
            "g", self._ids[words[0]], client.epoch, client.instance_id, topic_partitions=client.assigned
        )
        self.ask(f"{words[0]} ack", request, 1, client_id=words[0])

    def do_quit(self, words: list[str]) -> None:
        self._part(words[0], -1)

    def do_away(self, words: list[str]) -> None:
        self._part(words[0], -2)

    def _part(self, name: str, epoch: int) -> None:
        client = self._clients[name]
        request = ConsumerGroupHeartbeatRequest("g", self._ids[name], epoch, client.instance_id)
        client.epoch = 0
        self.ask(f"{name} {'quit' if epoch == -1 else 'away'}", request, 1, client_id=name)

    def do_resolve(self, words: list[str]) -> None:
        for work in self.machine.consumers.take_wanted():
            for request in work.requests():
                self.ask("", request, 0)
            self.machine.consumers.work_ended(work)

    def do_show(self, words: list[str]) -> None:
        self.ask("- show", DescribeConsumerGroup(words[0] if words else "g"), 1)

    def heard(self, name: str, response: Any) -> None:
        super().heard(name, response)
        if isinstance(response, ConsumerGroupHeartbeatResponse) and not response.error_code:
            client = self._clients[name]
            client.epoch = max(response.member_epoch, 0)
            if response.assignment is not None:
                client.assigned = response.assignment.topic_partitions
            self._generations[name] = client.epoch

    # -- words --------------------------------------------------------------------------------------------------

    def tell(self, response: Any) -> str:
        if isinstance(response, ConsumerGroup):
            response = _all_at_once(describe_group(response, self._settings.consumer_assignors, self._image))
        if isinstance(response, DescribedGroup):
            return _tell_group(response, self._tell_id)
        if not isinstance(response, ConsumerGroupHeartbeatResponse):
            return super().tell(response)
        if response.error_code:
            return ErrorCode(response.error_code).name
        told = f"epoch {response.member_epoch}"
        if response.assignment is not None:
            told += f" {_shown(response.assignment.topic_partitions)}"
        return told

    def tell_record(self, record: CoordinatorRecord) -> str:
        key, value = record.key, record.value
        member = self._tell_id(getattr(key, "member_id", None))
        if isinstance(key, records.ConsumerGroupMetadataKey):
            told = "group"
        elif isinstance(key, records.ConsumerGroupPartitionMetadataKey):
            told = "topics"
        elif isinstance(key, records.ConsumerGroupMemberMetadataKey):
            told = f"member {member}"
        elif isinstance(key, records.ConsumerGroupTargetAssignmentMetadataKey):
            told = "targets"
        elif isinstance(key, records.ConsumerGroupTargetAssignmentMemberKey):
            told = f"target of {member}"
        elif isinstance(key, records.ConsumerGroupCurrentMemberAssignmentKey):
            told = f"current of {member}"
        elif isinstance(key, records.ConsumerGroupRegularExpressionKey):
            told = f"pattern {key.regular_expression}"
        else:
            return super().tell_record(record)
        return f"{told}: {'removed' if value is None else _tell_value(value)}"


def _tell_value(value: Any) -> str:
    if isinstance(value, records.ConsumerGroupMetadataValue):
        return f"epoch {value.epoch}"
    if isinstance(value, records.ConsumerGroupMemberMetadataValue):
        parts = ["+".join(value.subscribed_topic_names) or "nothing"]
        parts += [f"pattern {value.subscribed_topic_regex}"] if value.subscribed_topic_regex else []
        parts += [f"instance {value.instance_id}"] if value.instance_id is not None else []
        parts += [f"assignor {value.server_assignor}"] if value.server_assignor is not None else []
        parts += ["classic"] if value.classic_member_metadata is not None else []
        return ", ".join(parts)
    if isinstance(value, records.ConsumerGroupTargetAssignmentMetadataValue):
        return f"epoch {value.assignment_epoch}"
    if isinstance(value, records.ConsumerGroupTargetAssignmentMemberValue):
        return _shown(value.topic_partitions)
    if isinstance(value, records.ConsumerGroupRegularExpressionValue):
        return "+".join(value.topics) or "nothing"
    assert isinstance(value, records.ConsumerGroupCurrentMemberAssignmentValue)
    told = f"epoch {value.member_epoch} after {value.previous_member_epoch}, {STATES[value.state]}"
    told += f", {_with_epochs(value.assigned_partitions)}"
    if value.partitions_pending_revocation:
        told += f", gives up {_with_epochs(value.partitions_pending_revocation)}"
    return told


def _with_epochs(topics: list[records.TopicPartitions]) -> str:
    told = [
        f"{each.topic_id.decode().strip()}-{index}@{epoch}"
        for each in topics
        for index, epoch in zip(each.partitions, each.assignment_epochs or [], strict=True)
    ]
    return "+".join(told) or "nothing"


def _shown(topics: Any) -> str:
    told = [f"{each.topic_id.decode().strip()}-{index}" for each in topics for index in each.partitions]
    return "+".join(told) or "nothing"


def _owned(text: str) -> list[TopicPartitions]:
    found: dict[str, list[int]] = {}
    for word in text.split("+"):
        if word:
            name, _, index = word.rpartition("-")
            found.setdefault(name, []).append(int(index))
    return [TopicPartitions(topic_id(name), indexes) for name, indexes in found.items()]


def _all_at_once(work: Work[DescribedGroup]) -> DescribedGroup:
    """Do at once the work that a node does in slices."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            described: DescribedGroup = end.value
            return described


def _tell_group(group: DescribedGroup, tell_id: Any) -> str:
    if group.error_code:
        return f"{ErrorCode(group.error_code).name}: {group.error_message}"

    def shown(assignment: Assignment) -> str:
        return _shown(assignment.topic_partitions)

    members = [
        f"{tell_id(each.member_id)} at {each.member_epoch} has {shown(each.assignment)}, "
        f"should have {shown(each.target_assignment)}" + (", classic" if each.member_type == 0 else "")
        for each in group.members
    ]
    return "; ".join(
        [
            f"{group.group_state}, epoch {group.group_epoch}, targets {group.assignment_epoch}, {group.assignor_name}",
            *members,
        ]
    )
