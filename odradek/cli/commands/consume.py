"""`odradek consume TOPIC`: print the records of a topic, all of them or those that a group has not read."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from odradek.cli.connecting import bootstrap_of, connected, security_properties
from odradek.cli.failure import USAGE, CliError
from odradek.cli.output import Progress, counted
from odradek.cli.parsing import Groups, add_command, add_connection_options, natural, positive
from odradek.cli.record_format import json_line, key_and_value, template
from odradek.cli.times import TIME_HELP, moment

if TYPE_CHECKING:
    from odradek.client.consumer.consumer_types import ConsumerRecord, RebalanceListener
    from odradek.client.core.known_cluster import Topic
    from odradek.client.shells.blocking import Client
    from odradek.client.shells.consumer import Consumer
    from wire.topic_partition import TopicPartition

__all__ = ["register"]

_POLL_SECONDS = 0.5
_COMMIT_SECONDS = 1.0
_LAST_COMMIT_SECONDS = 2.0
_RECORDS_PER_POLL = 5000


def register(groups: Groups) -> None:
    """Add the command."""
    parser = add_command(groups, "consume", _consume, "print the records of a topic")
    parser.add_argument("topic", metavar="TOPIC", help="the topic to read")
    parser.add_argument(
        "--group",
        metavar="GROUP",
        help="join this consumer group, print what the group has not read, and commit what was printed",
    )
    parser.add_argument(
        "--partition",
        type=natural,
        action="append",
        metavar="N",
        help="read only this partition (repeat for more; default: all)",
    )
    start = parser.add_mutually_exclusive_group()
    start.add_argument(
        "--from",
        dest="start",
        type=_start,
        metavar="WHERE",
        help="earliest, latest, an offset, -N for the last N of each partition, or a time: "
        f"{TIME_HELP} (default: earliest; latest with --follow); with --group, only for partitions where the group has committed nothing",
    )
    start.add_argument(
        "--from-beginning",
        dest="start",
        action="store_const",
        const=("earliest", 0),
        help="the same as --from earliest",
    )
    parser.add_argument("--max-messages", type=positive, metavar="N", help="stop after so many records")
    parser.add_argument(
        "--follow",
        action="store_true",
        help="wait for new records (default: stop at the end that the topic has now)",
    )
    parser.add_argument(
        "--isolation",
        choices=("read_uncommitted", "read_committed"),
        default="read_uncommitted",
        help="read_committed: leave out records of transactions that are aborted or still open, and stop where the "
        "first open one begins (default: read_uncommitted, all records)",
    )
    output = parser.add_mutually_exclusive_group()
    output.add_argument(
        "--key-separator",
        metavar="TEXT",
        help=r"print each record's key and this text before its value (\t: a tab)",
    )
    output.add_argument(
        "--format",
        type=template,
        metavar="TEMPLATE",
        help="print each record by this template: %%k key, %%v value, %%h headers, %%t topic, %%p partition, %%o offset, "
        r"%%T milliseconds, %%d date; \n, \t",
    )
    add_connection_options(parser)


def _start(text: str) -> tuple[str, int]:
    """A kind (earliest, latest, offset, last, time) and its number."""
    if text in ("earliest", "latest"):
        return text, 0
    if text.isascii() and text.isdigit():
        return "offset", int(text)
    if text.startswith("-") and text[1:].isascii() and text[1:].isdigit():
        return "last", int(text[1:])
    return "time", moment(text)


def _consume(args: argparse.Namespace) -> int:
    from wire.topic_partition import TopicPartition

    render = json_line if args.json else args.format or key_and_value(args.key_separator)
    with connected(args) as client:
        # A wrong address or topic is found out by the client, which gives up at once; a consumer would wait for it.
        (topic,) = client.admin.describe_topics([args.topic])
        if args.group is not None:
            _read_as_member(args, render)
            return 0
        indexes = sorted(topic.partitions) if args.partition is None else sorted(set(args.partition))
        for index in indexes:
            client.core.cluster.partition(args.topic, index)
        if args.partition is None:
            indexes = _led(topic)
        spans = _spans(args, client, [TopicPartition(args.topic, index) for index in indexes])
        _read_assigned(args, _starts(args, client, spans), spans, render)
    return 0


def _led(topic: Topic) -> list[int]:
    """The partitions that can be read. The others are named; `CliError` when there is nothing else."""
    led = [index for index, each in sorted(topic.partitions.items()) if each.leader >= 0]
    offline = [str(index) for index in sorted(topic.partitions) if index not in led]
    if offline:
        what = f"partition{'s' if len(offline) > 1 else ''} {', '.join(offline)} of {topic.name}"
        text = f"{what} cannot be read: no broker leads (`odradek cluster status` shows which are down)"
        if not led:
            raise CliError(text)
        print(f"odradek: {text}; reading the others", file=sys.stderr)
    return led


def _spans(
    args: argparse.Namespace, client: Client, keys: list[TopicPartition]
) -> dict[TopicPartition, tuple[int, int]]:
    """First and next offset of each partition. For committed readers it ends where the first open transaction begins."""
    from odradek.client.core.partition_offsets import LATEST

    found = {}
    for key, span in client.admin.offset_spans(keys).items():
        if isinstance(span, Exception):
            raise span
        found[key] = (span.start, span.end)
    if args.isolation == "read_uncommitted":
        return found
    stable = client.list_offsets(dict.fromkeys(keys, LATEST), isolation_level=1)
    for key, (start, end) in found.items():
        stable_end = stable[key].offset
        if stable_end < end and not args.follow:
            print(
                f"odradek: {key} is read up to offset {stable_end}, where an open transaction begins, with "
                f"{counted(end - stable_end, 'offset')} behind it (`odradek txn find-hanging "
                f"--topic {key.topic} --max-transaction-timeout 0` tells whose it is)",
                file=sys.stderr,
            )
        found[key] = (start, stable_end)
    return found


def _starts(
    args: argparse.Namespace, client: Client, spans: dict[TopicPartition, tuple[int, int]]
) -> dict[TopicPartition, int]:
    """The first offset to read of each partition."""
    kind, number = args.start or ("latest" if args.follow else "earliest", 0)
    if kind == "earliest":
        return {key: first for key, (first, _) in spans.items()}
    if kind == "latest":
        return {key: end for key, (_, end) in spans.items()}
    if kind == "last":
        return {key: max(first, end - number) for key, (first, end) in spans.items()}
    if kind == "time":
        found = client.list_offsets(dict.fromkeys(spans, number))
        return {key: found[key].offset if found[key].offset >= 0 else end for key, (_, end) in spans.items()}
    for (_, index), (first, end) in spans.items():
        if not first <= number <= end:
            raise CliError(f"partition {index} has no offset {number} (it holds {first} up to {end})")
    return dict.fromkeys(spans, number)


class _Printer:
    """Prints records until as many were printed as were asked for; knows the next offset of each partition."""

    def __init__(self, args: argparse.Namespace, render: Callable[[ConsumerRecord], bytes]) -> None:
        self.left: int = args.max_messages if args.max_messages is not None else sys.maxsize
        self.next_offsets: dict[TopicPartition, int] = {}
        self.progress = Progress("records read")
        self._render = render
        self._patience = None if args.follow else args.timeout
        self._quiet_since = time.monotonic()

    def print(self, records: Iterable[ConsumerRecord], ends: dict[TopicPartition, int] | None) -> None:
        """Print them, but for what lies beyond the ends."""
        out = sys.stdout.buffer
        count = 0
        for record in records:
            # A plain tuple finds the same and costs a quarter: one is made for every record.
            key: Any = (record.topic, record.partition)
            if count == self.left:
                break
            if ends is None or record.offset < ends.get(key, 0):
                count += 1
                out.write(self._render(record))
            self.next_offsets[key] = record.offset + 1
        self.left -= count
        if count:
            out.flush()
            self.progress.add(count)
            self._quiet_since = time.monotonic()

    def expect(self, what: str) -> None:
        """Raises `CliError` when nothing has come for --timeout, although there should be something."""
        if self._patience is not None and time.monotonic() - self._quiet_since > self._patience:
            raise CliError(
                f"{what} within {self._patience:g} s: the broker may be down, or a longer --timeout helps"
            )


@contextmanager
def _open(args: argparse.Namespace, **settings: Any) -> Iterator[Consumer]:
    """A consumer for the block. If the block fails, the consumer closes without waiting long."""
    from odradek.client.shells.consumer import Consumer

    limit = args.max_messages or _RECORDS_PER_POLL
    consumer = Consumer(
        security_properties(args),
        bootstrap_servers=bootstrap_of(args),
        client_id="odradek-cli",
        enable_auto_commit=False,
        allow_auto_create_topics=False,
        default_api_timeout_ms=max(1, int(args.timeout * 1000)),
        # The broker holds back its answer at the end so long, and the command waits for it.
        fetch_max_wait_ms=500 if args.follow else 50,
        max_poll_records=min(limit, _RECORDS_PER_POLL),
        isolation_level=args.isolation,
        **settings,
    )
    try:
        yield consumer
    except BaseException:
        consumer.close(_LAST_COMMIT_SECONDS)
        raise
    consumer.close()


def _read_assigned(
    args: argparse.Namespace,
    starts: dict[TopicPartition, int],
    spans: dict[TopicPartition, tuple[int, int]],
    render: Callable[[ConsumerRecord], bytes],
) -> None:
    """Print records from the starts to the present ends, or for ever."""
    ends = None if args.follow else {key: end for key, (_, end) in spans.items()}
    pending = {key for key in starts if ends is None or starts[key] < ends[key]}
    printer = _Printer(args, render)
    with _open(args, auto_offset_reset="none") as consumer, printer.progress:
        consumer.assign(sorted(pending))
        for key in sorted(pending):
            consumer.seek(key, starts[key])
        while pending and printer.left:
            records = consumer.poll(_POLL_SECONDS)
            printer.print(records, ends)
            if ends is not None:
                ended = [key for key in pending if _next(consumer, printer, key, bool(records)) >= ends[key]]
                printer.expect("nothing came")
                if ended:
                    consumer.pause(*ended)
                    pending.difference_update(ended)


def _next(consumer: Consumer, printer: _Printer, key: TopicPartition, busy: bool) -> int:
    """The next offset of a partition. Behind a gap only the consumer knows it, and is asked when nothing comes."""
    found = printer.next_offsets.get(key, -1)
    return found if busy else max(found, consumer.position(key))


def _read_as_member(args: argparse.Namespace, render: Callable[[ConsumerRecord], bytes]) -> None:
    """Join the group, print what it has not read, commit what was printed."""
    if args.partition is not None:
        raise CliError("--partition and --group cannot be combined: the group assigns the partitions", USAGE)
    kind, _ = args.start or ("earliest", 0)
    if kind not in ("earliest", "latest"):
        raise CliError(
            "with --group, --from must be earliest or latest; it counts where the group has committed nothing "
            f"(`odradek group reset {args.group}` moves its offsets)",
            USAGE,
        )
    printer = _Printer(args, render)
    with _open(args, group_id=args.group, auto_offset_reset=kind) as consumer, printer.progress:
        _Member(args, consumer, printer).read()


class _Member:
    """The progress of a group's member: the end offsets of its assigned partitions, and its committed offsets."""

    def __init__(self, args: argparse.Namespace, consumer: Consumer, printer: _Printer) -> None:
        self._args = args
        self._consumer = consumer
        self._printer = printer
        self._was_assigned = False
        self._ends: dict[TopicPartition, int] = {}
        self._committed: dict[TopicPartition, int] = {}

    def read(self) -> None:
        """Print until the present ends, and commit."""
        from odradek.client.errors import ClientError
        from wire.errors import KafkaError

        self._consumer.subscribe([self._args.topic], listener=_listener(self))
        try:
            self._print_all()
            self._commit(self._consumer.assignment(), self._args.timeout)
        except BaseException:
            # Most likely the user is waiting for the command to end.
            try:
                self._commit(self._consumer.assignment(), _LAST_COMMIT_SECONDS)
            except (KafkaError, ClientError):
                print(
                    "odradek: the last records printed are not committed: they will come again",
                    file=sys.stderr,
                )
            raise

    def _print_all(self) -> None:
        args, consumer, printer = self._args, self._consumer, self._printer
        commit_at = time.monotonic() + _COMMIT_SECONDS
        while printer.left:
            records = consumer.poll(_POLL_SECONDS)
            printer.print(records, None)
            if time.monotonic() >= commit_at:
                self._commit(consumer.assignment(), args.timeout)
                commit_at = time.monotonic() + _COMMIT_SECONDS
            if not self._was_assigned:
                printer.expect(f"group {args.group} assigned nothing")
            elif not args.follow:
                printer.expect("nothing came")
                busy = bool(records)
                if all(_next(consumer, printer, key, busy) >= end for key, end in self._ends.items()):
                    return

    def _commit(self, keys: Iterable[TopicPartition], timeout: float) -> None:
        # Where nothing was printed the place to begin is committed, so that its lag can be told later.
        next_offsets = self._printer.next_offsets
        news = {key: next_offsets.get(key) or self._consumer.position(key, timeout) for key in keys}
        news = {key: offset for key, offset in news.items() if self._committed.get(key) != offset}
        if news:
            self._consumer.commit(news, timeout)
            self._committed.update(news)

    def assigned(self, partitions: list[TopicPartition]) -> None:
        """Read new partitions to their present ends."""
        self._was_assigned = True
        if not self._args.follow:
            found = self._consumer.end_offsets(partitions)
            self._ends.update((key, found[key]) for key in partitions)

    def revoked(self, partitions: list[TopicPartition]) -> None:
        """Commit for partitions that go to other members, which begin where this one ended."""
        self._commit(partitions, self._args.timeout)
        self.lost(partitions)

    def lost(self, partitions: list[TopicPartition]) -> None:
        """Forget partitions that were lost."""
        for key in partitions:
            for table in (self._ends, self._committed, self._printer.next_offsets):
                table.pop(key, None)


def _listener(member: _Member) -> RebalanceListener:
    from odradek.client.consumer.consumer_types import RebalanceListener

    class Listener(RebalanceListener):
        """Made here, because its base is imported only when a command reads."""

        def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
            member.assigned(partitions)

        def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
            member.revoked(partitions)

        def on_partitions_lost(self, partitions: list[TopicPartition]) -> None:
            member.lost(partitions)

    return Listener()
