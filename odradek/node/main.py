"""A node as a process: read the configuration, run until a signal or a failure, report why the node ended. SHELL."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import trio

from odradek.data_plane.metadata_log import BEGUN_FILE
from odradek.env.documents import fetch_document
from odradek.env.ports import DiskError
from odradek.env.real import keep_memory_out_of_files, raise_descriptor_limit
from odradek.env.real_tls import open_tls
from odradek.env.tokens import open_tokens
from odradek.metadata_quorum.config.config_defs import ConfigError
from odradek.metadata_quorum.config.log_levels import LogLevels
from odradek.metadata_quorum.image.metadata_image import InvalidMetadata
from odradek.metadata_quorum.ports import MetadataLogCorrupt, RecoveryBrokenOff
from odradek.metadata_quorum.raft.recoveries import LogLeftBehind
from odradek.metadata_quorum.replica.meta_properties import NotALogDirectory
from odradek.metadata_quorum.replica.storage_format import METADATA_LOG_DIRECTORY
from odradek.node.broker_lifecycle import RegistrationRefused
from odradek.node.configuration.node_config import NodeConfig
from odradek.node.entrances import World
from odradek.node.garbage import Collections
from odradek.node.logging import make_logger
from odradek.node.node import HostProcess, Node, NodeCannotStart, NodeCannotStartYet, NodeFailed
from odradek.node.real_node_env import RealNodeEnv
from odradek.node.run_node import run_node
from odradek.node.secret_files import chmod_remedy, node_directories, open_secrets, open_to_everybody
from odradek.node.supervision.console_door import open_console
from odradek.node.supervision.service_manager import ServiceManager
from odradek.node.supervision.signals import StopSignals

PLAINTEXT = "PLAINTEXT"
SWITCH_SECONDS = 0.0005
"""The seconds for which a worker thread in Python code keeps the interpreter lock when the event loop needs it.

