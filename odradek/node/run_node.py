"""The only way to start a node (SHELL: it opens the nursery, and decides nothing).

The simulator calls `run_node` with its own `Env`. All code below this function uses clock, disks and network only
through this `Env`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import trio

from odradek.env.ports import Event, Log
from odradek.node.configuration.node_config import NodeConfig
from odradek.node.logging import make_logger
from odradek.node.node import HostProcess, Node
from odradek.serving.node_env import NodeEnv


async def run_node(
    config: NodeConfig,
    env: NodeEnv,
    *,
    made: Callable[[Node], None] | None = None,
    started: Callable[[Mapping[str, Any]], None] | None = None,
    stop: Event | None = None,
    log: Log | None = None,
    process: HostProcess | None = None,
    poison: bool = False,
) -> None:
    """Run a node until `stop` is set or the task is cancelled. After `stop` the node shuts down cleanly. After a
    cancellation, as after a crash, nothing more is written.

    `stop` also ends a start in any phase.

    `made` is called with the node before it starts, for callers that watch it from within the process. `started` is
    called once clients are served, with the node's addresses and ids. `poison` overwrites each request in the receive
    buffer after its dispatch, which reveals a handler that keeps a view of it.

    Raises (in an `ExceptionGroup`):
        NodeCannotStart: the configuration and the disks do not fit.
        NotALogDirectory, DiskError: a directory cannot be used.
        MetadataLogCorrupt, InvalidMetadata: the metadata log is damaged.
        RegistrationRefused: the controller refuses this broker.
        NodeFailed: the node cannot continue.
    """
    if process is None:
        process = HostProcess()
    logger = (
        log if log is not None else make_logger(env.clock, levels=process.log_levels, node=config.node_id)
    )
    async with trio.open_nursery() as nursery:
        node = Node(config, env, nursery, logger, process, poison=poison)
        if made is not None:
            made(node)
        to_stop = stop if stop is not None else env.event()
        starting = trio.CancelScope()
        nursery.start_soon(_give_up_start, node, to_stop, starting)
        with starting:
            await node.start()
        if started is not None and not node.is_starting:
            started(node.facts())
        await to_stop.wait()
        await node.shut_down()
        nursery.cancel_scope.cancel()


async def _give_up_start(node: Node, stop: Event, starting: trio.CancelScope) -> None:
    await stop.wait()
    node.stop_starting()
    starting.cancel()
