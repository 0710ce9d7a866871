"""The options by which the commands about queries find the brokers and the decisions topic, and the properties that
these options mean.
"""

from __future__ import annotations

import argparse
import os

from odradek.spark.delivery.decisions_topic import DECISIONS_TOPIC

__all__ = ["add_bootstrap_option", "add_connection_options", "properties_of"]

_DEFAULT_BOOTSTRAP = "127.0.0.1:9092"


def add_bootstrap_option(parser: argparse.ArgumentParser) -> None:
    """Add the option that names the brokers. Its default is that of all other commands."""
    parser.add_argument(
        "--bootstrap-server",
        "--bootstrap",
        dest="bootstrap",
        metavar="HOST:PORT,...",
        default=os.environ.get("ODRADEK_BOOTSTRAP") or _DEFAULT_BOOTSTRAP,
        help=f"where to find the cluster (default: $ODRADEK_BOOTSTRAP, else {_DEFAULT_BOOTSTRAP})",
    )


def add_connection_options(parser: argparse.ArgumentParser) -> None:
    """Add the options --bootstrap-server, --decisions-topic and --option."""
    add_bootstrap_option(parser)
    parser.add_argument("--decisions-topic", default=DECISIONS_TOPIC, help="(%(default)s)")
    parser.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="an option of the sink, like kafka.security.protocol=SASL_SSL; may be repeated",
    )


def properties_of(parser: argparse.ArgumentParser, given: argparse.Namespace) -> dict[str, str]:
    """Return the client's properties that the options mean. End the program if an option is not valid."""
    properties = {"bootstrap.servers": given.bootstrap}
    for each in given.option:
        name, equals, value = each.partition("=")
        if not equals or not name.startswith("kafka."):
            parser.error(f"--option {each} is not valid: write kafka.KEY=VALUE")
        properties[name.removeprefix("kafka.")] = value
    return properties
