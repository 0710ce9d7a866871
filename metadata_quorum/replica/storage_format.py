"""The files that `storage format` and `adopt` write and `storage info` reads: which directory may be formatted,
the first voters, the first records.

A formatted node has `meta.properties` in every log directory, and `bootstrap.checkpoint` (the cluster's first
records) in its metadata directory. As with Kafka 4.3's `kafka-storage format`, the first voters are given in
one of three ways:

* by a snapshot at offset 0 of the metadata log (kraft.version 1, KIP-853), which is the same on all first
  voters (`--standalone`, `--initial-controllers`);
* by `controller.quorum.voters` (kraft.version 0): nothing about voters is written;
* by the leader, for a node that joins an existing quorum (`--no-initial-controllers`, and every broker).

Only an empty directory is formatted. A directory with other files is never changed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import attrs

from odradek.env.ports import Dir
from odradek.metadata_quorum.features import (
    BOOTSTRAP_FEATURES,
    KRAFT_VERSION,
    KRAFT_VERSION_LEVEL,
    METADATA_VERSION,
    SUPPORTED_FEATURES,
)
from odradek.metadata_quorum.raft.voters import ReplicaKey, Voter, VoterSet
from odradek.metadata_quorum.replica.checkpoint_files import (
    BOOTSTRAP_FILE,
    encode_snapshot,
    parse_snapshot_name,
    snapshot_name,
)
from odradek.metadata_quorum.replica.meta_properties import (
    META_PROPERTIES,
    MetaProperties,
    NotALogDirectory,
    read_meta_properties,
)
from odradek.wire.messages.control_records import KRaftVersionRecord
from odradek.wire.messages.metadata_records import FeatureLevelRecord
from odradek.wire.structure import Message
from odradek.wire.uuid_text import uuid_from_text, uuid_to_text

METADATA_LOG_DIRECTORY = "__cluster_metadata-0"
DRAFT_DIRECTORY = f"{METADATA_LOG_DIRECTORY}.new"
"""The directory in which a recovery of the quorum writes the new log, before it is renamed to its final name.
"""
_HARMLESS = frozenset((".lock", "lost+found"))
_UNFINISHED = ".tmp"
_INITIAL_CONTROLLER = re.compile(r"(\d{1,10})@(\[[^\]]+\]|[^:\[\]]+):(\d{1,5}):([\w-]{22})\Z", re.ASCII)
_RESERVED_DIRECTORY_IDS = 100
_NODE_ID_MAX = (1 << 31) - 1
_CLUSTER_ID_BYTES_MAX = (1 << 15) - 1
"""The largest cluster id, in bytes (Kafka's limit for a string that is not compact)."""


class StorageError(Exception):
    """Raised if a directory cannot be formatted or read. The text is one line with the directory and the reason."""


@attrs.frozen
class VoterEndpoint:
    """The endpoint of a node's controller."""

    listener: str
    host: str
    port: int


@attrs.frozen
class StorageInfo:
    """The facts that `odradek storage info` shows about one log directory."""

    path: str
    meta: MetaProperties | None
    problem: str | None
    has_metadata_log: bool


def random_cluster_id(uuid: bytes) -> str:
    """Make a cluster id from 16 random bytes (`Env.new_uuid`), as text."""
    return uuid_to_text(uuid)


def check_cluster_id(cluster_id: str) -> None:
    """Check that a cluster id is valid UTF-8, contains at least one letter, and fits into requests. Raises
    `StorageError`.

    Kafka 4.3's tool accepts any text.
    """
    try:
        size = len(cluster_id.encode())
    except UnicodeEncodeError:
        raise StorageError(f"the cluster id {cluster_id!r} is not UTF-8: give it in ASCII") from None
    if not size:
        raise StorageError(
            "the cluster id is empty, so this node could join any cluster: `odradek storage "
            "random-uuid` makes a cluster id"
        )
    if size > _CLUSTER_ID_BYTES_MAX:
        raise StorageError(
            f"the cluster id has {size} bytes, and requests have room for {_CLUSTER_ID_BYTES_MAX} "
            "bytes: give a shorter cluster id"
        )


def find_meta_properties(directory: Dir) -> MetaProperties | None:
    """Read `meta.properties`; None if it is missing.

    Raises `StorageError` if it is damaged or of another version.
    """
    if not directory.exists(META_PROPERTIES):
        return None
    try:
        return read_meta_properties(directory)
    except NotALogDirectory as error:
        raise StorageError(str(error)) from error


def initial_voters(text: str, listener: str) -> VoterSet:
    """Parse the value of `--initial-controllers`: ID@HOST:PORT:DIRECTORY-ID, separated by commas.

    `listener` is the name of the controllers' listener. Raises `StorageError`.
    """
    voters: dict[int, Voter] = {}
    for entry in text.split(","):
        match = _INITIAL_CONTROLLER.match(entry.strip())
        if match is None or not 0 < int(match[3]) <= 65535 or int(match[1]) > _NODE_ID_MAX:
            raise StorageError(
                f"{entry.strip() or 'an empty entry'} is not an initial controller: write "
                "ID@HOST:PORT:DIRECTORY-ID, where DIRECTORY-ID has 22 characters of base64 (`odradek "
                "storage random-uuid` makes one)"
            )
        node_id = int(match[1])
        if node_id in voters:
            raise StorageError(f"Node id {node_id} was specified more than once.")
        try:
            directory_id = uuid_from_text(match[4])
        except ValueError as error:
            raise StorageError(f"{match[4]} is not a directory id: {error}") from None
        if int.from_bytes(directory_id, "big") < _RESERVED_DIRECTORY_IDS:
            raise StorageError(f"the directory id {match[4]} is reserved: give another directory id")
        voters[node_id] = _voter(
            node_id, directory_id, VoterEndpoint(listener, match[2].strip("[]"), int(match[3]))
        )
    if len({voter.key.directory_id for voter in voters.values()}) != len(voters):
        raise StorageError("Two initial controllers have the same directory id.")
    return VoterSet.of(voters.values())


def _voter(node_id: int, directory_id: bytes, endpoint: VoterEndpoint) -> Voter:
    return Voter(
        ReplicaKey(node_id, directory_id),
        ((endpoint.listener, endpoint.host, endpoint.port),),
        SUPPORTED_FEATURES[KRAFT_VERSION],
    )


def bootstrap_features(chosen: Mapping[str, int]) -> dict[str, int]:
    """Return the feature levels of a new cluster.

    `chosen` has the levels that differ from the defaults. Raises `StorageError`.
    """
    for name, level in chosen.items():
        if name not in SUPPORTED_FEATURES:
            supported = ", ".join(sorted(SUPPORTED_FEATURES))
            raise StorageError(f"Unsupported feature: {name}. Supported features are: {supported}")
        if name == KRAFT_VERSION:
            raise StorageError(
                "kraft.version cannot be chosen by itself: it is 1 with --standalone, "
                "--initial-controllers or --no-initial-controllers, and 0 with controller.quorum.voters"
            )
        low, high = SUPPORTED_FEATURES[name]
        if level and not low <= level <= high:
            raise StorageError(
                f"No feature:{name} with feature level {level}: this version supports {low} to {high}"
            )
    levels = {**BOOTSTRAP_FEATURES, **chosen}
    if not levels[METADATA_VERSION]:
        raise StorageError(
            f"{METADATA_VERSION} must have a level, so it cannot be 0: leave it out to get the default"
        )
    return {name: level for name, level in levels.items() if level}


def bootstrap_records(features: Mapping[str, int] = BOOTSTRAP_FEATURES) -> tuple[Message, ...]:
    """Make the first records of a cluster: its feature levels, with `metadata.version` first."""
    return tuple(FeatureLevelRecord(name, level) for name, level in features.items())


@attrs.frozen(kw_only=True)
class StorageFormat:
    """The contents that `format_storage` writes into the log directories of a node."""

    cluster_id: str
    node_id: int
    directory_ids: Sequence[bytes]
    """New random ids: one for each log directory, and a last id for a separate metadata directory. The
    metadata directory of a voter gets its id from `voters` instead.
    """
    voter: VoterEndpoint | None = None
    """The endpoint of this node's controller, if it is the first and only voter; otherwise None."""
    voters: VoterSet | None = None
    """The first voters, if there are several. If both `voter` and `voters` are None, this node writes no
    voters, since other nodes know them.
    """
    timestamp_ms: int
    features: Mapping[str, int] = BOOTSTRAP_FEATURES
    users: Sequence[Message] = ()
    """Records that create the first users (`first_user`)."""

    def first_voters(self, directory_id: bytes) -> VoterSet | None:
        """Return the voters for the first snapshot, if this node's metadata directory has this id; None if
        there is no such snapshot.
        """
        if self.voter is None:
            return self.voters
        return VoterSet.of([_voter(self.node_id, directory_id, self.voter)])


def format_storage(
    directories: Sequence[Dir],
    metadata_directory: Dir,
    wanted: StorageFormat,
    *,
    ignore_formatted: bool = False,
) -> list[str]:
    """Format every log directory of a node. Returns the paths of the formatted directories.

    `metadata_directory` is one of `directories`, or a separate directory. Raises `StorageError` before
    anything is written.
    """
    check_cluster_id(wanted.cluster_id)
    everything = list(directories)
    if all(directory.path != metadata_directory.path for directory in everything):
        everything.append(metadata_directory)
    existing = [_check_formattable(directory) for directory in everything]
    for directory, meta in zip(everything, existing, strict=True):
        if meta is None:
            continue
        if not ignore_formatted:
            raise StorageError(
                f"Log directory {directory.path} is already formatted. "
                "Use --ignore-formatted to ignore this directory and format the others."
            )
        if (meta.cluster_id, meta.node_id) != (wanted.cluster_id, wanted.node_id):
            raise StorageError(
                f"Log directory {directory.path} belongs to node {meta.node_id} of cluster {meta.cluster_id}"
            )
    formatted = []
    for directory, meta, directory_id in zip(everything, existing, wanted.directory_ids, strict=True):
        if meta is not None:
            continue
        if directory.path == metadata_directory.path:
            own = None if wanted.voters is None else wanted.voters.get(wanted.node_id)
            if own is not None:
                directory_id = own.key.directory_id
            first = wanted.first_voters(directory_id)
            records = [*bootstrap_records(wanted.features), *wanted.users]
            _format_metadata_log(directory, records, first, wanted.timestamp_ms)
        # Write this file last, so that every directory with this file is completely formatted.
        directory.write_atomic(
            META_PROPERTIES, MetaProperties(wanted.cluster_id, wanted.node_id, directory_id).encode()
        )
        formatted.append(directory.path)
    return formatted


def adopt_directory(directory: Dir, cluster_id: str, node_id: int, directory_id: bytes) -> None:
    """Format an empty directory for an existing node, because its disk replaces another one.

    Raises `StorageError` if the directory is not empty, and `DiskError`.
    """
    foreign = [name for name in directory.list() if name not in _HARMLESS]
    if foreign:
        raise StorageError(f"Log directory {directory.path} is not empty: it holds {foreign[0]}")
    directory.write_atomic(META_PROPERTIES, MetaProperties(cluster_id, node_id, directory_id).encode())


def _check_formattable(directory: Dir) -> MetaProperties | None:
    meta = find_meta_properties(directory)
    if meta is None:
        # An interrupted format may have left these files. They do not count as foreign files, and are written
        # again.
        ours = {*_HARMLESS, META_PROPERTIES, BOOTSTRAP_FILE, METADATA_LOG_DIRECTORY}
        foreign = [name for name in directory.list() if name.removesuffix(_UNFINISHED) not in ours]
        if directory.is_dir(METADATA_LOG_DIRECTORY):
            names = directory.subdir(METADATA_LOG_DIRECTORY).list()
            foreign += [name for name in names if parse_snapshot_name(name.removesuffix(_UNFINISHED)) is None]
        if foreign:
            raise StorageError(
                f"Log directory {directory.path} is not empty and not formatted: it holds {foreign[0]}"
            )
    return meta


def _format_metadata_log(
    directory: Dir, records: Sequence[Message], voters: VoterSet | None, timestamp_ms: int
) -> None:
    directory.write_atomic(BOOTSTRAP_FILE, encode_snapshot(records, epoch=0, timestamp_ms=timestamp_ms))
    log = directory.subdir(METADATA_LOG_DIRECTORY, create=True)
    if voters is not None:
        snapshot = encode_snapshot(
            [],
            control_records=[KRaftVersionRecord(0, KRAFT_VERSION_LEVEL), voters.to_record()],
            epoch=0,
            timestamp_ms=timestamp_ms,
            last_contained_log_timestamp=timestamp_ms,
        )
        log.write_atomic(snapshot_name(0, 0), snapshot)
        log.sync()
    directory.sync()


def storage_info(directory: Dir) -> StorageInfo:
    """Read and describe a log directory. Damage is reported in `problem`."""
    try:
        meta = find_meta_properties(directory)
        problem = None if meta is not None else "not formatted"
    except StorageError as error:
        meta, problem = None, str(error)
    return StorageInfo(directory.path, meta, problem, directory.is_dir(METADATA_LOG_DIRECTORY))
