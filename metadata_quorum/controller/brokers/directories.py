"""The log directory of each replica (KIP-858): the brokers' reports, and their effect on the partitions.

A broker with one directory has no choice, so its replicas are assigned at creation. A broker with several chooses,
and reports its choice by AssignReplicasToDirs; until then the replica is UNASSIGNED, which counts as online. A
replica that is assigned to a directory outside its broker's registration is offline: it leaves the ISR and does not
lead.

LOST is a reserved id, by which a broker reports that the replica is useless. While other replicas are in sync and
active, the replica is no longer eligible either, for it will begin anew. The leader epoch rises: fetches with its
old log must not let the new, empty log into the ISR.

A replica whose directory the broker does not have any more, and which is now in another directory, begins anew as
well (`begins_anew`). It leaves the ISR and the eligible replicas, and no longer counts as the last leader. If that
leaves no replica, the partition waits for an operator (an unclean election). The other replicas may have nearly all
records, and this replica is empty. (Kafka elects it.)
"""

from __future__ import annotations

from odradek.metadata_quorum.controller.broker_epochs import check_broker_epoch
from odradek.metadata_quorum.controller.decision_basis import DecisionBasis
from odradek.metadata_quorum.controller.partitions.partition_change import (
    Change,
    acceptable_leaders,
    change_partition,
)
from odradek.metadata_quorum.controller.partitions.topic_rules import topic_rules
from odradek.metadata_quorum.image.metadata_image import (
    LOST_DIRECTORY,
    NO_LEADER_CHANGE,
    RESERVED_DIRECTORIES,
    BrokerImage,
    MetadataImage,
    PartitionImage,
    TopicImage,
)
from odradek.metadata_quorum.state_machine import Decision, DecisionContext
from odradek.named_states import reached
from odradek.wire.errors import ErrorCode, KafkaError
from odradek.wire.messages.assign_replicas_to_dirs import (
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsResponse,
    AssignReplicasToDirsResponseDirectoryData,
    AssignReplicasToDirsResponsePartitionData,
    AssignReplicasToDirsResponseTopicData,
)
from odradek.wire.messages.metadata_records import PartitionChangeRecord
from odradek.wire.structure import Message
from odradek.wire.topic_partition import TopicIdPartition


def assign_replicas_to_dirs(
    image: MetadataImage,
    request: AssignReplicasToDirsRequest,
    _context: DecisionContext,
    basis: DecisionBasis,
) -> Decision:
    """Store the directories of replicas as a broker reports them; an error of one partition does not affect the
    others.
    """
    try:
        check_broker_epoch(image, request.broker_id, request.broker_epoch)
    except KafkaError as error:
        return Decision([], AssignReplicasToDirsResponse(0, error.code, []))
    broker = image.brokers[request.broker_id]
    records: list[Message] = []
    seen: dict[TopicIdPartition, None] = {}
    directories = []
    for directory in request.directories:
        topics = []
        for topic in directory.topics:
            answers = []
            for asked in topic.partitions:
                key = TopicIdPartition(topic.topic_id, asked.partition_index)
                code = ErrorCode.NONE
                if key not in seen:
                    code, record = _assign(image, broker, *key, directory.id, basis)
                    if record is not None:
                        seen[key] = None
                        records.append(record)
                answers.append(AssignReplicasToDirsResponsePartitionData(asked.partition_index, code))
            topics.append(AssignReplicasToDirsResponseTopicData(topic.topic_id, answers))
        directories.append(AssignReplicasToDirsResponseDirectoryData(directory.id, topics))
    return Decision(records, AssignReplicasToDirsResponse(0, ErrorCode.NONE, directories))


def _assign(
    image: MetadataImage,
    broker: BrokerImage,
    topic_id: bytes,
    number: int,
    directory: bytes,
    basis: DecisionBasis,
) -> tuple[ErrorCode, PartitionChangeRecord | None]:
    topic: TopicImage | None = image.topics_by_id.get(topic_id)
    if topic is None:
        return ErrorCode.UNKNOWN_TOPIC_ID, None
    partition: PartitionImage | None = topic.partitions.get(number)
    if partition is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, None
    if broker.broker_id not in partition.replicas:
        return ErrorCode.NOT_LEADER_OR_FOLLOWER, None
    if partition.directory_of(broker.broker_id) == directory:
        reached("controller.assignment_repeated")
        return ErrorCode.NONE, None
    rules = topic_rules(image, basis, topic)
    online = directory in broker.log_dirs
    active = acceptable_leaders(image, without=() if online else (broker.broker_id,))

    def acceptable(partition: PartitionImage, replica: int) -> bool:
        # A replica that is back in an online directory may be the one for which a leaderless partition waits.
        return active(partition, replica) if replica != broker.broker_id else online and broker.is_active

    anew = begins_anew(partition, broker, directory)
    others = any(replica != broker.broker_id and acceptable(partition, replica) for replica in partition.isr)
    is_given_up = directory == LOST_DIRECTORY and others
    record = change_partition(
        topic_id,
        number,
        partition,
        acceptable,
        rules,
        Change(
            removed=() if online else (broker.broker_id,),
            # Its broker sets a log aside that it has given up, so nobody may wait for that log.
            begun_anew=broker.broker_id if anew or is_given_up else None,
            directories={broker.broker_id: directory},
        ),
    )
    if (is_given_up or anew) and record is not None and record.leader == NO_LEADER_CHANGE:
        record.leader = partition.leader
    return ErrorCode.NONE, record


def begins_anew(partition: PartitionImage, broker: BrokerImage, directory: bytes) -> bool:
    """True if the replica that a broker has in `directory` is not the one in the metadata, and therefore empty.

    This is so if the directory in the metadata is not registered any more, because its disk was replaced. A disk
    that moved keeps its id, and a reserved id never held anything.
    """
    before = partition.directory_of(broker.broker_id)
    if before == directory or before in RESERVED_DIRECTORIES or directory == LOST_DIRECTORY:
        return False
    return before not in broker.log_dirs
