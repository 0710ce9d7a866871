"""The plan of a recovery: the new metadata log, new ids and numbers, the changes on each node, and the checks
before it is executed. PURE.

The lost log may have assigned numbers that must not be assigned again. So the new log begins with a snapshot
far above all numbers that were found. Its offset is above every end offset (epochs of brokers are offsets).
Its epoch is above every epoch in a log or a `quorum-state`, and the next producer id is above every producer
id. These rules are asserted from the bytes of the snapshot. `check_plan` checks them when the plan is made.
`check_node` checks them on each node before the plan is executed there.

The large step of the epoch has a second use. No quorum elects a million leaders while a node is absent. So a
node that gets such a large epoch in an answer knows that the log was recovered without it
(`raft/recoveries.py`).

Two plans from the same reports differ, since each plan assigns new directory ids. A node with the log of one
plan must not follow a leader with the log of the other plan. So each plan has a random id, and a part of its
offset and its epoch is computed from this id. The new log contains the ids of all its recoveries. By these
ids, independent recoveries can be detected later (`choice.py`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence

import attrs

from odradek.metadata_quorum.features import KRAFT_VERSION, KRAFT_VERSION_LEVEL, SUPPORTED_FEATURES
from odradek.metadata_quorum.image.metadata_image import (
    NO_LEADER,
    BrokerImage,
    MetadataImage,
    PartitionImage,
    TopicImage,
)
from odradek.metadata_quorum.ports import OffsetAndEpoch
from odradek.metadata_quorum.raft.recoveries import RECOVERY_EPOCHS_MIN
from odradek.metadata_quorum.raft.voters import ReplicaKey, Voter, VoterSet
from odradek.metadata_quorum.recovery.copies import MetadataCopy, read_copy
from odradek.metadata_quorum.recovery.found import NO_NUMBER, CopyFiles, FoundNode
from odradek.metadata_quorum.recovery.recovered_image import (
    LEADER_EPOCHS_AHEAD,
    PRODUCER_IDS_AHEAD,
    Holdings,
    RecoveredCluster,
    leader_epochs_from,
    recovered_records,
    recoveries_of,
)
from odradek.metadata_quorum.replica.checkpoint_files import encode_snapshot
from odradek.wire.messages.control_records import KRaftVersionRecord
from odradek.wire.structure import Message
from odradek.wire.uuid_text import uuid_to_text

__all__ = ["OFFSETS_AHEAD", "NodePlan", "RecoveryPlan", "check_node", "check_plan", "make_plan"]

OFFSETS_AHEAD = 1_000_000
RECOVERIES_MAX = 200
"""The most recoveries whose ids a log keeps; older ids are dropped."""


@attrs.frozen
class NodePlan:
    """The changes on one node, and the state of the node when the plan was made."""

    node_id: int
    metadata_path: str
    new_ids: Mapping[str, bytes]
    """The new id of each directory that gets one, by the directory's path. These are unformatted directories,
    and the metadata directories of voters that lost their log.
    """
    copy_end: OffsetAndEpoch
    """The end of this node's copy. Offset and epoch are -1 if the node has no copy."""


@attrs.frozen
class RecoveryPlan:
    """The plan of a recovery that may be executed."""

    cluster_id: str
    source: str
    """The name of the chosen copy, for operators."""
    recovery_id: str
    """The random id of this recovery."""
    end: OffsetAndEpoch
    """The end offset and epoch of the new snapshot, where the new log begins."""
    next_producer_id: int
    voters: VoterSet | None
    """The voters of the new log; None if configurations name them."""
    nodes: tuple[NodePlan, ...]
    snapshot: bytes = attrs.field(repr=False)


