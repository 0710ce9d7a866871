"""The cluster's state with which a recovered metadata log begins: replicas as found on disks, no leaders,
raised leader epochs. PURE.

The copy may be older than the logs of the lost voters. Since then a replica may have left an ISR, a leader
may have changed, or a reassignment may have ended. So the leaders, ISRs and eligible replicas in the copy are
not used:

* A partition has the replicas of the copy, and all replicas with its topic id that were found on some node.
* A partition has no leader, ISR and eligible replicas. Its last known replicas are those that were found, and
  those on nodes that are absent or were only partly read. Unclean recovery elects the longest log among them,
  and waits for each broker that is `awaited`.
* A reassignment may have ended after the end of the copy. So an absent node may have a replica of any
  partition. The partition gets a replica on this node, marked for removal. When all other replicas are in
  sync, the controller removes it (KIP-455).
* A partition's leader epoch is above the partition's epochs in the copy and on all disks. An empty partition
  has no epoch on the disks. But the epochs of other partitions show how often recoveries have raised all
  epochs.
* A topic that was found only in directories is restored. Its configuration is unknown, so it keeps all
  records.

Brokers stay registered and fenced until they register again. Brokers that are gone for good are removed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs

from odradek.metadata_quorum.controller.unclean_recovery import AWAITED_BROKERS, UNREAD_BROKERS
from odradek.metadata_quorum.image.image_builder import ImageBuilder
from odradek.metadata_quorum.image.image_records import records_of
from odradek.metadata_quorum.image.metadata_image import (
    NO_LEADER,
    RECOVERED,
    UNASSIGNED_DIRECTORY,
    MetadataImage,
    PartitionImage,
    TopicImage,
)
from odradek.metadata_quorum.recovery.found import FoundNode, FoundReplica
from odradek.wire.config_resources import RESOURCE_BROKER, RESOURCE_TOPIC
from odradek.wire.messages.metadata_records import (
    ConfigRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
    RegisterControllerRecord,
    TopicRecord,
)
from odradek.wire.structure import Message

__all__ = [
    "KEEP_EVERYTHING",
    "LEADER_EPOCHS_AHEAD",
    "PRODUCER_IDS_AHEAD",
    "RECOVERIES",
    "Holdings",
    "RecoveredCluster",
    "leader_epochs_from",
    "recovered_records",
    "recoveries_of",
]

LEADER_EPOCHS_AHEAD = 1_000_000
"""The number by which the leader epochs and the partition epochs are raised. The lost part of the log may
have raised them above the epochs in the image. Clients remember leader epochs, and ignore metadata with a
lower epoch.

