"""ElectLeaders, and two periodic elections of the controller: of preferred leaders, and of leaders for
partitions that have none.

The package `brokers` has the elections that follow when a broker joins or leaves. Here a leader is elected
for three other reasons. A client requests it. The preferred replica is in sync again
(`auto.leader.rebalance.enable`). Or the topic's configuration prefers the loss of records to an unavailable
partition (`unclean.leader.election.enable`).
"""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from odradek.metadata_quorum.controller.decision_basis import DecisionBasis
from odradek.metadata_quorum.controller.limits import ELECTIONS_PER_TURN_MAX, check_batch
from odradek.metadata_quorum.controller.partitions.partition_change import (
    Acceptable,
    Change,
    Election,
    acceptable_leaders,
    change_partition,
)
from odradek.metadata_quorum.controller.partitions.topic_rules import topic_rules
from odradek.metadata_quorum.controller.unclean_recovery import (
    AWAITED_BROKERS,
    UNREAD_BROKERS,
    awaited_brokers,
    is_held_back,
    still_unread,
    unread_brokers,
)
from odradek.metadata_quorum.image.metadata_image import NO_LEADER, MetadataImage, PartitionImage, TopicImage
from odradek.metadata_quorum.state_machine import Decision, DecisionContext
from odradek.named_states import reached
from odradek.wire.config_resources import RESOURCE_BROKER
from odradek.wire.errors import ErrorCode, KafkaError
from odradek.wire.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)
from odradek.wire.messages.metadata_records import ConfigRecord, PartitionChangeRecord
from odradek.wire.schema.anatomy import refuse
from odradek.wire.structure import Message
from odradek.wire.topic_partition import TopicPartition

PREFERRED = 0
UNCLEAN = 1


@attrs.frozen
class BalanceLeaders:
    """A request of the controller to itself: elect preferred leaders.

    The response is the number of changed partitions.
    """


@attrs.frozen
class ElectLeaderless:
    """A request of the controller to itself: elect leaders for partitions without a leader.

    The response is the number of changed partitions.
    """


def elect_leaders(
    image: MetadataImage, request: ElectLeadersRequest, _context: DecisionContext, basis: DecisionBasis
) -> Decision:
    """Perform the preferred or unclean elections that a client requests.

    For a request about all partitions, the response lists only the partitions whose leader changed or whose
    election failed.
    """
    records: list[Message] = []
    results = []
    try:
        if request.election_type not in (PREFERRED, UNCLEAN):
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown election type {request.election_type}")
        every = request.topic_partitions is None
        acceptable = acceptable_leaders(image)
        seen: set[TopicPartition] = set()
        for name, numbers in _asked(image, request):
            answers = []
            for number in numbers:
                code, message = ErrorCode.NONE, None
                key = TopicPartition(name, number)
                try:
                    if key in seen:
                        raise KafkaError(ErrorCode.ELECTION_NOT_NEEDED)
                    record = _elect(image, name, number, request.election_type, acceptable, basis)
                    seen.add(key)
                    records.append(record)
                except KafkaError as error:
                    code, message = error.code, error.message
                if not every or code != ErrorCode.ELECTION_NOT_NEEDED:
                    answers.append(PartitionResult(number, code, message))
            check_batch(records)
            results.append(ReplicaElectionResult(name, answers))
    except KafkaError as error:
        return Decision([], refuse(request, error.code, error.message))
    return Decision(records, ElectLeadersResponse(0, ErrorCode.NONE, results))


def _asked(image: MetadataImage, request: ElectLeadersRequest) -> Iterator[tuple[str, list[int]]]:
    if request.topic_partitions is None:
        for name in sorted(image.topics):
            yield name, list(image.topics[name].partitions)
    else:
        for topic in request.topic_partitions:
            yield topic.topic, topic.partitions


