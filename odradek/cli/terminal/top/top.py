"""`odradek top`: the command, its loop of keys and drawing, and its JSON."""

from __future__ import annotations

import argparse
import sys
import time

from odradek.cli.connecting import connected
from odradek.cli.failure import CliError
from odradek.cli.output import paint, print_json
from odradek.cli.parsing import Groups, add_command, add_connection_options, seconds

__all__ = ["register"]

_INTERVAL_SECONDS = 2.0
_KEY_SECONDS = 0.1


def register(groups: Groups) -> None:
    """Add the command `top` to the parser of the command line."""
    top = add_command(
        groups,
        "top",
        _top,
        "show brokers, disks, topics, groups and clients live, sorted and filtered by keys",
    )
    top.add_argument(
        "--view",
        choices=("brokers", "disks", "topics", "groups", "clients"),
        default="topics",
        help="begin with this view (default: topics)",
    )
    top.add_argument(
        "--interval",
        type=seconds,
        default=_INTERVAL_SECONDS,
        metavar="SECONDS",
        help=f"ask the cluster this many seconds apart (default: {_INTERVAL_SECONDS:g})",
    )
    add_connection_options(top)


def _top(args: argparse.Namespace) -> int:
    if args.json:
        return _print_document(args)
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise CliError(
            "odradek top needs a terminal: `odradek top --json` prints its figures once, and `odradek cluster status "
            "--watch` works in a pipe"
        )
    # Fail at once, and in one line, if the address is wrong.
    with connected(args) as client:
        client.admin.describe_cluster()
    _show(args)
    return 0


def _show(args: argparse.Namespace) -> None:
    """Draw until the user ends it. A signal ends it, too, after the terminal is as it was."""
    from odradek.cli.streams.ending import Ending
    from odradek.cli.streams.watching import screen_size
    from odradek.cli.terminal.top.drawing import View, press, screen_lines
    from odradek.cli.terminal.top.raw_terminal import RawTerminal
    from odradek.cli.terminal.top.sampling import Sampler
    from odradek.cli.terminal.top.views import table_of

    view = View(args.view)
    sampler = Sampler(args)
    sampler.start()
    with Ending() as ending, RawTerminal() as terminal:
        shown: tuple[object, ...] = ()
        before, now, note = sampler.latest
        while not view.is_over:
            ending.check()
            if sampler.failure is not None:
                raise sampler.failure
            if not view.is_paused:
                before, now, note = sampler.latest
            size = screen_size(sys.stdout)
            state = (sampler.rounds, size, repr(view), terminal.screens)
            if state != shown:
                terminal.draw(screen_lines(view, before, now, note or "", size, paint))
                shown = (sampler.rounds, size, repr(view), terminal.screens)
            for key in terminal.keys(_KEY_SECONDS):
                columns = 0 if now is None else len(table_of(view.name, before, now).columns)
                press(view, key, columns)
    sampler.stop()


def _print_document(args: argparse.Namespace) -> int:
    """Print all views once, with rates between two samples."""
    from odradek.cli.health.judgement import problems_of
    from odradek.cli.terminal.top.sampling import take_sample
    from odradek.cli.terminal.top.views import VIEWS, table_of

    with connected(args) as client:
        before = take_sample(client, args.timeout)
        time.sleep(args.interval)
        now = take_sample(client, args.timeout)
    document: dict[str, object] = {
        "cluster_id": now.picture.cluster.cluster_id,
        "seconds": round(now.at - before.at, 3),
        "problems": [each.document() for each in problems_of(now.picture)],
    }
    for view in VIEWS:
        table = table_of(view, before, now)
        names = [column.name.lower().replace(" ", "_") for column in table.columns]
        document[view] = [dict(zip(names, row, strict=True)) for row in table.rows]
    print_json(document)
    return 0
