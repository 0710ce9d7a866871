"""`odradek consume TOPIC`: print the records of a topic, either all records or only the records that a group has not
read.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from odradek.cli.connecting import bootstrap_of, connected, keys_judged, security_properties
from odradek.cli.failure import USAGE, CliError
from odradek.cli.output import Progress, counted
from odradek.cli.parsing import (
    Groups,
    add_command,
    add_connection_options,
    id_number,
    key_value,
    natural,
    positive,
)
from odradek.cli.streams.ending import Ended, Ending
from odradek.cli.streams.handed_over import HandedOver
from odradek.cli.streams.record_filter import filter_of, pattern
from odradek.cli.streams.record_format import for_terminal, json_line, key_and_value, template
from odradek.cli.streams.record_output import RecordOutput
from odradek.cli.streams.standard_streams import complain, is_closed
from odradek.cli.times import TIME_HELP, moment

if TYPE_CHECKING:
    from odradek.client.consumer.consumer_types import ConsumerRecord, RebalanceListener
    from odradek.client.core.known_cluster import Topic
    from odradek.client.shells.blocking import Client
    from odradek.client.shells.consumer import Consumer
    from odradek.wire.topic_partition import TopicPartition

__all__ = ["register"]

_POLL_SECONDS = 0.5
_COMMIT_SECONDS = 1.0
_LAST_COMMIT_SECONDS = 2.0
_RECORDS_PER_POLL = 5000


def register(groups: Groups) -> None:
    """Add the command `consume` to the parser of the command line."""
    parser = add_command(groups, "consume", _consume, "print the records of a topic")
    parser.add_argument("topic", metavar="TOPIC", help="the topic to read")
    parser.add_argument(
        "--group",
        metavar="GROUP",
        help="join this consumer group, print the records that the group has not read, and commit their offsets. A "
        "record in a pipe counts as printed, even if the pipe's reader never reads it",
    )
    parser.add_argument(
        "--partition",
        type=id_number,
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
        f"{TIME_HELP} (default: earliest; latest with --follow); with --group, it applies only to partitions "
        "without a committed offset",
    )
    start.add_argument(
        "--from-beginning",
        dest="start",
        action="store_const",
        const=("earliest", 0),
        help="read from the beginning, like --from earliest",
    )
    _add_filters(parser)
    follow = "wait for new records (default: stop at the present end of the topic)"
    parser.add_argument("--follow", action="store_true", help=follow)
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
        help="print each record by this template: %%k key, %%v value, %%h headers, %%t topic, %%p partition, "
        r"%%o offset, %%T milliseconds, %%d date; \n, \t",
    )
    add_connection_options(parser)


def _add_filters(parser: argparse.ArgumentParser) -> None:
    """Add --limit, --key, --match and --header. A record is printed if all filters fit."""
    parser.add_argument(
        "--limit",
        "--max-messages",
        dest="max_messages",
        type=positive,
        metavar="N",
        help="stop after this many records (of those that the filters let pass)",
    )
    parser.add_argument("--key", metavar="TEXT", help="print only records with exactly this key")
    parser.add_argument(
        "--match",
        type=pattern,
        metavar="REGEX",
        help="print only records in whose value this regular expression (of RE2) is found",
    )
    parser.add_argument(
        "--header",
        type=key_value,
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="print only records with this header (repeat for more, which must all be there)",
    )


def _start(text: str) -> tuple[str, int]:
    """Parse the option that says where to start. Return a kind (earliest, latest, offset, last, time) and its
    number.
    """
    if text in ("earliest", "latest"):
        return text, 0
    if text.isascii() and text.isdigit():
        return "offset", natural(text)
    if text.startswith("-") and text[1:].isascii() and text[1:].isdigit():
        return "last", natural(text[1:])
    return "time", moment(text)


def _consume(args: argparse.Namespace) -> int:
    from odradek.wire.topic_partition import TopicPartition

    render = json_line if args.json else args.format or key_and_value(args.key_separator)
    if sys.stdout.isatty() and not args.json:
        render = for_terminal(render)
    with connected(args, "ConsumerSettings") as client:
        # Describe the topic first. With a wrong address or topic, this call fails at once; a consumer would wait.
        (topic,) = client.admin.describe_topics([args.topic])
        if args.group is not None:
            _read_as_member(args, client, render)
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
    """List the partitions that have a leader, and print the other partitions on stderr. Raises `CliError` if
    none has a leader.
    """
    led = [index for index, each in sorted(topic.partitions.items()) if each.leader >= 0]
    offline = [str(index) for index in sorted(topic.partitions) if index not in led]
    if offline:
        what = f"partition{'s' if len(offline) > 1 else ''} {', '.join(offline)} of {topic.name}"
        text = (
            f"{what} cannot be read, because no broker leads it (`odradek cluster status` shows which "
            "brokers are down)"
        )
        if not led:
            raise CliError(text)
        complain(f"{text}; reading the other partitions")
    return led


def _spans(
    args: argparse.Namespace, client: Client, keys: list[TopicPartition]
) -> dict[TopicPartition, tuple[int, int]]:
    """Find the start and the end offset of each partition. With `read_committed`, the end is the last stable
    offset.
    """
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
            complain(
                f"{key} is read up to offset {stable_end}, where an open transaction begins, with "
                f"{counted(end - stable_end, 'offset')} behind it. `odradek txn find-hanging --topic "
                f"{key.topic} --max-transaction-timeout 0` names its producer"
            )
        found[key] = (start, stable_end)
    return found


def _starts(
    args: argparse.Namespace, client: Client, spans: dict[TopicPartition, tuple[int, int]]
) -> dict[TopicPartition, int]:
    """Find the first offset to read in each partition, from `--from` or its default."""
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
            raise CliError(
                f"partition {index} has no offset {number} (its offsets begin at {first} and end "
                f"before {end})"
            )
    return dict.fromkeys(spans, number)


class _Printer:
    """Prints records until the requested number is printed, and counts how many were written to standard
    output.
    """

    def __init__(
        self, args: argparse.Namespace, render: Callable[[ConsumerRecord], bytes], output: RecordOutput
    ) -> None:
        self.left: int = args.max_messages if args.max_messages is not None else sys.maxsize
        self.handed = HandedOver()
        self.progress = Progress("records read")
        self._render = render
        self._fits = filter_of(args)
        self._output = output
        self._patience = None if args.follow else args.timeout
        self._quiet_since = time.monotonic()

    def print(self, records: Sequence[ConsumerRecord], ends: dict[TopicPartition, int] | None) -> None:
        """Print the records whose offsets are below `ends`, up to the requested number."""
        self.handed.polled(records)
        lines: list[bytes] = []
        size = count = 0
        for record in records:
            if len(lines) == self.left:
                break
            # A plain tuple finds the same dictionary entry as a `TopicPartition`, at a quarter of the cost.
            key: Any = (record.topic, record.partition)
            if (ends is None or record.offset < ends.get(key, 0)) and (
                self._fits is None or self._fits(record)
            ):
                line = self._render(record)
                if size + len(line) > self._output.bytes_per_write:
                    self._hand_over(lines, count)
                    size = count = 0
                lines.append(line)
                size += len(line)
            count += 1
        self._hand_over(lines, count)
        if records:
            self._quiet_since = time.monotonic()

    def _hand_over(self, lines: list[bytes], count: int) -> None:
        """Write these lines to standard output. Then mark `count` records as handed over, including records
        that a filter dropped.
        """
        if lines:
            self._output.write(b"".join(lines))
            self.left -= len(lines)
            self.progress.add(len(lines))
            lines.clear()
        self.handed.settle(count)

    def expect(self, what: str) -> None:
        """Raise `CliError` if no record has arrived for the time of --timeout. `what` is the beginning of the message,
        and says which records were expected.
        """
        if self._patience is not None and time.monotonic() - self._quiet_since > self._patience:
            raise CliError(
                f"{what} within {self._patience:g} s: check that the broker runs, or give a longer --timeout"
            )


@contextmanager
def _open(args: argparse.Namespace, settings: Mapping[str, Any]) -> Iterator[Consumer]:
    """Open a consumer for the block, with `settings` in addition to the options of the command. If the block
    raises, close the consumer without waiting.
    """
    from odradek.client.shells.consumer import Consumer

    # A filter drops most records, so that the number of those to print limits no poll.
    limit = _RECORDS_PER_POLL if args.max_messages is None or filter_of(args) else args.max_messages
    # With `auto`, the member uses the protocol that the group already has. The file of --command-config may
    # set another protocol.
    defaults = {"group.protocol": "auto"} if args.group is not None else {}
    own = {
        "bootstrap.servers": bootstrap_of(args),
        "client.id": "odradek-cli",
        "enable.auto.commit": False,
        "allow.auto.create.topics": False,
        "default.api.timeout.ms": max(1, int(args.timeout * 1000)),
        # At the end of a partition, the broker delays its answer by this time, to wait for new records. The command
        # cannot end before such an answer, so the time is short.
        "fetch.max.wait.ms": 500 if args.follow else 50,
        "max.poll.records": min(limit, _RECORDS_PER_POLL),
        "isolation.level": args.isolation,
    }
    with keys_judged():
        consumer = Consumer({**defaults, **security_properties(args), **own, **settings})
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
    """Print records from the offsets `starts` to the ends in `spans`; with --follow, until the command is
    interrupted.
    """
    ends = None if args.follow else {key: end for key, (_, end) in spans.items()}
    pending = {key for key in starts if ends is None or starts[key] < ends[key]}
    printer = _Printer(args, render, RecordOutput())
    with _open(args, {"auto.offset.reset": "none"}) as consumer, printer.progress:
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
    """Return the next offset of a partition. The log may lack the offsets after the last printed record, and only the
    consumer knows that it has skipped them. So if no records arrive (`busy` is false), the consumer's position is used.
    """
    found = printer.handed.next_offsets.get(key, -1)
    return found if busy else max(found, consumer.position(key))


def _read_as_member(
    args: argparse.Namespace, client: Client, render: Callable[[ConsumerRecord], bytes]
) -> None:
    """Join the group as a member, print the records that the group has not read, and commit the offsets of
    the printed records.
    """
    if args.partition is not None:
        raise CliError("--partition and --group cannot be combined: the group assigns the partitions", USAGE)
    kind, _ = args.start or ("earliest", 0)
    if kind not in ("earliest", "latest"):
        raise CliError(
            "with --group, --from must be earliest or latest: it applies only to partitions without a committed "
            f"offset (`odradek group reset {args.group}` changes offsets)",
            USAGE,
        )
    if is_closed(sys.stdout):
        raise CliError(
            "standard output is closed, so the records of the group cannot be printed (`>/dev/null` discards them)"
        )
    with Ending() as ending:
        printer = _Printer(args, render, RecordOutput(ending))
        settings = {"group.id": args.group, "auto.offset.reset": kind}
        with _open(args, settings) as consumer, printer.progress:
            ending.wake = consumer.wakeup
            _Member(args, client, consumer, printer, ending).read()


class _Member:
    """The command as a member of a consumer group: the end offsets of its assigned partitions, and its
    committed offsets.
    """

    def __init__(
        self,
        args: argparse.Namespace,
        client: Client,
        consumer: Consumer,
        printer: _Printer,
        ending: Ending,
    ) -> None:
        self._args = args
        self._client = client
        self._consumer = consumer
        self._printer = printer
        self._ending = ending
        self._was_assigned = self._polled_some = False
        self._ends: dict[TopicPartition, int] = {}
        self._committed: dict[TopicPartition, int] = {}

    def read(self) -> None:
        """Print records up to the present end offsets, and commit them."""
        from odradek.client.errors import ClientError
        from odradek.wire.errors import KafkaError

        self._consumer.subscribe([self._args.topic], listener=_listener(self))
        try:
            self._print_all()
            with self._ending.waiting():
                self._commit(self._positions(self._args.timeout), self._args.timeout)
        except BaseException:
            # The user is probably waiting for the command to end, so give this commit only a short time.
            try:
                self._commit(self._positions(), _LAST_COMMIT_SECONDS)
            except (KafkaError, ClientError) as error:
                _say_uncommitted(error)
            raise

    def _print_all(self) -> None:
        args, consumer, printer = self._args, self._consumer, self._printer
        commit_at = time.monotonic() + _COMMIT_SECONDS
        while printer.left:
            printer.print(self._poll(), None)
            if time.monotonic() >= commit_at:
                with self._ending.waiting(), _refusals_noted():
                    self._commit(self._positions(), args.timeout)
                commit_at = time.monotonic() + _COMMIT_SECONDS
                if not self._was_assigned and not args.follow and self._has_no_share():
                    complain(
                        f"the other members of group {args.group} have all partitions: nothing is left to read"
                    )
                    return
            if not self._was_assigned:
                printer.expect(f"group {args.group} assigned nothing")
            elif not args.follow:
                printer.expect("nothing came")
                busy = self._polled_some
                if all(_next(consumer, printer, key, busy) >= end for key, end in self._ends.items()):
                    return

    def _has_no_share(self) -> bool:
        """True if the coordinator's current target assignment has no partition for this member (new protocol,
        KIP-848).

        A member begins without partitions, so its client cannot know whether it will get some.
        """
        (group,) = self._client.admin.describe_groups([self._args.group])
        member_id = self._consumer.group_metadata().member_id
        return group.group_epoch == group.assignment_epoch and any(
            each.member_id == member_id and each.member_epoch == group.group_epoch and not each.target
            for each in group.members
        )

    def _poll(self) -> list[ConsumerRecord]:
        """Poll records. A signal during the poll takes effect only afterwards (`Ending`), so no polled record
        is lost.
        """
        from odradek.client.consumer.consumer_types import Wakeup

        self._ending.check()
        try:
            found = self._consumer.poll(_POLL_SECONDS)
        except Wakeup:
            self._ending.check()
            raise
        self._polled_some = bool(found)
        return found

    def _positions(self, timeout: float | None = None) -> dict[TopicPartition, int | None]:
        """Return the consumer's position in each assigned partition. With `timeout`, wait for unknown
        positions; without it, an unknown position is None.
        """
        return {key: self._position(key, timeout) for key in self._consumer.assignment()}

    def _position(self, key: TopicPartition, timeout: float | None) -> int | None:
        from odradek.client.errors import ClientError
        from odradek.wire.errors import KafkaError

        try:
            return self._consumer.position(key, timeout or 0)
        except (KafkaError, ClientError):
            if timeout is None:
                return None
            raise

    def _commit(self, positions: dict[TopicPartition, int | None], timeout: float) -> None:
        # If no record was handed over, the start position is committed, so that the group's lag can be shown
        # later.
        offsets = self._printer.handed.offsets(positions)
        news = {key: offset for key, offset in offsets.items() if self._committed.get(key) != offset}
        if news:
            self._consumer.commit(news, timeout)
            self._committed.update(news)

    def assigned(self, partitions: list[TopicPartition]) -> None:
        """Called when partitions are assigned: unless --follow is given, they are read up to their present
        end offsets.
        """
        # In the new protocol, a member first gets an empty assignment while other members release their
        # partitions. So an empty assignment is final only in the classic protocol.
        self._was_assigned |= bool(partitions) or self._consumer.statistics()["group_protocol"] == "classic"
        if not self._args.follow:
            with self._ending.waiting():
                found = self._consumer.end_offsets(partitions)
            self._ends.update((key, found[key]) for key in partitions)

    def revoked(self, partitions: list[TopicPartition]) -> None:
        """Called when partitions move to other members: commits the offsets from which the new owners
        continue.
        """
        positions = {key: self._position(key, None) for key in partitions}
        with _refusals_noted():
            try:
                with self._ending.waiting():
                    self._commit(positions, self._args.timeout)
            except Ended:
                self._commit(positions, _LAST_COMMIT_SECONDS)
                raise
            finally:
                self.lost(partitions)

    def lost(self, partitions: list[TopicPartition]) -> None:
        """Called when partitions were lost: forgets their records and offsets, and commits nothing."""
        self._printer.handed.forget(partitions)
        for key in partitions:
            for table in (self._ends, self._committed):
                table.pop(key, None)


@contextmanager
def _refusals_noted() -> Iterator[None]:
    """Run a block that commits. If the group refuses the commit because partitions move to other members,
    print a warning on stderr and continue.
    """
    from odradek.wire.errors import ErrorCode, KafkaError

    passing = (
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.STALE_MEMBER_EPOCH,
        ErrorCode.FENCED_MEMBER_EPOCH,
    )
    try:
        yield
    except KafkaError as error:
        if error.code not in passing:
            raise
        _say_uncommitted(error)


def _say_uncommitted(error: Exception) -> None:
    complain(
        "the offsets of the last printed records are not committed, so these records will be printed "
        f"again ({error})"
    )


def _listener(member: _Member) -> RebalanceListener:
    from odradek.client.consumer.consumer_types import RebalanceListener

    class Listener(RebalanceListener):
        """A listener for rebalances. The class is defined here because its base is imported only when the command
        reads.
        """

        def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
            member.assigned(partitions)

        def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
            member.revoked(partitions)

        def on_partitions_lost(self, partitions: list[TopicPartition]) -> None:
            member.lost(partitions)

    return Listener()
