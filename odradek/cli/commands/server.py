"""`odradek server CONFIG`: run one node in this process."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from typing import Any

from odradek.cli.output import print_json, say
from odradek.cli.parsing import Groups, add_command, file_path
from odradek.cli.streams.standard_streams import complain

__all__ = ["register"]


def register(groups: Groups) -> None:
    """Add the command `server` to the parser of the command line."""
    parser = add_command(
        groups,
        "server",
        _server,
        "run one node until SIGTERM or Ctrl-C",
        epilog="Before the first start, format the node's directories: odradek storage format CONFIG",
    )
    parser.add_argument(
        "config", metavar="CONFIG", type=file_path, help="a properties file with Kafka's keys"
    )


def _server(args: argparse.Namespace) -> int:
    """Run a node until it is stopped. The node's log goes to stderr. One line on stdout reports that the node
    serves clients.
    """
    from odradek.node.main import serve

    def started(facts: Mapping[str, Any]) -> None:
        if args.json:
            print_json(dict(facts))
        else:
            say("ready")
        sys.stdout.flush()

    return serve(args.config, complain=complain, started=started)
