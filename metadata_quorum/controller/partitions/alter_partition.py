"""AlterPartition: a leader proposes new in-sync replicas, and the controller decides (KIP-497, KIP-841,
KIP-903).

The leader may have an outdated view of its leadership, of the partition or of the brokers. Each case gets its
own error; the order of checks is Kafka's. A whole request is one atomic batch. A refused partition does not
affect the others.
"""

from __future__ import annotations

from odradek.metadata_quorum.controller.broker_epochs import check_broker_epoch
from odradek.metadata_quorum.controller.decision_basis import DecisionBasis
from odradek.metadata_quorum.controller.partitions.partition_change import (
    Change,
    acceptable_leaders,
    change_partition,
)
from odradek.metadata_quorum.controller.partitions.topic_rules import TopicRules, topic_rules
from odradek.metadata_quorum.image.image_builder import merge_partition
from odradek.metadata_quorum.image.metadata_image import (
    NO_LEADER_CHANGE,
    RECOVERED,
    RECOVERING,
    MetadataImage,
    PartitionImage,
    TopicImage,
)
from odradek.metadata_quorum.state_machine import Decision, DecisionContext
from odradek.named_states import reached
from odradek.wire.errors import ErrorCode, KafkaError
from odradek.wire.messages.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionRequestPartitionData,
    AlterPartitionResponse,
    AlterPartitionResponsePartitionData,
    AlterPartitionResponseTopicData,
    BrokerState,
)
from odradek.wire.schema.versions import ALTER_PARTITION_BROKER_EPOCHS
from odradek.wire.structure import Message
from odradek.wire.topic_partition import TopicIdPartition

UNKNOWN_BROKER_EPOCH = -1
"""The broker epoch in requests of leaders that do not know with which registration the replica fetched. The
epoch is then not checked.
"""


def alter_partition(
    image: MetadataImage, request: AlterPartitionRequest, context: DecisionContext, basis: DecisionBasis
) -> Decision:
    """Decide the new state of each partition, or return the error for which it stays as it is."""
    try:
        check_broker_epoch(image, request.broker_id, request.broker_epoch)
    except KafkaError as error:
        return Decision([], AlterPartitionResponse(0, error.code, []))
    records: list[Message] = []
    changed: dict[TopicIdPartition, PartitionImage] = {}
    responses = []
    acceptable = acceptable_leaders(image)
    for asked in request.topics:
        topic: TopicImage | None = image.topics_by_id.get(asked.topic_id)
        rules = TopicRules() if topic is None else topic_rules(image, basis, topic)
        answers = []
        for data in asked.partitions:
            number = data.partition_index
            if topic is None:
                answers.append(_refused(number, ErrorCode.UNKNOWN_TOPIC_ID))
                continue
            key = TopicIdPartition(asked.topic_id, number)
            partition = changed.get(key, topic.partitions.get(number))
            isr = _requested_isr(data, context.api_version)
            code = _check(image, request.broker_id, partition, data, isr)
            if code != ErrorCode.NONE or partition is None:
                answers.append(_refused(number, code))
                continue
            record = change_partition(
                asked.topic_id,
                number,
                partition,
                acceptable,
                rules,
                Change(
                    isr=tuple(state.broker_id for state in isr),
                    leader_recovery_state=data.leader_recovery_state,
                ),
            )
            if record is not None:
                records.append(record)
                partition = changed[key] = merge_partition(partition, record)
            # With this change a reassignment may be complete, which may move the leadership away. Then there
            # are both a record and an error, so that the former leader waits for the metadata.
            if record is not None and record.leader not in (request.broker_id, NO_LEADER_CHANGE):
                reached("controller.leader_moved_by_its_own_change")
                answers.append(_refused(number, ErrorCode.NEW_LEADER_ELECTED))
            else:
                answers.append(_answer(number, partition))
        responses.append(AlterPartitionResponseTopicData(asked.topic_id, answers))
    return Decision(records, AlterPartitionResponse(0, ErrorCode.NONE, responses))


def _refused(number: int, code: ErrorCode) -> AlterPartitionResponsePartitionData:
    return AlterPartitionResponsePartitionData(number, code)


def _answer(number: int, partition: PartitionImage) -> AlterPartitionResponsePartitionData:
    return AlterPartitionResponsePartitionData(
        partition_index=number,
        error_code=ErrorCode.NONE,
        leader_id=partition.leader,
        leader_epoch=partition.leader_epoch,
        isr=list(partition.isr),
        leader_recovery_state=partition.leader_recovery_state,
        partition_epoch=partition.partition_epoch,
    )


def _requested_isr(data: AlterPartitionRequestPartitionData, api_version: int) -> list[BrokerState]:
    if api_version >= ALTER_PARTITION_BROKER_EPOCHS:
        return data.new_isr_with_epochs
    return [BrokerState(broker_id, UNKNOWN_BROKER_EPOCH) for broker_id in data.new_isr]


def _check(
    image: MetadataImage,
    broker_id: int,
    partition: PartitionImage | None,
    data: AlterPartitionRequestPartitionData,
    isr: list[BrokerState],
) -> ErrorCode:
    """Check one partition of the request, in Kafka's order. Returns NONE or the error."""
    if partition is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    # If the leader knows a higher epoch than this controller, it got it from a newer controller.
    if data.leader_epoch > partition.leader_epoch or data.partition_epoch > partition.partition_epoch:
        reached("controller.asked_by_a_later_state")
        return ErrorCode.NOT_CONTROLLER
    if data.leader_epoch < partition.leader_epoch:
        reached("controller.isr_of_earlier_leader_refused")
        return ErrorCode.FENCED_LEADER_EPOCH
    if broker_id != partition.leader:
        return ErrorCode.INVALID_REQUEST
    if data.partition_epoch < partition.partition_epoch:
        reached("controller.isr_of_earlier_state_refused")
        return ErrorCode.INVALID_UPDATE_VERSION
    members = [state.broker_id for state in isr]
    is_set = len(set(members)) == len(members)
    if not members or not is_set or not set(members) <= set(partition.replicas) or broker_id not in members:
        return ErrorCode.INVALID_REQUEST
    if data.leader_recovery_state not in (RECOVERED, RECOVERING):
        return ErrorCode.INVALID_REQUEST
    if data.leader_recovery_state == RECOVERING and (
        len(members) > 1 or partition.leader_recovery_state == RECOVERED
    ):
        return ErrorCode.INVALID_REQUEST
    if not all(_is_eligible(image, partition, state) for state in isr):
        reached("controller.ineligible_member_refused")
        return ErrorCode.INELIGIBLE_REPLICA
    return ErrorCode.NONE


def _is_eligible(image: MetadataImage, partition: PartitionImage, state: BrokerState) -> bool:
    """True if a replica may join the ISR: its broker is active, its directory is online (Kafka does not check
    this), and it fetched under its current registration.
    """
    broker = image.brokers.get(state.broker_id)
    if broker is None or not broker.is_active or not partition.is_online(state.broker_id, broker):
        return False
    return state.broker_epoch in (UNKNOWN_BROKER_EPOCH, broker.epoch)
