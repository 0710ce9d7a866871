"""Commands of controller scripts about partitions, and about the nodes that belong to the cluster."""

from __future__ import annotations

from typing import Any, Protocol

from odradek.metadata_quorum.controller.partitions.elect_leaders import BalanceLeaders, ElectLeaderless
from odradek.metadata_quorum.image.metadata_image import MetadataImage
from odradek.wire.errors import ErrorCode
from odradek.wire.messages.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionRequestPartitionData,
    AlterPartitionRequestTopicData,
    BrokerState,
)
from odradek.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from odradek.wire.messages.assign_replicas_to_dirs import (
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsRequestDirectoryData,
    AssignReplicasToDirsRequestPartitionData,
    AssignReplicasToDirsRequestTopicData,
)
from odradek.wire.messages.controller_registration import ControllerRegistrationRequest, Feature, Listener
from odradek.wire.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from odradek.wire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopics,
)
from odradek.wire.messages.unregister_broker import UnregisterBrokerRequest
from odradek.wire.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from odradek.wire.structure import Message


class _Script(Protocol):
    """The methods of a script that its commands use."""

    @property
    def image(self) -> MetadataImage: ...

    def id_of(self, name: str) -> bytes: ...

    def decide(self, request: Any, api_version: int | None = None) -> tuple[list[Message], Any]: ...

    def tell(self, message: Message) -> str: ...


