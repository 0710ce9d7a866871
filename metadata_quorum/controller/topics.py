"""CreateTopics and DeleteTopics, with Kafka's checks in their order, and its messages."""

from __future__ import annotations

from collections import Counter

from odradek.metadata_quorum.config.config_defs import ConfigError, validate_topic_configs
from odradek.metadata_quorum.config.effective_config import topic_creation_entries
from odradek.metadata_quorum.controller.controller_settings import ControllerSettings
from odradek.metadata_quorum.controller.decision_basis import DecisionBasis
from odradek.metadata_quorum.controller.limits import RECORDS_PER_REQUEST_MAX, check_batch
from odradek.metadata_quorum.controller.partitions.assignments import (
    Assignment,
    active_replicas,
    assigned,
    bad_assignment,
    check_given_replicas,
    partition_records,
)
from odradek.metadata_quorum.controller.partitions.placement import TooFewBrokers, place_replicas
from odradek.metadata_quorum.image.config_layers import layers_for
from odradek.metadata_quorum.image.metadata_image import MetadataImage, TopicImage, collision_key
from odradek.metadata_quorum.state_machine import Decision, DecisionContext
from odradek.metadata_quorum.topic_names import CLUSTER_METADATA_TOPIC, invalid_topic_name_reason
from odradek.wire.config_resources import RESOURCE_TOPIC
from odradek.wire.errors import ErrorCode, KafkaError, listed
from odradek.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from odradek.wire.messages.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)
from odradek.wire.messages.metadata_records import ConfigRecord, RemoveTopicRecord, TopicRecord
from odradek.wire.schema.anatomy import refuse
from odradek.wire.schema.versions import DELETE_TOPICS_DISABLED
from odradek.wire.structure import ZERO_UUID, Message

Described = dict[tuple[tuple[str, str], ...], list[CreatableTopicConfigs]]
"""The configurations of new topics for the response. The key of an entry is a topic's overrides. Topics with
the same overrides share one list.
"""


def create_topics(
    image: MetadataImage, request: CreateTopicsRequest, context: DecisionContext, basis: DecisionBasis
) -> Decision:
    """Create all valid topics in one atomic batch. Invalid topics get errors."""
    settings = basis.settings
    counts = Counter(topic.name for topic in request.topics)
    records: list[Message] = []
    results = []
    described: Described = {}
    try:
        check_partitions_asked(request, settings)
        for topic in request.topics:
            if counts[topic.name] == 1 and topic.name != CLUSTER_METADATA_TOPIC:
                result, topic_records = _create_or_refuse(image, topic, context, settings, described)
                results.append(result)
                records += topic_records
                check_batch(records)
    except KafkaError as error:
        return Decision([], refuse(request, error.code, error.message))
    for name, count in counts.items():
        if count > 1:
            results.append(_refused(name, ErrorCode.INVALID_REQUEST, "Duplicate topic name."))
        elif name == CLUSTER_METADATA_TOPIC:
            message = f"Creation of internal topic {CLUSTER_METADATA_TOPIC} is prohibited."
            results.append(_refused(name, ErrorCode.INVALID_REQUEST, message))
    return Decision([] if request.validate_only else records, CreateTopicsResponse(0, results))


def check_partitions_asked(request: CreateTopicsRequest, settings: ControllerSettings) -> None:
    """Refuse a request that would create too many partitions. Raises `KafkaError` POLICY_VIOLATION."""
    counts = Counter(topic.name for topic in request.topics)
    asked = sum(partitions_asked(topic, settings) for topic in request.topics if counts[topic.name] == 1)
    if asked > RECORDS_PER_REQUEST_MAX:
        raise KafkaError(ErrorCode.POLICY_VIOLATION, "Excessively large number of partitions per request.")


def partitions_asked(topic: CreatableTopic, settings: ControllerSettings) -> int:
    """Count the partitions that a new topic would get."""
    if topic.assignments:
        return len(topic.assignments)
    return settings.num_partitions if topic.num_partitions == -1 else max(0, topic.num_partitions)