def _elect(
    image: MetadataImage,
    name: str,
    number: int,
    election_type: int,
    acceptable: Acceptable,
    basis: DecisionBasis,
) -> PartitionChangeRecord:
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    topic: TopicImage | None = image.topics.get(name)
    if topic is None:
        raise KafkaError(unknown, f"No such topic as {name}")
    partition = topic.partitions.get(number)
    if partition is None:
        raise KafkaError(unknown, f"No such partition as {name}-{number}")
    unclean = election_type == UNCLEAN
    settled = partition.leader != NO_LEADER if unclean else partition.leader == partition.replicas[0]
    if settled:
        raise KafkaError(ErrorCode.ELECTION_NOT_NEEDED)
    record = change_partition(
        topic.topic_id,
        number,
        partition,
        acceptable,
        topic_rules(image, basis, topic),
        Change(election=Election.UNCLEAN if unclean else Election.PREFERRED),
    )
    if record is None:
        raise KafkaError(
            ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE if unclean else ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
        )
    return record


def balance_leaders(
    image: MetadataImage, _request: BalanceLeaders, _context: DecisionContext, basis: DecisionBasis
) -> Decision:
    """Elect the preferred leader for partitions that another replica leads. One decision changes at most
    `ELECTIONS_PER_TURN_MAX` partitions.
    """
    records = []
    acceptable = acceptable_leaders(image)
    for topic, number, partition in _partitions(image):
        if partition.leader != partition.replicas[0] and acceptable(partition, partition.replicas[0]):
            record = change_partition(
                topic.topic_id,
                number,
                partition,
                acceptable,
                topic_rules(image, basis, topic),
                Change(election=Election.PREFERRED),
            )
            if record is not None:
                records.append(record)
                if len(records) >= ELECTIONS_PER_TURN_MAX:
                    break
    return Decision(records, len(records))


def elect_leaderless(
    image: MetadataImage, _request: ElectLeaderless, _context: DecisionContext, basis: DecisionBasis
) -> Decision:
    """Elect leaders for partitions without a leader, also uncleanly if the topic allows it.

    A replica that may lead cleanly is normally elected when its broker becomes active. A decision about a broker with
    very many partitions is written as several batches. If the controller fails between two of them, some partitions are
    left without a leader, and get one here.

    After a recovery of the quorum, partitions may wait for the brokers in the list `AWAITED_BROKERS`. When no
    partition waits any more, the list is removed. `UNREAD_BROKERS` is removed when all its brokers are active.
    """
    basis.recovery.forget_settled(image)
    records: list[Message] = []
    acceptable = acceptable_leaders(image)
    awaited = awaited_brokers(image)
    is_awaiting = False
    for topic, number, partition in _partitions(image):
        if partition.leader != NO_LEADER:
            continue
        is_awaiting = is_awaiting or is_held_back(partition, awaited)
        if not any(acceptable(partition, replica) for replica in partition.replicas):
            # If no replica may lead, skip the partition, because an attempt costs as much as an election.
            # While a broker is away, there may be thousands of such partitions.
            continue
        rules = topic_rules(image, basis, topic)
        record = change_partition(topic.topic_id, number, partition, acceptable, rules)
        if record is not None:
            records.append(record)
            if len(records) >= ELECTIONS_PER_TURN_MAX:
                # The remaining partitions were not checked, so assume that one of them still waits for a
                # broker.
                is_awaiting = True
                break
    elections = len(records)
    if awaited and not is_awaiting:
        reached("controller.recovery_awaits_nobody")
        records.append(ConfigRecord(RESOURCE_BROKER, "", AWAITED_BROKERS, None))
    if unread_brokers(image) and not still_unread(image):
        records.append(ConfigRecord(RESOURCE_BROKER, "", UNREAD_BROKERS, None))
    return Decision(records, elections)


def _partitions(image: MetadataImage) -> Iterator[tuple[TopicImage, int, PartitionImage]]:
    """Yield all partitions, sorted so that the order does not depend on the image's history."""
    for name in sorted(image.topics):
        topic = image.topics[name]
        for number, partition in topic.partitions.items():
            yield topic, number, partition
