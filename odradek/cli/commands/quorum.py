"""`odradek quorum status|add|remove`: the controllers that keep the metadata log. The package `recovering`
has the commands that repair a quorum.
"""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING, Any

from odradek.cli.connecting import changing, connected, connected_to_controller, present_quorum
from odradek.cli.failure import CliError
from odradek.cli.output import RED, paint, print_json, print_table, print_values, say, span_text
from odradek.cli.parsing import Groups, add_command, add_connection_options, id_number
from odradek.cli.recovering.recover import register_recovery

if TYPE_CHECKING:
    from odradek.client.admin import QuorumDescription, QuorumReplica
    from odradek.client.shells.blocking import Client

__all__ = ["register"]

_STALE_MS = 5000


def register(groups: Groups) -> None:
    """Add the command group `quorum` to the parser of the command line."""
    commands = groups.add_parser(
        "quorum", help="show the quorum of controllers, change its voters"
    ).add_subparsers(metavar="COMMAND", required=True)
    add_connection_options(
        add_command(
            commands,
            "status",
            _status,
            "show the leader of the quorum, and how far the others have copied its log",
            watch=True,
        )
    )
    add = add_command(
        commands, "add", _add, "make a running controller, which is only an observer so far, a voter"
    )
    add.add_argument("node", metavar="ID", type=id_number, help="the node id of the controller")
    add.add_argument(
        "--endpoint",
        type=_endpoint,
        action="append",
        metavar="LISTENER://HOST:PORT",
        help="the address of the controller's listener (default: the addresses that the controller has registered)",
    )
    _add_directory(add)
    add_connection_options(add)

    remove = add_command(commands, "remove", _remove, "remove a controller from the voters")
    remove.add_argument("node", metavar="ID", type=id_number, help="the node id of the controller")
    _add_directory(remove)
    add_connection_options(remove)
    register_recovery(commands)


def _add_directory(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--directory-id",
        type=_directory_id,
        metavar="ID",
        help="the id of its metadata directory, as `odradek storage info` shows it (default: the one that the quorum's leader knows)",
    )


def _directory_id(text: str) -> bytes:
    from odradek.wire.uuid_text import uuid_from_text

    try:
        return uuid_from_text(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a directory id, which has 22 characters of base64 (`odradek storage "
            "info` shows it)"
        ) from None


def _endpoint(text: str) -> tuple[str, tuple[str, int]]:
    from odradek.client.core.bootstrap import parse_bootstrap

    listener, separator, address = text.partition("://")
    try:
        if not separator or not listener:
            raise ValueError
        (found,) = parse_bootstrap(address)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not LISTENER://HOST:PORT (for example CONTROLLER://10.0.0.4:9093)"
        ) from None
    return listener, found


def _status(args: argparse.Namespace) -> int:
    with connected(args) as client:
        quorum = present_quorum(args, client)
    now_ms = time.time_ns() // 1_000_000
    if args.json:
        print_json(
            {
                "leader": quorum.leader_id if quorum.leader_id >= 0 else None,
                "leader_epoch": quorum.leader_epoch,
                "high_watermark": quorum.high_watermark,
                "voters": [_document(quorum, each) for each in quorum.voters],
                "observers": [_document(quorum, each) for each in quorum.observers],
            }
        )
        return 0
    late = [each.node_id for each in quorum.voters if _is_late(quorum, each, now_ms)]
    silent = f"silent: {', '.join(map(str, late))}"
    print_values(
        [
            ("leader", quorum.leader_id if quorum.leader_id >= 0 else paint(RED, "none")),
            ("epoch", quorum.leader_epoch),
            ("high watermark", quorum.high_watermark),
            ("voters", f"{len(quorum.voters)}, {paint(RED, silent)}" if late else len(quorum.voters)),
        ]
    )
    say()
    print_table(
        ("NODE", "ROLE", "END", "LAG", "FETCHED", "CAUGHT UP", "ADDRESS", "DIRECTORY"),
        [_row(quorum, each, now_ms) for each in (*quorum.voters, *quorum.observers)],
        # On a narrow terminal the columns `less` are left out, because silent replicas are also named above the table.
        # The column DIRECTORY is never cut, because `quorum add` and `remove` need its value.
        less=("CAUGHT UP", "FETCHED"),
        whole=("DIRECTORY",),
    )
    return 0


def _is_late(quorum: QuorumDescription, each: QuorumReplica, now_ms: int) -> bool:
    return each.node_id != quorum.leader_id and now_ms - each.last_fetch_ms > _STALE_MS


