"""CreatePartitions: add partitions to a topic. New partitions are placed by the rules for the partitions of a
new topic.
"""

from __future__ import annotations

from odradek.metadata_quorum.controller.decision_basis import DecisionBasis
from odradek.metadata_quorum.controller.limits import RECORDS_PER_REQUEST_MAX
from odradek.metadata_quorum.controller.partitions.assignments import (
    Assignment,
    active_replicas,
    assigned,
    bad_assignment,
    check_given_replicas,
    partition_records,
)
from odradek.metadata_quorum.controller.partitions.placement import TooFewBrokers, place_replicas
from odradek.metadata_quorum.image.metadata_image import MetadataImage, TopicImage
from odradek.metadata_quorum.state_machine import Decision, DecisionContext
from odradek.wire.errors import ErrorCode, KafkaError
from odradek.wire.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)
from odradek.wire.structure import Message


def create_partitions(
    image: MetadataImage, request: CreatePartitionsRequest, context: DecisionContext, _basis: DecisionBasis
) -> Decision:
    """Create the partitions of all valid topics in one atomic batch. Other topics get errors.

    If a topic would bring the request above `RECORDS_PER_REQUEST_MAX` records, the topic is refused, and
    later topics are still tried. (Kafka writes as many records as fit, and answers with an unknown server
    error.)
    """
    counts: dict[str, int] = {}
    for topic in request.topics:
        counts[topic.name] = counts.get(topic.name, 0) + 1
    results = [
        CreatePartitionsTopicResult(name, ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
        for name, count in counts.items()
        if count > 1
    ]
    records: list[Message] = []
    for topic in request.topics:
        if counts[topic.name] > 1:
            continue
        try:
            records += _grow(image, topic, context, RECORDS_PER_REQUEST_MAX - len(records))
        except KafkaError as error:
            results.append(CreatePartitionsTopicResult(topic.name, error.code, error.message or None))
        else:
            results.append(CreatePartitionsTopicResult(topic.name, ErrorCode.NONE, None))
    return Decision([] if request.validate_only else records, CreatePartitionsResponse(0, results))


def new_partitions_asked(image: MetadataImage, asked: CreatePartitionsTopic) -> int:
    """Count the partitions that the request would add to a topic; 0 if the request is invalid."""
    topic: TopicImage | None = image.topics.get(asked.name)
    additional = 0 if topic is None else max(0, asked.count - len(topic.partitions))
    return additional if asked.assignments is None or len(asked.assignments) == additional else 0


def too_many_partitions() -> KafkaError:
    """Make the error for a topic to which too many partitions would be added."""
    return KafkaError(ErrorCode.POLICY_VIOLATION, "Excessively large number of partitions per request.")


def _grow(
    image: MetadataImage, asked: CreatePartitionsTopic, context: DecisionContext, records_max: int
) -> list[Message]:
    topic: TopicImage | None = image.topics.get(asked.name)
    if topic is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "")
    present = len(topic.partitions)
    additional = asked.count - present
    if additional == 0:
        raise KafkaError(ErrorCode.INVALID_PARTITIONS, f"Topic already has {present} partition(s).")
    if additional < 0:
        raise KafkaError(
            ErrorCode.INVALID_PARTITIONS,
            f"The topic {asked.name} currently has {present} partition(s); {asked.count} would not be an increase.",
        )
    if asked.assignments is not None and len(asked.assignments) != additional:
        raise bad_assignment(
            f"Attempted to add {additional} additional partition(s), but only "
            f"{len(asked.assignments)} assignment(s) were specified."
        )
    if additional > records_max:
        raise too_many_partitions()
    factor = len(topic.partitions[0].replicas)
    if asked.assignments is None:
        assignments = _place(image, context, additional, factor)
    else:
        given = [assignment.broker_ids for assignment in asked.assignments]
        assignments = [
            _as_given(image, number, replicas, factor) for number, replicas in enumerate(given, present)
        ]
    return [*partition_records(image, topic.topic_id, present, assignments)]


def _place(image: MetadataImage, context: DecisionContext, count: int, factor: int) -> list[Assignment]:
    try:
        placed = place_replicas(list(image.brokers.values()), count, factor, context.random)
    except TooFewBrokers as error:
        raise KafkaError(ErrorCode.INVALID_REPLICATION_FACTOR, str(error)) from error
    return assigned(image, placed)


def _as_given(image: MetadataImage, number: int, replicas: list[int], factor: int) -> Assignment:
    check_given_replicas(image, replicas, factor)
    isr = active_replicas(image, replicas)
    if not isr:
        raise bad_assignment(
            "All brokers specified in the manual partition assignment for "
            f"partition {number} are fenced or in controlled shutdown."
        )
    return replicas, isr
