"""`odradek cluster events`: the metadata log, told in sentences."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from odradek.cli.connecting import connected, connected_to_controller, present_quorum
from odradek.cli.failure import CliError
from odradek.cli.output import RED, YELLOW, paint, print_json
from odradek.cli.parsing import add_command, add_connection_options, natural, positive
from odradek.cli.plans import topic_partitions
from odradek.cli.times import TIME_HELP, moment

if TYPE_CHECKING:
    from odradek.cli.parsing import Groups
    from odradek.client.admin.admin_quorum import QuorumDescription
    from odradek.client.shells.blocking import Client
    from odradek.operations.cluster_events import Event

__all__ = ["register_events"]

_POLL_MS = 500
_SHOWN = 40
_NAMES_MAX = 4
_COLOURS = {"offline": RED, "leader": YELLOW}


def register_events(commands: Groups) -> None:
    """Add the command to its group."""
    events = add_command(
        commands,
        "events",
        _events,
        "print what has happened: which broker became the leader of what, when and why",
    )
    events.add_argument("--follow", action="store_true", help="go on and print new events as they happen")
    events.add_argument(
        "--last",
        type=positive,
        metavar="N",
        default=_SHOWN,
        help=f"begin with the last N lines (default: {_SHOWN})",
    )
    events.add_argument(
        "--all", action="store_true", help="begin with the oldest event that the metadata log still has"
    )
    events.add_argument(
        "--since",
        type=moment,
        metavar="TIME",
        help=f"begin with the first event since this time: {TIME_HELP}",
    )
    events.add_argument(
        "--topic",
        type=topic_partitions,
        action="append",
        metavar="TOPIC[:N,N-N]",
        help="only events of this topic, or of these partitions of it (repeat for more)",
    )
    events.add_argument(
        "--broker",
        type=natural,
        action="append",
        metavar="ID",
        help="only events of this broker (repeat for more)",
    )
    add_connection_options(events)


def _events(args: argparse.Namespace) -> int:
    from odradek.operations.event_reader import EventReader

    with connected(args) as client:
        reader = EventReader(
            client, partial(_connected_to_leader, args, client), timeout_seconds=args.timeout
        )
        end = present_quorum(args, client).high_watermark
        backlog = list(_wanted(args, reader.read_to(end)))
        if not args.follow:
            _named_once(args, client, reader.topics)
        if args.since is not None:
            told = [event for event in backlog if event.time_ms >= args.since]
        elif args.all:
            told = backlog
        elif args.json:
            told = backlog[-args.last :]
        else:
            told = [event for same in _sentences(backlog)[-args.last :] for event in same]
        if reader.begins_at and len(told) == len(backlog):
            print(
                f"odradek: history begins at offset {reader.begins_at}: a snapshot holds only the results of earlier events",
                file=sys.stderr,
            )
        _print(args, told)
        if args.follow:
            sys.stdout.flush()
            for news in reader.read(_POLL_MS):
                _print(args, list(_wanted(args, news)))
                sys.stdout.flush()
    return 0


@contextmanager
def _connected_to_leader(
    args: argparse.Namespace, client: Client, quorum: QuorumDescription
) -> Iterator[Client]:
    with connected_to_controller(args, client, quorum) as (controller, _):
        yield controller


def _named_once(args: argparse.Namespace, client: Client, told: Collection[str]) -> None:
    """Raise `CliError` for a topic that is neither in the log nor in the cluster now."""
    for name, _ in args.topic or ():
        if name not in told and name not in client.metadata([name]).topics:
            raise CliError(
                f"topic {name} does not exist, and the metadata log does not mention it "
                "(`odradek topic list`; --follow waits for one)"
            )


def _wanted(args: argparse.Namespace, events: Iterable[Event]) -> Iterator[Event]:
    if not args.topic and not args.broker:
        yield from events
        return
    subjects = {f"broker {node}" for node in args.broker or ()}
    names = []
    for name, indexes in args.topic or ():
        subjects.add(f"topic {name}")
        if indexes is None:
            names.append(name)
        else:
            subjects |= {f"{name}-{index}" for index in indexes}
    for event in events:
        topic, dash, index = event.subject.rpartition("-")
        if event.subject in subjects or (dash and index.isdecimal() and topic in names):
            yield event


def _print(args: argparse.Namespace, events: list[Event]) -> None:
    if args.json:
        for event in events:
            print_json(
                {
                    "offset": event.offset,
                    "time_ms": event.time_ms,
                    "kind": event.kind,
                    "subject": event.subject,
                    "text": event.text,
                }
            )
        return
    for same in _sentences(events):
        first = same[0]
        subject, told = _together(same, first.text)
        line = f"{subject} {told}"
        line = paint(_COLOURS[first.kind], line) if first.kind in _COLOURS else line
        print(f"{_clock(first.time_ms)}  {line}")


def _sentences(events: Iterable[Event]) -> list[list[Event]]:
    """A broker's death is one sentence, not one for each of the partitions that it led."""
    groups: dict[tuple[int, str, str], list[Event]] = {}
    for event in events:
        groups.setdefault((event.time_ms, event.kind, event.text), []).append(event)
    return list(groups.values())


def _together(events: list[Event], text: str) -> tuple[str, str]:
    names = list(dict.fromkeys(event.subject for event in events))
    if len(names) == 1:
        return names[0], text
    shown = ", ".join(names[:_NAMES_MAX])
    if len(names) > _NAMES_MAX:
        shown += f" and {len(names) - _NAMES_MAX:,} more"
    return f"{shown}:", f"each {text}"


def _clock(time_ms: int) -> str:
    moment_of = time.localtime(time_ms / 1000)
    return time.strftime("%Y-%m-%d %H:%M:%S", moment_of) + f".{time_ms % 1000:03d}"
