"""`odradek cluster events`: the metadata log, told in sentences."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Collection, Iterable, Iterator
from typing import TYPE_CHECKING

from odradek.cli.commands.plans import topic_partitions
from odradek.cli.connecting import connected, connected_to_controller, present_quorum
from odradek.cli.failure import CliError
from odradek.cli.output import RED, YELLOW, paint, print_json
from odradek.cli.parsing import add_command, add_connection_options, natural, positive
from odradek.cli.times import TIME_HELP, moment

if TYPE_CHECKING:
    from odradek.cli.parsing import Groups
    from odradek.client.shells.blocking import Client
    from odradek.operations.cluster_events import Event, Narrator

__all__ = ["register_events"]

_POLL_MS = 500
_RETRY_SECONDS = 0.3
_ANSWER_SECONDS_MAX = 2.0
"""If the leader is silent for longer, the reader looks for another."""
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
    with connected(args) as client:
        reader = _Reader(args, client)
        backlog = list(_wanted(args, reader.read_all()))
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


def _named_once(args: argparse.Namespace, client: Client, told: Collection[str]) -> None:
    """Raise `CliError` for a topic that is neither in the log nor in the cluster now."""
    for name, _ in args.topic or ():
        if name not in told and name not in client.metadata([name]).topics:
            raise CliError(
                f"topic {name} does not exist, and the metadata log does not mention it "
                "(`odradek topic list`; --follow waits for one)"
            )


class _Reader:
    """Follows the log over changes of its leader."""

    def __init__(self, args: argparse.Namespace, client: Client) -> None:
        from odradek.operations.cluster_events import Narrator

        self._args = args
        self._client = client
        self._offset = 0
        self.begins_at = 0
        """The end of the last snapshot that stood in for the log; 0 while the log was there from its beginning."""
        self.topics: set[str] = set()
        """All topics that the log has named."""
        self._narrator: Narrator = Narrator(self.topics)

    def read_all(self) -> Iterator[Event]:
        """Everything up to the present."""
        end = present_quorum(self._args, self._client).high_watermark
        for events in self.read(0):
            yield from events
            if self._offset >= end:
                return

    def read(self, wait_ms: int) -> Iterator[list[Event]]:
        """The events that come next, for ever. They are read from the leader, which is looked for again when it has
        changed."""
        from odradek.client.errors import ClientError, is_retriable
        from wire.errors import KafkaError

        deadline = time.monotonic() + self._args.timeout
        while True:
            try:
                quorum = self._client.admin.describe_quorum()
                with connected_to_controller(self._args, self._client, quorum) as (controller, _):
                    while True:
                        events = self._step(controller, quorum.leader_epoch, wait_ms)
                        deadline = time.monotonic() + self._args.timeout
                        yield events
            except (KafkaError, ClientError) as error:
                if not is_retriable(error) or time.monotonic() > deadline:
                    raise
                time.sleep(_RETRY_SECONDS)

    def _step(self, controller: Client, epoch: int, wait_ms: int) -> list[Event]:
        from odradek.operations.cluster_events import Narrator
        from odradek.operations.metadata_log import read_metadata, read_metadata_snapshot

        patience = wait_ms / 1000 + _ANSWER_SECONDS_MAX
        read = controller.run(read_metadata(controller.core, self._offset, wait_ms=wait_ms, timeout=patience))
        if read.snapshot is not None:
            self._narrator = Narrator(self.topics)
            for batch in controller.run(read_metadata_snapshot(controller.core, read.snapshot, epoch)):
                self._narrator.load(batch.records)
            self._offset = self.begins_at = read.snapshot.end_offset
            return []
        events = []
        for batch in read.batches:
            events += self._narrator.tell(batch.offset, batch.epoch, batch.time_ms, batch.records)
            self._offset = batch.next_offset
        return events


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
