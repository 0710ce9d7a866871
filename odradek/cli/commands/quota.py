"""`odradek quota list|set|remove|explain`: limits for the bandwidth and the processor time that clients use."""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from odradek.cli.access.access_words import DEFAULT, LIMITS, LIMITS_OF_BYTES, limit_of
from odradek.cli.connecting import changing, connected
from odradek.cli.failure import USAGE, CliError
from odradek.cli.output import YELLOW, counted, paint, print_json, print_table, say
from odradek.cli.parsing import Groups, add_command, add_connection_options

if TYPE_CHECKING:
    from odradek.client.admin.admin_quotas import QuotaAlteration, QuotaEntity, QuotaMatch
    from odradek.client.shells.blocking import Client

__all__ = ["register"]

_OPTIONS = {key: option for option, (key, _) in LIMITS.items()}
_OF_ADDRESSES = "connection-rate"
_UNITS = {"producer_byte_rate": "B/s", "consumer_byte_rate": "B/s", "request_percentage": "%"}
LOOK_SECONDS = 1.0
"""The seconds over which the command measures how much of a quota is used."""
_TEXT = r'"((?:[^"\\]|\\.)*)"'
_LINE = re.compile(
    rf"odradek_quota_(used|throttled_seconds)_total\{{key={_TEXT},user={_TEXT},client_id={_TEXT}\}} (\S+)"
)


def register(groups: Groups) -> None:
    """Add the command group `quota` to the parser of the command line."""
    commands = groups.add_parser("quota", help="list, set, remove, explain quotas").add_subparsers(
        metavar="COMMAND", required=True
    )
    listing = add_command(commands, "list", _list, "list the quotas of clients", watch=True)
    _add_entity_options(listing)
    add_connection_options(listing)
    setting = add_command(commands, "set", _set, "set quotas of clients")
    _add_entity_options(setting)
    for option, (_, described) in LIMITS.items():
        is_bytes = option in LIMITS_OF_BYTES
        setting.add_argument(
            f"--{option}",
            type=partial(limit_of, option),
            metavar="BYTES" if is_bytes else "NUMBER",
            help=f"{described}, like 10M" if is_bytes else described,
        )
    setting.add_argument(
        "--dry-run", action="store_true", help="let the controller check the change, and change nothing"
    )
    add_connection_options(setting)
    remove = add_command(commands, "remove", _remove, "remove quotas of clients")
    _add_entity_options(remove)
    for option, (_, described) in LIMITS.items():
        remove.add_argument(f"--{option}", action="store_true", help=f"remove only the quota of {described}")
    remove.add_argument("--dry-run", action="store_true", help="only show what would be removed")
    add_connection_options(remove)
    explain = add_command(commands, "explain", _explain, "show which quotas apply to a client, and why")
    explain.add_argument(
        "--user",
        default="ANONYMOUS",
        metavar="NAME",
        help=("the client's user (default: ANONYMOUS, which is a client without a login)"),
    )
    explain.add_argument(
        "--client-id", default="", metavar="ID", help=("the client's id (default: a client without an id)")
    )
    explain.add_argument(
        "--metrics",
        action="append",
        default=[],
        metavar="URL",
        help="a broker's metrics page, to show how much of each quota is used on that broker (repeat for more)",
    )
    add_connection_options(explain)


def _add_entity_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--user", metavar="NAME", help=f"a user, or {DEFAULT} for all users without a quota of their own"
    )
    parser.add_argument(
        "--client-id",
        metavar="ID",
        help=f"a client id, or {DEFAULT}; with --user: for this user's clients alone",
    )
    parser.add_argument("--ip", metavar="ADDRESS", help=f"an address, or {DEFAULT}")


def _entity(args: argparse.Namespace) -> QuotaEntity:
    named = {"client-id": args.client_id, "ip": args.ip, "user": args.user}
    return tuple(
        (kind, None if name == DEFAULT else name) for kind, name in named.items() if name is not None
    )


