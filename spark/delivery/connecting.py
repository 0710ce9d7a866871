"""The options by which the commands about queries find the brokers and the decisions topic, and the properties that
these options mean.
"""

from __future__ import annotations

import argparse

from odradek.spark.delivery.decisions_topic import DECISIONS_TOPIC

__all__ = ["add_connection_options", "properties_of"]


def add_connection_options(parser: argparse.ArgumentParser) -> None:
    """Add the options --bootstrap, --decisions-topic and --option."""
    parser.add_argument(
        "--bootstrap", default="127.0.0.1:9092", help="brokers as HOST:PORT,... (%(default)s)"
    )
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
