"""`odradek cluster events`: the changes in the metadata log, printed as sentences."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from odradek.cli.connecting import connected, connected_to_controller, present_quorum
from odradek.cli.failure import CliError
from odradek.cli.moves.plans import topic_partitions
from odradek.cli.output import RED, YELLOW, paint, plain, print_json, say
from odradek.cli.parsing import add_command, add_connection_options, id_number, positive
from odradek.cli.streams.standard_streams import complain
from odradek.cli.times import TIME_HELP, moment

if TYPE_CHECKING:
    from odradek.cli.parsing import Groups
    from odradek.client.admin.admin_quorum import QuorumDescription
    from odradek.client.shells.blocking import Client
    from odradek.operations.cluster_events import Event
    from odradek.operations.event_authors import Author, EventAuthors

__all__ = ["register_events"]

_POLL_MS = 500
_SHOWN = 40
_NAMES_MAX = 4
_COLOURS = {"offline": RED, "leader": YELLOW}


def register_events(commands: Groups) -> None:
    """Add the command `events` to the group `cluster`."""
    events = add_command(
        commands,
        "events",
        _events,
        "print what has happened: which broker became the leader of what, when and why",
    )
    events.add_argument(
        "--follow", action="store_true", help="keep running, and print new events as they happen"
    )
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
        help="show only events of this topic, or of some of its partitions (repeat for more)",
    )
    events.add_argument(
        "--broker",
        type=id_number,
        action="append",
        metavar="ID",
        help="show only events of this broker (repeat for more)",
    )
    events.add_argument(
        "--audit",
        type=Path,
        action="append",
        metavar="FILE|DIR",
        help="the audit log of a controller, to show who requested each change (repeat for each controller)",
    )
    events.add_argument(
        "--by",
        action="append",
        metavar="USER",
        help="show only changes that this user requested, according to the audit logs (repeat for more)",
    )
    add_connection_options(events)


def _events(args: argparse.Namespace) -> int:
    from odradek.operations.event_reader import EventReader

    authors = _authors(args)
    with connected(args) as client:
        reader = EventReader(
            client, partial(_connected_to_leader, args, client), timeout_seconds=args.timeout
        )
        end = present_quorum(args, client).high_watermark
        everything = list(_wanted(args, reader.read_to(end)))
        backlog = everything if authors is None else list(_asked_by(args, authors, everything))
        if not args.follow:
            _named_once(args, client, reader.topics)
        if args.since is not None:
            chosen = [event for event in backlog if event.time_ms >= args.since]
        elif args.all:
            chosen = backlog
        elif args.json:
            chosen = backlog[-args.last :]
        else:
            chosen = [event for same in _sentences(backlog)[-args.last :] for event in same]
        if reader.begins_at and len(chosen) == len(backlog):
            complain(
                f"events before offset {reader.begins_at} cannot be shown, because the metadata log has only a snapshot of their results"
            )
        _print(args, chosen, authors)
        if authors is not None:
            begin = chosen[0].offset if chosen and len(chosen) < len(backlog) else 0
            shown = [event for event in everything if event.offset >= begin]
            _print_gaps(authors, shown, reader.controllers)
        if args.follow:
            sys.stdout.flush()
            for news in reader.read(_POLL_MS):
                _print(args, list(_wanted(args, news)), None)
                sys.stdout.flush()
    return 0


@contextmanager
def _connected_to_leader(
    args: argparse.Namespace, client: Client, quorum: QuorumDescription
) -> Iterator[Client]:
    with connected_to_controller(args, client, quorum) as (controller, _):
        yield controller


def _named_once(args: argparse.Namespace, client: Client, known: Collection[str]) -> None:
    """Raise `CliError` for a topic that is neither in the log nor in the present cluster."""
    for name, _ in args.topic or ():
        if name not in known and name not in client.metadata([name]).topics:
            raise CliError(
                f"the topic {name} does not exist, and the metadata log does not mention it (`odradek "
                "topic list` shows topics; --follow waits for new ones)"
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


def _authors(args: argparse.Namespace) -> EventAuthors | None:
    """Read the author of each change from the audit logs that `--audit` names. Return None without the
    option. Raises `CliError`.
    """
    if not args.audit:
        if args.by:
            raise CliError(
                "--by needs --audit: only the audit log of the controller says who requested a change "
                "(audit.log in the metadata log's directory, or in odradek.audit.directory)"
            )
        return None
    if args.follow:
        raise CliError("--audit cannot be combined with --follow, because audit logs are read only once")
    from odradek.operations.event_authors import EventAuthors

    authors = EventAuthors()
    for path in args.audit:
        files = sorted(path.glob("audit.log*")) if path.is_dir() else [path]
        if not files:
            raise CliError(f"the directory {path} has no file audit.log")
        for file in files:
            try:
                with file.open("rb") as lines:
                    authors.read(lines)
            except OSError as error:
                raise CliError(f"cannot read {file}: {error.strerror}") from error
    return authors


def _asked_by(args: argparse.Namespace, authors: EventAuthors, events: Iterable[Event]) -> Iterator[Event]:
    wanted = {name if ":" in name or name.startswith("node ") else f"User:{name}" for name in args.by or ()}
    for event in events:
        author = authors.author(event)
        if not wanted or (author is not None and author.principal in wanted):
            yield event


def _print_gaps(authors: EventAuthors, events: list[Event], controllers: Mapping[int, int]) -> None:
    """Print warnings about events whose author is unknown, and about missing or damaged lines of the audit
    logs.
    """
    gaps = authors.gaps(events, controllers)
    if gaps:
        complain(f"the events do not say who caused {'; '.join(gaps)}")
    if authors.missing:
        complain(f"the audit logs lack {authors.missing} lines, which the node counted but could not write")
    if authors.unreadable:
        complain(f"{authors.unreadable} lines of the audit logs are damaged")


def _print(args: argparse.Namespace, events: list[Event], authors: EventAuthors | None) -> None:
    if args.json:
        for event in events:
            document: dict[str, object] = {
                "offset": event.offset,
                "time_ms": event.time_ms,
                "kind": event.kind,
                "subject": event.subject,
                "text": event.text,
            }
            if authors is not None:
                author = authors.author(event)
                for name in ("principal", "address", "client_id", "api"):
                    document[name] = None if author is None else getattr(author, name)
            print_json(document)
        return
    for same in _sentences(events, authors):
        first = same[0]
        subject, text = _together(same, first.text)
        line = f"{subject} {text}"
        line = paint(_COLOURS[first.kind], line) if first.kind in _COLOURS else line
        author = None if authors is None else authors.author(first)
        say(plain(f"{_clock(first.time_ms)}  {line}" + ("" if author is None else f" [{author}]")))


def _sentences(events: Iterable[Event], authors: EventAuthors | None = None) -> list[list[Event]]:
    """Sort events into groups; each group is printed as one sentence. So the death of a broker is one
    sentence, although every partition that it led has an event.
    """
    groups: dict[tuple[int, str, str, Author | None], list[Event]] = {}
    for event in events:
        author = None if authors is None else authors.author(event)
        groups.setdefault((event.time_ms, event.kind, event.text, author), []).append(event)
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