def _refused(name: str, code: ErrorCode, message: str | None) -> CreatableTopicResult:
    return CreatableTopicResult(name=name, error_code=code, error_message=message)


def _create_or_refuse(
    image: MetadataImage,
    topic: CreatableTopic,
    context: DecisionContext,
    settings: ControllerSettings,
    described: Described,
) -> tuple[CreatableTopicResult, list[Message]]:
    try:
        _check_name(image, topic.name)
        configs = _check_configs(topic, settings)
        assignments = _assign(image, topic, context, settings)
    except KafkaError as error:
        return _refused(topic.name, error.code, error.message), []
    topic_id = _new_topic_id(image, context)
    records: list[Message] = [TopicRecord(topic.name, topic_id)]
    records += [ConfigRecord(RESOURCE_TOPIC, topic.name, name, value) for name, value in configs.items()]
    records += partition_records(image, topic_id, 0, assignments)
    alike = tuple(configs.items())
    if alike not in described:
        layers = layers_for(image, settings.static_config)
        described[alike] = [
            CreatableTopicConfigs(entry.name, entry.value, entry.read_only, entry.source, entry.sensitive)
            for entry in topic_creation_entries(configs, layers)
        ]
    result = CreatableTopicResult(
        name=topic.name,
        topic_id=topic_id,
        error_code=ErrorCode.NONE,
        error_message=None,
        num_partitions=len(assignments),
        replication_factor=len(assignments[0][0]),
        configs=described[alike],
    )
    return result, records


def _check_name(image: MetadataImage, name: str) -> None:
    reason = invalid_topic_name_reason(name)
    if reason is not None:
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, reason)
    if name in image.topics:
        raise KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
    key = collision_key(name)
    for other in image.colliding_names.get(key, ()) if key is not None else ():
        raise KafkaError(
            ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic '{name}' collides with existing topic: {other}"
        )


def _check_configs(topic: CreatableTopic, settings: ControllerSettings) -> dict[str, str]:
    without_value = [config.name for config in topic.configs if config.value is None]
    if without_value:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            f"Null value not supported for topic configs: {listed(without_value, ',')}",
        )
    configs = {config.name: config.value for config in topic.configs if config.value is not None}
    try:
        validate_topic_configs(configs, remote_storage=settings.remote_storage_enable)
    except ConfigError as error:
        raise KafkaError(ErrorCode.INVALID_CONFIG, str(error)) from error
    return configs


def _assign(
    image: MetadataImage, topic: CreatableTopic, context: DecisionContext, settings: ControllerSettings
) -> list[Assignment]:
    if topic.assignments:
        return _assign_as_given(image, topic)
    if topic.replication_factor < -1 or topic.replication_factor == 0:
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            "Replication factor must be larger than 0, or -1 to use the default value.",
        )
    if topic.num_partitions < -1 or topic.num_partitions == 0:
        raise KafkaError(
            ErrorCode.INVALID_PARTITIONS, "Number of partitions was set to an invalid non-positive value."
        )
    count = settings.num_partitions if topic.num_partitions == -1 else topic.num_partitions
    factor = (
        settings.default_replication_factor if topic.replication_factor == -1 else topic.replication_factor
    )
    try:
        placed = place_replicas(list(image.brokers.values()), count, factor, context.random)
    except TooFewBrokers as error:
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"Unable to replicate the partition {factor} time(s): {error}",
        ) from error
    return assigned(image, placed)


def _assign_as_given(image: MetadataImage, topic: CreatableTopic) -> list[Assignment]:
    if topic.replication_factor != -1:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            "A manual partition assignment was specified, but replication factor was not set to -1.",
        )
    if topic.num_partitions != -1:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            "A manual partition assignment was specified, but numPartitions was not set to -1.",
        )
    given: dict[int, Assignment] = {}
    factor: int | None = None
    for assignment in topic.assignments:
        number = assignment.partition_index
        if number in given:
            raise bad_assignment(f"Found multiple manual partition assignments for partition {number}")
        replicas = list(assignment.broker_ids)
        check_given_replicas(image, replicas, factor)
        factor = len(replicas)
        isr = active_replicas(image, replicas)
        if not isr:
            raise bad_assignment(
                "All brokers specified in the manual partition assignment for "
                f"partition {number} are fenced or in controlled shutdown."
            )
        given[number] = (replicas, isr)
    if any(number not in given for number in range(len(given))):
        raise bad_assignment("partitions should be a consecutive 0-based integer sequence")
    return [given[number] for number in range(len(given))]


