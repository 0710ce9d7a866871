"""`odradek log clean-status`: the state of the cleaner at each replica of a compacted topic."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from odradek.cli.connecting import call_failure, connected
from odradek.cli.log_dirs import add_broker_option, ask_log_dirs
from odradek.cli.output import RED, bytes_text, paint, print_json, print_table, say, span_text
from odradek.cli.parsing import Groups, add_command, add_connection_options

if TYPE_CHECKING:
    from odradek.client.admin import BrokerLogDirs, LogDirDescription, LogDirReplica, ReplicaCleaning

__all__ = ["cleaning_document", "register_clean_status", "uncleanable_text", "uncleanable_texts"]

_HEADINGS = (
    "BROKER",
    "TOPIC",
    "PARTITION",
    "STATE",
    "DIRTY",
    "TO CLEAN",
    "SIZE",
    "LAST PASS",
    "TOOK",
    "SAVED",
)


def register_clean_status(commands: Groups) -> None:
    """Add the command `clean-status` to the group `log`."""
    status = add_command(
        commands,
        "clean-status",
        _clean_status,
        "show how far the cleaner has got with compacted topics, and what stops it",
        watch=True,
    )
    status.add_argument(
        "topics", metavar="TOPIC", nargs="*", help="show only this topic (default: all compacted topics)"
    )
    add_broker_option(status)
    add_connection_options(status)


def uncleanable_text(broker: int, path: str, replica: LogDirReplica) -> str | None:
    """Describe in one sentence a log that the cleaner skips after an error; return None for any other log."""
    if replica.cleaning is None or replica.cleaning.uncleanable_reason is None:
        return None
    return (
        f"broker {broker}: the cleaner skips {replica.topic}-{replica.partition} in {path} until the "
        f"broker restarts: {replica.cleaning.uncleanable_reason}"
    )


def uncleanable_texts(broker: int, directory: LogDirDescription) -> Iterator[str]:
    """Yield one sentence for each log in the directory that the cleaner skips after an error."""
    for replica in directory.replicas:
        if (text := uncleanable_text(broker, directory.path, replica)) is not None:
            yield text


def cleaning_document(cleaning: ReplicaCleaning | None) -> dict[str, Any] | None:
    """Make the JSON object for the cleaner's state at a replica; return None if the broker reported no state."""
    if cleaning is None:
        return None
    return {
        "dirty_ratio": round(cleaning.dirty_ratio, 4),
        "first_dirty_offset": cleaning.first_dirty_offset,
        "clean_bytes": cleaning.clean_bytes,
        "dirty_bytes": cleaning.dirty_bytes,
        "under_way": cleaning.is_under_way,
        "uncleanable_reason": cleaning.uncleanable_reason,
        "last_pass_ended_ms": cleaning.last_pass_ended_ms,
        "last_pass_ms": cleaning.last_pass_ms,
        "last_pass_bytes_before": cleaning.last_pass_bytes_before,
        "last_pass_bytes_after": cleaning.last_pass_bytes_after,
    }


def _clean_status(args: argparse.Namespace) -> int:
    with connected(args) as client:
        if args.topics:
            client.admin.describe_topics(args.topics)  # fail early if a topic does not exist
        asked = ask_log_dirs(client, args)
    found = [
        (broker.broker, directory, replica, replica.cleaning)
        for broker in asked.brokers
        for directory in broker.directories
        for replica in directory.replicas
        if replica.cleaning is not None and (not args.topics or replica.topic in args.topics)
    ]
    found.sort(key=lambda each: (each[2].topic, each[2].partition, each[0]))
    if args.json:
        print_json(
            {
                "logs": [
                    {
                        "broker": broker,
                        "topic": replica.topic,
                        "partition": replica.partition,
                        "size": replica.size,
                        **(cleaning_document(cleaning) or {}),
                    }
                    for broker, _, replica, cleaning in found
                ],
                "down": asked.down,
            }
        )
    elif found:
        print_table(_HEADINGS, [_row(broker, replica, cleaning) for broker, _, replica, cleaning in found])
    else:
        say("no replica of a compacted topic was found")
    if not args.json:
        _print_alarms(asked.brokers, asked.down)
    failed = next((broker.error for broker in asked.brokers if broker.error is not None), None)
    if failed is not None:
        raise call_failure(failed)
    return 0


def _row(broker: int, replica: LogDirReplica, cleaning: ReplicaCleaning) -> tuple[Any, ...]:
    before, after = cleaning.last_pass_bytes_before, cleaning.last_pass_bytes_after
    ended = cleaning.last_pass_ended_ms
    return (
        broker,
        replica.topic,
        replica.partition,
        _state(cleaning),
        f"{cleaning.dirty_ratio:.0%}",
        bytes_text(cleaning.dirty_bytes),
        bytes_text(replica.size),
        None if ended is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(ended / 1000)),
        span_text(cleaning.last_pass_ms),
        None if before is None or after is None else bytes_text(max(0, before - after)),
    )


def _state(cleaning: ReplicaCleaning) -> str:
    if cleaning.uncleanable_reason is not None:
        return "UNCLEANABLE"
    return "cleaning" if cleaning.is_under_way else "waiting" if cleaning.dirty_bytes else "clean"


def _print_alarms(brokers: list[BrokerLogDirs], down: list[int]) -> None:
    for broker in brokers:
        for directory in broker.directories:
            for text in uncleanable_texts(broker.broker, directory):
                say(paint(RED, text))
    for node in down:
        say(paint(RED, f"broker {node} is down, so its replicas are not shown"))
