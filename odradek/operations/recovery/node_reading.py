"""Reads the directories of a stopped node, under their locks and without changes. PURE except for the reads."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import attrs

from odradek.data_plane.metadata_log import verify_segments
from odradek.data_plane.metadata_snapshots import SNAPSHOT_BYTES_MAX, FileSnapshotStore
from odradek.env.ports import Dir, DiskError, FileMissing
from odradek.metadata_quorum.ports import MetadataLogCorrupt
from odradek.metadata_quorum.recovery.copies import whole_batches
from odradek.metadata_quorum.recovery.found import BROKEN_OFF, NO_NUMBER, CopyFiles, FoundDirectory, FoundNode
from odradek.metadata_quorum.replica.checkpoint_files import snapshot_name
from odradek.metadata_quorum.replica.meta_properties import META_PROPERTIES, MetaProperties
from odradek.metadata_quorum.replica.quorum_state import FileQuorumStateStore
from odradek.metadata_quorum.replica.storage_format import (
    DRAFT_DIRECTORY,
    METADATA_LOG_DIRECTORY,
    StorageError,
    find_meta_properties,
)
from odradek.operations.recovery.replica_reading import Replicas, read_replicas, replica_names

__all__ = ["Disks", "NodeFacts", "NotReadable", "read_copy_files", "read_node"]

_SEGMENT = re.compile(r"[0-9]{20}\.log\Z")
_SEGMENT_BYTES_MAX = 2 << 30
_DEAD = frozenset(
    (errno.EIO, errno.EROFS, errno.ENXIO, errno.ENODEV, errno.EUCLEAN, errno.ESTALE, errno.EREMOTEIO)
)
"""The errors of a dead disk, of a disk that the kernel has made read-only, and of a damaged file system."""


class Disks(Protocol):
    """The part of `Env` that opens directories."""

    def open_dir(self, path: str, *, create: bool = False) -> Dir: ...


class NotReadable(Exception):
    """Raised if the directories of a node cannot be used for a recovery. The text has the reason in one line."""


@attrs.frozen
class NodeFacts:
    """The facts about a node that come from its properties file."""

    node_id: int
    is_broker: bool
    is_controller: bool
    endpoints: tuple[tuple[str, str, int], ...]
    static_voters: tuple[int, ...]
    log_dirs: tuple[str, ...]
    metadata_path: str
    servers: tuple[tuple[str, int], ...] = ()
    """The addresses (host, port) at which the node looks for controllers."""

    @property
    def paths(self) -> list[str]:
        """All directories of the node: the log directories, and the directory of the metadata log if that is
        a separate directory.
        """
        return list(dict.fromkeys([*self.log_dirs, self.metadata_path]))


@attrs.define
class _Opened:
    """The open and locked directories of a node, and the facts about all of its directories."""

    directories: dict[str, Dir] = attrs.field(factory=dict)
    metas: dict[str, MetaProperties | None] = attrs.field(factory=dict)
    """The contents of `meta.properties` by path; None for directories that are missing, blank or dead."""
    dead: dict[str, str] = attrs.field(factory=dict)
    """Log directories that cannot be read, because their disks are dead, each with the reason."""


def read_node(facts: NodeFacts, disks: Disks) -> FoundNode:
    """Read all directories of a node. Raises `NotReadable` if a process uses one of the directories, if one belongs
    to another node, or if one has replicas but lacks `meta.properties`. Also raises `DiskError`.

    A log directory on a dead disk is left out and reported. At its start, the node does the same. The directory
    of the metadata log must be readable.
    """
    opened = _Opened()
    try:
        for path in facts.paths:
            with _dead_left_out(path, facts, opened):
                _open(path, disks, opened)
        replicas = Replicas()
        for path in facts.log_dirs:
            meta = opened.metas[path]
            if path in opened.directories and path not in opened.dead:
                with _dead_left_out(path, facts, opened):
                    if meta is None:
                        _check_blank(facts, opened.directories[path])
                    else:
                        read_replicas(opened.directories[path], meta.directory_id, replicas)
        cluster_id = _owner(facts, opened)
        replicas.settle_futures(is_whole=all(opened.metas[path] is not None for path in facts.log_dirs))
        copy, problem, epoch = _metadata(opened.directories.get(facts.metadata_path))
        return FoundNode(
            node_id=facts.node_id,
            cluster_id=cluster_id,
            is_broker=facts.is_broker,
            is_controller=facts.is_controller,
            endpoints=facts.endpoints,
            static_voters=facts.static_voters,
            servers=facts.servers,
            metadata_path=facts.metadata_path,
            directories=tuple(
                FoundDirectory(path, None if meta is None else meta.directory_id, opened.dead.get(path, ""))
                for path, meta in opened.metas.items()
            ),
            copy=copy,
            copy_problem=problem,
            quorum_epoch=epoch,
            producer_id=replicas.producer_id,
            replicas=tuple(replicas.found),
            unreadable=tuple(replicas.unreadable),
            missing=tuple(dict.fromkeys(replicas.missing)),
        )
    except StorageError as error:
        raise NotReadable(str(error)) from error
    finally:
        for directory in opened.directories.values():
            directory.unlock()


def _open(path: str, disks: Disks, opened: _Opened) -> None:
    """Open and lock a directory, and read its `meta.properties`. Raises `DiskError`, `StorageError`."""
    opened.metas[path] = None
    try:
        directory = disks.open_dir(path)
        directory.lock()
    except FileMissing:
        return
    opened.directories[path] = directory
    opened.metas[path] = find_meta_properties(directory)


@contextmanager
def _dead_left_out(path: str, facts: NodeFacts, opened: _Opened) -> Iterator[None]:
    """Read a directory in the block. If its disk is dead, leave the directory out instead of failing.

    Raises `DiskError` for the directory of the metadata log, and for errors that a dead disk does not explain: a
    lock of another process, missing rights, or a shortage that ends.
    """
    try:
        yield
    except DiskError as error:
        if path == facts.metadata_path or error.errno not in _DEAD:
            raise
        opened.metas[path] = None
        opened.dead[path] = str(error)


def _check_blank(facts: NodeFacts, directory: Dir) -> None:
    """Raise `NotReadable` if a directory without `meta.properties` has replicas.

    As a blank directory it would count for nothing. Its replicas may be the only ones with all acknowledged
    records, and their node would cut them after the recovery.
    """
    names = replica_names(directory)
    if names:
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        raise NotReadable(
            f"{directory.path} holds logs of partitions ({names[0]}{more}), but its file {META_PROPERTIES} is missing, and a recovery "
            f"would ignore these logs: write the file again (docs/recover.md, 'A lost meta.properties'), or leave this node out "
            f"with --absent {facts.node_id}"
        )


def _owner(facts: NodeFacts, opened: _Opened) -> str:
    """Return the cluster id that the node's directories have; an empty text if all directories are blank.
    Raises `NotReadable`.
    """
    cluster_id = ""
    for path, meta in opened.metas.items():
        if meta is None:
            continue
        if meta.node_id != facts.node_id:
            raise NotReadable(f"{path} belongs to node {meta.node_id}, and node.id is {facts.node_id}")
        if cluster_id and meta.cluster_id != cluster_id:
            raise NotReadable(f"the directories of node {facts.node_id} belong to different clusters")
        cluster_id = meta.cluster_id
    if not cluster_id and opened.dead:
        path, reason = next(iter(opened.dead.items()))
        raise NotReadable(
            f"node {facts.node_id} has no formatted directory that can be read, so nobody knows what {path} holds ({reason}): "
            f"leave this node out with --absent {facts.node_id}, or put an empty disk in place of the dead one"
        )
    return cluster_id


def _metadata(root: Dir | None) -> tuple[CopyFiles | None, str, int]:
    """Read a node's copy of the metadata log. Return the copy or None, the reason why there is none, and the epoch in
    `quorum-state`.
    """
    if root is None or not root.is_dir(METADATA_LOG_DIRECTORY):
        is_broken_off = root is not None and root.is_dir(DRAFT_DIRECTORY)
        return None, BROKEN_OFF if is_broken_off else "has no metadata log", NO_NUMBER
    directory = root.subdir(METADATA_LOG_DIRECTORY)
    try:
        state = FileQuorumStateStore(directory).load()
        epoch = NO_NUMBER if state is None else state.leader_epoch
    except MetadataLogCorrupt as error:
        return None, f"has a damaged metadata log ({error})", NO_NUMBER
    try:
        copy = read_copy_files(directory)
    except (MetadataLogCorrupt, DiskError) as error:
        return None, f"has a damaged metadata log ({error})", epoch
    if copy.snapshot_end is None and not copy.log:
        return None, "has an empty metadata log", epoch
    return copy, "", epoch


def read_copy_files(directory: Dir) -> CopyFiles:
    """Read the newest snapshot and the log from a metadata log's directory. An incomplete batch at the end is left
    out.

    Raises `MetadataLogCorrupt` for damage that a crash cannot explain, and `DiskError`.
    """
    verify_segments(directory)
    ends = FileSnapshotStore(directory).ends()
    snapshot = b""
    if ends:
        snapshot = directory.read_bytes(snapshot_name(ends[-1].offset, ends[-1].epoch), SNAPSHOT_BYTES_MAX)
    names = [name for name in directory.list() if _SEGMENT.match(name)]
    segments = [directory.read_bytes(name, _SEGMENT_BYTES_MAX) for name in names]
    return CopyFiles(ends[-1] if ends else None, snapshot, whole_batches(segments))
