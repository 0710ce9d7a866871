"""How a starting node waits for the quorum, and what it logs meanwhile: what it waits for, why it was refused, whether
it votes. PORTED.
"""

from __future__ import annotations

from collections.abc import Callable

from odradek.env.ports import Env, Log, TaskGroup
from odradek.metadata_quorum.replica.raft_quorum import RaftQuorum
from odradek.metadata_quorum.service import MetadataService
from odradek.node.configuration.node_config import NodeConfig
from odradek.node.directories import NodeCannotStart
from odradek.wire.errors import ErrorCode
from odradek.wire.uuid_text import uuid_to_text

__all__ = ["catch_up", "check_refusals", "log_role", "what_is_missing"]

PATIENCE_SECONDS = 1.0
"""The seconds without a controller after which a starting node logs the reason for its wait."""


async def catch_up(
    metadata: MetadataService,
    config: NodeConfig,
    cluster_id: str,
    env: Env,
    tasks: TaskGroup,
    log: Log,
    *,
    registration_ms: int,
    fail: Callable[[str], None],
) -> None:
    """Wait until the quorum has a leader and the image is as new as the leader's log. If this takes long, log the
    reason.

    Raises `NodeCannotStart` if the other controllers refuse this node. Calls `fail` if this is a broker and has known no
    leader for `registration_ms`.
    """
    clock, done = env.clock, env.event()

    async def wait() -> None:
        await metadata.caught_up()
        done.set()

    tasks.start_soon(wait)
    said = ""
    led_at = clock.monotonic()
    while not done.is_set():
        with clock.timeout_at(clock.monotonic() + PATIENCE_SECONDS):
            await done.wait()
        if not done.is_set():
            check_refusals(metadata.quorum, config, cluster_id)
            missing = what_is_missing(metadata.quorum, config)
            if missing != said:
                said = missing
                log.warning("node.waiting", reason=missing)
            led_at = led_at if metadata.quorum.leader_id is None else clock.monotonic()
            if config.is_broker and clock.monotonic() - led_at >= registration_ms / 1000:
                fail(
                    f"no controller could register this broker within initial.broker.registration.timeout.ms: {missing}"
                )
    log_role(metadata.quorum, config, log)


def what_is_missing(quorum: RaftQuorum, config: NodeConfig) -> str:
    """Return in one line why this node does not have the newest image yet."""
    copy = quorum.peers.own_copy.found_at
    if copy is not None:
        return (
            f"a process at {copy} has the same directory id, so one of the two disks is a copy: this "
            "node takes no part in the quorum until that process stops"
        )
    if quorum.leader_id is not None:
        return f"this node is fetching the metadata log from controller {quorum.leader_id}"
    voters = quorum.voters.voters
    if voters:
        who = ", ".join(str(voter.key.node_id) for voter in voters)
        return (
            f"no controller is active: a majority of the voters {who} must run and reach each other; if most of their disks "
            "are lost, `odradek quorum recover` restores the quorum"
        )
    servers = ", ".join(f"{host}:{port}" for host, port in config.bootstrap_servers)
    return f"none of the controllers at {servers} has reported the quorum's leader yet"


def check_refusals(quorum: RaftQuorum, config: NodeConfig, cluster_id: str) -> None:
    """Raise `NodeCannotStart` if the other controllers refuse this node.

    There are two cases. In the first, a majority of the controllers answers that this node belongs to another
    cluster. In the second, this node is only a broker, and the controllers name its id as the id of their
    leader. So two nodes share the id.

    A minority of controllers from another cluster does not stop the node. If the voters' addresses come from the log,
    other clusters may use these addresses now. Then refusals do not stop the node as long as a bootstrap server may
    know the new addresses.
    """
    if not config.is_controller and quorum.peers.is_named_leader:
        raise NodeCannotStart(_of_a_voter(config.node_id))
    strangers = [
        node_id
        for node_id, code in sorted(quorum.peers.refusals.items())
        if code is ErrorCode.INCONSISTENT_CLUSTER_ID
    ]
    voters = quorum.voters
    if quorum.has_dynamic_voters and not quorum.peers.only_strangers:
        return
    voting = [node_id for node_id in strangers if voters.get(node_id) is not None]
    if len(voting) >= voters.majority if voters.voters else strangers:
        who = ", ".join(_address(quorum, node_id) for node_id in voting or strangers)
        key = "controller.quorum.voters" if config.static_voters else "controller.quorum.bootstrap.servers"
        raise NodeCannotStart(
            f"the controllers at {who} belong to another cluster than this node's directories ({cluster_id}): correct "
            f"{key}, or format this node with --cluster-id of their cluster"
        )


def _of_a_voter(node_id: int) -> str:
    return f"node.id {node_id} belongs to another controller that votes: give each node its own node.id"


def _address(quorum: RaftQuorum, node_id: int) -> str:
    address = quorum.peers.address_of(node_id)
    return str(node_id) if address is None else f"{address[0]}:{address[1]}"


def log_role(quorum: RaftQuorum, config: NodeConfig, log: Log) -> None:
    """Log whether this controller votes, and the commands that change this.

    Raises `NodeCannotStart` for a broker with the id of a voter.
    """
    voter = quorum.voters.get(config.node_id)
    if voter is not None and not config.is_controller:
        raise NodeCannotStart(_of_a_voter(config.node_id))
    if not config.is_controller:
        return
    if voter is None:
        log.info(
            "quorum.not_a_voter",
            reason=f"this controller has no vote: `odradek quorum add {config.node_id}` gives it one",
        )
    elif not voter.key.matches(quorum.settings.me):
        log.warning(
            "quorum.other_directory",
            reason=f"the quorum knows voter {config.node_id} by the directory "
            f"{uuid_to_text(voter.key.directory_id)}, not by this node's directory: run `odradek "
            f"quorum remove {config.node_id}`, then `odradek quorum add {config.node_id}`",
        )