A record raises an epoch by at most one. So this number need not be larger than the number of records by which
the new log is ahead (`OFFSETS_AHEAD`).
"""
PRODUCER_IDS_AHEAD = 1_000_000_000
"""The distance of the next producer id from the largest id that was found. The lost part of a log cannot have
allocated so many ids.
"""
RECOVERIES = "odradek.recovery.ids"
"""The name of a dynamic configuration for all brokers: the ids of all recoveries of this log, in order,
separated by commas.
"""
KEEP_EVERYTHING = {"cleanup.policy": "delete", "retention.bytes": "-1", "retention.ms": "-1"}
"""The configuration of a topic whose own configuration is lost: all records are kept until an operator has
decided.
"""
UNKNOWN_TOPIC = bytes(16)


@attrs.frozen
class RecoveredCluster:
    """The facts about the recovered cluster from which its records are made."""

    nodes: tuple[FoundNode, ...]
    new_directory_ids: Mapping[bytes, bytes]
    """The new id for each directory whose id changes, by the old id."""
    awaited: tuple[int, ...]
    """Brokers that were read or are absent. Partitions without a leader wait for the logs of these brokers.
    """
    unread: tuple[str, ...]
    """The value of `UNREAD_BROKERS`: brokers that are absent, or whose disks were read only in part."""
    absent: tuple[int, ...]
    controllers: tuple[int, ...]
    """Controllers that may come back."""
    recoveries: tuple[str, ...]
    """The ids of all recoveries of this log. The last one is the present recovery."""
    next_producer_id: int
    leader_epochs_from: int
    """The lower bound for the last leader epoch of every partition. The function `leader_epochs_from`
    computes it.
    """
    topics: Mapping[str, bytes]
    """The topic ids by name: topics in the copy, and topics that were found only in directories."""
    configs: Mapping[str, Mapping[str, str]]
    """Configurations that the operator has given for topics that were found only in directories. For all
    other keys such a topic gets the values of `KEEP_EVERYTHING`.
    """


class Holdings:
    """For each partition, the nodes that have a replica of it on their disks."""

    def __init__(self, nodes: Sequence[FoundNode]) -> None:
        self._held: dict[bytes, dict[int, dict[int, FoundReplica]]] = {}
        self.names: dict[str, dict[bytes, None]] = {}
        """For each topic name, the topic ids that directories have under this name."""
        for node in sorted(nodes, key=lambda each: each.node_id):
            for replica in node.replicas:
                if replica.topic_id == UNKNOWN_TOPIC:
                    continue
                self.names.setdefault(replica.topic, {})[replica.topic_id] = None
                holders = self._held.setdefault(replica.topic_id, {}).setdefault(replica.partition, {})
                known = holders.get(node.node_id)
                # An interrupted move may have left the replica in two directories. The longer of the two logs
                # counts.
                if known is None or (replica.leader_epoch, replica.end_offset) > (
                    known.leader_epoch,
                    known.end_offset,
                ):
                    holders[node.node_id] = replica

    def of(self, topic_id: bytes, partition: int) -> dict[int, FoundReplica]:
        """Return the found replicas of a partition, by node."""
        return self._held.get(topic_id, {}).get(partition, {})

    def partitions(self, topic_id: bytes) -> list[int]:
        """Return the numbers of the topic's partitions that were found on some disk."""
        return sorted(self._held.get(topic_id, {}))

    def count(self, topic_id: bytes) -> int:
        """Return the number of the topic's partitions: the greatest number that was found on a disk, plus
        one.
        """
        return max((number + 1 for number in self._held.get(topic_id, {})), default=0)

    def is_held(self, topic_id: bytes) -> bool:
        return topic_id in self._held


def recoveries_of(image: MetadataImage) -> tuple[str, ...]:
    """Return the ids of all recoveries in the history of this image, in order."""
    text = image.broker_configs(None).get(RECOVERIES, "")
    return tuple(each for each in text.split(",") if each)


def leader_epochs_from(images: Sequence[MetadataImage], nodes: Sequence[FoundNode]) -> int:
    """Return the greatest leader epoch in these images and nodes, rounded down to a multiple of the step by
    which recoveries raise epochs.
    """
    known = [each.leader_epoch for node in nodes for each in node.replicas]
    known += [
        each.leader_epoch
        for image in images
        for topic in image.topics.values()
        for each in topic.partitions.values()
    ]
    return max([0, *known]) // LEADER_EPOCHS_AHEAD * LEADER_EPOCHS_AHEAD


def recovered_records(image: MetadataImage, cluster: RecoveredCluster) -> list[Message]:
    """Make the records of the recovered cluster's state.

    Raises `InvalidMetadata` if they could not be replayed.
    """
    holdings = Holdings(cluster.nodes)
    records: list[Message] = []
    for record in records_of(image):
        match record:
            case TopicRecord() | PartitionRecord() | ProducerIdsRecord():
                continue
            case RegisterBrokerRecord():
                if record.broker_id in cluster.awaited:
                    records.append(_registered(record, cluster))
            case RegisterControllerRecord():
                if record.controller_id in cluster.controllers:
                    records.append(record)
            case ConfigRecord():
                if _keeps(record, image, cluster):
                    records.append(record)
            case _:
                records.append(record)
    for name, topic_id in sorted(cluster.topics.items()):
        records += _topic(name, topic_id, image, holdings, cluster)
    records.append(ProducerIdsRecord(-1, -1, cluster.next_producer_id))
    awaited = ",".join(map(str, cluster.awaited))
    records.append(ConfigRecord(RESOURCE_BROKER, "", AWAITED_BROKERS, awaited))
    unread = ",".join(cluster.unread) or None
    records.append(ConfigRecord(RESOURCE_BROKER, "", UNREAD_BROKERS, unread))
    records.append(ConfigRecord(RESOURCE_BROKER, "", RECOVERIES, ",".join(cluster.recoveries)))
    builder = ImageBuilder(MetadataImage.empty(image.cluster_id))
    for offset, each in enumerate(records):
        builder.replay(offset, each)
    return list(records_of(builder.build()[0]))


