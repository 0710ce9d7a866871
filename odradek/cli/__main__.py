"""The entrance: `odradek GROUP COMMAND ...`.

Nothing heavy is imported here or at the top of a command's module: a command imports what it needs when it runs,
so that every command answers at once (no trio, no cattrs; tests/cli/test_import_budget.py).
"""

from __future__ import annotations

import argparse
import errno
import os
import sys
from collections.abc import Sequence

from odradek.cli import (
    broker,
    cluster,
    config,
    consume,
    dev,
    disk,
    group,
    log,
    partition,
    produce,
    quorum,
    server,
    storage,
    topic,
)
from odradek.cli.failure import FAILURE, CliError

__all__ = ["main"]

INTERRUPTED = 130


class _Version(argparse.Action):
    """--version, which looks the number up only when it is asked for."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        import odradek

        print(f"odradek {odradek.__version__}")
        parser.exit()


def build_parser() -> argparse.ArgumentParser:
    """The whole command line."""
    parser = argparse.ArgumentParser(
        prog="odradek",
        description="A distributed commit log that speaks Kafka's protocol.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version and exit")
    groups = parser.add_subparsers(metavar="COMMAND", required=True)
    for module in (dev, server, storage, topic, produce, consume, group, config):
        module.register(groups)
    for module in (cluster, broker, partition, quorum, disk, log):
        module.register(groups)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0, 1 for a failure, 2 for wrong usage, 130 when interrupted."""
    if sys.stdout is None:
        # The caller closed it (`>&-`) and wants no output; Python has no stream for that.
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - open as long as the process
    try:
        code = _run(argv)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of our output left (`| head`).
        _give_up_output()
        return FAILURE
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        _give_up_output()
        print("odradek: the output cannot be written: no space left on its device", file=sys.stderr)
        return FAILURE


def _give_up_output() -> None:
    """Nothing more can be said there, not even by the flush at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run(argv: Sequence[str] | None) -> int:
    try:
        args = build_parser().parse_args(argv)
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else FAILURE
    try:
        code: int = args.run(args)
        return code
    except CliError as error:
        sys.stdout.flush()
        print(f"odradek: {error}", file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
