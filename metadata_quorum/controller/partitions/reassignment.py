"""AlterPartitionReassignments and ListPartitionReassignments: move replicas to other brokers while the
partition is in use (KIP-455).

A reassignment has up to three stages. First, the assignment is set to the wanted replicas, followed by the
obsolete replicas. `adding` lists the new replicas, `removing` the obsolete ones. Then the leader adds each
new replica to the ISR when it has caught up. When the last one is added (`partition_change`), the obsolete
replicas are removed, and the reassignment is complete. A reassignment that copies no data is complete at
once.

`adding` has all replicas that the partition did not have when the reassignment began, also if a second
reassignment replaces the first. If it is cancelled, all of them are removed. (Kafka does not remove those of
the first reassignment.)
"""

from __future__ import annotations

from odradek.metadata_quorum.controller.decision_basis import DecisionBasis
from odradek.metadata_quorum.controller.limits import check_batch
from odradek.metadata_quorum.controller.partitions.assignments import (
    bad_assignment,
    check_given_replicas,
    default_directory,
)
from odradek.metadata_quorum.controller.partitions.partition_change import (
    Change,
    acceptable_leaders,
    change_partition,
)
from odradek.metadata_quorum.controller.partitions.topic_rules import TopicRules, topic_rules
from odradek.metadata_quorum.image.metadata_image import MetadataImage, PartitionImage, TopicImage
from odradek.metadata_quorum.state_machine import Decision, DecisionContext
from odradek.named_states import reached
from odradek.wire.errors import ErrorCode, KafkaError
from odradek.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)
from odradek.wire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
)
from odradek.wire.messages.metadata_records import PartitionChangeRecord
from odradek.wire.schema.anatomy import refuse
from odradek.wire.structure import Message
from odradek.wire.topic_partition import TopicPartition


def alter_partition_reassignments(
    image: MetadataImage,
    request: AlterPartitionReassignmentsRequest,
    _context: DecisionContext,
    basis: DecisionBasis,
) -> Decision:
    """Start or cancel the requested reassignments in one atomic batch.

    A refused partition does not affect other partitions.
    """
    allow_factor_change = request.allow_replication_factor_change
    records: list[Message] = []
    seen: set[TopicPartition] = set()
    responses = []
    try:
        for topic in request.topics:
            answers = []
            for asked in topic.partitions:
                code, message = ErrorCode.NONE, None
                key = TopicPartition(topic.name, asked.partition_index)
                try:
                    if key in seen:
                        raise KafkaError(ErrorCode.INVALID_REQUEST, "The partition is named more than once.")
                    seen.add(key)
                    record = _alter(image, topic.name, asked, basis, allow_factor_change)
                    if record is not None:
                        records.append(record)
                except KafkaError as error:
                    code, message = error.code, error.message or None
                answers.append(ReassignablePartitionResponse(asked.partition_index, code, message))
            check_batch(records)
            responses.append(ReassignableTopicResponse(topic.name, answers))
    except KafkaError as error:
        return Decision([], refuse(request, error.code, error.message))
    # Kafka answers a request without topics before it sets the error message, so the message is empty instead
    # of null.
    text = None if request.topics else ""
    response = AlterPartitionReassignmentsResponse(0, allow_factor_change, ErrorCode.NONE, text, responses)
    return Decision(records, response)


def _alter(
    image: MetadataImage,
    topic_name: str,
    asked: ReassignablePartition,
    basis: DecisionBasis,
    allow_factor_change: bool,
) -> PartitionChangeRecord | None:
    topic: TopicImage | None = image.topics.get(topic_name)
    if topic is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find a topic named {topic_name}.")
    partition = topic.partitions.get(asked.partition_index)
    if partition is None:
        raise KafkaError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            f"Unable to find partition {topic_name}:{asked.partition_index}.",
        )
    rules = topic_rules(image, basis, topic)
    if asked.replicas is None:
        return _cancel(image, topic, asked.partition_index, partition, rules)
    return _reassign(
        image, topic, asked.partition_index, partition, rules, asked.replicas, allow_factor_change
    )