def make_plan(
    copy: MetadataCopy,
    copies: Sequence[MetadataCopy],
    nodes: Sequence[FoundNode],
    *,
    absent: Sequence[int],
    topics: Mapping[str, bytes],
    new_uuid: Callable[[], bytes],
    timestamp_ms: int,
    configs: Mapping[str, Mapping[str, str]] | None = None,
) -> RecoveryPlan:
    """Make the plan of a recovery from this copy. The caller has checked that nothing speaks against it."""
    nodes = sorted(nodes, key=lambda each: each.node_id)
    plans, voters, changed_ids = _directories(copy, copies, nodes, new_uuid)
    unique = new_uuid()
    digest = hashlib.sha256(unique).digest()
    end = OffsetAndEpoch(
        _greatest_offset(copies) + OFFSETS_AHEAD + int.from_bytes(digest[:8]) % OFFSETS_AHEAD,
        _greatest_epoch(copies, nodes)
        + RECOVERY_EPOCHS_MIN
        + int.from_bytes(digest[8:16]) % RECOVERY_EPOCHS_MIN,
    )
    recovery_id = uuid_to_text(unique)
    brokers = [each for each in nodes if each.is_broker]
    absent_brokers = _brokers_among(absent, copy.image)
    cluster = RecoveredCluster(
        nodes=tuple(nodes),
        new_directory_ids=changed_ids,
        awaited=tuple(sorted({*absent_brokers, *(each.node_id for each in brokers)})),
        unread=_unread(absent_brokers, brokers, copy.image),
        absent=absent_brokers,
        controllers=tuple(sorted({each.node_id for each in nodes if each.is_controller} | set(absent))),
        next_producer_id=_greatest_producer_id(copies, nodes) + PRODUCER_IDS_AHEAD,
        leader_epochs_from=leader_epochs_from([each.image for each in copies], nodes),
        topics=topics,
        configs=configs or {},
        recoveries=(*recoveries_of(copy.image), recovery_id)[-RECOVERIES_MAX:],
    )
    control: list[Message] = []
    if voters is not None:
        control = [KRaftVersionRecord(0, KRAFT_VERSION_LEVEL), voters.to_record()]
    snapshot = encode_snapshot(
        recovered_records(copy.image, cluster),
        control_records=control,
        epoch=end.epoch,
        timestamp_ms=timestamp_ms,
        last_contained_log_timestamp=timestamp_ms,
    )
    plan = RecoveryPlan(
        copy.image.cluster_id,
        copy.source,
        recovery_id,
        end,
        cluster.next_producer_id,
        voters,
        tuple(plans),
        snapshot,
    )
    check_plan(plan, copies, nodes)
    return plan


def _brokers_among(absent: Sequence[int], image: MetadataImage) -> tuple[int, ...]:
    """Select the absent nodes that are or may be brokers.

    Nodes that are only controllers hold no partitions.
    """
    placed = {
        replica
        for topic in image.topics.values()
        for partition in topic.partitions.values()
        for replica in partition.replicas
    }
    alone = {*image.controllers} - {*image.brokers} - placed
    return tuple(sorted({*absent} - alone))


def _unread(absent: Sequence[int], brokers: Sequence[FoundNode], image: MetadataImage) -> tuple[str, ...]:
    """List the brokers whose disks were not read, or only in part, in the notation of `UNREAD_BROKERS`."""
    gaps = [f"{each.node_id}:{_log_directories(each, image)}" for each in brokers if each.has_gaps]
    return (*map(str, absent), *gaps)


def _log_directories(node: FoundNode, image: MetadataImage) -> int:
    """Count the node's directories for records. The directory of the metadata log may be one of them."""
    broker: BrokerImage | None = image.brokers.get(node.node_id)
    is_apart = broker is not None and node.metadata_directory_id not in broker.log_dirs
    return len(node.directories) - is_apart


def _directories(
    copy: MetadataCopy,
    copies: Sequence[MetadataCopy],
    nodes: Sequence[FoundNode],
    new_uuid: Callable[[], bytes],
) -> tuple[list[NodePlan], VoterSet | None, dict[bytes, bytes]]:
    """Assign ids to unformatted directories and to voters that lost their logs.

    Returns the nodes' plans, the voters of the new log, and the changed directory ids.
    """
    ends = {each.node_id: each.end for each in copies if each.node_id is not None}
    plans: list[NodePlan] = []
    voting: list[Voter] = []
    changed_ids: dict[bytes, bytes] = {}
    former = () if copy.voters is None else copy.voters.voters
    known = {each.key.node_id: each.key for each in former}
    are_new = not any(each.node_id in known and each.is_controller for each in nodes)
    for node in nodes:
        is_blank = not node.cluster_id
        new_ids = {
            each.path: new_uuid()
            for each in node.directories
            if each.directory_id is None
            and not each.problem
            and (is_blank or each.path == node.metadata_path)
        }
        before = node.metadata_directory_id
        key = known.get(node.node_id)
        votes = node.is_controller and (key is not None or are_new)
        if (
            votes
            and before is not None
            and node.copy is None
            and key in (None, ReplicaKey(node.node_id, before))
        ):
            # The voter with the old id may have voted and made promises, and has lost them with its log. So
            # the directory gets a new id.
            new_ids[node.metadata_path] = changed_ids[before] = new_uuid()
        directory_id = new_ids.get(node.metadata_path, before)
        assert directory_id is not None
        if votes:
            versions = SUPPORTED_FEATURES[KRAFT_VERSION]
            voting.append(Voter(ReplicaKey(node.node_id, directory_id), node.endpoints, versions))
        end = ends.get(node.node_id, OffsetAndEpoch(NO_NUMBER, NO_NUMBER))
        plans.append(NodePlan(node.node_id, node.metadata_path, new_ids, end))
    if copy.voters is None and any(each.static_voters for each in nodes):
        return plans, None, changed_ids
    return plans, VoterSet.of(voting), changed_ids


def _greatest_offset(copies: Sequence[MetadataCopy]) -> int:
    brokers = [broker.epoch + 1 for each in copies for broker in each.image.brokers.values()]
    return max([0, *(each.end.offset for each in copies), *brokers])


