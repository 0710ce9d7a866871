"""`odradek cluster health`: the problems of the cluster, and what to do."""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING

from odradek.cli.connecting import LOOK_SECONDS_MAX, PAST, connected, security_properties
from odradek.cli.failure import CliError
from odradek.cli.health.judgement import Problem, exit_status, problems_of
from odradek.cli.health.picture import Picture, look_at_cluster
from odradek.cli.output import RED, YELLOW, counted, paint, print_json, say, span_text
from odradek.cli.parsing import add_command, add_connection_options, seconds
from odradek.cli.streams.standard_streams import complain

if TYPE_CHECKING:
    from odradek.cli.parsing import Groups

__all__ = ["register_health"]

_WAIT_SECONDS = 300.0
_PAUSE_SECONDS = 0.5
_HANGING_MS = 15 * 60_000
"""The time without a write after which an open transaction is shown: Kafka's `transaction.max.timeout.ms`."""


def register_health(commands: Groups) -> None:
    """Add the command `health` to the group `cluster`."""
    health = add_command(
        commands,
        "health",
        _health,
        "say what is wrong now, and what to do; the exit status is 0 if the cluster is healthy, else 3",
        watch=True,
    )
    health.add_argument(
        "--wait",
        type=seconds,
        nargs="?",
        const=_WAIT_SECONDS,
        metavar="SECONDS",
        help=f"wait until the cluster is healthy, for at most this long (default: {_WAIT_SECONDS:g})",
    )
    health.add_argument(
        "--transactions",
        action="store_true",
        help="also search for transactions without a write for 15 minutes, which asks every leader",
    )
    add_connection_options(health)


def _health(args: argparse.Namespace) -> int:
    picture = _look(args) if args.wait is None else _wait(args)
    problems = problems_of(picture)
    if args.json:
        _print_document(picture, problems)
    else:
        _print(picture, problems)
    return exit_status(problems)


def _look(args: argparse.Namespace) -> Picture:
    since = time.time_ns() // 1_000_000 - _HANGING_MS if args.transactions else None
    with connected(args) as client:
        return look_at_cluster(client, args.timeout, hanging_since_ms=since)


def _wait(args: argparse.Namespace) -> Picture:
    """Look until the cluster is healthy or the time is over. Return the last picture. Raises `CliError` if no broker
    has ever answered when the time is over.

    Each look has time for an answer, so the last one may end after the time is over.
    """
    deadline = time.monotonic() + args.wait
    least = min(args.timeout, LOOK_SECONDS_MAX)
    security_properties(args)  # Read --command-config once for all looks: it may be a pipe.
    seen: tuple[float, Picture] | None = None
    while True:
        left = deadline - time.monotonic()
        patience = max(least, min(args.timeout, left))
        try:
            seen = time.monotonic(), _look(argparse.Namespace(**{**vars(args), "timeout": patience}))
        except CliError as error:
            if error.exit_code != 1:
                raise
            if deadline - time.monotonic() <= _PAUSE_SECONDS:
                if seen is None:
                    raise
                ago = span_text(int(1000 * (time.monotonic() - seen[0])))
                complain(f"{error}; below is the picture of {ago} ago")
                return seen[1]
        else:
            if not exit_status(problems_of(seen[1])) or deadline - time.monotonic() <= _PAUSE_SECONDS:
                return seen[1]
        time.sleep(_PAUSE_SECONDS)


def _print(picture: Picture, problems: list[Problem]) -> None:
    for each in problems:
        say(paint(YELLOW if each.is_warning else RED, each.line))
    if not picture.is_current:
        say(PAST)
    if exit_status(problems):
        return
    cluster = picture.cluster
    quorum = picture.quorum
    voters = "" if quorum is None else f"{counted(len(quorum.voters), 'voter')}, "
    note = picture.partitions.arriving
    moving = f"; {counted(len(note), 'partition')} of them on the way to other brokers" if note else ""
    say(
        f"the cluster is healthy: {voters}{counted(len(cluster.brokers), 'broker')}, "
        f"{counted(picture.partitions.total, 'partition')}{moving}"
    )


def _print_document(picture: Picture, problems: list[Problem]) -> None:
    print_json(
        {
            "healthy": not exit_status(problems),
            "current": picture.is_current,
            "cluster_id": picture.cluster.cluster_id,
            "brokers": len(picture.cluster.brokers),
            "partitions": picture.partitions.total,
            "moving_partitions": picture.partitions.arriving,
            "problems": [each.document() for each in problems],
        }
    )
