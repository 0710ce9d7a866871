"""Reads the properties files, directories and backups of stopped nodes for a recovery, and finds addresses
where a controller still listens.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from odradek.cli.failure import CliError
from odradek.cli.streams.standard_streams import complain

if TYPE_CHECKING:
    from odradek.metadata_quorum.recovery.choice import Choice
    from odradek.metadata_quorum.recovery.found import CopyFiles, FoundNode
    from odradek.node.configuration.node_config import NodeConfig
    from odradek.operations.recovery.node_reading import NodeFacts

__all__ = [
    "answers_at",
    "backup_in",
    "controller_addresses",
    "elects_leader",
    "facts_of",
    "load_config",
    "read_nodes",
]

_PROBE_SECONDS = 2.0


def load_config(path: str) -> NodeConfig:
    """Read a node's properties file, and print its warnings. Problems that would only prevent a start of the node are
    among these warnings. Raises `CliError`.
    """
    from odradek.metadata_quorum.config.config_defs import ConfigError
    from odradek.node.configuration.node_config import NodeConfig

    try:
        # As in Kafka's tool, the files with certificates and passwords need not exist yet.
        config = NodeConfig.load(path, starts=False)
    except OSError as error:
        raise CliError(f"cannot read {path}: {error.strerror or error}") from error
    except ConfigError as error:
        raise CliError(f"{path}: {error}") from error
    for warning in config.warnings:
        complain(f"{path}: {warning}")
    return config


def facts_of(path: str) -> NodeFacts:
    """Read a node's properties file into the facts that a recovery needs. Raises `CliError`."""
    from odradek.operations.recovery.node_reading import NodeFacts

    config = load_config(path)
    return NodeFacts(
        node_id=config.node_id,
        is_broker=config.is_broker,
        is_controller=config.is_controller,
        endpoints=tuple((each.listener, each.host, each.port) for each in config.controller_endpoints),
        static_voters=tuple(each.node_id for each in config.static_voters),
        servers=(*((each.host, each.port) for each in config.static_voters), *config.bootstrap_servers),
        log_dirs=tuple(config.log_dirs),
        metadata_path=config.metadata_log_dir,
    )


def read_nodes(facts: Sequence[NodeFacts]) -> list[FoundNode]:
    """Read the directories of stopped nodes on this host. Raises `CliError` if a node still runs, or if its
    directories do not fit its properties file.
    """
    from odradek.env.ports import DiskError
    from odradek.env.real import RealEnv
    from odradek.operations.recovery.node_reading import NotReadable, read_node

    env = RealEnv()
    found = []
    for each in facts:
        try:
            found.append(read_node(each, env))
        except NotReadable as error:
            raise CliError(str(error)) from error
        except DiskError as error:
            is_locked = (error.operation, error.errno) == ("lock", errno.EWOULDBLOCK)
            hint = ": stop the node first" if is_locked else ""
            raise CliError(f"node {each.node_id}: {error}{hint}") from error
    return found


def elects_leader(configs: Sequence[str]) -> bool:
    """True if these stopped nodes are a majority of the voters, according to the newest copy of the metadata
    log on their disks.

    If a copy of the log is damaged, the result is also true, because the nodes report the damage when they
    start. Raises `CliError`.
    """
    from odradek.metadata_quorum.ports import MetadataLogCorrupt
    from odradek.metadata_quorum.raft.voters import ReplicaKey
    from odradek.metadata_quorum.recovery.copies import greatest, read_copy

    nodes = read_nodes([facts_of(each) for each in configs])
    copies = []
    for node in nodes:
        if node.copy is not None:
            try:
                copies.append(read_copy(node.copy, f"node {node.node_id}", node.node_id, node.cluster_id))
            except MetadataLogCorrupt:
                return True
    voters = greatest(copies).voters if copies else None
    if voters is None:
        return True
    here = {
        ReplicaKey(each.node_id, each.metadata_directory_id or b"") for each in nodes if each.copy is not None
    }
    return len([each for each in voters.voters if each.key in here]) >= voters.majority


def backup_in(path: str) -> CopyFiles:
    """Read a backup of the metadata log: an archive, its unpacked directory, or the log's directory. Raises
    `CliError`.
    """
    import tarfile
    from tempfile import TemporaryDirectory

    from odradek.metadata_quorum.replica.storage_format import METADATA_LOG_DIRECTORY

    if os.path.isdir(path):
        return _copy_in(path)
    try:
        with TemporaryDirectory(prefix="odradek-backup-") as unpacked, tarfile.open(path) as archive:
            for member in archive:
                folder, name = os.path.split(member.name)
                contents = archive.extractfile(member) if member.isreg() else None
                # Use only the last part of the name, because a path in the archive must not decide where a
                # file is written.
                if contents is not None and os.path.basename(folder) == METADATA_LOG_DIRECTORY:
                    with open(os.path.join(unpacked, name), "wb") as file:
                        file.write(contents.read())
            return _copy_in(unpacked)
    except (OSError, tarfile.TarError) as error:
        raise CliError(f"cannot read the backup {path}: {error}") from error


def _copy_in(path: str) -> CopyFiles:
    from odradek.env.ports import DiskError
    from odradek.env.real import RealEnv
    from odradek.metadata_quorum.ports import MetadataLogCorrupt
    from odradek.metadata_quorum.replica.storage_format import METADATA_LOG_DIRECTORY
    from odradek.operations.recovery.node_reading import read_copy_files

    below = os.path.join(path, METADATA_LOG_DIRECTORY)
    try:
        return read_copy_files(RealEnv().open_dir(below if os.path.isdir(below) else path))
    except (DiskError, MetadataLogCorrupt) as error:
        raise CliError(f"the backup in {path} cannot be used: {error}") from error


def controller_addresses(choice: Choice, nodes: Sequence[FoundNode]) -> dict[tuple[str, int], str]:
    """Return the address of every controller that a copy or a properties file names, each with its source."""
    known: dict[tuple[str, int], str] = {}
    for copy in choice.copies:
        for voters in copy.voter_sets:
            for voter in voters.voters:
                for _, host, port in voter.endpoints:
                    known.setdefault((host, port), copy.source)
        for controller in copy.image.controllers.values():
            for each in controller.listeners:
                known.setdefault((each.host, each.port), copy.source)
    for node in nodes:
        addresses = [*((host, port) for _, host, port in node.endpoints), *node.servers]
        for host, port in addresses:
            known.setdefault((host, port), f"the configuration of node {node.node_id}")
    return known


def answers_at(addresses: Mapping[tuple[str, int], str]) -> dict[tuple[str, int], str]:
    """Return the addresses at which some process listens, with their sources."""
    import socket

    found = {}
    for (host, port), source in addresses.items():
        try:
            socket.create_connection((host, port), _PROBE_SECONDS).close()
        except OSError:
            continue
        found[host, port] = source
    return found
