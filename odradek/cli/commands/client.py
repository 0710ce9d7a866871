"""`odradek client list|describe`: the clients connected to the brokers, their libraries, and the metrics that
they push (KIP-714).
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from odradek.cli.connecting import call_failure, connected
from odradek.cli.failure import CliError
from odradek.cli.log_dirs import look_seconds
from odradek.cli.output import bytes_text, print_json, print_table, print_values, say, span_text
from odradek.cli.parsing import Groups, add_command, add_connection_options

if TYPE_CHECKING:
    from odradek.client.admin import BrokerClients, ClientDescription

__all__ = ["register"]


def register(groups: Groups) -> None:
    """Add the command group `client` to the parser of the command line."""
    commands = groups.add_parser("client", help="list clients, describe what they push").add_subparsers(
        metavar="COMMAND", required=True
    )
    listing = add_command(
        commands, "list", _list, "list the clients that brokers know by their telemetry", watch=True
    )
    add_connection_options(listing)
    describe = add_command(commands, "describe", _describe, "show the metrics that a client has pushed")
    describe.add_argument("client_id", metavar="CLIENT_ID", help="the client id, as the client has set it")
    describe.add_argument("--user", metavar="NAME", help="show only the client of this user")
    add_connection_options(describe)


def _list(args: argparse.Namespace) -> int:
    with connected(args) as client:
        brokers = client.admin.describe_clients(timeout=look_seconds(args))
    if args.json:
        print_json({"clients": _documents(brokers)})
    else:
        print_table(
            ("CLIENT ID", "USER", "LIBRARY", "ADDRESS", "BROKER", "RUNNING", "PUSHES", "LAST PUSH"),
            [
                (
                    each.client_id,
                    _user(each),
                    _library(each),
                    each.address,
                    broker.broker,
                    each.instances,
                    each.pushes,
                    _pushed(each),
                )
                for broker in brokers
                for each in broker.clients
            ],
            less=("ADDRESS", "BROKER"),
        )
    return _end(brokers)


def _describe(args: argparse.Namespace) -> int:
    with connected(args) as client:
        asked = client.admin.describe_clients(client_id=args.client_id, timeout=look_seconds(args))
    found = [
        (broker.broker, each)
        for broker in asked
        for each in broker.clients
        if args.user is None or _user(each) == args.user
    ]
    if args.json:
        print_json({"clients": [_document(broker, each) for broker, each in found]})
    else:
        for number, (broker, each) in enumerate(found):
            if number:
                say()
            _print_client(broker, each)
    if not found and all(broker.error is None for broker in asked):
        raise CliError(
            f"no broker knows a client {args.client_id!r}: `odradek client list` shows the clients that push metrics"
        )
    return _end(asked)


def _end(brokers: list[BrokerClients]) -> int:
    """Raise the error of the first broker that did not answer. Return exit code 0 if all brokers answered."""
    failed = next((broker.error for broker in brokers if broker.error is not None), None)
    if failed is not None:
        raise call_failure(failed)
    return 0


def _print_client(broker: int, client: ClientDescription) -> None:
    pairs: list[tuple[str, object]] = [
        ("client id", client.client_id),
        ("user", _user(client)),
        ("library", _library(client)),
        ("address", client.address),
        ("broker", broker),
        ("running", client.instances),
        ("push interval", span_text(client.push_interval_ms)),
        ("pushes", client.pushes),
        ("last push", _pushed(client)),
    ]
    pairs += [
        (f"{each.role}: {_words(each.name)}", _value_text(each.name, each.value)) for each in client.figures
    ]
    print_values(pairs)


def _documents(brokers: list[BrokerClients]) -> list[dict[str, object]]:
    return [_document(broker.broker, each) for broker in brokers for each in broker.clients]


def _document(broker: int, client: ClientDescription) -> dict[str, object]:
    figures: dict[str, dict[str, float]] = {}
    for each in client.figures:
        figures.setdefault(each.role, {})[each.name] = each.value
    return {
        "broker": broker,
        "client_id": client.client_id,
        "user": _user(client),
        "software_name": client.software_name,
        "software_version": client.software_version,
        "address": client.address,
        "instances": client.instances,
        "push_interval_ms": client.push_interval_ms,
        "pushes": client.pushes,
        "since_push_ms": client.since_push_ms,
        "figures": figures,
    }


def _user(client: ClientDescription) -> str:
    return client.principal.partition(":")[2]


def _library(client: ClientDescription) -> str:
    return f"{client.software_name} {client.software_version}"


def _pushed(client: ClientDescription) -> str:
    return "-" if client.since_push_ms is None else f"{span_text(client.since_push_ms)} ago"


def _words(name: str) -> str:
    """Write the name of a metric with spaces, and leave out the unit at its end."""
    for unit in ("_total", "_seconds"):
        name = name.removesuffix(unit)
    return name.replace("_", " ")


def _value_text(name: str, value: float) -> str:
    if name.endswith("_seconds"):
        return f"{value * 1000:,.1f} ms" if value < 1 else f"{value:,.2f} s"
    if name.endswith("_ratio"):
        return f"{value * 100:.1f} %"
    if name.endswith("_bytes_total"):
        return bytes_text(int(value)) or "-"
    return f"{value:,.0f}"