def _greatest_epoch(copies: Sequence[MetadataCopy], nodes: Sequence[FoundNode]) -> int:
    epochs = [each.end.epoch for each in copies]
    epochs += [batch.epoch for each in copies for batch in each.batches[-1:]]
    return max([0, *epochs, *(each.quorum_epoch for each in nodes)])


def _greatest_producer_id(copies: Sequence[MetadataCopy], nodes: Sequence[FoundNode]) -> int:
    return max([0, *(each.image.next_producer_id for each in copies), *(each.producer_id for each in nodes)])


def _partition_in(image: MetadataImage, topic_id: bytes, number: int) -> PartitionImage | None:
    topic: TopicImage | None = image.topics_by_id.get(topic_id)
    return None if topic is None else topic.partitions.get(number)


def check_plan(plan: RecoveryPlan, copies: Sequence[MetadataCopy], nodes: Sequence[FoundNode]) -> None:
    """Assert that the plan assigns only new numbers, and that no partition has a leader. The plan's snapshot
    is decoded for this check.

    Raises `AssertionError`.
    """
    files = CopyFiles(plan.end, plan.snapshot, b"")
    made = read_copy(files, "the new snapshot", None, plan.cluster_id)
    assert recoveries_of(made.image)[-1] == plan.recovery_id, "the new log does not name this recovery"
    for copy in copies:
        assert copy.end.offset + OFFSETS_AHEAD <= plan.end.offset, f"offsets of {copy.source} are given again"
        assert copy.end.epoch + RECOVERY_EPOCHS_MIN <= plan.end.epoch, f"epochs of {copy.source}"
        assert copy.image.next_producer_id + PRODUCER_IDS_AHEAD <= made.image.next_producer_id
        for broker in copy.image.brokers.values():
            assert broker.epoch < plan.end.offset, f"broker {broker.broker_id} has epoch {broker.epoch}"
    for node in nodes:
        assert node.quorum_epoch + RECOVERY_EPOCHS_MIN <= plan.end.epoch, (
            f"node {node.node_id} knows the epoch"
        )
        assert node.producer_id < made.image.next_producer_id, f"node {node.node_id} has such producer ids"
    holdings = Holdings(nodes)
    images = [each.image for each in copies]
    epochs_from = leader_epochs_from(images, nodes) + LEADER_EPOCHS_AHEAD
    for topic in made.image.topics.values():
        for number, partition in topic.partitions.items():
            assert partition.leader == NO_LEADER, f"{topic.name}-{number} has a leader"
            assert not partition.isr, f"{topic.name}-{number} has an ISR"
            assert not partition.elr, f"{topic.name}-{number} has eligible replicas"
            assert partition.leader_epoch >= epochs_from, (
                f"{topic.name}-{number} begins below another recovery"
            )
            for image in images:
                before = _partition_in(image, topic.topic_id, number)
                # The last records of another copy may never have been committed. So the epochs in that copy
                # may be greater than those in the chosen copy.
                assert before is None or (
                    before.leader_epoch < partition.leader_epoch
                    and before.partition_epoch < partition.partition_epoch
                ), f"epochs of {topic.name}-{number}"
            for node_id, replica in holdings.of(topic.topic_id, number).items():
                assert replica.leader_epoch + LEADER_EPOCHS_AHEAD <= partition.leader_epoch, (
                    f"{topic.name}-{number} on {node_id}"
                )
                assert node_id in partition.replicas, f"{topic.name}-{number} would be a stray on {node_id}"
                assert node_id in partition.last_known_elr, (
                    f"{topic.name}-{number} would not wait for {node_id}"
                )


def check_node(plan: RecoveryPlan, node: FoundNode) -> None:
    """Check the plan against a node that was read again.

    Raises `AssertionError` if a number on its disks would be assigned again.
    """
    made = read_copy(CopyFiles(plan.end, plan.snapshot, b""), "the plan", None, plan.cluster_id)
    assert made.image.next_producer_id == plan.next_producer_id, (
        "the plan's producer ids are not its snapshot's"
    )
    assert node.quorum_epoch < plan.end.epoch, f"node {node.node_id} knows epoch {node.quorum_epoch}"
    assert node.producer_id < plan.next_producer_id, f"node {node.node_id} has producer id {node.producer_id}"
    if node.copy is not None and node.copy.snapshot_end is not None:
        assert node.copy.snapshot_end.offset < plan.end.offset, f"node {node.node_id} has a later snapshot"
    for replica in node.replicas:
        partition = _partition_in(made.image, replica.topic_id, replica.partition)
        if partition is not None:
            name = f"{replica.topic}-{replica.partition}"
            assert replica.leader_epoch < partition.leader_epoch, (
                f"{name} has leader epoch {replica.leader_epoch}"
            )
            assert partition.leader == NO_LEADER, f"{name} has a leader"