def _row(quorum: QuorumDescription, each: QuorumReplica, now_ms: int) -> tuple[Any, ...]:
    leads = each.node_id == quorum.leader_id and each in quorum.voters
    role = "leader" if leads else "voter" if each in quorum.voters else "observer"
    address = f"{each.endpoints[0][1]}:{each.endpoints[0][2]}" if each.endpoints else None
    return (
        each.node_id,
        role,
        each.log_end_offset if each.log_end_offset >= 0 else None,
        quorum.lag(each),
        None if leads else _ago(each.last_fetch_ms, now_ms),
        None if leads else _ago(each.last_caught_up_ms, now_ms),
        address,
        _id_text(each.directory_id),
    )


def _ago(moment_ms: int, now_ms: int) -> str:
    if moment_ms < 0:
        return "never"
    # The two times come from the clocks of different machines, so their difference may be negative.
    return f"{span_text(max(0, now_ms - moment_ms))} ago"


def _document(quorum: QuorumDescription, each: QuorumReplica) -> dict[str, Any]:
    return {
        "node": each.node_id,
        "directory_id": _id_text(each.directory_id),
        "log_end_offset": each.log_end_offset if each.log_end_offset >= 0 else None,
        "lag": quorum.lag(each),
        "last_fetch_ms": each.last_fetch_ms if each.last_fetch_ms >= 0 else None,
        "last_caught_up_ms": each.last_caught_up_ms if each.last_caught_up_ms >= 0 else None,
        "endpoints": [
            {"listener": listener, "host": host, "port": port} for listener, host, port in each.endpoints
        ],
    }


def _id_text(directory_id: bytes) -> str | None:
    from odradek.wire.uuid_text import uuid_to_text

    return uuid_to_text(directory_id) if any(directory_id) else None


def _add(args: argparse.Namespace) -> int:
    with connected(args) as client:
        quorum = present_quorum(args, client)
        _not_among(args, quorum.voters)
        directory = args.directory_id or _directory_of(args, quorum.observers, "observer")
        endpoints = dict(args.endpoint) if args.endpoint else _registered(args, client, quorum)
        with changing():
            client.admin.add_raft_voter(args.node, directory, endpoints)
    return _say(args, directory, "added", "node {} has a vote now")


def _remove(args: argparse.Namespace) -> int:
    with connected(args) as client:
        quorum = present_quorum(args, client)
        directory = args.directory_id or _directory_of(args, quorum.voters, "voter")
        with changing():
            client.admin.remove_raft_voter(args.node, directory)
    return _say(args, directory, "removed", "node {} has no vote any longer")


def _say(args: argparse.Namespace, directory: bytes, key: str, text: str) -> int:
    if args.json:
        print_json({key: args.node, "directory_id": _id_text(directory)})
    else:
        say(text.format(args.node))
    return 0


def _not_among(args: argparse.Namespace, voters: tuple[QuorumReplica, ...]) -> None:
    for voter in voters:
        if voter.node_id == args.node and args.directory_id in (None, voter.directory_id):
            raise CliError(f"node {args.node} has a vote already")


def _directory_of(args: argparse.Namespace, replicas: tuple[QuorumReplica, ...], role: str) -> bytes:
    named = [each for each in replicas if each.node_id == args.node]
    # The leader reports the replica of a lost disk for some minutes more. So a node may be listed twice. Only the entry
    # of the directory in use has recent fetches.
    newest_ms = max((each.last_fetch_ms for each in named), default=0)
    alive = [each for each in named if role != "observer" or newest_ms - each.last_fetch_ms <= _STALE_MS]
    found = [each.directory_id for each in alive]
    if not found:
        known = ", ".join(str(each.node_id) for each in replicas) or "none"
        hint = "start the node first" if role == "observer" else "`odradek quorum status` shows the voters"
        raise CliError(f"there is no {role} {args.node} ({role}s: {known}): {hint}")
    if len(found) > 1:
        ids = ", ".join(str(_id_text(each)) for each in found)
        raise CliError(f"node {args.node} has several directories: choose one with --directory-id ({ids})")
    return found[0]


def _registered(
    args: argparse.Namespace, client: Client, quorum: QuorumDescription
) -> dict[str, tuple[str, int]]:
    """Return the registered address of controller `args.node`: the name of the listener with its (host,
    port). Raises `CliError` if the controller has not registered.
    """
    with connected_to_controller(args, client, quorum) as (controller, listener):
        found = controller.admin.describe_controllers()
    for node in found:
        if node.node_id == args.node:
            return {listener: (node.host, node.port)}
    raise CliError(
        f"controller {args.node} has not registered, so its address is not known: give --endpoint "
        "LISTENER://HOST:PORT"
    )
