"""AssignReplicasToDirs (KIP-858): the log directory that a broker reports for each replica, and the effects of
this report on the partition.

If a broker has one directory, its replicas are assigned to this directory when they are created. A broker
with several directories chooses one for each replica, and reports it by AssignReplicasToDirs. Until then the
directory is UNASSIGNED, and the replica counts as online. A replica in a directory that its broker has not
registered is offline: it loses the leadership and leaves the ISR.

A broker reports the reserved id LOST for a replica whose log is useless. If other replicas are in sync and
active, this replica also stops being eligible, because it will begin anew. The leader epoch rises, so that
fetches from its old log cannot bring its new, empty log into the ISR.

A replica also begins anew if its broker no longer has the old directory, and reports another one
(`begins_anew`). Such a replica leaves the ISR and the eligible replicas, and no longer counts as the last
leader. If then no replica can lead, the partition waits until an operator requests an unclean election. The
reason is that the new replica is empty, while the other replicas may have nearly all records. (Kafka elects
the empty replica.)
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
    """Store the directories of replicas as a broker reports them. An error for one partition does not affect
    the other partitions.
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
        # The directory of this replica is now online. If the partition has no leader, it may have waited for
        # this replica.
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
            # The broker sets the log of a lost replica aside. So the partition must not wait for this log.
            begun_anew=broker.broker_id if anew or is_given_up else None,
            directories={broker.broker_id: directory},
        ),
    )
    if (is_given_up or anew) and record is not None and record.leader == NO_LEADER_CHANGE:
        record.leader = partition.leader
    return ErrorCode.NONE, record


def begins_anew(partition: PartitionImage, broker: BrokerImage, directory: bytes) -> bool:
    """True if the broker's replica in `directory` is new and empty. This is so if the metadata names another
    directory for the replica, and that directory is gone.

    A directory is gone if the broker no longer registers it, e.g. because the disk was replaced. A disk that
    was moved keeps its directory id. Reserved ids never count.
    """
    before = partition.directory_of(broker.broker_id)
    if before == directory or before in RESERVED_DIRECTORIES or directory == LOST_DIRECTORY:
        return False
    return before not in broker.log_dirs
