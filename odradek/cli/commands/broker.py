"""`odradek broker list|add|drain|remove`: the brokers, and the replicas on them."""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING

from odradek.cli.connecting import LOOK_SECONDS_MAX, changing, connected, present_quorum, say_if_past
from odradek.cli.failure import CliError
from odradek.cli.moves.leaving import add_loss_option, moves_under_way, plan_leaving
from odradek.cli.moves.plans import add_plan_options, carry_out
from odradek.cli.output import YELLOW, bytes_text, counted, paint, print_json, print_table, say
from odradek.cli.parsing import Groups, add_command, add_connection_options, id_number

if TYPE_CHECKING:
    from odradek.client.admin import ClusterSurvey
    from odradek.client.shells.blocking import Client

__all__ = ["register"]

_POLL_SECONDS = 0.3
_DOWN_SECONDS_MAX = 10.0


def register(groups: Groups) -> None:
    """Add the command group `broker` to the parser of the command line."""
    commands = groups.add_parser("broker", help="list, add, drain, remove brokers").add_subparsers(
        metavar="COMMAND", required=True
    )
    add_connection_options(
        add_command(
            commands, "list", _list, "list all brokers with their load, also those that are down", watch=True
        )
    )

    add = add_command(commands, "add", _add, "wait for a new broker and give it its share of the partitions")
    add.add_argument("broker", metavar="ID", type=id_number, help="the id of the new broker")
    add_plan_options(add, "--auto")
    add_connection_options(add, plans=True)

    drain = add_command(
        commands, "drain", _drain, "move all replicas off brokers, so that they can be stopped for good"
    )
    drain.add_argument("brokers", metavar="ID", type=id_number, nargs="+", help="the id of a broker to empty")
    add_loss_option(drain)
    add_plan_options(drain)
    add_connection_options(drain, plans=True)

    remove = add_command(commands, "remove", _remove, "unregister a broker that is drained and stopped")
    remove.add_argument("broker", metavar="ID", type=id_number, help="the id of the broker to remove")
    remove.add_argument(
        "--force", action="store_true", help="remove the broker even if it still runs or holds replicas"
    )
    add_connection_options(remove)


def _is_down(client: Client, survey: ClusterSurvey, node: int, deadline: float) -> bool:
    """Wait until `deadline` (monotonic seconds) for the broker to leave the cluster. Return true if it has left in
    time. Because of this wait, a script may stop a broker and then remove it at once.
    """
    while node not in survey.cluster.fenced:
        if time.monotonic() >= deadline:
            return False
        time.sleep(_POLL_SECONDS)
        survey = client.admin.survey_cluster(measured=False)
    return True


def _list(args: argparse.Namespace) -> int:
    with connected(args) as client:
        survey = client.admin.survey_cluster(patience=min(args.timeout, LOOK_SECONDS_MAX))
    rows = []
    for broker in survey.cluster.brokers:
        leads, replicas, size = survey.load_of(broker.node_id)
        known = broker.node_id not in survey.unmeasured
        rows.append(
            (broker, broker.node_id not in survey.cluster.fenced, leads, replicas, size if known else None)
        )
    if args.json:
        print_json(
            {
                "brokers": [
                    {
                        "broker": broker.node_id,
                        "online": online,
                        "host": broker.host,
                        "port": broker.port,
                        "rack": broker.rack,
                        "leaders": leads,
                        "replicas": replicas,
                        "log_bytes": size,
                    }
                    for broker, online, leads, replicas, size in rows
                ],
                "current": survey.is_current,
            }
        )
        say_if_past(survey)
        return 0
    print_table(
        ("BROKER", "STATE", "LEADERS", "REPLICAS", "LOGS", "RACK", "ADDRESS"),
        [
            (
                broker.node_id,
                "online" if online else "DOWN",
                leads,
                replicas,
                bytes_text(size),
                broker.rack,
                f"{broker.host}:{broker.port}",
            )
            for broker, online, leads, replicas, size in rows
        ],
    )
    say_if_past(survey)
    return 0


def _known(survey: ClusterSurvey, node: int) -> None:
    """Raise `CliError` if the broker is unknown: it is not registered, and it has no replica of any partition."""
    brokers = [broker.node_id for broker in survey.cluster.brokers]
    if node not in brokers and not survey.load_of(node)[1]:
        raise CliError(f"there is no broker {node} (brokers: {', '.join(map(str, brokers))})")


