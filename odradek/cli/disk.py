"""`odradek disk list`: the log directories of the brokers."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from odradek.cli.connecting import call_failure, connected
from odradek.cli.output import RED, bytes_text, paint, print_json, print_table
from odradek.cli.parsing import Groups, add_command, add_connection_options, natural

if TYPE_CHECKING:
    from odradek.client.admin import BrokerLogDirs, LogDirDescription

__all__ = ["register"]


def register(groups: Groups) -> None:
    """Add the group."""
    commands = groups.add_parser("disk", help="look at the log directories").add_subparsers(
        metavar="COMMAND", required=True
    )
    listing = add_command(commands, "list", _list, "list the log directories of the brokers")
    listing.add_argument(
        "--broker", type=natural, action="append", metavar="ID", help="only of this broker (repeat for more)"
    )
    listing.add_argument(
        "--topics",
        action="store_true",
        help="show what each topic takes in each directory, the largest first",
    )
    add_connection_options(listing)


def _list(args: argparse.Namespace) -> int:
    with connected(args) as client:
        brokers = client.admin.describe_log_dirs(args.broker)
    if args.json:
        print_json({"brokers": [_document(broker) for broker in brokers]})
    elif any(broker.directories for broker in brokers):
        (_print_topics if args.topics else _print_directories)(brokers)
    failed = next((broker.error for broker in brokers if broker.error is not None), None)
    if failed is not None:
        raise call_failure(failed)
    return 0


def _print_directories(brokers: list[BrokerLogDirs]) -> None:
    rows = []
    offline = []
    for broker in brokers:
        for each in broker.directories:
            state = "online" if each.error is None else "OFFLINE"
            used = _used(each)
            full = None if used is None else f"{used:.0%}"
            # The path stands last: it may be long, and nothing behind it should be pushed out of sight.
            rows.append(
                (
                    broker.broker,
                    state,
                    # A broker does not say what lies in a directory that it cannot read.
                    len(each.replicas) if each.error is None else None,
                    bytes_text(each.size) if each.error is None else None,
                    bytes_text(each.usable_bytes),
                    full,
                    each.path,
                )
            )
            if each.error is not None:
                offline.append(f"broker {broker.broker}: {each.path} is offline")
    print_table(("BROKER", "STATE", "REPLICAS", "LOGS", "FREE", "USED", "DIRECTORY"), rows)
    for line in offline:
        print(paint(RED, line))


def _print_topics(brokers: list[BrokerLogDirs]) -> None:
    rows = []
    for broker in brokers:
        for each in broker.directories:
            sizes: dict[str, list[int]] = {}
            for replica in each.replicas:
                sizes.setdefault(replica.topic, []).append(replica.size)
            for topic, found in sorted(sizes.items(), key=lambda item: (-sum(item[1]), item[0])):
                rows.append((broker.broker, topic, len(found), bytes_text(sum(found)), each.path))
    print_table(("BROKER", "TOPIC", "REPLICAS", "LOGS", "DIRECTORY"), rows)


def _used(directory: LogDirDescription) -> float | None:
    if directory.total_bytes <= 0 or directory.usable_bytes < 0:
        return None
    return 1 - directory.usable_bytes / directory.total_bytes


def _document(broker: BrokerLogDirs) -> dict[str, Any]:
    return {
        "broker": broker.broker,
        "directories": [
            {
                "path": each.path,
                "online": each.error is None,
                "total_bytes": each.total_bytes if each.total_bytes >= 0 else None,
                "usable_bytes": each.usable_bytes if each.usable_bytes >= 0 else None,
                "log_bytes": each.size if each.error is None else None,
                "replicas": [
                    {
                        "topic": replica.topic,
                        "partition": replica.partition,
                        "size": replica.size,
                        "offset_lag": replica.offset_lag,
                        "future": replica.is_future,
                    }
                    for replica in each.replicas
                ],
            }
            for each in broker.directories
        ],
    }
