"""Executes a recovery plan in the directories of one node: it renames the old metadata log and puts a new log
in its place.

First the new log is written completely, into a separate directory. Then two renames follow: the old log gets
another name, and the new log gets its final name. After a crash between the renames, the node refuses to
start. The same command with `--from` and the plan then does the second rename. Files are written through the
ports, under the locks of all directories of the node. PURE except for the files.
"""

from __future__ import annotations

from contextlib import ExitStack

from odradek.data_plane.metadata_log import BEGUN_FILE, BEGUN_TEXT
from odradek.env.ports import Dir, FileMissing
from odradek.metadata_quorum.ports import MetadataLogCorrupt, OffsetAndEpoch, QuorumState
from odradek.metadata_quorum.raft.voters import ReplicaKey
from odradek.metadata_quorum.recovery.copies import read_copy
from odradek.metadata_quorum.recovery.found import NO_NUMBER, FoundNode
from odradek.metadata_quorum.recovery.plan import NodePlan, RecoveryPlan, check_node
from odradek.metadata_quorum.recovery.recovered_image import recoveries_of
from odradek.metadata_quorum.replica.checkpoint_files import snapshot_name
from odradek.metadata_quorum.replica.meta_properties import META_PROPERTIES, MetaProperties
from odradek.metadata_quorum.replica.quorum_state import FileQuorumStateStore
from odradek.metadata_quorum.replica.storage_format import DRAFT_DIRECTORY, METADATA_LOG_DIRECTORY
from odradek.operations.recovery.node_reading import Disks, NodeFacts, NotReadable, read_node

__all__ = ["apply_plan", "begin_anew", "may_vote", "set_aside_name"]


def set_aside_name(epoch: int) -> str:
    """Return the directory name for a metadata log that is set aside. No partition has such a name, so the log is
    kept until an operator removes it.
    """
    return f"{METADATA_LOG_DIRECTORY}.{epoch}-stray"


def apply_plan(plan: RecoveryPlan, facts: NodeFacts, disks: Disks) -> bool:
    """Replace this node's metadata log by a new one, which begins with the plan's snapshot. Return false if that was
    done
    before.

    Raises `NotReadable` if the node has changed since the plan was made, and `DiskError`.
    """
    mine = next((each for each in plan.nodes if each.node_id == facts.node_id), None)
    if mine is None:
        raise NotReadable(f"the plan does not know node {facts.node_id}: read it, and plan again")
    found = read_node(facts, disks)
    if _is_done(found, plan):
        return False
    if found.metadata_path != mine.metadata_path:
        raise NotReadable(
            f"the metadata directory was {mine.metadata_path} when the plan was made, and is {found.metadata_path} now: plan again"
        )
    is_broken_off = not _has_log(facts, disks) and found.quorum_epoch == NO_NUMBER
    if not is_broken_off:
        _check_unchanged(found, mine, plan)
    check_node(plan, found)
    dead = {each.path: each.problem for each in found.dead_directories}
    if unformatted := next((path for path in mine.new_ids if path in dead), None):
        raise NotReadable(
            f"{unformatted} cannot be formatted ({dead[unformatted]}): replace its disk, and plan again"
        )
    # A node starts without a log directory on a dead disk, and needs nothing there.
    directories = {path: disks.open_dir(path, create=True) for path in facts.paths if path not in dead}
    with ExitStack() as locks:
        for directory in directories.values():
            directory.lock()
            locks.callback(directory.unlock)
        _apply(plan, mine, facts, directories)
    return True


def _has_log(facts: NodeFacts, disks: Disks) -> bool:
    try:
        return disks.open_dir(facts.metadata_path).is_dir(METADATA_LOG_DIRECTORY)
    except FileMissing:
        return False


def _is_done(found: FoundNode, plan: RecoveryPlan) -> bool:
    """True if the node's metadata log was made by this plan, even if the node has run since."""
    if found.copy is None:
        return False
    try:
        copy = read_copy(found.copy, f"node {found.node_id}", found.node_id, plan.cluster_id)
    except MetadataLogCorrupt:
        return False
    return plan.recovery_id in recoveries_of(copy.image)


def _check_unchanged(found: FoundNode, mine: NodePlan, plan: RecoveryPlan) -> None:
    """Raise `NotReadable` if the node has written metadata since the plan was made.

    A start without a quorum since then is accepted, because it raises only the epoch and does not change the log.
    """
    end = OffsetAndEpoch(NO_NUMBER, NO_NUMBER)
    if found.copy is not None:
        try:
            copy = read_copy(found.copy, f"node {found.node_id}", found.node_id, plan.cluster_id)
        except MetadataLogCorrupt:
            copy = None
        if copy is not None and copy.end.offset > 0:
            end = copy.end
    if end != mine.copy_end or found.quorum_epoch >= plan.end.epoch:
        raise NotReadable(
            f"node {found.node_id} has run since the plan was made: its metadata log ends at offset {end.offset} of epoch "
            f"{end.epoch} now: plan again"
        )


