"""`odradek cluster status|features`: the quorum, the brokers, the partitions that need attention; the feature
levels.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from odradek.cli.commands.cluster.events import register_events
from odradek.cli.connecting import PAST, connected
from odradek.cli.health.doctor import register_doctor
from odradek.cli.health.health import register_health
from odradek.cli.health.judgement import Problem, exit_status, problems_of
from odradek.cli.health.picture import Picture, is_silent_voter, look_at_cluster
from odradek.cli.health.troubles import trouble_document
from odradek.cli.output import RED, YELLOW, counted, paint, print_json, print_table, print_values, say
from odradek.cli.parsing import Groups, add_command, add_connection_options

if TYPE_CHECKING:
    from odradek.client.admin import QuorumDescription

__all__ = ["register"]

_BROKERS_SHOWN = 11
_SHOWN_BY_FIGURES = frozenset(
    ("no-quorum", "silent-voter", "broker-down", "leaderless", "under-min-isr", "under-replicated")
)
"""The kinds of problems that the status shows above its table, so that they need no line below it."""


def register(groups: Groups) -> None:
    """Add the command group `cluster` to the parser of the command line."""
    commands = groups.add_parser(
        "cluster", help="show the state of the cluster, and what has happened"
    ).add_subparsers(metavar="COMMAND", required=True)
    status = add_command(
        commands,
        "status",
        _status,
        "show the brokers and the partitions that need attention; the exit status is 3 if there is a problem",
        watch=True,
    )
    add_connection_options(status)
    register_health(commands)
    register_doctor(commands)
    features = add_command(
        commands,
        "features",
        _features,
        "show the feature levels of the cluster, and whether this release supports them",
    )
    add_connection_options(features)
    register_events(commands)


def _status(args: argparse.Namespace) -> int:
    with connected(args) as client:
        picture = look_at_cluster(client, args.timeout)
    problems = problems_of(picture)
    if args.json:
        print_json(_document(picture, problems))
    else:
        _print(picture)
        for each in problems:
            if each.kind not in _SHOWN_BY_FIGURES:
                say(paint(YELLOW if each.is_warning else RED, each.line))
    return exit_status(problems)


def _features(args: argparse.Namespace) -> int:
    """Print the finalized feature levels beside the levels that this release supports (KIP-584)."""
    from odradek.metadata_quorum import features as known

    with connected(args) as client:
        # The client learns the feature levels from the first answer of any broker.
        client.admin.describe_cluster()
        levels = dict(client.core.cluster.features)
    supported = known.THIS_RELEASE.features
    features = []
    for name in sorted({*levels, *supported}):
        low, high = supported.get(name, (0, 0))
        finalized = {name: levels[name]} if name in levels else {}
        features.append(
            {
                "feature": name,
                "finalized": levels.get(name),
                "supported_min": low,
                "supported_max": high,
                "supported": known.unsupported_feature(finalized, known.THIS_RELEASE) is None,
            }
        )
    if args.json:
        print_json({"features": features})
        return 0
    print_table(
        ("FEATURE", "LEVEL", "SUPPORTED", ""),
        [
            (
                each["feature"],
                each["finalized"],
                f"{each['supported_min']} to {each['supported_max']}",
                "" if each["supported"] else paint(RED, "this release cannot serve such a cluster"),
            )
            for each in features
        ],
    )
    return 0


def _document(picture: Picture, problems: Sequence[Problem]) -> dict[str, object]:
    cluster, quorum, found = picture.cluster, picture.quorum, picture.partitions
    return {
        "cluster_id": cluster.cluster_id,
        "current": picture.is_current,
        "healthy": not exit_status(problems),
        "controller": None if quorum is None else quorum.leader_id,
        "quorum": None
        if quorum is None
        else {
            "leader": quorum.leader_id,
            "leader_epoch": quorum.leader_epoch,
            "voters": [voter.node_id for voter in quorum.voters],
            "silent_voters": [voter.node_id for voter in quorum.voters if is_silent_voter(quorum, voter)],
        },
        "brokers": [
            {
                "broker": broker.node_id,
                "online": broker.node_id not in cluster.fenced,
                "answers": broker.node_id not in {*cluster.fenced, *picture.silent},
                "host": broker.host,
                "port": broker.port,
                "rack": broker.rack,
                "leaders": found.leaders.get(broker.node_id, 0),
                "replicas": found.replicas.get(broker.node_id, 0),
            }
            for broker in cluster.brokers
        ],
        "topics": len(picture.topics),
        "partitions": found.total,
        "offline_partitions": found.offline,
        "under_min_isr_partitions": found.under_min_isr,
        "under_replicated_partitions": found.behind,
        "replicas_on_disks_away": [
            {"broker": node, "partitions": names} for node, names in picture.away.items()
        ],
        "moving_partitions": None if picture.moving is None else [str(key) for key in sorted(picture.moving)],
        "troubled_directories": [
            trouble_document(broker, each)
            for broker, troubled in picture.troubles.items()
            for each in troubled
        ],
        "problems": [each.document() for each in problems],
    }


def _print(picture: Picture) -> None:
    cluster, quorum, found, current = picture.cluster, picture.quorum, picture.partitions, picture.is_current
    print_values(
        [
            ("cluster", cluster.cluster_id),
            ("quorum", _quorum_text(quorum)),
            *([] if current else [("below", paint(RED, PAST))]),
            ("brokers", _brokers_text(picture)),
            ("topics", f"{len(picture.topics)} with {counted(found.total, 'partition')}"),
            ("offline", _some(found.offline, RED)),
            ("under min ISR", _some(found.under_min_isr, RED)),
            ("under-replicated", _some(found.behind, YELLOW)),
            ("moving", None if picture.moving is None else len(picture.moving)),
        ]
    )
    say()
    # List brokers that are down first, and at most as many brokers as a screen has lines.
    ranked = sorted(cluster.brokers, key=lambda broker: (_is_well(picture, broker.node_id), broker.node_id))
    shown = ranked[:_BROKERS_SHOWN]
    print_table(
        ("BROKER", "STATE", "VOTE", "LEADERS", "REPLICAS", "RACK", "ADDRESS"),
        [
            (
                broker.node_id,
                _state_text(picture, broker.node_id),
                _vote(quorum, broker.node_id),
                found.leaders.get(broker.node_id, 0),
                found.replicas.get(broker.node_id, 0),
                broker.rack,
                f"{broker.host}:{broker.port}",
            )
            for broker in sorted(shown, key=lambda broker: broker.node_id)
        ],
    )
    if len(shown) < len(ranked):
        state = "online" if current else "was online"
        say(f"... and {len(ranked) - len(shown)} more, all {state}: `odradek broker list`")


def _is_well(picture: Picture, node: int) -> bool:
    return node not in picture.cluster.fenced and node not in picture.silent


def _state_text(picture: Picture, node: int) -> str:
    """Return the word for a broker's state. The word is in capitals if the broker is missing."""
    if node in picture.cluster.fenced:
        state = "DOWN"
    else:
        state = "SILENT" if node in picture.silent else "online"
    return state if picture.is_current or state == "SILENT" else f"was {state}"


