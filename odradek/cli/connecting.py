"""The client of a command: opened from the common options, its errors turned into lines for people."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from odradek.cli.failure import USAGE, CliError

if TYPE_CHECKING:
    from odradek.client.admin import QuorumDescription
    from odradek.client.blocking import Client
    from wire.errors import KafkaError

__all__ = ["LOOK_SECONDS_MAX", "call_failure", "connected", "connected_to_controller", "kafka_failure"]

LOOK_SECONDS_MAX = 3.0
"""Commands that only look say what they can when a node, or the quorum, has been silent for so long."""


@contextmanager
def connected(args: argparse.Namespace) -> Iterator[Client]:
    """The blocking client for --bootstrap-server and --timeout. What it raises comes out as `CliError`."""
    from odradek.client.blocking import Client
    from odradek.client.errors import ClientError
    from wire.errors import KafkaError

    try:
        client = Client(args.bootstrap_server, client_id="odradek-cli", timeout_ms=int(args.timeout * 1000))
    except ValueError as error:
        raise CliError(f"--bootstrap-server: {error}", USAGE) from None
    try:
        with client:
            yield client
    except (KafkaError, ClientError) as error:
        raise call_failure(error) from error


@contextmanager
def connected_to_controller(
    args: argparse.Namespace, client: Client, quorum: QuorumDescription
) -> Iterator[tuple[Client, str]]:
    """A client of the controller that leads the quorum, and the name of its listener."""
    from odradek.client.blocking import Client

    leader = quorum.leader
    if leader is None or not leader.endpoints:
        raise CliError("the quorum has no leader just now, or does not say where it listens: try again")
    listener, host, port = leader.endpoints[0]
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    with Client(address, client_id="odradek-cli", timeout_ms=int(args.timeout * 1000)) as controller:
        yield controller, listener


def call_failure(error: Exception) -> CliError:
    """Why a call, or one item of it, failed, and what to do, for people."""
    from odradek.client.errors import BrokerUnavailable, ConnectionBroken, RequestTimedOut
    from wire.errors import KafkaError

    match error:
        case KafkaError():
            return kafka_failure(error)
        case BrokerUnavailable():
            return CliError(
                f"{error}. Is a node running there? (--bootstrap-server or ODRADEK_BOOTSTRAP says where to look)"
            )
        case RequestTimedOut():
            return CliError(
                f"{error}. A longer --timeout may help; `odradek cluster status` tells whether brokers or the quorum are down"
            )
        case ConnectionBroken():
            return CliError(f"{error}. The request may or may not have been performed: look, then try again")
        case _:
            return CliError(str(error))


def kafka_failure(error: KafkaError) -> CliError:
    """An error code in an answer, for people."""
    return CliError(f"{error.message or error.code.name} ({error.code.name})")