def _keeps(record: ConfigRecord, image: MetadataImage, cluster: RecoveredCluster) -> bool:
    """True if this configuration is kept. A topic's configuration is kept only if the topic has kept its id."""
    if record.resource_type != RESOURCE_TOPIC or record.resource_name not in cluster.topics:
        return True
    known = image.topics.get(record.resource_name)
    return known is None or known.topic_id == cluster.topics[record.resource_name]


def _registered(record: RegisterBrokerRecord, cluster: RecoveredCluster) -> RegisterBrokerRecord:
    """Make the registration record of a broker: fenced, with the present ids of its directories."""
    record.fenced, record.in_controlled_shutdown = True, False
    found = [each for each in cluster.nodes if each.node_id == record.broker_id]
    if found:
        ids = [each.directory_id for each in found[0].directories if each.directory_id is not None]
        record.log_dirs = sorted(dict.fromkeys(cluster.new_directory_ids.get(each, each) for each in ids))
    return record


def _topic(
    name: str, topic_id: bytes, image: MetadataImage, holdings: Holdings, cluster: RecoveredCluster
) -> list[Message]:
    known: TopicImage | None = image.topics_by_id.get(topic_id)
    on_disks = holdings.partitions(topic_id)
    count = max(len(known.partitions) if known is not None else 0, holdings.count(topic_id))
    records: list[Message] = [TopicRecord(name, topic_id)]
    # If no disk has a replica of a partition, the partition gets the nodes of the topic's other partitions.
    usual = sorted({node: None for number in on_disks for node in holdings.of(topic_id, number)})
    for number in range(count):
        before = None if known is None else known.partitions.get(number)
        records.append(
            _partition(name, topic_id, number, before, holdings.of(topic_id, number), cluster, tuple(usual))
        )
    if known is None:
        configs = {**KEEP_EVERYTHING, **cluster.configs.get(name, {})}
        records += [ConfigRecord(RESOURCE_TOPIC, name, key, value) for key, value in sorted(configs.items())]
    return records


def _partition(
    name: str,
    topic_id: bytes,
    number: int,
    before: PartitionImage | None,
    held: Mapping[int, FoundReplica],
    cluster: RecoveredCluster,
    usual: tuple[int, ...],
) -> PartitionRecord:
    placed = before.replicas if before is not None else ()
    staying = tuple(dict.fromkeys([*placed, *held])) or usual
    unread = [each.node_id for each in cluster.nodes if each.is_broker and each.may_hold(name, number)]
    unknown = sorted({*cluster.absent, *unread})
    leaving = [each for each in unknown if each not in staying]
    replicas = (*staying, *leaving)
    order: list[int] = []
    if before is not None:
        order = [before.leader, *before.isr, *before.elr, *before.last_known_elr, *placed]
    waited_for = {*held, *unknown}
    leader_epoch = max(
        [
            cluster.leader_epochs_from,
            0 if before is None else before.leader_epoch,
            *(each.leader_epoch for each in held.values()),
        ]
    )
    # A change of the leader raises both epochs, so the partition epoch is never lower than the leader epoch.
    partition_epoch = max(leader_epoch, 0 if before is None else before.partition_epoch)
    return PartitionRecord(
        partition_id=number,
        topic_id=topic_id,
        replicas=list(replicas),
        isr=[],
        removing_replicas=[*(() if before is None else before.removing_replicas), *leaving],
        adding_replicas=[] if before is None else list(before.adding_replicas),
        leader=NO_LEADER,
        leader_recovery_state=RECOVERED,
        leader_epoch=leader_epoch + LEADER_EPOCHS_AHEAD,
        partition_epoch=partition_epoch + LEADER_EPOCHS_AHEAD,
        directories=[_directory(each, before, held, cluster) for each in replicas],
        eligible_leader_replicas=None,
        last_known_elr=[each for each in dict.fromkeys([*order, *held, *unknown]) if each in waited_for]
        or None,
    )


def _directory(
    node: int,
    before: PartitionImage | None,
    held: Mapping[int, FoundReplica],
    cluster: RecoveredCluster,
) -> bytes:
    """Return the id of the directory in which the replica was found.

    A replica that was not found keeps its old directory id. So it begins anew, as after a replacement of its
    disk.
    """
    replica = held.get(node)
    known = UNASSIGNED_DIRECTORY if before is None else before.directory_of(node)
    if replica is None:
        return known
    return cluster.new_directory_ids.get(replica.directory_id, replica.directory_id)
