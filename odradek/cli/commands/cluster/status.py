"""`odradek cluster status|features`: the quorum, the brokers, the partitions that need attention; the feature
levels.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from odradek.cli.commands.cluster.events import register_events
from odradek.cli.connecting import LOOK_SECONDS_MAX, PAST, connected
from odradek.cli.output import RED, YELLOW, counted, paint, print_json, print_table, print_values, say
from odradek.cli.parsing import Groups, add_command, add_connection_options
from odradek.cli.troubles import disk_troubles, min_insync_replicas, trouble_document, trouble_text

if TYPE_CHECKING:
    from odradek.client.admin import ClusterDescription, QuorumDescription, QuorumReplica
    from odradek.client.core.known_cluster import Topic
    from odradek.client.shells.blocking import Client
    from odradek.wire.topic_partition import TopicPartition

__all__ = ["register"]

_SILENT_MS = 5000
_BROKERS_SHOWN = 11


def register(groups: Groups) -> None:
    """Add the command group `cluster` to the parser of the command line."""
    commands = groups.add_parser(
        "cluster", help="show the state of the cluster, and what has happened"
    ).add_subparsers(metavar="COMMAND", required=True)
    status = add_command(
        commands, "status", _status, "show the brokers and the partitions that need attention"
    )
    add_connection_options(status)
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
        cluster = client.admin.describe_cluster(include_fenced=True)
        topics = client.admin.describe_topics()
        patience = min(args.timeout, LOOK_SECONDS_MAX)
        quorum = _asked(lambda: client.admin.describe_quorum(timeout=patience))
        moving = None
        if quorum is not None:
            moving = _asked(lambda: client.admin.list_partition_reassignments(timeout=patience))
        health = _health(client, topics)
        alive = [broker.node_id for broker in cluster.brokers if broker.node_id not in cluster.fenced]
        troubles = _asked(lambda: disk_troubles(client, alive, patience)) or {}
    if args.json:
        document = _document(cluster, topics, quorum, moving, health)
        document["troubled_directories"] = [
            trouble_document(broker, each) for broker, troubled in troubles.items() for each in troubled
        ]
        print_json(document)
    else:
        _print(cluster, topics, quorum, moving, health)
        for broker, away in sorted(health.away.items()):
            if broker not in cluster.fenced:
                replicas = counted(len(away), "replica")
                say(
                    paint(
                        RED,
                        f"broker {broker} has {replicas} on a disk that is offline; `odradek disk "
                        "list` names the disk",
                    )
                )
        for broker, troubled in troubles.items():
            for each in troubled:
                say(paint(RED, trouble_text(broker, each)))
    return 0


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


T = TypeVar("T")


def _asked(question: Callable[[], T]) -> T | None:
    """Call `question` and return its answer. Return None if the cluster cannot answer now; the status is then
    shown without this answer.

    Raises `KafkaError` only if the user is not authorized.
    """
    from odradek.client.errors import ClientError
    from odradek.wire.errors import ErrorCode, KafkaError

    try:
        return question()
    except (KafkaError, ClientError) as error:
        if isinstance(error, KafkaError) and error.code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
            raise
        return None


class _Health(NamedTuple):
    """The number of partitions in the cluster, and the names of the partitions that need attention."""

    partitions: int
    offline: list[str]
    under_min_isr: list[str]
    behind: list[str]
    leaders: dict[int, int]
    replicas: dict[int, int]
    away: dict[int, list[str]]
    """For each broker, the partitions whose replica on this broker is offline. Either the broker is down, or
    the replica's directory is offline.
    """


def _health(client: Client, topics: list[Topic]) -> _Health:
    health = _Health(sum(len(topic.partitions) for topic in topics), [], [], [], {}, {}, {})
    short = {
        topic.name for topic in topics if any(len(p.isr) < len(p.replicas) for p in topic.partitions.values())
    }
    least = min_insync_replicas(client, short)
    for topic in topics:
        for index, each in sorted(topic.partitions.items()):
            name = f"{topic.name}-{index}"
            if each.leader >= 0:
                health.leaders[each.leader] = health.leaders.get(each.leader, 0) + 1
            else:
                health.offline.append(name)
            for node in each.replicas:
                health.replicas[node] = health.replicas.get(node, 0) + 1
            for node in each.offline_replicas:
                health.away.setdefault(node, []).append(name)
            if len(each.isr) < len(each.replicas):
                if len(each.isr) < min(least.get(topic.name, 1), len(each.replicas)):
                    health.under_min_isr.append(name)
                elif each.leader >= 0:
                    health.behind.append(name)
    return health


def _document(
    cluster: ClusterDescription,
    topics: list[Topic],
    quorum: QuorumDescription | None,
    moving: Collection[TopicPartition] | None,
    health: _Health,
) -> dict[str, Any]:
    return {
        "cluster_id": cluster.cluster_id,
        "current": _is_current(quorum),
        "controller": None if quorum is None else quorum.leader_id,
        "quorum": None
        if quorum is None
        else {
            "leader": quorum.leader_id,
            "leader_epoch": quorum.leader_epoch,
            "voters": [voter.node_id for voter in quorum.voters],
            "silent_voters": [voter.node_id for voter in quorum.voters if _is_silent(quorum, voter)],
        },
        "brokers": [
            {
                "broker": broker.node_id,
                "online": broker.node_id not in cluster.fenced,
                "host": broker.host,
                "port": broker.port,
                "rack": broker.rack,
                "leaders": health.leaders.get(broker.node_id, 0),
                "replicas": health.replicas.get(broker.node_id, 0),
            }
            for broker in cluster.brokers
        ],
        "topics": len(topics),
        "partitions": health.partitions,
        "offline_partitions": health.offline,
        "under_min_isr_partitions": health.under_min_isr,
        "under_replicated_partitions": health.behind,
        "replicas_on_disks_away": [
            {"broker": node, "partitions": names}
            for node, names in sorted(health.away.items())
            if node not in cluster.fenced
        ],
        "moving_partitions": None if moving is None else [str(key) for key in sorted(moving)],
    }


def _is_silent(quorum: QuorumDescription, voter: QuorumReplica) -> bool:
    """True if the leader has received no fetch from this voter for a long time, by the leader's clock."""
    leader = quorum.leader
    if leader is None or voter.node_id == quorum.leader_id:
        return False
    return leader.last_fetch_ms - voter.last_fetch_ms > _SILENT_MS


