"""The plans of commands that move partitions: their options, how `TOPIC:0-3` is parsed, how a plan is printed and
carried out. `commands/partition.py` looks the partitions up.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from odradek.cli.connecting import call_failure, changing
from odradek.cli.failure import CliError
from odradek.cli.output import YELLOW, bytes_text, counted, paint, print_json, print_table, say, span_text
from odradek.cli.parsing import decimal, id_number, positive
from odradek.cli.streams.standard_streams import complain

if TYPE_CHECKING:
    from odradek.client.admin import ClusterSurvey, MoveProgress
    from odradek.client.admin.moves.placement import Move
    from odradek.client.shells.blocking import Client

__all__ = [
    "add_plan_options",
    "byte_count",
    "carry_out",
    "name_directories",
    "refuse_too_full",
    "topic_partitions",
]

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_ASSUMED_RATE = 100 << 20
_LINES_MAX = 40


def byte_count(text: str) -> int:
    """Parse a number of bytes: 1048576, 1024K, 1M."""
    number, unit = text.removesuffix("B").removesuffix("i"), ""
    if number and number[-1].upper() in _UNITS:
        number, unit = number[:-1], number[-1].upper()
    try:
        count = int(min(decimal(number) * _UNITS[unit], 1 << 63))
    except argparse.ArgumentTypeError:
        count = 0
    if not 0 < count < 1 << 63:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of bytes above 0 (for example 50M)")
    return count


def topic_partitions(text: str) -> tuple[str, tuple[int, ...] | None]:
    """Parse a topic, or some of its partitions: `words`, `words:0`, `words:0-3,7`. None means all partitions."""
    name, colon, listed = text.partition(":")
    if not name:
        raise argparse.ArgumentTypeError(f"{text!r} does not name a topic")
    if not colon:
        return name, None
    indexes: list[int] = []
    for part in listed.split(","):
        first, dash, last = part.partition("-")
        try:
            low = id_number(first)
            high = id_number(last) if dash else low
        except argparse.ArgumentTypeError as error:
            raise argparse.ArgumentTypeError(f"{error} (for example words:0 or words:0-3,7)") from None
        if high < low or high - low >= 100_000:
            raise argparse.ArgumentTypeError(f"{part!r} is not a range of partitions")
        indexes.extend(range(low, high + 1))
    return name, tuple(dict.fromkeys(indexes))


def add_plan_options(parser: argparse.ArgumentParser, execute: str = "--execute") -> None:
    """Add the options of a plan: --execute (or the option named by `execute`), --throttle, --at-once, --no-wait."""
    parser.add_argument(
        execute, dest="execute", action="store_true", help="execute the plan (default: only show it)"
    )
    parser.set_defaults(execute_option=execute)
    parser.add_argument(
        "--throttle",
        type=byte_count,
        metavar="BYTES",
        help="let each broker copy at most this many bytes a second, for example 50M",
    )
    parser.add_argument(
        "--at-once",
        type=positive,
        metavar="N",
        default=50,
        help="move at most this many partitions at a time (default: 50)",
    )
    parser.add_argument(
        "--no-wait",
        action="store_true",
        help="begin all moves together and return at once; the brokers complete them",
    )


def carry_out(
    args: argparse.Namespace,
    client: Client,
    moves: Sequence[Move],
    survey: ClusterSurvey,
    nothing: str,
    *,
    is_shown: bool = False,
    under_way: Sequence[Move] = (),
    more: Mapping[str, Any] | None = None,
) -> int:
    """Show the planned moves, or execute them. `nothing` is the text to print if no move is planned. `is_shown` is true
    if the caller has shown the plan already.

    `under_way` are moves that began before this command. The command waits for their end, and does not check
    their disk space again. `more` are further keys of the object for --json.
    """
    more = more or {}
    if not moves:
        if args.json:
            print_json({**_document(args, [], None), **more})
        else:
            say(nothing)
        return 0
    if not args.json and not is_shown:
        _print_plan(args, moves, survey)
    refuse_too_full([move for move in moves if move not in under_way], survey)
    if not args.execute:
        if args.json:
            print_json({**_document(args, moves, None), **more})
        else:
            say(paint(YELLOW, f"nothing was changed: add {args.execute_option} to do it"))
        return 0
    from odradek.client.errors import RequestTimedOut

    started = time.monotonic()
    progress = Progress()
    outcomes = _start(args, client, moves) if args.no_wait else _finish(args, client, moves, progress)
    late = [key for key, error in outcomes.items() if isinstance(error, RequestTimedOut)]
    failed = [error for key, error in outcomes.items() if error is not None and key not in late]
    if args.json:
        print_json({**_document(args, moves, outcomes, bool(late)), **more})
    elif args.no_wait:
        say(
            f"{counted(len(moves) - len(failed), 'partition')} on the way: `odradek partition list --moving` shows them"
            + ("; `odradek partition move --unthrottle` when they are done" if args.throttle else "")
        )
    else:
        took = span_text(int((time.monotonic() - started) * 1000))
        say(f"{counted(len(moves) - len(failed) - len(late), 'partition')} moved in {took}")
    if failed and not args.json:
        for error in failed[0 if late else 1 :]:
            complain(f"{error}")
    if late:
        raise CliError(_late_text(args, len(late), progress))
    if failed:
        raise call_failure(failed[0], changes=True)
    return 0


def _late_text(args: argparse.Namespace, count: int, progress: Progress) -> str:
    copied = f" ({progress.text()})" if progress.is_measured else ""
    text = (
        f"--timeout has passed, and {counted(count, 'partition')} did not finish moving{copied}. "
        "Moves that have begun go on (`odradek partition list --moving`; `odradek partition move --cancel`); "
        "repeat the command for the other partitions"
    )
    return f"{text}; throttles stay until `odradek partition move --unthrottle`" if args.throttle else text


def refuse_too_full(moves: Sequence[Move], survey: ClusterSurvey) -> None:
    """Raise `CliError` for a plan that would fill a disk, because a full disk fails all partitions on it."""
    full = [
        f"broker {node} would get {bytes_text(gain)} more, and has room for {bytes_text(room)}"
        for node, (gain, room) in survey.too_full(moves).items()
    ]
    if full:
        raise CliError(
            f"nothing was changed, because the brokers have too little room: {'; '.join(full)}. Add a "
            "broker or disks, or keep records for a shorter time (retention.ms)"
        )


def _start(args: argparse.Namespace, client: Client, moves: Sequence[Move]) -> dict[Any, Any]:
    with changing(), _printing_throttles(args):
        if args.throttle is not None:
            client.admin.throttle_moves(moves, args.throttle)
        return client.admin.alter_partition_reassignments(
            {(move.topic, move.partition): move.after for move in moves}
        )


def _finish(
    args: argparse.Namespace, client: Client, moves: Sequence[Move], progress: Progress
) -> dict[Any, Any]:
    from odradek.client.errors import RequestTimedOut

    try:
        with changing(), _printing_throttles(args):
            if args.throttle is not None:
                client.admin.throttle_moves(moves, args.throttle)
            try:
                left = None if args.deadline is None else max(0.0, args.deadline - time.monotonic())
                outcomes = client.admin.move_partitions(
                    moves, at_once=args.at_once, watch=progress.update, timeout=left
                )
            finally:
                progress.clear()
            if args.throttle is not None and not any(
                isinstance(error, RequestTimedOut) for error in outcomes.values()
            ):
                client.admin.release_throttles(moves)
    except KeyboardInterrupt:
        complain(
            "interrupted: moves that have begun go on, the others are not begun "
            "(`odradek partition list --moving`; `odradek partition move --cancel`"
            + ("; `odradek partition move --unthrottle`)" if args.throttle else ")")
        )
        raise
    return outcomes


@contextmanager
def _printing_throttles(args: argparse.Namespace) -> Iterator[None]:
    """Print how to remove the throttles if the block fails. After a failure the throttles stay in force,
    because the moves continue.
    """
    try:
        yield
    except Exception:
        if args.throttle is not None:
            complain(
                "moves that have begun go on (`odradek partition list --moving`), and throttles may "
                "stay: run `odradek partition move --unthrottle` when all moves are done"
            )
        raise


class Progress:
    """The progress of a plan's moves, shown as a line on a terminal."""

    def __init__(self) -> None:
        self._tty = sys.stderr.isatty()
        self._last: MoveProgress | None = None
        # The first measurement includes bytes that were copied before this command began, so the rate counts
        # only later bytes.
        self._first: tuple[float, int] | None = None
        self._rate = 0.0

    @property
    def is_measured(self) -> bool:
        """True if some bytes were seen in the new replicas, so that a rate can be computed."""
        return self._first is not None

    def update(self, progress: MoveProgress) -> None:
        """Store the progress, and show it on a terminal."""
        self._last = progress
        now = time.monotonic()
        if self._first is None and progress.copied:
            self._first = now, progress.copied
        elif self._first is not None and now > self._first[0]:
            self._rate = max(0, progress.copied - self._first[1]) / (now - self._first[0])
        if self._tty:
            sys.stderr.write(f"\r\033[K{self.text()}")
            sys.stderr.flush()

    def text(self) -> str:
        """Return a text about how much of the plan is done, and when it may end."""
        if self._last is None:
            return "not begun"
        line = f"{self._last.done} of {counted(self._last.partitions, 'partition')}"
        if self._last.bytes:
            line += f", {bytes_text(self._last.copied)} of {bytes_text(self._last.bytes)}, {bytes_text(int(self._rate))}/s"
            if (left := self._seconds_left()) is not None:
                line += f", about {span_text(left * 1000)} left"
        return line

    def _seconds_left(self) -> int | None:
        if self._last is None or not self._rate:
            return None
        return int((self._last.bytes - self._last.copied) / self._rate)

    def clear(self) -> None:
        """Remove the line from the terminal."""
        if self._tty:
            sys.stderr.write("\r\033[K")
            sys.stderr.flush()


