"""`odradek disk list|retire|balance`: the log directories of the brokers."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from odradek.cli.clean_status import cleaning_document, uncleanable_texts
from odradek.cli.connecting import call_failure, connected
from odradek.cli.log_dirs import add_broker_option, ask_log_dirs, look_seconds
from odradek.cli.moves.disks import register_moves
from odradek.cli.output import RED, bytes_text, paint, print_json, print_table
from odradek.cli.parsing import Groups, add_command, add_connection_options
from odradek.cli.troubles import disk_troubles, trouble_text

if TYPE_CHECKING:
    from odradek.client.admin import BrokerLogDirs, LogDirDescription
    from wire.disk_troubles import TroubledDirectory

__all__ = ["register"]


def register(groups: Groups) -> None:
    """Add the group."""
    commands = groups.add_parser(
        "disk", help="list, empty and balance the log directories of brokers"
    ).add_subparsers(metavar="COMMAND", required=True)
    register_moves(commands)
    listing = add_command(commands, "list", _list, "list the log directories of the brokers")
    add_broker_option(listing)
    listing.add_argument(
        "--topics",
        action="store_true",
        help="show how many bytes each topic takes in each directory, the largest first",
    )
    add_connection_options(listing)


def _list(args: argparse.Namespace) -> int:
    with connected(args) as client:
        asked = ask_log_dirs(client, args)
        brokers, down = asked.brokers, asked.down
        answering = [broker.broker for broker in brokers if broker.error is None]
        troubles = disk_troubles(client, answering, look_seconds(args))
    if args.json:
        documents = [_document(broker, troubles.get(broker.broker, ())) for broker in brokers]
        documents += [{"broker": node, "online": False, "error": None, "directories": []} for node in down]
        print_json({"brokers": sorted(documents, key=lambda document: document["broker"])})
    elif args.topics:
        _print_topics(brokers, down)
    else:
        _print_directories(brokers, down, troubles)
    failed = next((broker.error for broker in brokers if broker.error is not None), None)
    if failed is not None:
        raise call_failure(failed)
    return 0


def _is_silent(broker: BrokerLogDirs) -> bool:
    """True if the broker has not answered: it may have just died, and is fenced when its session ends."""
    from odradek.client.errors import ClientError

    return isinstance(broker.error, ClientError)


def _print_directories(
    brokers: list[BrokerLogDirs], down: Collection[int], troubles: Mapping[int, Sequence[TroubledDirectory]]
) -> None:
    rows: list[tuple[Any, ...]] = [(node, "DOWN", *[None] * 5) for node in down]
    alarms = []
    for broker in brokers:
        if broker.error is not None:
            rows.append((broker.broker, "SILENT" if _is_silent(broker) else "FAILED", *[None] * 5))
        for each in broker.directories:
            trouble = _trouble_of(each.path, troubles.get(broker.broker, ()))
            if each.error is not None:
                state = "OFFLINE"
            elif trouble is not None:
                state = trouble.trouble.value.upper()
            else:
                state = "online"
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
                alarms.append(f"broker {broker.broker}: {each.path} is offline")
            elif trouble is not None:
                alarms.append(trouble_text(broker.broker, trouble))
            alarms += uncleanable_texts(broker.broker, each)
    print_table(("BROKER", "STATE", "REPLICAS", "LOGS", "FREE", "USED", "DIRECTORY"), _by_broker(rows))
    for line in alarms:
        print(paint(RED, line))


def _trouble_of(path: str, troubles: Sequence[TroubledDirectory]) -> TroubledDirectory | None:
    return next((each for each in troubles if each.path == path), None)


def _by_broker(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return sorted(rows, key=lambda row: int(row[0]))


def _print_topics(brokers: list[BrokerLogDirs], down: Collection[int]) -> None:
    rows = []
    for broker in brokers:
        for each in broker.directories:
            sizes: dict[str, list[int]] = {}
            for replica in each.replicas:
                sizes.setdefault(replica.topic, []).append(replica.size)
            for topic, found in sorted(sizes.items(), key=lambda item: (-sum(item[1]), item[0])):
                rows.append((broker.broker, topic, len(found), bytes_text(sum(found)), each.path))
    print_table(("BROKER", "TOPIC", "REPLICAS", "LOGS", "DIRECTORY"), rows)
    for node in down:
        print(paint(RED, f"broker {node} is down: what it holds is not known"))


def _used(directory: LogDirDescription) -> float | None:
    if directory.total_bytes <= 0 or directory.usable_bytes < 0:
        return None
    return 1 - directory.usable_bytes / directory.total_bytes


def _document(broker: BrokerLogDirs, troubles: Sequence[TroubledDirectory]) -> dict[str, Any]:
    named = {each.path: each for each in troubles}
    return {
        "broker": broker.broker,
        "online": True,
        "error": None if broker.error is None else str(call_failure(broker.error)),
        "directories": [
            {
                "path": each.path,
                "online": each.error is None,
                "trouble": named[each.path].trouble.value if each.path in named else None,
                "trouble_since_ms": named[each.path].since_ms if each.path in named else None,
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
                        "cleaning": cleaning_document(replica.cleaning),
                    }
                    for replica in each.replicas
                ],
            }
            for each in broker.directories
        ],
    }