class PartitionCommands:
    """The commands about partitions, mixed into `ControllerScript`."""

    def do_isr(self: _Script, words: list[str]) -> list[str]:
        name, _, number = words[0].rpartition("-")
        options = options_of(words[3:])
        version = int(options.get("version", "3"))
        topic = self.image.topics.get(name)
        known = None if topic is None else topic.partitions.get(int(number))
        epochs: tuple[int, ...] = (known.leader_epoch, known.partition_epoch) if known is not None else (0, 0)
        if "epoch" in options:
            epochs = numbers_of(options["epoch"], "/")
        members = [_broker_state(self.image, word) for word in words[2].split(",") if word]
        data = AlterPartitionRequestPartitionData(
            partition_index=int(number),
            leader_epoch=epochs[0],
            partition_epoch=epochs[1],
            leader_recovery_state=int("recovering" in options),
        )
        if version >= 3:
            data.new_isr_with_epochs = members
        else:
            data.new_isr = [member.broker_id for member in members]
        leader = self.image.brokers.get(int(words[1]))
        request = AlterPartitionRequest(
            broker_id=int(words[1]),
            broker_epoch=int(options.get("broker", leader.epoch if leader is not None else 0)),
            topics=[
                AlterPartitionRequestTopicData(topic.topic_id if topic else self.id_of("unknown"), [data])
            ],
        )
        records, response = self.decide(request, version)
        lines = [self.tell(record) for record in records]
        if response.error_code:
            return [*lines, f"-> {ErrorCode(response.error_code).name}"]
        for answer in (each for topic in response.topics for each in topic.partitions):
            line = f"-> {name}-{answer.partition_index} {ErrorCode(answer.error_code).name}"
            if not answer.error_code:
                line += f" leader={answer.leader_id} epoch={answer.leader_epoch}/{answer.partition_epoch}"
                line += f" isr={answer.isr}" + (" recovering" if answer.leader_recovery_state else "")
            lines.append(line)
        return lines

    def do_assign(self: _Script, words: list[str]) -> list[str]:
        """Run `assign BROKER DIRECTORY PARTITION,...`: report the directory that holds a broker's replicas."""
        broker_id = int(words[0])
        topics = [
            AssignReplicasToDirsRequestTopicData(
                self.image.topics[name].topic_id,
                [AssignReplicasToDirsRequestPartitionData(number) for number in numbers],
            )
            for name, numbers in by_topic(words[2].split(",")).items()
        ]
        request = AssignReplicasToDirsRequest(
            broker_id,
            self.image.brokers[broker_id].epoch,
            [AssignReplicasToDirsRequestDirectoryData(self.id_of(words[1]), topics)],
        )
        records, response = self.decide(request)
        return [*map(self.tell, records), f"-> {ErrorCode(response.error_code).name}"]

    def do_elect(self: _Script, words: list[str]) -> list[str]:
        partitions = None
        if words[0] != "all":
            partitions = [
                TopicPartitions(name, numbers) for name, numbers in by_topic(words[0].split(",")).items()
            ]
        kind = {"preferred": 0, "unclean": 1}.get(words[1], 9)
        records, response = self.decide(ElectLeadersRequest(kind, partitions))
        lines = [*map(self.tell, records), f"-> {ErrorCode(response.error_code).name}"]
        for topic in response.replica_election_results:
            for result in topic.partition_result:
                lines.append(_told(f"{topic.topic}-{result.partition_id}", result))
        return lines

    def do_reassign(self: _Script, words: list[str]) -> list[str]:
        keep = "keep-factor" in words
        words = [word for word in words if word != "keep-factor"]
        topics: dict[str, list[ReassignablePartition]] = {}
        for partition, replicas in zip(words[::2], words[1::2], strict=True):
            name, _, number = partition.rpartition("-")
            wanted = None if replicas == "cancel" else list(numbers_of(replicas))
            topics.setdefault(name, []).append(ReassignablePartition(int(number), wanted))
        request = AlterPartitionReassignmentsRequest(
            allow_replication_factor_change=not keep,
            topics=[ReassignableTopic(name, partitions) for name, partitions in topics.items()],
        )
        records, response = self.decide(request)
        lines = [self.tell(record) for record in records]
        if response.error_code:
            lines.append(_told("all", response))
        for topic in response.responses:
            for result in topic.partitions:
                lines.append(_told(f"{topic.name}-{result.partition_index}", result))
        return lines

    def do_reassignments(self: _Script, words: list[str]) -> list[str]:
        topics = None
        if words:
            topics = [
                ListPartitionReassignmentsTopics(name, numbers)
                for name, numbers in by_topic(words[0].split(",")).items()
            ]
        _, response = self.decide(ListPartitionReassignmentsRequest(topics=topics))
        return [
            f"{topic.name}-{each.partition_index} replicas={each.replicas} adding={each.adding_replicas} "
            f"removing={each.removing_replicas}"
            for topic in response.topics
            for each in topic.partitions
        ]

    def do_balance(self: _Script, words: list[str]) -> list[str]:
        records, elected = self.decide(BalanceLeaders())
        return [*map(self.tell, records), f"-> {elected}"]

    def do_elect_leaderless(self: _Script, words: list[str]) -> list[str]:
        records, elected = self.decide(ElectLeaderless())
        return [*map(self.tell, records), f"-> {elected}"]

    def do_unregister(self: _Script, words: list[str]) -> list[str]:
        records, response = self.decide(UnregisterBrokerRequest(int(words[0])))
        return [*map(self.tell, records), _told(words[0], response)]

    def do_controller(self: _Script, words: list[str]) -> list[str]:
        options = options_of(words[1:])
        level = int(options.get("level", "30"))
        request = ControllerRegistrationRequest(
            controller_id=int(words[0]),
            incarnation_id=self.id_of(options.get("incarnation", f"C{words[0]}")),
            listeners=[Listener("CONTROLLER", options.get("host", f"h{words[0]}"), 9093, 0)],
            features=[
                Feature("metadata.version", level, level),
                Feature("eligible.leader.replicas.version", 0, 1),
                Feature("transaction.version", 0, 2),
                Feature("group.version", 0, 1),
            ],
        )
        records, response = self.decide(request)
        return [*map(self.tell, records), _told(words[0], response)]

    def do_features(self: _Script, words: list[str]) -> list[str]:
        version = int(options_of(words).get("version", "2"))
        updates = []
        for word in words:
            name, equals, level = word.partition("=")
            if equals and name != "version":
                bangs = level.count("!")
                number = int(level.rstrip("!"))
                updates.append(FeatureUpdateKey(name, number, bool(bangs) and version == 0, 1 + bangs))
        records, response = self.decide(
            UpdateFeaturesRequest(feature_updates=updates, validate_only="validate" in words), version
        )
        lines = [*map(self.tell, records), _told("all", response)]
        return lines + [_told(result.feature, result) for result in response.results]


def _told(name: str, result: Any) -> str:
    line = f"-> {name} {ErrorCode(result.error_code).name}"
    return f"{line}: {result.error_message}" if result.error_message else line


def by_topic(partitions: list[str]) -> dict[str, list[int]]:
    """Return partitions by topic: `t-0` and `t-1` become the numbers 0 and 1 of `t`."""
    topics: dict[str, list[int]] = {}
    for partition in partitions:
        name, _, number = partition.rpartition("-")
        topics.setdefault(name, []).append(int(number))
    return topics


def options_of(words: list[str]) -> dict[str, str]:
    """Parse `key=value` words. A word without `=` has an empty value."""
    options = {}
    for word in words:
        key, _, value = word.partition("=")
        options[key] = value
    return options


def numbers_of(text: str, separator: str = ",") -> tuple[int, ...]:
    """Parse a list of numbers."""
    return tuple(int(number) for number in text.split(separator) if number)


def _broker_state(image: MetadataImage, word: str) -> BrokerState:
    broker_id, at, epoch = word.partition("@")
    known = image.brokers.get(int(broker_id))
    return BrokerState(int(broker_id), int(epoch) if at else known.epoch if known is not None else 0)
