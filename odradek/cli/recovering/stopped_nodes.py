"""Stopped nodes as commands take them: their properties files, read into the facts that a recovery needs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from odradek.cli.failure import CliError
from odradek.cli.streams.standard_streams import complain

if TYPE_CHECKING:
    from odradek.metadata_quorum.recovery.found import FoundNode
    from odradek.node.configuration.node_config import NodeConfig
    from odradek.operations.recovery.node_reading import NodeFacts

__all__ = ["answers_at", "facts_of", "load_config", "read_nodes"]

_PROBE_SECONDS = 2.0


def load_config(path: str) -> NodeConfig:
    """Read a properties file as far as disks are concerned, with its warnings. Raises `CliError`."""
    from odradek.metadata_quorum.config.config_defs import ConfigError
    from odradek.node.configuration.node_config import NodeConfig

    try:
        # As Kafka's tool: certificates and passwords may come after the disks.
        config = NodeConfig.load(path, starts=False)
    except OSError as error:
        raise CliError(f"cannot read {path}: {error.strerror or error}") from error
    except ConfigError as error:
        raise CliError(f"{path}: {error}") from error
    for warning in config.warnings:
        complain(f"{path}: {warning}")
    return config


def facts_of(path: str) -> NodeFacts:
    """Read a properties file. Raises `CliError`."""
    from odradek.operations.recovery.node_reading import NodeFacts

    config = load_config(path)
    return NodeFacts(
        node_id=config.node_id,
        is_broker=config.is_broker,
        is_controller=config.is_controller,
        endpoints=tuple((each.listener, each.host, each.port) for each in config.controller_endpoints),
        static_voters=tuple(each.node_id for each in config.static_voters),
        log_dirs=tuple(config.log_dirs),
        metadata_path=config.metadata_log_dir,
    )


def read_nodes(facts: Sequence[NodeFacts]) -> list[FoundNode]:
    """Read the directories of nodes on this host. Raises `CliError` where one runs, or is not as its file says."""
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
            hint = ": stop the node first" if error.operation == "lock" else ""
            raise CliError(f"node {each.node_id}: {error}{hint}") from error
    return found


def answers_at(addresses: Iterable[tuple[str, int]]) -> tuple[str, int] | None:
    """Return the first of these addresses where some process listens."""
    import socket

    for host, port in addresses:
        try:
            socket.create_connection((host, port), _PROBE_SECONDS).close()
        except OSError:
            continue
        return host, port
    return None