def _add(args: argparse.Namespace) -> int:
    from odradek.client.admin.moves.balance import balance

    with connected(args) as client:
        present_quorum(args, client)
        survey = _arrived(args, client)
        under_way = moves_under_way(survey, coming=[args.broker])
        placements = survey.placements_to_be
        at_rest = {each.key for each in placements} - set(survey.reassignments)
        moves = [*under_way, *balance(survey.sites, placements, only=at_rest)]
        nothing = f"broker {args.broker} has its share of the replicas already"
        return carry_out(args, client, moves, survey, nothing, under_way=under_way)


def _arrived(args: argparse.Namespace, client: Client) -> ClusterSurvey:
    """Wait until the broker `args.broker` serves clients, then return a survey of the cluster. Raises
    `CliError` if it does not serve within --timeout.
    """
    deadline = time.monotonic() + args.timeout
    while True:
        cluster = client.admin.describe_cluster(include_fenced=True)
        known = args.broker in [broker.node_id for broker in cluster.brokers]
        if known and args.broker not in cluster.fenced:
            return client.admin.survey_cluster()
        if time.monotonic() + _POLL_SECONDS > deadline:
            state = "has registered, but does not serve clients yet" if known else "has not registered"
            raise CliError(
                f"broker {args.broker} {state}: start it with the cluster id {cluster.cluster_id} "
                "(`odradek storage format`, `odradek server`), or wait longer with --timeout"
            )
        time.sleep(_POLL_SECONDS)


def _drain(args: argparse.Namespace) -> int:
    with connected(args) as client:
        present_quorum(args, client)
        survey = client.admin.survey_cluster()
        for node in args.brokers:
            _known(survey, node)
        plan = plan_leaving(args, client, survey)
        names = ", ".join(map(str, args.brokers))
        if not args.json:
            plan.print_notes()
        if args.execute:
            plan.begin_anew(client, survey)
        code = carry_out(
            args,
            client,
            plan.moves,
            survey,
            f"there is nothing to move off broker {names}",
            under_way=plan.under_way,
            more=plan.document(),
        )
    if args.execute and plan.kept:
        raise CliError(
            f"broker {names} still holds {counted(len(plan.kept), 'partition')}: {'; '.join(plan.kept_lines())}"
        )
    if not args.json and not plan.kept and (not plan.moves or (args.execute and not args.no_wait)):
        for node in args.brokers:
            say(
                f"broker {node} holds no replicas now: stop the broker, then run `odradek broker "
                f"remove {node}`"
            )
    return code


def _remove(args: argparse.Namespace) -> int:
    node = args.broker
    with connected(args) as client:
        present_quorum(args, client)
        survey = client.admin.survey_cluster(measured=False)
        _known(survey, node)
        _, replicas, _ = survey.load_of(node)
        if not args.force:
            if replicas:
                raise CliError(
                    f"broker {node} still holds {counted(replicas, 'replica')}: run `odradek broker "
                    f"drain {node}` first (or add --force)"
                )
            if not _is_down(client, survey, node, time.monotonic() + min(args.timeout, _DOWN_SECONDS_MAX)):
                raise CliError(
                    f"broker {node} still runs: stop the broker first (or add --force). A broker that "
                    "was killed counts as down when its session ends (broker.session.timeout.ms)"
                )
        with changing():
            client.admin.unregister_broker(node)
        votes = _votes(args, client, node)
    if args.json:
        print_json({"removed": node, "voter": votes})
    else:
        say(f"broker {node} removed")
        if votes:
            say(
                paint(
                    YELLOW, f"node {node} is still a voter of the quorum: run `odradek quorum remove {node}`"
                )
            )
        elif votes is None:
            say(
                paint(
                    YELLOW,
                    f"the quorum did not answer, so node {node} may still have a vote: run `odradek quorum status`",
                )
            )
    return 0


def _votes(args: argparse.Namespace, client: Client, node: int) -> bool | None:
    """Return true if the node is still a voter of the quorum; None if the quorum does not answer. A missing
    answer is no error, because the command has already removed the broker.
    """
    from odradek.client.errors import ClientError
    from odradek.wire.errors import KafkaError

    try:
        quorum = client.admin.describe_quorum(timeout=min(args.timeout, LOOK_SECONDS_MAX))
    except (KafkaError, ClientError):
        return None
    return any(voter.node_id == node for voter in quorum.voters)
