"""`odradek cluster status`: brokers, and partitions that need attention."""

from __future__ import annotations

import argparse

from odradek.cli.connecting import connected
from odradek.cli.events import register_events
from odradek.cli.output import RED, YELLOW, paint, print_json, print_table, print_values
from odradek.cli.parsing import Groups, add_command, add_connection_options

__all__ = ["register"]


def register(groups: Groups) -> None:
    """Add the group."""
    commands = groups.add_parser("cluster", help="look at the cluster").add_subparsers(
        metavar="COMMAND", required=True
    )
    status = add_command(
        commands, "status", _status, "show the brokers and the partitions that need attention"
    )
    add_connection_options(status)
    register_events(commands)


def _status(args: argparse.Namespace) -> int:
    with connected(args) as client:
        cluster = client.admin.describe_cluster()
        topics = client.admin.describe_topics()
    partitions = [
        (topic.name, partition) for topic in topics for _, partition in sorted(topic.partitions.items())
    ]
    offline = [f"{name}-{p.index}" for name, p in partitions if p.leader < 0]
    behind = [f"{name}-{p.index}" for name, p in partitions if p.leader >= 0 and len(p.isr) < len(p.replicas)]
    leaders = {broker.node_id: 0 for broker in cluster.brokers}
    replicas = dict(leaders)
    for _, partition in partitions:
        if partition.leader in leaders:
            leaders[partition.leader] += 1
        for node in partition.replicas:
            if node in replicas:
                replicas[node] += 1
    if args.json:
        print_json(
            {
                "cluster_id": cluster.cluster_id,
                "controller": cluster.controller_id,
                "brokers": [
                    {
                        "broker": broker.node_id,
                        "host": broker.host,
                        "port": broker.port,
                        "rack": broker.rack,
                        "leaders": leaders[broker.node_id],
                        "replicas": replicas[broker.node_id],
                    }
                    for broker in cluster.brokers
                ],
                "topics": len(topics),
                "partitions": len(partitions),
                "offline_partitions": offline,
                "under_replicated_partitions": behind,
            }
        )
        return 0
    print_values(
        [
            ("cluster", cluster.cluster_id),
            ("controller", cluster.controller_id),
            ("topics", len(topics)),
            ("partitions", len(partitions)),
            ("offline", paint(RED, _few(offline)) if offline else 0),
            ("under-replicated", paint(YELLOW, _few(behind)) if behind else 0),
        ]
    )
    print()
    print_table(
        ("BROKER", "ADDRESS", "RACK", "LEADERS", "REPLICAS"),
        [
            (b.node_id, f"{b.host}:{b.port}", b.rack, leaders[b.node_id], replicas[b.node_id])
            for b in cluster.brokers
        ],
    )
    return 0


def _few(names: list[str], most: int = 5) -> str:
    """How many, and the first of them."""
    return f"{len(names)}: " + ", ".join(names[:most]) + (", ..." if len(names) > most else "")
