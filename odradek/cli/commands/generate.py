"""`odradek generate prometheus-rules|grafana-dashboard|man`: alert rules, dashboards, and manual pages."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping

from odradek.cli.failure import CliError
from odradek.cli.output import print_json, say
from odradek.cli.parsing import Groups, add_command, file_path
from odradek.cli.terminal.man_pages import add_man

__all__ = ["register"]

RULES_NAME = "odradek-rules.yml"


def register(groups: Groups) -> None:
    """Add the command group `generate` to the parser of the command line."""
    commands = groups.add_parser(
        "generate", help="write alert rules for Prometheus, dashboards for Grafana, manual pages"
    ).add_subparsers(metavar="COMMAND", required=True)
    rules = add_command(
        commands,
        "prometheus-rules",
        _rules,
        "write alert rules for Prometheus, with links to docs/operations.md",
    )
    rules.add_argument(
        "--job", metavar="NAME", default="odradek", help="the scrape job of the nodes (default: odradek)"
    )
    rules.add_argument(
        "--runbooks",
        metavar="ADDRESS",
        help="the address of your copy of docs/operations.md, for the links (default: docs/operations.md)",
    )
    _add_directory(rules, "a directory for the file (default: write to standard output)")
    dashboard = add_command(
        commands, "grafana-dashboard", _dashboard, "write dashboards for Grafana; without a name, list them"
    )
    dashboard.add_argument("name", metavar="NAME", nargs="?", help="the dashboard (default with --to: all)")
    _add_directory(dashboard, "a directory for the files (default: write to standard output)")
    add_man(commands)


def _add_directory(parser: argparse.ArgumentParser, meaning: str) -> None:
    parser.add_argument("--to", metavar="DIRECTORY", type=file_path, help=meaning)


def _rules(args: argparse.Namespace) -> int:
    from odradek.operations.monitoring.rules_file import RUNBOOKS, rules_file

    _deliver(args, {RULES_NAME: rules_file(args.job, args.runbooks or RUNBOOKS)})
    return 0


def _dashboard(args: argparse.Namespace) -> int:
    from odradek.operations.monitoring.dashboards import DASHBOARDS
    from odradek.operations.monitoring.grafana import dashboard_json

    if args.name is not None and args.name not in DASHBOARDS:
        raise CliError(f"there is no dashboard {args.name!r}; there are: {', '.join(DASHBOARDS)}")
    if args.name is None and args.to is None:
        if args.json:
            print_json(
                {"dashboards": [{"name": each.name, "title": each.title} for each in DASHBOARDS.values()]}
            )
        else:
            for each in DASHBOARDS.values():
                say(each.name)
        return 0
    names = DASHBOARDS if args.name is None else (args.name,)
    _deliver(args, {f"odradek-{name}.json": dashboard_json(DASHBOARDS[name]) for name in names})
    return 0


def _deliver(args: argparse.Namespace, files: Mapping[str, str]) -> None:
    """Write the files into the directory of `--to`, or their texts to standard output. Raises `CliError`."""
    if args.to is None:
        if args.json:
            print_json({"files": [{"name": name, "text": text} for name, text in files.items()]})
        else:
            for text in files.values():
                for line in text.splitlines():
                    say(line)
        return
    paths = []
    try:
        os.makedirs(args.to, exist_ok=True)
        for name, text in files.items():
            path = os.path.join(args.to, name)
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
            paths.append(path)
    except OSError as error:
        raise CliError(f"cannot write into {args.to}: {error.strerror or error}") from error
    if args.json:
        print_json({"written": paths})
    else:
        for path in paths:
            say(f"wrote {path}")
