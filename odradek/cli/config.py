"""`odradek config get`: the effective configuration of a broker or a topic."""

from __future__ import annotations

import argparse

from odradek.cli.connecting import connected
from odradek.cli.failure import USAGE, CliError
from odradek.cli.output import print_json, print_table
from odradek.cli.parsing import Groups, add_command, add_connection_options

__all__ = ["register"]


def register(groups: Groups) -> None:
    """Add the group."""
    commands = groups.add_parser("config", help="show configurations").add_subparsers(
        metavar="COMMAND", required=True
    )
    get = add_command(commands, "get", _get, "show the configuration of a broker or a topic")
    get.add_argument("kind", choices=("broker", "topic"))
    get.add_argument("name", metavar="NAME", help="a broker id or a topic")
    get.add_argument("key", metavar="KEY", nargs="?", help="print only the value of this key")
    get.add_argument("--set-only", action="store_true", help="leave out what has its default value")
    add_connection_options(get)


def _get(args: argparse.Namespace) -> int:
    from odradek.client.admin import ConfigSource, ResourceType

    kind = ResourceType[args.kind.upper()]
    if kind is ResourceType.BROKER and not (args.name.isascii() and args.name.isdigit()):
        raise CliError(
            f"{args.name!r} is no broker id (a number; `odradek cluster status` lists them)", USAGE
        )
    with connected(args) as client:
        entries = client.admin.describe_configs(kind, args.name, None if args.key is None else [args.key])
    if args.key is not None and not entries:
        raise CliError(f"{args.kind} {args.name} has no configuration key {args.key}")
    if args.set_only:
        entries = [entry for entry in entries if entry.source is not ConfigSource.DEFAULT_CONFIG]
    if args.json:
        documents = [
            {
                "key": entry.name,
                "value": entry.value,
                "source": entry.source.name.lower(),
                "read_only": entry.read_only,
                "sensitive": entry.sensitive,
            }
            for entry in entries
        ]
        print_json({"kind": args.kind, "name": args.name, "configs": documents})
    elif args.key is not None:
        for entry in entries:
            print(entry.value if entry.value is not None else "")
    else:
        # The value stands last: some are long, and nothing behind them should be pushed out of sight.
        rows = [(e.name, e.source.name.lower(), "(hidden)" if e.sensitive else e.value) for e in entries]
        print_table(("KEY", "SOURCE", "VALUE"), rows)
    return 0
