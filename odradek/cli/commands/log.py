"""`odradek log dump|clean-status`: `dump` reads the files of a partition directly, without a running node.
`clean-status` asks the brokers.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from odradek.cli.clean_status import register_clean_status
from odradek.cli.coordinator_records import decoded_record
from odradek.cli.failure import CliError
from odradek.cli.output import bytes_field, plain, print_json, say
from odradek.cli.parsing import Groups, add_command

if TYPE_CHECKING:
    from odradek.env.ports import Dir

__all__ = ["register"]

_SEGMENT = ".log"
_SUFFIXES = (_SEGMENT, ".index", ".timeindex", ".snapshot")
_EPOCHS = "leader-epoch-checkpoint"


def register(groups: Groups) -> None:
    """Add the command group `log` to the parser of the command line."""
    commands = groups.add_parser(
        "log", help="print or verify the files of partitions, show how far they are cleaned"
    ).add_subparsers(metavar="COMMAND", required=True)
    dump = add_command(commands, "dump", _dump, "print what the files of a partition hold")
    dump.add_argument(
        "path",
        metavar="PATH",
        type=Path,
        help="a partition's directory (its segments are printed), or a .log, .index, .timeindex, .txnindex, .snapshot file",
    )
    dump.add_argument(
        "--records",
        action="store_true",
        help=(
            "print the records of each batch too; records of __transaction_state, __consumer_offsets and "
            "__cluster_metadata are decoded, without secrets"
        ),
    )
    dump.add_argument(
        "--verify",
        action="store_true",
        help="check checksums and indexes and print only the damage; exit code 1 if there is any",
    )
    register_clean_status(commands)


def _dump(args: argparse.Namespace) -> int:
    from odradek.env.ports import DiskError
    from odradek.env.real import RealEnv

    path: Path = args.path.absolute()
    name = None if path.is_dir() else _file_name(path)
    damage = 0
    try:
        directory = RealEnv().open_dir(str(path if name is None else path.parent))
        topic = Path(directory.path).name.rpartition("-")[0]
        for item in _items(directory, name, args):
            if item["kind"] == "record":
                item |= decoded_record(topic, item["key"], item["value"])
            damaged = item["kind"] == "damage"
            damage += damaged
            if damaged or not args.verify:
                _print(item, args.json)
    except DiskError as error:
        raise CliError(str(error)) from error
    if damage:
        raise CliError(f"{path}: {damage} {'place is' if damage == 1 else 'places are'} damaged (see above)")
    if args.verify and not args.json:
        say(f"{path}: no damage")
    return 0


def _file_name(path: Path) -> str:
    if not path.exists():
        raise CliError(f"{path} does not exist")
    if not _is_of_partition(path.name):
        raise CliError(
            f"{path} is not a file of a partition, whose names are "
            f"{', '.join(f'OFFSET{s}' for s in _SUFFIXES)}"
        )
    return path.name


def _is_of_partition(name: str) -> bool:
    """True if the file belongs to a partition's log. (The audit log, in the parent directory, has names of
    another form.)
    """
    stem, dot, suffix = name.partition(".")
    return name == _EPOCHS or (stem.isdecimal() and dot + suffix in _SUFFIXES)


def _items(directory: Dir, name: str | None, args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield the contents of the named file. Without a name, read all segments; with --verify, check all
    files.
    """
    from odradek.data_plane.log.dump import dump_segment, verify_partition

    if name is not None:
        yield from dump_segment(directory, name, verify=args.verify, with_records=args.records)
        return
    segments = [
        found
        for found in sorted(os.listdir(directory.path))
        if found.endswith(_SEGMENT) and _is_of_partition(found)
    ]
    if not segments:
        raise CliError(
            f"{directory.path} is not a partition's directory, because it holds no *{_SEGMENT} file"
        )
    if args.verify:
        yield from verify_partition(directory)
        return
    for segment in segments:
        empty = True
        for item in dump_segment(directory, segment, with_records=args.records):
            empty = False
            yield {"kind": item["kind"], "file": segment, **item}
        if empty:
            yield {"kind": "empty", "file": segment}


def _print(item: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(_document(item))
        return
    if "decoded_key" in item:
        item = {key: value for key, value in item.items() if key not in ("key", "value")}
    words = [str(item["kind"])]
    words += [f"{key}={_word(value)}" for key, value in item.items() if key != "kind"]
    sys.stdout.write(" ".join(words) + "\n")


def _word(value: object) -> str:
    if isinstance(value, bytes):
        return repr(value)[1:]
    if isinstance(value, dict):
        return plain(json.dumps(value, ensure_ascii=False, separators=(",", ":")))
    text = str(value)
    return repr(text) if " " in text and not isinstance(value, tuple) else plain(text)


def _document(item: dict[str, Any]) -> dict[str, Any]:
    """Return one item of the dump in a form for JSON, with bytes as text."""
    document: dict[str, Any] = {}
    for key, value in item.items():
        if key == "headers":
            document[key] = [{"key": name, **bytes_field("value", data)} for name, data in value]
        elif isinstance(value, bytes):
            document |= bytes_field(key, value)
        else:
            document[key] = value
    return document
