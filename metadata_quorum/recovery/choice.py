"""The choice of a copy of the metadata log, the reasons to refuse a recovery, and which topic id each name
keeps. PURE.

A recovery is refused if it is unnecessary, if facts are missing, or if an operator must decide first:

* If a majority of the voters still has its metadata, the operator should start them instead. This is checked
  for each voter set that may be in force. The exception: the last recovery could not read some broker, and
  that broker has partitions which the recovered metadata lack.
* The operator must have read the disk of each voter in the copy, or have named the voter as lost. The same
  holds for each registered broker, which may be named as absent or gone.
* If two copies have different records at the same offset and epoch, one copy is damaged. If each of two
  copies has the id of a recovery that the other copy lacks, they come from independent recoveries. Then an
  operator must choose.
* If an older backup is chosen on purpose, the voters of the best copy are checked besides those of the
  backup.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs

from odradek.metadata_quorum.controller.unclean_recovery import names_feature, unread_brokers
from odradek.metadata_quorum.image.image_builder import ImageBuilder
from odradek.metadata_quorum.image.metadata_image import MetadataImage
from odradek.metadata_quorum.ports import MetadataLogCorrupt, OffsetAndEpoch
from odradek.metadata_quorum.raft.voters import ReplicaKey, VoterSet
from odradek.metadata_quorum.recovery.copies import MetadataCopy, greatest, parting_offset, read_copy
from odradek.metadata_quorum.recovery.found import BROKEN_OFF, CopyFiles, FoundNode, FoundReplica
from odradek.metadata_quorum.recovery.recovered_image import (
    LEADER_EPOCHS_AHEAD,
    PRODUCER_IDS_AHEAD,
    Holdings,
    recoveries_of,
)
from odradek.metadata_quorum.replica.storage_format import bootstrap_records
from odradek.wire.messages.metadata_records import ProducerIdsRecord
from odradek.wire.structure import ZERO_UUID, Message
from odradek.wire.uuid_text import uuid_to_text

__all__ = ["REBUILT_END", "Choice", "Named", "choose", "key_text", "rebuild"]

REBUILT_END = OffsetAndEpoch(1 << 40, 500_000_000)
"""The end that is assumed for the lost log if no copy exists. It is far above all offsets and epochs that a
cluster ever reaches.
"""
REBUILT_STEP = OffsetAndEpoch(1 << 32, 10_000_000)
"""The distance by which the assumed end of the lost log grows with each earlier recovery. Each recovery has
raised all leader epochs by `LEADER_EPOCHS_AHEAD`. So the leader epochs on the disks show the number of
earlier recoveries.
"""
REBUILT_STEPS_MAX = 150


@attrs.frozen
class Named:
    """The facts that the operator has given on the command line."""

    lost: tuple[ReplicaKey, ...] = ()
    """Voters whose metadata are lost."""
    absent: tuple[int, ...] = ()
    """Nodes that were not read, and may come back."""
    gone: tuple[int, ...] = ()
    """Nodes whose disks are destroyed."""
    topics: Mapping[str, bytes] = attrs.field(factory=dict)
    """Topic ids by name. The operator gives an id for each name under which the directories hold several topics."""
    backup_may_be_older: bool = False
    """True if the backup is to be used although a node has a better copy."""
    configs: Mapping[str, Mapping[str, str]] = attrs.field(factory=dict)
    """Configurations by topic, for topics that are missing in the copy."""


@attrs.frozen
class Choice:
    """The result of reading all copies: the copies, the chosen copy, and the reasons to refuse the recovery."""

    copies: tuple[MetadataCopy, ...]
    chosen: MetadataCopy | None
    topics: Mapping[str, bytes]
    """The topics of the recovered cluster, by name."""
    refusals: tuple[str, ...]
    voter_sets: tuple[VoterSet, ...] = ()
    """The candidates for the present voter set. One of them is in force, but the copies do not show which."""
    absent: tuple[int, ...] = ()
    """The nodes that the operator has named as absent."""
    configs: Mapping[str, Mapping[str, str]] = attrs.field(factory=dict)
    """Configurations by topic, for topics that are missing in the copy."""
    is_rebuilt: bool = False
    """True if no copy exists, so that the new log has only what was found in directories or given."""


def key_text(key: ReplicaKey) -> str:
    """Format a voter as the option `--lost` expects it."""
    if key.directory_id == ZERO_UUID:
        return str(key.node_id)
    return f"{key.node_id}:{uuid_to_text(key.directory_id)}"


def choose(nodes: Sequence[FoundNode], named: Named, backup: tuple[str, CopyFiles] | None = None) -> Choice:
    """Read all copies, choose one, and collect the reasons to refuse the recovery."""
    refusals = list(_about_nodes(nodes, named))
    copies: list[MetadataCopy] = []
    cluster_ids = sorted({each.cluster_id for each in nodes if each.cluster_id})
    cluster_id = cluster_ids[0] if cluster_ids else ""
    for node in sorted(nodes, key=lambda each: each.node_id):
        if node.copy is not None:
            try:
                copies.append(read_copy(node.copy, f"node {node.node_id}", node.node_id, cluster_id))
            except MetadataLogCorrupt as error:
                refusals.append(f"the copy of node {node.node_id} is damaged: {error}. {_leave_out(node)}")
    if backup is not None:
        try:
            copies.append(read_copy(backup[1], f"backup {backup[0]}", None, cluster_id))
        except MetadataLogCorrupt as error:
            refusals.append(f"the backup is damaged: {error}")
    copies = [each for each in copies if each.end.offset > 0]
    if not copies:
        refusals.append(
            "no node has a copy of the metadata log: `odradek metadata rebuild` rebuilds the log from the replicas on the disks"
        )
        return Choice((), None, {}, tuple(refusals))
    chosen = _chosen(copies, named, backup is not None)
    refusals += _damage(chosen, copies, nodes)
    refusals += _side_by_side(chosen, copies)
    refusals += _about_backup(chosen, copies, named)
    sets = _sets_to_judge(chosen, copies, nodes)
    refusals += _about_voters(chosen, sets, nodes, named, best=greatest(copies).image)
    refusals += _about_brokers(chosen.image, nodes, named)
    topics, ambiguous = topics_of(chosen.image, nodes, named)
    return Choice(tuple(copies), chosen, topics, (*refusals, *ambiguous), sets, named.absent, named.configs)


def rebuild(nodes: Sequence[FoundNode], named: Named, access: Sequence[Message] = ()) -> Choice:
    """Make the choice for a cluster whose copies of the metadata log are all gone.

    The cluster's topics are rebuilt from the directories of the nodes. `access` has the records of its users,
    rights and quotas, which no directory has.
    """
    refusals = list(_about_nodes(nodes, named))
    cluster_ids = [each.cluster_id for each in nodes if each.cluster_id]
    for node in sorted(nodes, key=lambda each: each.node_id):
        try:
            has_copy = node.copy is not None and read_copy(node.copy, "", node.node_id, "").end.offset > 0
        except MetadataLogCorrupt as error:
            refusals.append(f"the copy of node {node.node_id} is damaged: {error}. {_leave_out(node)}")
            continue
        if has_copy:
            refusals.append(
                f"node {node.node_id} has a copy of the metadata log: use `odradek quorum recover`, which restores the log from the copy"
            )
    if not cluster_ids:
        refusals.append("no directory that was read has a cluster id, so there is nothing to rebuild")
    if not any(each.is_controller for each in nodes):
        refusals.append(
            "none of the nodes is a controller, so no node could vote: also give a controller, which may be new"
        )
    steps = _recoveries_before(nodes)
    end = OffsetAndEpoch(
        REBUILT_END.offset + steps * REBUILT_STEP.offset, REBUILT_END.epoch + steps * REBUILT_STEP.epoch
    )
    records = [*bootstrap_records(), *access]
    if steps:
        # The lost log may have allocated producer ids that no partition's log shows. So the next id is beyond
        # all ids that earlier recoveries have skipped.
        records.append(ProducerIdsRecord(-1, -1, steps * PRODUCER_IDS_AHEAD))
    builder = ImageBuilder(MetadataImage.empty(cluster_ids[0] if cluster_ids else ""))
    for offset, record in enumerate(records):
        builder.replay(offset, record)
    chosen = MetadataCopy("the disks", None, end, (), builder.build()[0])
    topics, ambiguous = topics_of(chosen.image, nodes, named)
    return Choice(
        (chosen,),
        chosen,
        topics,
        (*refusals, *ambiguous),
        absent=named.absent,
        configs=named.configs,
        is_rebuilt=True,
    )


def _recoveries_before(nodes: Sequence[FoundNode]) -> int:
    """Count the earlier recoveries of this cluster, from the leader epochs on its disks."""
    greatest_epoch = max((each.leader_epoch for node in nodes for each in node.replicas), default=0)
    return min(max(greatest_epoch, 0) // LEADER_EPOCHS_AHEAD, REBUILT_STEPS_MAX)


def _chosen(copies: Sequence[MetadataCopy], named: Named, has_backup: bool) -> MetadataCopy:
    if has_backup and named.backup_may_be_older and copies[-1].node_id is None:
        return copies[-1]
    return greatest(copies)


def _about_nodes(nodes: Sequence[FoundNode], named: Named) -> list[str]:
    refusals = []
    ids = [each.node_id for each in nodes]
    refusals += [
        f"node {each} was given twice: give its properties file or its report, not both"
        for each in sorted({each for each in ids if ids.count(each) > 1})
    ]
    clusters = sorted({each.cluster_id for each in nodes if each.cluster_id})
    if len(clusters) > 1:
        refusals.append(f"the nodes belong to different clusters: {', '.join(clusters)}")
    refusals += [
        f"node {each} was read, so it must not be named with --absent or --gone"
        for each in sorted({*named.absent, *named.gone})
        if each in ids
    ]
    refusals += [
        f"node {each.node_id} {BROKEN_OFF}: repeat that command with `--from` and the file of its plan"
        for each in nodes
        if each.copy_problem == BROKEN_OFF
    ]
    both = sorted({*named.absent} & {*named.gone})
    refusals += [f"node {each} is named with both --absent and --gone: choose one" for each in both]
    return refusals


def _damage(chosen: MetadataCopy, copies: Sequence[MetadataCopy], nodes: Sequence[FoundNode]) -> list[str]:
    found = []
    by_id: dict[int | None, FoundNode] = {each.node_id: each for each in nodes}
    for other in copies:
        offset = None if other is chosen else parting_offset(chosen, other)
        if offset is not None:
            ways = [_leave_out(by_id[each.node_id]) for each in (chosen, other) if each.node_id in by_id]
            found.append(
                f"{chosen.source} and {other.source} have different records at offset {offset} of one epoch, so one of them "
                f"is damaged: find out which. {' Or: '.join(ways)}"
            )
    return found


def _leave_out(node: FoundNode) -> str:
    """Return a sentence for the operator that says how to recover without the copy of this node."""
    lost = f", then name it with --lost {key_text(_own_key(node))}" if node.is_controller else ""
    return (
        f"To leave the copy of node {node.node_id} out, set it aside by `odradek quorum begin-anew CONFIG --has-no-vote "
        f"--execute` with its properties file{lost}"
    )


def _own_key(node: FoundNode) -> ReplicaKey:
    return ReplicaKey(node.node_id, node.metadata_directory_id or ZERO_UUID)


def _side_by_side(chosen: MetadataCopy, copies: Sequence[MetadataCopy]) -> list[str]:
    """Return a refusal for each copy that comes from an independent recovery. Such a copy and the chosen copy
    each have the id of a recovery that the other copy lacks.
    """
    ours = recoveries_of(chosen.image)
    found = []
    for other in copies:
        theirs = recoveries_of(other.image)
        if theirs and ours and theirs[-1] not in ours and ours[-1] not in theirs:
            found.append(
                f"{chosen.source} and {other.source} have the logs of two recoveries that were made side by side ({ours[-1]} "
                f"and {theirs[-1]}): find out which of them counts. Then set the other one aside by `odradek quorum begin-anew "
                "CONFIG --has-no-vote --execute`"
            )
    return found


def _about_backup(chosen: MetadataCopy, copies: Sequence[MetadataCopy], named: Named) -> list[str]:
    backups = [each for each in copies if each.node_id is None]
    if not backups or chosen is backups[0] or named.backup_may_be_older:
        return []
    return [
        f"{chosen.source} has a better copy than the backup: it ends at offset {chosen.end.offset} of epoch "
        f"{chosen.end.epoch}, the backup at {backups[0].end.offset} of epoch {backups[0].end.epoch}. Leave the backup out, "
        "or give the option --even-if-older"
    ]


def _sets_to_judge(
    chosen: MetadataCopy, copies: Sequence[MetadataCopy], nodes: Sequence[FoundNode]
) -> tuple[VoterSet, ...]:
    """Return the voter sets that may be in force: the voter sets of the best copy, and those of a chosen
    backup.
    """
    best = greatest(copies)
    static = tuple(
        VoterSet.of_ids(sorted(ids)) for ids in dict.fromkeys(each.static_voters for each in nodes) if ids
    )
    sets = [each for copy in (chosen, best) for each in copy.voter_sets or static]
    return tuple(each for at, each in enumerate(sets) if each not in sets[:at])


def _about_voters(
    chosen: MetadataCopy,
    sets: Sequence[VoterSet],
    nodes: Sequence[FoundNode],
    named: Named,
    *,
    best: MetadataImage,
) -> list[str]:
    by_id = {each.node_id: each for each in nodes}
    refusals: list[str] = []
    if not sets:
        return ["neither the copy nor a configuration names voters"]
    known = [voter.key for voters in sets for voter in voters.voters]
    for key in named.lost:
        if key not in known:
            who = ", ".join(map(key_text, dict.fromkeys(known)))
            refusals.append(f"{key_text(key)} is no voter of the copy (voters: {who})")
        elif _has_its_copy(key, by_id.get(key.node_id)):
            refusals.append(f"voter {key_text(key)} is not lost: its metadata were read")
    for key in dict.fromkeys(known):
        if key not in named.lost and not _has_its_copy(key, by_id.get(key.node_id)):
            node = by_id.get(key.node_id)
            why = (
                "was not read" if node is None else node.copy_problem or "has another metadata directory now"
            )
            refusals.append(
                f"voter {key_text(key)} {why}: read it, or name it with --lost {key_text(key)} if its metadata are lost"
            )
    refusals += _about_interrupted(chosen, nodes, refusals)
    # A chosen backup may be older than the recovery that could not read a node.
    is_completed = bool(_unknown_to(best, nodes))
    for voters in sets:
        # Count only voters whose copy was read. Another check demands that each other voter is read, or named
        # as lost.
        left = [
            each.key
            for each in voters.voters
            if each.key not in named.lost and _has_its_copy(each.key, by_id.get(each.key.node_id))
        ]
        if len(left) >= voters.majority and not is_completed:
            who = ", ".join(map(key_text, left))
            refusals.append(
                f"{len(left)} of {len(voters.voters)} voters are left ({who}): start them instead, because a majority elects a leader without a recovery"
            )
    if chosen.voters is None and sets:
        recovered = [each for each in sets[-1].node_ids if each in by_id]
        if len(recovered) < sets[-1].majority:
            refusals.append(
                "fewer than a majority of the voters in controller.quorum.voters were read: correct this setting on all nodes first"
            )
    if not any(each.is_controller for each in nodes):
        refusals.append(
            "none of the nodes is a controller, so no node could vote: also give a controller, which may be new"
        )
    return refusals


def _about_interrupted(
    chosen: MetadataCopy, nodes: Sequence[FoundNode], refusals: Sequence[str]
) -> list[str]:
    """Return a refusal if a recovery was probably interrupted: some nodes lack it, and it has not run yet."""
    if not any(_was_just_recovered(chosen, each) for each in nodes) or not any(
        "--lost" in each for each in refusals
    ):
        return []
    ids = sorted(each.node_id for each in nodes if not _was_just_recovered(chosen, each))
    return [
        f"{chosen.source} was recovered and has not run since, and nodes {', '.join(map(str, ids))} lack that recovery "
        f"(epoch {chosen.end.epoch}): if the recovery was interrupted, continue it with `odradek quorum recover --from PLAN CONFIG ... "
        f"--execute`, where PLAN is the file that it wrote beside the first CONFIG (*.recovery-{chosen.end.epoch}.json)"
    ]


def _was_just_recovered(chosen: MetadataCopy, node: FoundNode) -> bool:
    """True if this node has the chosen copy, and has not run since a recovery wrote it."""
    return (
        node.copy is not None
        and bool(recoveries_of(chosen.image))
        and node.copy.snapshot_end == chosen.end
        and node.quorum_epoch == chosen.end.epoch
        and not node.copy.log
    )


def _unknown_to(image: MetadataImage, nodes: Sequence[FoundNode]) -> list[FoundReplica]:
    """List the replicas of partitions that are unknown to a recovered image, on nodes that the recovery could not
    read. Another recovery restores these partitions, even if a majority of the voters is left.
    """
    unread = unread_brokers(image)
    was_recovered = bool(recoveries_of(image))
    return [
        each
        for node in nodes
        if node.node_id in unread or (was_recovered and node.node_id not in image.brokers)
        for each in node.replicas
        if each.topic_id != ZERO_UUID and not _knows(image, each)
    ]


def _knows(image: MetadataImage, replica: FoundReplica) -> bool:
    topic = image.topics_by_id.get(replica.topic_id)
    return topic is not None and replica.partition in topic.partitions


def _has_its_copy(key: ReplicaKey, node: FoundNode | None) -> bool:
    """True if the node was read, and has this voter's metadata directory and log."""
    if node is None or node.copy is None:
        return False
    return key.directory_id in (ZERO_UUID, node.metadata_directory_id)


