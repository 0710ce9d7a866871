"""Code shared by the commands about log directories: the option --broker, the request to the live brokers, a
note about brokers that are down.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, NamedTuple

from odradek.cli.connecting import LOOK_SECONDS_MAX
from odradek.cli.failure import CliError
from odradek.cli.parsing import id_number

if TYPE_CHECKING:
    from odradek.client.admin import BrokerLogDirs
    from odradek.client.shells.blocking import Client

__all__ = ["LogDirs", "add_broker_option", "ask_log_dirs", "look_seconds"]


class LogDirs(NamedTuple):
    """The log directories that the live brokers have reported, and the ids of the brokers that are down."""

    brokers: list[BrokerLogDirs]
    down: list[int]


def add_broker_option(parser: argparse.ArgumentParser) -> None:
    """Add the option `--broker`, which `ask_log_dirs` reads."""
    parser.add_argument(
        "--broker",
        type=id_number,
        action="append",
        metavar="ID",
        help="show only directories of this broker (repeat for more)",
    )


def look_seconds(args: argparse.Namespace) -> float:
    """Return the seconds to wait for a broker's answer."""
    return min(float(args.timeout), LOOK_SECONDS_MAX)


def ask_log_dirs(client: Client, args: argparse.Namespace) -> LogDirs:
    """Ask the brokers that `--broker` names, or all brokers, for their log directories. Raises `CliError` for an
    unknown broker.
    """
    cluster = client.admin.describe_cluster(include_fenced=True)
    known = [broker.node_id for broker in cluster.brokers]
    wanted = known if args.broker is None else list(dict.fromkeys(args.broker))
    stranger = next((node for node in wanted if node not in known), None)
    if stranger is not None:
        raise CliError(f"there is no broker {stranger} (brokers: {', '.join(map(str, known))})")
    # Do not ask fenced brokers, because they may not answer before the time limit. The output shows only that
    # they are down.
    down = [node for node in wanted if node in cluster.fenced]
    alive = [node for node in wanted if node not in cluster.fenced]
    answers = (
        client.admin.describe_log_dirs(alive, include_cleaning=True, timeout=look_seconds(args))
        if alive
        else []
    )
    return LogDirs(answers, down)