def _needed_entity(args: argparse.Namespace) -> QuotaEntity:
    entity = _entity(args)
    if not entity:
        raise CliError("give --user, --client-id (or both), or --ip", USAGE)
    if args.ip is not None and len(entity) > 1:
        raise CliError(
            "--ip cannot be combined with --user or --client-id: the quota of an address applies to all users",
            USAGE,
        )
    return entity


def _matches(entity: QuotaEntity) -> list[QuotaMatch]:
    from odradek.client.admin.admin_quotas import QuotaMatch

    return [QuotaMatch(kind, name) for kind, name in entity]


def _named(name: str | None) -> str:
    return DEFAULT if name is None else name


def _document(entity: QuotaEntity, values: Mapping[str, float | None]) -> dict[str, Any]:
    return {
        "entity": {kind: _named(name) for kind, name in entity},
        "quotas": dict(sorted(values.items())),
    }


def _text(key: str, value: float | None) -> str:
    if value is None:
        return "-"
    number = f"{value:,.0f}" if float(value).is_integer() else f"{value:,g}"
    return f"{number} {_UNITS.get(key, '/s')}"


def _show(
    quotas: Mapping[QuotaEntity, Mapping[str, float | None]], args: argparse.Namespace, **more: Any
) -> None:
    ordered = sorted(quotas.items(), key=lambda each: [(kind, name or "") for kind, name in each[0]])
    if args.json:
        print_json({"quotas": [_document(entity, values) for entity, values in ordered], **more})
        return
    rows = []
    for entity, values in ordered:
        named = dict(entity)
        for key, value in sorted(values.items()):
            rows.append(
                (
                    _named(named["user"]) if "user" in named else "",
                    _named(named["client-id"]) if "client-id" in named else "",
                    _named(named["ip"]) if "ip" in named else "",
                    _OPTIONS.get(key, key),
                    _text(key, value),
                )
            )
    print_table(("USER", "CLIENT ID", "ADDRESS", "QUOTA", "VALUE"), rows)


def _list(args: argparse.Namespace) -> int:
    with connected(args) as client:
        _show(client.admin.describe_client_quotas(_matches(_entity(args))), args)
    return 0


def _set(args: argparse.Namespace) -> int:
    from odradek.client.admin.admin_quotas import QuotaAlteration

    entity = _needed_entity(args)
    values: dict[str, float | None] = {}
    for option, (key, _) in LIMITS.items():
        value = getattr(args, option.replace("-", "_"))
        if value is not None:
            values[key] = value
    if not values:
        raise CliError(f"give at least one quota: {', '.join(f'--{option}' for option in LIMITS)}", USAGE)
    with connected(args) as client, changing():
        _alter(client, QuotaAlteration(entity, values), validate_only=args.dry_run)
    _show({entity: values}, args, executed=not args.dry_run)
    if args.dry_run and not args.json:
        say(paint(YELLOW, "nothing was changed: repeat the command without --dry-run to do it"))
    return 0


def _remove(args: argparse.Namespace) -> int:
    from odradek.client.admin.admin_quotas import QuotaAlteration

    entity = _needed_entity(args)
    wanted = {key for option, (key, _) in LIMITS.items() if getattr(args, option.replace("-", "_"))}
    with connected(args) as client:
        there = client.admin.describe_client_quotas(_matches(entity), strict=True).get(entity, {})
        gone = {key: value for key, value in there.items() if key in wanted or not wanted}
        if gone and not args.dry_run:
            with changing():
                _alter(client, QuotaAlteration(entity, dict.fromkeys(gone)))
    _show({entity: gone}, args, executed=not args.dry_run)
    if not args.json:
        say(
            paint(YELLOW, "nothing was changed: repeat the command without --dry-run to do it")
            if args.dry_run
            else f"{counted(len(gone), 'quota')} removed"
        )
    return 0


def _alter(client: Client, alteration: QuotaAlteration, *, validate_only: bool = False) -> None:
    """Change a quota in the cluster. Raises `KafkaError`."""
    for error in client.admin.alter_client_quotas([alteration], validate_only=validate_only).values():
        if error is not None:
            raise error


