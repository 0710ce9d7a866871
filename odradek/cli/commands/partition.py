"""`odradek partition list|move|balance|elect`: the replicas of partitions and their leaders, and which partitions
the arguments name.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from odradek.cli.connecting import (
    LOOK_SECONDS_MAX,
    call_failure,
    changing,
    connected,
    present_quorum,
    say_if_past,
)
from odradek.cli.failure import USAGE, CliError
from odradek.cli.health.leaderless import Leaderless, find_leaderless, print_leaderless
from odradek.cli.health.troubles import min_insync_replicas
from odradek.cli.moves.elect import elect_preferred, elect_uncleanly
from odradek.cli.moves.plans import add_plan_options, carry_out, name_directories, topic_partitions
from odradek.cli.output import (
    YELLOW,
    bytes_text,
    counted,
    paint,
    print_json,
    print_table,
    say,
)
from odradek.cli.parsing import Groups, add_command, add_connection_options, decimal, id_number

if TYPE_CHECKING:
    from odradek.client.admin import ClusterSurvey
    from odradek.client.admin.moves.placement import Move
    from odradek.client.core.known_cluster import Partition
    from odradek.client.shells.blocking import Client
    from odradek.wire.topic_partition import TopicPartition

__all__ = ["register"]


def register(groups: Groups) -> None:
    """Add the command group `partition` to the parser of the command line."""
    commands = groups.add_parser(
        "partition", help="list, move, balance partitions, elect their leaders"
    ).add_subparsers(metavar="COMMAND", required=True)
    _register_list(commands)
    _register_move(commands)
    _register_balance(commands)
    _register_elect(commands)


def _register_list(commands: Groups) -> None:
    listing = add_command(
        commands, "list", _list, "list partitions with their leaders and replicas", watch=True
    )
    _add_topics(listing, "list only these topics, or these partitions of them (default: all)")
    listing.add_argument(
        "--broker", type=id_number, metavar="ID", help="list only partitions with a replica on this broker"
    )
    which = listing.add_mutually_exclusive_group()
    which.add_argument(
        "--moving", action="store_true", help="list only partitions that are moving to other brokers"
    )
    which.add_argument(
        "--under-replicated", action="store_true", help="list only partitions with replicas out of sync"
    )
    which.add_argument("--offline", action="store_true", help="list only partitions without a leader")
    add_connection_options(listing)


def _register_move(commands: Groups) -> None:
    move = add_command(
        commands,
        "move",
        _move,
        "move partitions to other brokers, change their number of replicas, or cancel moves",
    )
    _add_topics(move, "topics, or some of their partitions, like words:0-3,7")
    how = move.add_mutually_exclusive_group(required=True)
    how.add_argument(
        "--to",
        type=_places,
        metavar="ID[:DIR],ID",
        help=(
            "the brokers for the replicas, the preferred leader first. If these brokers have the replicas "
            "already, and each is given with a DIR, replicas only move between disks"
        ),
    )
    how.add_argument(
        "--from",
        dest="leaving",
        type=_brokers,
        metavar="ID,ID",
        help="move the partitions off these brokers",
    )
    how.add_argument(
        "--replicas",
        type=id_number,
        metavar="N",
        help="give each partition this many replicas; new ones go to the brokers with the least data",
    )
    how.add_argument(
        "--cancel", action="store_true", help="cancel moves: the partitions return to their former brokers"
    )
    how.add_argument(
        "--unthrottle", action="store_true", help="remove throttles that an interrupted move left behind"
    )
    move.add_argument(
        "--fewer",
        action="store_true",
        help="with --to: allow fewer replicas than before",
    )
    add_plan_options(move)
    add_connection_options(move, plans=True)


def _register_balance(commands: Groups) -> None:
    balance = add_command(
        commands, "balance", _balance, "even out the load of the brokers, moving as few bytes as possible"
    )
    _add_topics(balance, "move only these topics, or these partitions of them (default: all)")
    balance.add_argument(
        "--tolerance",
        type=_percentage,
        metavar="PERCENT",
        default=0.05,
        help="let each broker's bytes differ from the mean by this percentage (default: 5)",
    )
    add_plan_options(balance)
    add_connection_options(balance, plans=True)


def _register_elect(commands: Groups) -> None:
    elect = add_command(
        commands, "elect", _elect, "give the leadership of partitions back to the preferred replicas"
    )
    _add_topics(elect, "elect leaders only for these topics, or these partitions of them (default: all)")
    elect.add_argument(
        "--unclean",
        action="store_true",
        help="if no in-sync replica is left, elect a replica that is not in sync; the records that it lacks are lost",
    )
    elect.add_argument(
        "--leader",
        type=id_number,
        metavar="ID",
        help="with --unclean: elect the replica on this broker (default: the replica with the most records)",
    )
    elect.add_argument(
        "--execute", action="store_true", help="elect the leaders (default: only show what would change)"
    )
    add_connection_options(elect)


def _add_topics(parser: argparse.ArgumentParser, help_text: str) -> None:
    parser.add_argument("topics", metavar="TOPIC[:N,N-N]", nargs="*", type=topic_partitions, help=help_text)


def _brokers(text: str) -> tuple[int, ...]:
    nodes = tuple(id_number(part.strip()) for part in text.split(","))
    if len(set(nodes)) < len(nodes):
        raise argparse.ArgumentTypeError(f"{text!r} names a broker twice")
    return nodes


def _places(text: str) -> dict[int, str | None]:
    """Parse BROKER or BROKER:DIR, separated by commas, into directories by broker; None lets the broker
    choose.
    """
    places: dict[int, str | None] = {}
    for part in text.split(","):
        node, colon, path = part.strip().partition(":")
        if id_number(node) in places:
            raise argparse.ArgumentTypeError(f"{text!r} names a broker twice")
        if colon and not path.startswith("/"):
            raise argparse.ArgumentTypeError(
                f"{path!r} is not a directory: write BROKER:DIR, for example 1:/disks/a"
            )
        places[id_number(node)] = path if colon else None
    return places


def _percentage(text: str) -> float:
    number = decimal(text.removesuffix("%"))
    if not 0 <= number <= 100:
        raise argparse.ArgumentTypeError(f"{text!r} is not a percentage")
    return number / 100


def _wanted(args: argparse.Namespace, survey: ClusterSurvey) -> dict[TopicPartition, Partition]:
    """Choose the partitions that the arguments name, or all partitions if they name none. Raises `CliError`
    for a partition that does not exist.
    """

    from odradek.wire.topic_partition import TopicPartition

    topics = {topic.name: topic for topic in survey.topics}
    named = args.topics or [(topic.name, None) for topic in survey.topics]
    wanted = {}
    for name, indexes in named:
        if name not in topics:
            raise CliError(f"topic {name} does not exist (UNKNOWN_TOPIC_OR_PARTITION)")
        partitions = topics[name].partitions
        for index in sorted(partitions) if indexes is None else indexes:
            if index not in partitions:
                raise CliError(f"topic {name} has no partition {index} (it has {len(partitions)})")
            wanted[TopicPartition(name, index)] = partitions[index]
    return wanted


def _list(args: argparse.Namespace) -> int:
    with connected(args) as client:
        survey = client.admin.survey_cluster(
            patience=None if args.moving else min(args.timeout, LOOK_SECONDS_MAX)
        )
        wanted = _filtered(args, survey)
        leaderless = find_leaderless(args, client, survey, wanted)
        least = {}
        if args.json:
            least = min_insync_replicas(
                client, {key.topic for key in wanted}, min(args.timeout, LOOK_SECONDS_MAX)
            )
    if args.json:
        documents = [
            _document(key, each, survey, leaderless.get(key), least.get(key.topic))
            for key, each in wanted.items()
        ]
        print_json({"partitions": documents, "current": survey.is_current})
    else:
        print_table(
            ("TOPIC", "PARTITION", "LEADER", "REPLICAS", "ISR", "SIZE", "MOVING"),
            [_row(key, each, survey) for key, each in wanted.items()],
        )
        if leaderless:
            say()
            print_leaderless(list(leaderless.values()))
    say_if_past(survey)
    return 0


def _filtered(args: argparse.Namespace, survey: ClusterSurvey) -> dict[TopicPartition, Partition]:
    wanted = _wanted(args, survey)
    if args.broker is not None:
        wanted = {key: each for key, each in wanted.items() if args.broker in each.replicas}
    if args.moving:
        wanted = {key: each for key, each in wanted.items() if key in survey.reassignments}
    if args.under_replicated:
        wanted = {key: each for key, each in wanted.items() if len(each.isr) < len(each.replicas)}
    if args.offline:
        wanted = {key: each for key, each in wanted.items() if each.leader < 0}
    return wanted


def _row(key: TopicPartition, each: Partition, survey: ClusterSurvey) -> tuple[Any, ...]:
    move = survey.reassignments.get(key)
    return (
        *key,
        each.leader if each.leader >= 0 else "none",
        each.replicas,
        each.isr,
        bytes_text(survey.sizes.get(key)),
        None if move is None else f"to {','.join(map(str, move.target))}",
    )


def _document(
    key: TopicPartition,
    each: Partition,
    survey: ClusterSurvey,
    leaderless: Leaderless | None,
    least: int | None,
) -> dict[str, Any]:
    move = survey.reassignments.get(key)
    return {
        "topic": key.topic,
        "partition": key.partition,
        "leader": each.leader if each.leader >= 0 else None,
        "leader_epoch": each.leader_epoch,
        "replicas": list(each.replicas),
        "isr": list(each.isr),
        "min_isr": least,
        "size": survey.sizes.get(key),
        "adding": [] if move is None else list(move.adding),
        "removing": [] if move is None else list(move.removing),
        "leaderless": None if leaderless is None else leaderless.document(),
    }


def _move(args: argparse.Namespace) -> int:
    if args.unthrottle:
        return _unthrottle(args)
    if not args.topics and not args.cancel:
        raise CliError("name the topics to move, for example words or words:0-3", USAGE)
    with connected(args) as client:
        present_quorum(args, client)
        survey = client.admin.survey_cluster(measured=not args.cancel)
        wanted = _wanted(args, survey)
        if args.cancel:
            return _cancel(args, client, [key for key in wanted if key in survey.reassignments])
        busy = next((key for key in wanted if key in survey.reassignments), None)
        if busy is not None:
            raise CliError(
                f"{busy} is moving already: wait (`odradek partition list --moving`), or run `odradek "
                "partition move --cancel`"
            )
        moves = _planned(args, survey, wanted)
        directories = {
            (*key, node): path for key in wanted for node, path in (args.to or {}).items() if path is not None
        }
        nothing = "there is nothing to move: the replicas are in these places already"
        if directories and args.execute:
            # Send the directories before the reassignments, as Kafka's tool does, so that each new replica is made in
            # the requested directory.
            name_directories(client, directories)
            nothing = f"{counted(len(directories), 'replica')} on the way to other directories: `odradek disk list` shows them"
        elif directories:
            nothing = f"would move {counted(len(directories), 'replica')} to other directories of their brokers: add --execute to do it"
        return carry_out(args, client, moves, survey, nothing)


def _planned(
    args: argparse.Namespace, survey: ClusterSurvey, wanted: dict[TopicPartition, Partition]
) -> list[Move]:
    from odradek.client.admin.moves.balance import drain, resize
    from odradek.client.admin.moves.placement import CannotPlan, Move

    known = {broker.node_id for broker in survey.cluster.brokers}
    strangers = [node for node in (*(args.to or ()), *(args.leaving or ())) if node not in known]
    if strangers:
        brokers = ", ".join(map(str, sorted(known)))
        raise CliError(f"there is no broker {strangers[0]} (brokers: {brokers})")
    if args.to is not None:
        moves = []
        for key, each in wanted.items():
            after = _replicas_after(each.replicas, args.to)
            for node in after:
                if node in survey.cluster.fenced and node not in each.replicas:
                    raise CliError(f"broker {node} is down, so {key} would wait for it: start it first")
            if len(after) < len(each.replicas) and not args.fewer:
                raise CliError(
                    f"{key} has {counted(len(each.replicas), 'replica')} and would keep only "
                    f"{len(after)}: name all brokers that should have a replica (now "
                    f"{','.join(map(str, each.replicas))}), or add --fewer"
                )
            if each.replicas != after:
                moves.append(Move(*key, each.replicas, after, survey.sizes.get(key, 0)))
        return moves
    try:
        if args.leaving is not None:
            return drain(survey.sites, survey.placements, args.leaving, only=wanted)
        return resize(survey.sites, survey.placements, args.replicas, only=wanted)
    except CannotPlan as error:
        raise CliError(str(error)) from error


def _replicas_after(before: tuple[int, ...], to: Mapping[int, str | None]) -> tuple[int, ...]:
    """Return the brokers of a partition after the move `to`. The partition keeps all its brokers if `to`
    gives directories for some of these brokers and names no other broker.
    """
    if None not in to.values() and set(to) < set(before):
        return before
    return tuple(to)


def _cancel(args: argparse.Namespace, client: Client, keys: list[TopicPartition]) -> int:
    with changing():
        outcomes = client.admin.alter_partition_reassignments(dict.fromkeys(keys)) if args.execute else {}
    failed = {key: error for key, error in outcomes.items() if error is not None}
    done = [key for key in keys if key not in failed]
    if args.json:
        print_json(
            {
                "executed": bool(args.execute),
                "cancelled": [{"topic": name, "partition": index} for name, index in done],
                "failed": [
                    {"topic": name, "partition": index, "error": str(call_failure(error, changes=True))}
                    for (name, index), error in failed.items()
                ],
            }
        )
    elif not keys:
        say("no partition is moving")
    else:
        for name, index in done:
            say(f"{name}-{index} {'stays' if args.execute else 'would stay'} where it was")
        if not args.execute:
            say(paint(YELLOW, "nothing was changed: add --execute to do it"))
    if failed:
        others = f" ({counted(len(failed), 'partition')} not cancelled)" if len(failed) > 1 else ""
        raise CliError(f"{call_failure(next(iter(failed.values())), changes=True)}{others}")
    return 0


def _unthrottle(args: argparse.Namespace) -> int:
    with connected(args) as client:
        present_quorum(args, client)
        moving = client.admin.list_partition_reassignments()
        if moving:
            raise CliError(
                f"{counted(len(moving), 'partition')} still moving (`odradek partition list --moving`): "
                "wait, or cancel them"
            )
        cluster = client.admin.describe_cluster()
        topics = client.admin.describe_topics()
        with changing():
            client.admin.unthrottle(
                [each.node_id for each in cluster.brokers], [each.name for each in topics]
            )
    if args.json:
        print_json({"unthrottled": True})
    else:
        say("no broker and no topic is throttled for moves")
    return 0


def _balance(args: argparse.Namespace) -> int:
    from odradek.client.admin.moves.balance import balance

    with connected(args) as client:
        present_quorum(args, client)
        survey = client.admin.survey_cluster()
        only = _wanted(args, survey) if args.topics else None
        moves = balance(survey.sites, survey.placements, tolerance=args.tolerance, only=only)
        return carry_out(
            args, client, moves, survey, "there is nothing to move: all brokers have an even share"
        )


def _elect(args: argparse.Namespace) -> int:
    if args.unclean and not args.topics:
        raise CliError("--unclean loses records, so name the topics or partitions", USAGE)
    if args.leader is not None and not args.unclean:
        raise CliError(
            "--leader needs --unclean (`odradek partition move --to` changes the preferred leader)", USAGE
        )
    with connected(args) as client:
        present_quorum(args, client)
        survey = client.admin.survey_cluster(measured=False)
        wanted = _wanted(args, survey)
        return (elect_uncleanly if args.unclean else elect_preferred)(args, client, survey, wanted)