def _apply(plan: RecoveryPlan, mine: NodePlan, facts: NodeFacts, directories: dict[str, Dir]) -> None:
    root = directories[mine.metadata_path]
    if root.is_dir(DRAFT_DIRECTORY):
        root.remove_tree(DRAFT_DIRECTORY)
    draft = root.subdir(DRAFT_DIRECTORY, create=True)
    draft.write_atomic(snapshot_name(plan.end.offset, plan.end.epoch), plan.snapshot)
    FileQuorumStateStore(draft).save(QuorumState(leader_epoch=plan.end.epoch))
    draft.sync()
    _check_written(draft, plan)
    for path, directory_id in mine.new_ids.items():
        if path != mine.metadata_path:
            _write_meta(directories[path], plan, facts, directory_id)
    if facts.is_controller:
        # From now on, this controller refuses to start if it has no log.
        root.write_atomic(BEGUN_FILE, BEGUN_TEXT.encode())
    if mine.metadata_path in mine.new_ids:
        _write_meta(root, plan, facts, mine.new_ids[mine.metadata_path])
    if root.is_dir(METADATA_LOG_DIRECTORY):
        root.rename(METADATA_LOG_DIRECTORY, set_aside_name(plan.end.epoch))
        root.sync()
    root.rename(DRAFT_DIRECTORY, METADATA_LOG_DIRECTORY)
    root.sync()


def _check_written(draft: Dir, plan: RecoveryPlan) -> None:
    """Assert that the files on the disk have the content that the plan demands."""
    written = draft.read_bytes(snapshot_name(plan.end.offset, plan.end.epoch), len(plan.snapshot))
    assert written == plan.snapshot, "the snapshot on the disk is another"
    state = FileQuorumStateStore(draft).load()
    assert state is not None
    assert state.leader_epoch == plan.end.epoch, "quorum-state lacks the new epoch"


def _write_meta(directory: Dir, plan: RecoveryPlan, facts: NodeFacts, directory_id: bytes) -> None:
    meta = MetaProperties(plan.cluster_id, facts.node_id, directory_id)
    directory.write_atomic(META_PROPERTIES, meta.encode())


def may_vote(found: FoundNode) -> bool:
    """True if this node is a voter according to its own copy of the log. Also true if it is a controller
    without a readable copy, because it may be a voter.

    A voter that loses its log could vote twice in an epoch, or elect a leader that lacks committed records.
    """
    if found.copy is None:
        return found.is_controller
    try:
        copy = read_copy(found.copy, f"node {found.node_id}", found.node_id, found.cluster_id)
    except MetadataLogCorrupt:
        return found.is_controller
    if copy.voters is None:
        return found.node_id in found.static_voters
    voter = copy.voters.get(found.node_id)
    directory_id = found.metadata_directory_id
    return (
        voter is not None
        and directory_id is not None
        and voter.key.matches(ReplicaKey(found.node_id, directory_id))
    )


def begin_anew(facts: NodeFacts, disks: Disks, *, has_no_vote: bool = False) -> str:
    """Set a node's metadata log aside, so that its next start fetches the log from the other nodes. Return the log's
    new directory name.

    The directory keeps its id, so the node would still count as the same voter. A node that may be a voter is
    therefore refused. `has_no_vote` is true if the operator has checked that the quorum no longer counts the
    node's vote. Raises `NotReadable`, `DiskError`.
    """
    found = read_node(facts, disks)
    if may_vote(found) and not has_no_vote:
        raise NotReadable(
            f"node {found.node_id} is a voter by its own metadata log, and a voter must not lose its log: see with "
            f"`odradek quorum status` that its directory does not vote any more, or remove the vote by `odradek quorum "
            f"remove {found.node_id}`; then add --has-no-vote"
        )
    root = disks.open_dir(facts.metadata_path)
    root.lock()
    try:
        if not root.is_dir(METADATA_LOG_DIRECTORY):
            raise NotReadable(f"{facts.metadata_path} holds no metadata log")
        name = set_aside_name(max(found.quorum_epoch, 0))
        while root.exists(name):
            name = name.removesuffix("-stray") + "x-stray"
        if root.is_dir(DRAFT_DIRECTORY):
            root.remove_tree(DRAFT_DIRECTORY)
        if root.exists(BEGUN_FILE):
            root.remove(BEGUN_FILE)
        root.rename(METADATA_LOG_DIRECTORY, name)
        root.sync()
    finally:
        root.unlock()
    return name