With CPython's 5 ms, each request beside a busy worker takes 5 ms longer. With 0.1 ms, workers have half the throughput
(figures in bench/hot_path/README.md).
"""

STOPPING_ERRORS = (
    ConfigError,
    DiskError,
    InvalidMetadata,
    MetadataLogCorrupt,
    NodeCannotStart,
    NodeFailed,
    NotALogDirectory,
    RegistrationRefused,
)
"""Errors that end a node with one log line. Any other error is a bug, and its traceback is shown."""

STOPPED, ENDED, NEEDS_OPERATOR = 0, 1, 78
"""The exit statuses: a clean stop; a failure after which a later start may succeed; a failure that repeats
until an operator changes something (EX_CONFIG of sysexits(3)). The systemd unit in docs/deploy.md restarts
the node after the second status.
"""

OPERATORS_ERRORS = (
    ConfigError,
    InvalidMetadata,
    MetadataLogCorrupt,
    NodeCannotStart,
    NotALogDirectory,
    RegistrationRefused,
)
"""Errors that only an operator can fix. The subclass `NodeCannotStartYet` is an exception."""


def serve(
    config_path: str,
    *,
    complain: Callable[[str], None],
    started: Callable[[Mapping[str, Any]], None] | None = None,
) -> int:
    """Run a node with this properties file until it stops; return one of the three exit statuses.

    `complain(sentence)` is called to print why the node ends.
    """
    try:
        config = NodeConfig.load(config_path)
    except ConfigError as error:
        complain(f"{config_path}: {error}")
        return NEEDS_OPERATOR
    except OSError as error:
        complain(
            f"cannot read {config_path}: {error.strerror}. Name the properties file with which this "
            "node was formatted (`odradek storage format`)"
        )
        return NEEDS_OPERATOR
    sys.setswitchinterval(SWITCH_SECONDS)
    descriptors_max = raise_descriptor_limit()
    if any(each.protocol != PLAINTEXT for each in config.security.values()):
        keep_memory_out_of_files()
    signals = StopSignals(config.node_id)
    status = STOPPED
    try:
        trio.run(_serve, config_path, config, started, signals, descriptors_max)
    except* STOPPING_ERRORS as group:
        reasons = _leaves(group)
        for reason in reasons:
            complain(f"node {config.node_id} stops: {_with_remedy(reason)}")
        status = NEEDS_OPERATOR if any(map(_needs_operator, reasons)) else ENDED
    signals.ended.set()
    return status


def _needs_operator(reason: BaseException) -> bool:
    """True if the next start would fail for the same reason until an operator changes something.

    `LogLeftBehind` does not count, because it rests on another node's answer, which may have been forged.
    """
    return isinstance(reason, OPERATORS_ERRORS) and not isinstance(reason, NodeCannotStartYet | LogLeftBehind)


def _with_remedy(reason: BaseException) -> str:
    """Return the last log line of a node that ends: the reason, and advice if the metadata log is damaged."""
    text = str(reason)
    has_its_own = isinstance(reason, LogLeftBehind | RecoveryBrokenOff) or "restore" in text.lower()
    if isinstance(reason, MetadataLogCorrupt) and not has_its_own:
        text += (
            ". Restore this node's metadata directory from a copy. Or, while the other controllers "
            f"have a leader, move {METADATA_LOG_DIRECTORY} and {BEGUN_FILE} out of the directory: the "
            "node then fetches the log from the other controllers"
        )
    return text


async def _serve(
    config_path: str,
    config: NodeConfig,
    started: Callable[[Mapping[str, Any]], None] | None,
    signals: StopSignals,
    descriptors_max: int,
) -> None:
    env = RealNodeEnv()
    levels = LogLevels()
    log = make_logger(env.clock, levels=levels, node=config.node_id)
    for warning in config.warnings:
        log.warning("config.warning", message=warning)
    for path, holds in open_secrets(config_path, config):
        log.warning("secret.readable_by_everybody", path=path, holds=holds, remedy=f"chmod o= {path}")
    exposed = open_to_everybody(node_directories(config))
    if exposed:
        log.warning("directory.open_to_everybody", paths=",".join(exposed), remedy=chmod_remedy(exposed))
    stop = env.event()

    manager = ServiceManager(os.environ, log)
    collections = Collections()
    collections.begin_start()

    door = await open_console(config, log)

    def on_started(facts: Mapping[str, Any]) -> None:
        collections.begin_service()
        manager.send("READY=1")
        if door is not None:
            facts = {**facts, "console": door.link}
            tasks.start_soon(door.serve, _console_address(config, facts["addresses"]))
            log.info("node.console", address=door.link)
        if started is not None:
            started(facts)

    token = trio.lowlevel.current_trio_token()

    def on_made(node: Node) -> None:
        def stop_node(signal_name: str) -> None:
            log.info("node.stopping", signal=signal_name)
            manager.send("STOPPING=1")
            stop.set()

        def notify(signal_name: str) -> None:
            with suppress(trio.RunFinishedError):  # the signal arrived after the node's end
                token.run_sync_soon(stop_node, signal_name)

        signals.attach(notify, lambda: node.is_starting)

    process = HostProcess(
        levels, descriptors_max, World(open_tls, fetch_document, open_tokens), signals.leave_behind
    )
    async with trio.open_nursery() as tasks:
        tasks.start_soon(manager.feed_watchdog, env.clock)
        await run_node(config, env, made=on_made, started=on_started, stop=stop, log=log, process=process)
        if door is not None:
            door.close()
        tasks.cancel_scope.cancel()


def _console_address(config: NodeConfig, addresses: Sequence[str]) -> str:
    """Return the address by which the console reaches this node. `addresses` are those on which the node listens, in
    the order of the broker's listeners.
    """
    assert config.console is not None
    name = config.console.listener
    advertised = next(each for each in config.advertised_listeners if each.name == name)
    own = [each.name for each in config.broker_listeners]
    host, _, port = addresses[own.index(name)].rpartition(":")
    host = advertised.host or ("127.0.0.1" if host == "0.0.0.0" else host)
    shown = f"[{host}]" if ":" in host else host
    return f"{shown}:{advertised.port or port}"


def _leaves(group: BaseExceptionGroup[Any]) -> list[BaseException]:
    found: list[BaseException] = []
    for error in group.exceptions:
        found += _leaves(error) if isinstance(error, BaseExceptionGroup) else [error]
    return found
