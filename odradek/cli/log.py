"""`odradek log dump`: what is in the segment files of a partition, without any node."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from odradek.cli.failure import CliError
from odradek.cli.output import print_json
from odradek.cli.parsing import Groups, add_command

__all__ = ["register"]

_SUFFIX = ".log"


def register(groups: Groups) -> None:
    """Add the group."""
    commands = groups.add_parser("log", help="look into log files").add_subparsers(
        metavar="COMMAND", required=True
    )
    dump = add_command(
        commands, "dump", _dump, "print the batches of a segment file, or of all in a directory"
    )
    dump.add_argument("path", metavar="PATH", type=Path, help="a .log file, or a partition's directory")
    dump.add_argument(
        "--verify",
        action="store_true",
        help="check all bytes and the indexes, print only what is damaged; exit code 1 if anything is",
    )


def _dump(args: argparse.Namespace) -> int:
    from data_plane.log.dump import dump_segment
    from odradek.env.ports import DiskError
    from odradek.env.real import RealEnv

    directory, names = _segments(args.path)
    damaged = False
    try:
        root = RealEnv().open_dir(str(directory))
        for name in names:
            entries = dump_segment(root, name, verify=args.verify)
            damaged |= _print(name, entries, args)
    except DiskError as error:
        raise CliError(str(error)) from error
    if damaged:
        raise CliError(f"{args.path} is damaged (see above)")
    if args.verify and not args.json:
        print(f"{len(names)} segment{'s' if len(names) != 1 else ''} in order")
    return 0


def _segments(path: Path) -> tuple[Path, list[str]]:
    """The directory and the names of its segments that are meant."""
    path = path.absolute()
    if path.is_dir():
        names = sorted(name for name in os.listdir(path) if name.endswith(_SUFFIX))
        if not names:
            raise CliError(f"{path} holds no segment (no file named *{_SUFFIX})")
        return path, names
    if not path.exists():
        raise CliError(f"{path} does not exist")
    if path.suffix != _SUFFIX:
        raise CliError(f"{path} is no segment file (their names end in {_SUFFIX})")
    return path.parent, [path.name]


def _print(name: str, entries: Iterable[Mapping[str, Any]], args: argparse.Namespace) -> bool:
    """Print the entries that are wanted; whether one of them tells of damage."""
    damaged = False
    for entry in entries:
        bad = "damage" in entry
        damaged |= bad
        if args.verify and not bad:
            continue
        if args.json:
            print_json({"segment": name, **entry})
        else:
            sys.stdout.write(f"{name} " + " ".join(f"{key}={value}" for key, value in entry.items()) + "\n")
    return damaged