def _is_current(quorum: QuorumDescription | None) -> bool:
    """True if there is an active controller. Otherwise all figures come from the last active controller."""
    return quorum is not None and quorum.leader is not None


def _print(
    cluster: ClusterDescription,
    topics: list[Topic],
    quorum: QuorumDescription | None,
    moving: Collection[TopicPartition] | None,
    health: _Health,
) -> None:
    current = _is_current(quorum)
    print_values(
        [
            ("cluster", cluster.cluster_id),
            ("quorum", _quorum_text(quorum)),
            *([] if current else [("below", paint(RED, PAST))]),
            ("brokers", _brokers_text(cluster, current)),
            ("topics", f"{len(topics)} with {counted(health.partitions, 'partition')}"),
            ("offline", _some(health.offline, RED)),
            ("under min ISR", _some(health.under_min_isr, RED)),
            ("under-replicated", _some(health.behind, YELLOW)),
            ("moving", None if moving is None else len(moving)),
        ]
    )
    say()
    # List fenced brokers first, and at most as many brokers as a screen has lines.
    ranked = sorted(
        cluster.brokers, key=lambda broker: (broker.node_id not in cluster.fenced, broker.node_id)
    )
    shown = ranked[:_BROKERS_SHOWN]
    print_table(
        ("BROKER", "STATE", "VOTE", "LEADERS", "REPLICAS", "RACK", "ADDRESS"),
        [
            (
                broker.node_id,
                _state_text(broker.node_id in cluster.fenced, current),
                _vote(quorum, broker.node_id),
                health.leaders.get(broker.node_id, 0),
                health.replicas.get(broker.node_id, 0),
                broker.rack,
                f"{broker.host}:{broker.port}",
            )
            for broker in sorted(shown, key=lambda broker: broker.node_id)
        ],
    )
    if len(shown) < len(ranked):
        say(
            f"... and {len(ranked) - len(shown)} more, all {_state_text(False, current)}: `odradek broker list`"
        )


def _state_text(fenced: bool, current: bool) -> str:
    state = "DOWN" if fenced else "online"
    return state if current else f"was {state}"


def _brokers_text(cluster: ClusterDescription, current: bool) -> str:
    fenced = [broker.node_id for broker in cluster.brokers if broker.node_id in cluster.fenced]
    text = f"{len(cluster.brokers) - len(fenced)} of {len(cluster.brokers)} {_state_text(False, current)}"
    return paint(RED, f"{text}, down: {', '.join(map(str, fenced))}") if fenced else text


def _quorum_text(quorum: QuorumDescription | None) -> str:
    if quorum is None or quorum.leader is None:
        return paint(
            RED,
            "the quorum has no leader, because too few voters run: start more voters, or run `odradek quorum recover` if most of "
            "their disks are lost",
        )
    text = f"{counted(len(quorum.voters), 'voter')}, controller {quorum.leader_id} leads in epoch {quorum.leader_epoch}"
    silent = [str(voter.node_id) for voter in quorum.voters if _is_silent(quorum, voter)]
    return f"{text}, {paint(RED, 'silent: ' + ', '.join(silent))}" if silent else text


def _vote(quorum: QuorumDescription | None, node: int) -> str | None:
    for voter in () if quorum is None else quorum.voters:
        if quorum is not None and voter.node_id == node:
            if node == quorum.leader_id:
                return "leads"
            return "SILENT" if _is_silent(quorum, voter) else "yes"
    return None


def _some(names: list[str], colour: str, most: int = 3) -> str | int:
    """Return a coloured text with the number of names and the first `most` of them. Return 0 if there are no
    names.
    """
    if not names:
        return 0
    return paint(colour, f"{len(names)}: " + ", ".join(names[:most]) + (", ..." if len(names) > most else ""))