def _reassign(
    image: MetadataImage,
    topic: TopicImage,
    number: int,
    partition: PartitionImage,
    rules: TopicRules,
    wanted: list[int],
    allow_factor_change: bool,
) -> PartitionChangeRecord | None:
    check_given_replicas(image, wanted, None)
    if not allow_factor_change:
        _check_factor(partition, wanted)
    removing = tuple(sorted(set(partition.replicas) - set(wanted)))
    new = set(wanted) - set(partition.replicas)
    return change_partition(
        topic.topic_id,
        number,
        partition,
        acceptable_leaders(image),
        rules,
        Change(
            replicas=(*wanted, *removing),
            adding=tuple(sorted(new.union(partition.adding_replicas))),
            removing=removing,
            directories={replica: default_directory(image, replica) for replica in sorted(new)},
        ),
    )


def _check_factor(partition: PartitionImage, wanted: list[int]) -> None:
    """Check the number of wanted replicas (KIP-860).

    During a reassignment it is compared with the target's number.
    """
    factor = len(set(partition.replicas) - set(partition.removing_replicas))
    if factor != len(wanted):
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"The replication factor is changed from {factor} to {len(wanted)}",
        )


def _cancel(
    image: MetadataImage, topic: TopicImage, number: int, partition: PartitionImage, rules: TopicRules
) -> PartitionChangeRecord | None:
    if not partition.adding_replicas and not partition.removing_replicas:
        raise KafkaError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "")
    replicas = tuple(each for each in partition.replicas if each not in partition.adding_replicas)
    if not replicas:
        raise bad_assignment("Invalid replica assignment: addingReplicas contains all replicas.")
    isr = tuple(each for each in partition.isr if each in replicas)
    if not isr and not any(each in replicas for each in partition.elr):
        # No old replica has all records, so cancelling would lose records.
        if not rules.unclean_election:
            raise bad_assignment(
                f"Unable to revert partition assignment for {topic.name}:{number} because it would require an "
                "unclean leader election."
            )
        reached("controller.reassignment_cancelled_uncleanly")
        isr = ()
    return change_partition(
        topic.topic_id,
        number,
        partition,
        acceptable_leaders(image),
        rules,
        Change(isr=isr, unclean=True, replicas=replicas, adding=(), removing=()),
    )


def list_partition_reassignments(
    image: MetadataImage,
    request: ListPartitionReassignmentsRequest,
    _context: DecisionContext,
    _basis: DecisionBasis,
) -> Decision:
    """List the reassignments in progress, of all topics or of the requested ones.

    Unknown partitions, and partitions without a reassignment, are left out.
    """
    topics: list[OngoingTopicReassignment] = []
    if request.topics is None:
        for name in sorted(image.topics):
            _add_ongoing(image.topics[name], list(image.topics[name].partitions), topics)
    else:
        for asked in request.topics:
            topic: TopicImage | None = image.topics.get(asked.name)
            if topic is not None:
                _add_ongoing(topic, asked.partition_indexes, topics)
    return Decision([], ListPartitionReassignmentsResponse(0, ErrorCode.NONE, None, topics))


def _add_ongoing(topic: TopicImage, numbers: list[int], topics: list[OngoingTopicReassignment]) -> None:
    ongoing = []
    for number in numbers:
        partition = topic.partitions.get(number)
        if partition is not None and (partition.adding_replicas or partition.removing_replicas):
            ongoing.append(
                OngoingPartitionReassignment(
                    number,
                    list(partition.replicas),
                    list(partition.adding_replicas),
                    list(partition.removing_replicas),
                )
            )
    if ongoing:
        topics.append(OngoingTopicReassignment(topic.name, ongoing))