def _new_topic_id(image: MetadataImage, context: DecisionContext) -> bytes:
    while True:
        topic_id = context.new_uuid()
        if topic_id not in image.topics_by_id:
            return topic_id


def delete_topics(
    image: MetadataImage, request: DeleteTopicsRequest, context: DecisionContext, basis: DecisionBasis
) -> Decision:
    """Delete topics by name or by id.

    In the response, refused topics come first. (Kafka shuffles the results.)
    """
    if not basis.settings.delete_topic_enable:
        old = context.api_version < DELETE_TOPICS_DISABLED
        code = ErrorCode.INVALID_REQUEST if old else ErrorCode.TOPIC_DELETION_DISABLED
        return Decision([], refuse(request, code, "Topic deletion is disabled."))
    results: list[DeletableTopicResult] = []
    names: dict[str, int] = {}
    ids: dict[bytes, int] = {}
    for name in request.topic_names:
        names[name] = names.get(name, 0) + 1
    for state in request.topics:
        if state.name is not None and state.topic_id != ZERO_UUID:
            message = "You may not specify both topic name and topic id."
            results.append(_not_deleted(state.name, state.topic_id, ErrorCode.INVALID_REQUEST, message))
        elif state.name is not None:
            names[state.name] = names.get(state.name, 0) + 1
        elif state.topic_id != ZERO_UUID:
            ids[state.topic_id] = ids.get(state.topic_id, 0) + 1
        else:
            message = "Neither topic name nor id were specified."
            results.append(_not_deleted(None, ZERO_UUID, ErrorCode.INVALID_REQUEST, message))
    found = _find_topics(image, names, ids, results)
    results += [DeletableTopicResult(topic.name, topic.topic_id, ErrorCode.NONE, None) for topic in found]
    return Decision([RemoveTopicRecord(topic.topic_id) for topic in found], DeleteTopicsResponse(0, results))


def _find_topics(
    image: MetadataImage, names: dict[str, int], ids: dict[bytes, int], results: list[DeletableTopicResult]
) -> list[TopicImage]:
    """Find the topics to delete. For each refused topic, append a result to `results`."""
    invalid = ErrorCode.INVALID_REQUEST
    found: dict[bytes, TopicImage | None] = {}
    for name, count in names.items():
        if count > 1:
            results.append(_not_deleted(name, ZERO_UUID, invalid, "Duplicate topic name."))
    for topic_id, count in ids.items():
        if count > 1:
            results.append(_not_deleted(None, topic_id, invalid, "Duplicate topic id."))
            found[topic_id] = None
    for topic_id, count in ids.items():
        if count > 1:
            continue
        found[topic_id] = topic = image.topics_by_id.get(topic_id)
        if topic is None:
            code = ErrorCode.UNKNOWN_TOPIC_ID
            results.append(_not_deleted(None, topic_id, code, code.message))
    for name, count in names.items():
        if count > 1:
            continue
        topic = image.topics.get(name)
        if topic is None:
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            results.append(_not_deleted(name, ZERO_UUID, code, code.message))
        elif topic.topic_id in found:
            found[topic.topic_id] = None
            message = "The provided topic name maps to an ID that was already supplied."
            results.append(_not_deleted(name, topic.topic_id, invalid, message))
        else:
            found[topic.topic_id] = topic
    return [topic for topic in found.values() if topic is not None]


def _not_deleted(
    name: str | None, topic_id: bytes, code: ErrorCode, message: str | None
) -> DeletableTopicResult:
    return DeletableTopicResult(name, topic_id, code, message)