def _about_brokers(image: MetadataImage, nodes: Sequence[FoundNode], named: Named) -> list[str]:
    refusals = []
    read = [each.node_id for each in nodes]
    placed = {
        replica
        for topic in image.topics.values()
        for partition in topic.partitions.values()
        for replica in partition.replicas
    }
    for broker_id in sorted({*image.brokers, *placed}):
        if broker_id not in (*read, *named.absent, *named.gone):
            refusals.append(
                f"broker {broker_id} was not read: read it, or name it with --absent {broker_id} if its disks may come back, "
                f"or with --gone {broker_id} if they never do"
            )
    left = [each for each in (*read, *named.absent) if each in image.brokers]
    strangers = [each for each in sorted(left) if not names_feature(image.brokers[each].features)]
    if strangers:
        refusals.append(
            f"brokers {', '.join(map(str, strangers))} run a version that does not report its logs, so the longest log "
            "could not be found: start these nodes with this version"
        )
    return refusals


def topics_of(
    image: MetadataImage, nodes: Sequence[FoundNode], named: Named
) -> tuple[dict[str, bytes], list[str]]:
    """Return the topics of the recovered cluster, as ids by name, and a refusal for each name that several
    topics have.
    """
    holdings = Holdings(nodes)
    topics: dict[str, bytes] = {}
    refusals: list[str] = []
    for name in sorted({*image.topics, *holdings.names}):
        known = image.topics[name].topic_id if name in image.topics else None
        ids = list(dict.fromkeys([*([] if known is None else [known]), *holdings.names.get(name, {})]))
        held = [each for each in ids if holdings.is_held(each)]
        if name in named.topics:
            if named.topics[name] not in ids:
                refusals.append(f"no topic {name} has the id {uuid_to_text(named.topics[name])}")
            topics[name] = named.topics[name]
        elif len(held) > 1:
            texts = " or ".join(f"--topic {name}={uuid_to_text(each)}" for each in held)
            refusals.append(
                f"the disks have several topics with the name {name}: choose one ({texts}), and the others are set aside"
            )
        else:
            # The topic may have been deleted and created again after the end of the copy. Then only the new
            # topic is on the disks.
            topics[name] = held[0] if held else ids[0]
    return topics, refusals