def _print_plan(args: argparse.Namespace, moves: Sequence[Move], survey: ClusterSurvey) -> None:
    from odradek.client.admin.moves.placement import seconds_of, traffic_of

    shown = moves if args.execute is False or len(moves) <= _LINES_MAX else moves[:_LINES_MAX]
    print_table(
        ("TOPIC", "PARTITION", "FROM", "TO", "BYTES"),
        [
            (
                move.topic,
                move.partition,
                move.before,
                move.after,
                bytes_text(move.bytes) if move.adding else "0",
            )
            for move in shown
        ],
    )
    if len(shown) < len(moves):
        say(f"... and {len(moves) - len(shown)} more")
    say()
    traffic = traffic_of(moves)
    total = sum(traffic.values())
    summary = f"{counted(len(moves), 'partition')} to change, {bytes_text(total)} to copy"
    if total:
        rate = args.throttle or _ASSUMED_RATE
        span = span_text(max(1, round(seconds_of(moves, rate))) * 1000)
        summary += f", about {span} at {bytes_text(rate)}/s per broker"
    say(summary)
    _print_loads(moves, survey)


def _print_loads(moves: Sequence[Move], survey: ClusterSurvey) -> None:
    """Print every broker's load before and after the moves."""
    after: dict[int, list[int]] = {}
    for broker in survey.cluster.brokers:
        after[broker.node_id] = list(survey.load_of(broker.node_id))
    before = {node: tuple(load) for node, load in after.items()}
    for move in moves:
        for nodes, sign in ((move.removing, -1), (move.adding, 1)):
            for node in nodes:
                if node in after:
                    after[node][1] += sign
                    after[node][2] += sign * move.size
    print_table(
        ("BROKER", "REPLICAS", "THEN", "LOGS", "THEN"),
        [
            (node, before[node][1], then[1], bytes_text(before[node][2]), bytes_text(then[2]))
            for node, then in after.items()
        ],
    )
    if survey.unmeasured:
        say(paint(YELLOW, f"the sizes of the replicas on {_brokers(survey.unmeasured)} are not known"))