def _explain(args: argparse.Namespace) -> int:
    from odradek.metadata_quorum.quotas.quota_levels import holding_quota, text_of

    with connected(args) as client:
        described = client.admin.describe_client_quotas()
    quotas = {(entity, key): value for entity, values in described.items() for key, value in values.items()}
    use = _use(args.metrics)
    documents: list[dict[str, Any]] = []
    for option, (key, _) in LIMITS.items():
        if option == _OF_ADDRESSES:
            continue
        holding = holding_quota(quotas, key, args.user, args.client_id)
        if holding is None:
            documents.append(
                {"quota": key, "value": None, "level": None, "of": "no quota holds", "shared_by": ""}
            )
            continue
        user, client_id = holding.sharers
        sharers = {"user": user, "client_id": client_id}
        document: dict[str, Any] = {
            "quota": key,
            "value": holding.value,
            "level": holding.level,
            "of": text_of(holding.entity),
            "shared_by": ", ".join(
                f"{kind.replace('_', ' ')} {name}" for kind, name in sharers.items() if name
            ),
        }
        if args.metrics:
            document["used"] = use.get((key, user, client_id))
        documents.append(document)
    if args.json:
        print_json({"user": args.user, "client_id": args.client_id, "quotas": documents})
        return 0
    heads = ["QUOTA", "VALUE", "LEVEL", "OF", "SHARED BY"] + ["USED NOW", "TOLD TO WAIT"] * bool(args.metrics)
    rows = [
        (
            _OPTIONS[each["quota"]],
            _text(each["quota"], each["value"]),
            "-" if each["level"] is None else f"{each['level']} of 8",
            each["of"],
            each["shared_by"],
            *(_use_texts(each["quota"], each.get("used")) if args.metrics else ()),
        )
        for each in documents
    ]
    print_table(tuple(heads), rows)
    return 0


def _use_texts(key: str, used: Mapping[str, float] | None) -> tuple[str, str]:
    """Format the measured use per second in the quota's unit, and the total throttle time. Both are "-" if
    unknown.
    """
    if used is None:
        return "-", "-"
    return _text(key, float(f"{used['per_second']:.3g}")), f"{used['throttled_seconds']:,.1f} s in all"


def _use(addresses: list[str]) -> dict[tuple[str, str, str], dict[str, float]]:
    """Measure the use of each quota during one second, by (key, user, client id). Also read the throttle
    times since the brokers' start.

    Combinations of key, user and client id that no metrics page lists are left out. Raises `CliError`.
    """
    if not addresses:
        return {}
    began, before = time.monotonic(), _read(addresses)
    time.sleep(LOOK_SECONDS)
    after, seconds = _read(addresses), time.monotonic() - began
    return {
        account: {
            # Kafka counts one processor core as 100 percent.
            "per_second": (100 if account[0] == LIMITS["request-percentage"][0] else 1)
            * max(0.0, now["used"] - before.get(account, now)["used"])
            / seconds,
            "throttled_seconds": now["throttled_seconds"],
        }
        for account, now in after.items()
    }


def _read(addresses: list[str]) -> dict[tuple[str, str, str], dict[str, float]]:
    """Read the metrics pages, and add up their quota figures by (key, user, client id). Raises `CliError`."""
    from urllib.error import URLError
    from urllib.request import urlopen

    found: dict[tuple[str, str, str], dict[str, float]] = {}
    for address in addresses:
        if not address.startswith(("http://", "https://")):
            raise CliError(f"--metrics {address} is not an address: expected http://HOST:PORT/metrics", USAGE)
        try:
            with urlopen(address, timeout=10) as page:  # only http and https, as checked above
                text = page.read(64 << 20).decode()
        except (URLError, OSError, ValueError) as error:
            raise CliError(
                f"the metrics at {address} (--metrics) cannot be read: {getattr(error, 'reason', error)}"
            ) from error
        for what, key, user, client_id, value in _LINE.findall(text):
            account = (key, _unescaped(user), _unescaped(client_id))
            use = found.setdefault(account, {"used": 0.0, "throttled_seconds": 0.0})
            use[what] += float(value)
    return found


def _unescaped(text: str) -> str:
    """Replace the escapes in a label's value (Prometheus' text format)."""
    return re.sub(r"\\(.)", lambda match: "\n" if match[1] == "n" else match[1], text)