def _brokers_text(picture: Picture) -> str:
    cluster = picture.cluster
    well = [broker.node_id for broker in cluster.brokers if _is_well(picture, broker.node_id)]
    text = f"{len(well)} of {len(cluster.brokers)} {'online' if picture.is_current else 'was online'}"
    for word, nodes in (("down", cluster.fenced), ("silent", picture.silent)):
        known = [str(broker.node_id) for broker in cluster.brokers if broker.node_id in nodes]
        if known:
            text += f", {word}: {', '.join(known)}"
    return text if len(well) == len(cluster.brokers) else paint(RED, text)


def _quorum_text(quorum: QuorumDescription | None) -> str:
    if quorum is None:
        return paint(RED, "the quorum has no leader that answers: too few voters run, or the leader is slow")
    if quorum.leader is None:
        return paint(
            RED,
            "the quorum has no leader, because too few voters run: start more voters, or run `odradek quorum recover` if most of "
            "their disks are lost",
        )
    text = f"{counted(len(quorum.voters), 'voter')}, controller {quorum.leader_id} leads in epoch {quorum.leader_epoch}"
    silent = [str(voter.node_id) for voter in quorum.voters if is_silent_voter(quorum, voter)]
    return f"{text}, {paint(RED, 'silent: ' + ', '.join(silent))}" if silent else text


def _vote(quorum: QuorumDescription | None, node: int) -> str | None:
    for voter in () if quorum is None else quorum.voters:
        if quorum is not None and voter.node_id == node:
            if node == quorum.leader_id:
                return "leads"
            return "SILENT" if is_silent_voter(quorum, voter) else "yes"
    return None


def _some(names: list[str], colour: str, most: int = 3) -> str | int:
    """Return a coloured text with the number of names and the first `most` of them. Return 0 if there are no
    names.
    """
    if not names:
        return 0
    return paint(colour, f"{len(names)}: " + ", ".join(names[:most]) + (", ..." if len(names) > most else ""))