def _brokers(nodes: Iterable[int]) -> str:
    return "brokers " + ", ".join(map(str, nodes))


def _document(
    args: argparse.Namespace, moves: Sequence[Move], outcomes: dict[Any, Any] | None, late: bool = False
) -> dict[str, Any]:
    documents = []
    for move in moves:
        document: dict[str, Any] = {
            "topic": move.topic,
            "partition": move.partition,
            "from": list(move.before),
            "to": list(move.after),
            "bytes": move.bytes,
        }
        if outcomes is not None:
            error = outcomes[move.topic, move.partition]
            document["error"] = None if error is None else str(CliError(str(error)))
        documents.append(document)
    return {
        "executed": bool(args.execute and moves),
        "finished": bool(args.execute and not args.no_wait and not late),
        "bytes": sum(move.bytes for move in moves),
        "partitions": documents,
    }


def name_directories(client: Client, wanted: Mapping[tuple[str, int, int], str]) -> None:
    """Send each broker the directories for its replicas, including replicas that do not exist yet. Raises
    `KafkaError`.
    """
    from odradek.wire.errors import ErrorCode, KafkaError

    for error in client.admin.alter_replica_log_dirs(wanted).values():
        if isinstance(error, KafkaError) and error.code == ErrorCode.REPLICA_NOT_AVAILABLE:
            continue
        if error is not None:
            raise error
