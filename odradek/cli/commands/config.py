"""`odradek config get|set|unset`: the configuration of brokers, topics, groups and subscriptions of client metrics."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from odradek.cli.connecting import call_failure, changing, connected
from odradek.cli.failure import USAGE, CliError
from odradek.cli.output import YELLOW, paint, print_json, print_table, say
from odradek.cli.parsing import Groups, add_command, add_connection_options, key_value
from odradek.cli.settings.config_changes import change_config, changes_of

if TYPE_CHECKING:
    from odradek.client.admin import ConfigEntry, ConfigResource
    from odradek.client.shells.blocking import Client

__all__ = ["register"]

ALL_BROKERS = "all"
_SOURCES = {
    "DEFAULT_CONFIG": "default",
    "STATIC_BROKER_CONFIG": "file",
    "DYNAMIC_BROKER_CONFIG": "broker",
    "DYNAMIC_DEFAULT_BROKER_CONFIG": "all brokers",
    "DYNAMIC_BROKER_LOGGER_CONFIG": "logger",
    "TOPIC_CONFIG": "topic",
    "GROUP_CONFIG": "group",
    "CLIENT_METRICS_CONFIG": "client-metrics",
}
_KINDS = ("broker", "topic", "group", "client-metrics")


def register(groups: Groups) -> None:
    """Add the command group `config` to the parser of the command line."""
    commands = groups.add_parser("config", help="show and change configurations").add_subparsers(
        metavar="COMMAND", required=True
    )
    get = add_command(commands, "get", _get, "show the configuration of a broker, a topic or a group")
    _add_resource(get)
    get.add_argument("key", metavar="KEY", nargs="?", help="print only the value of this key")
    get.add_argument("--set-only", action="store_true", help="leave out keys that have their default value")
    get.add_argument(
        "--explain",
        action="store_true",
        help="explain each key, and show which keys of a topic contradict each other (with --json: all details)",
    )
    add_connection_options(get)

    change = add_command(commands, "set", _set, "change the configuration of a broker, a topic or a group")
    _add_resource(change)
    change.add_argument(
        "changes", metavar="KEY=VALUE", nargs="*", type=key_value, help="set a key to this value"
    )
    change.add_argument(
        "--unset",
        metavar="KEY",
        action="append",
        default=[],
        help="reset a key to its default (repeat for more)",
    )
    for name, help_text in (("append", "add to"), ("subtract", "remove from")):
        change.add_argument(
            f"--{name}",
            metavar="KEY=VALUE",
            type=key_value,
            action="append",
            default=[],
            help=f"{help_text} a key that holds a list (repeat for more)",
        )
    change.add_argument("--validate-only", action="store_true", help="check the change, but do not make it")
    add_connection_options(change)

    unset = add_command(commands, "unset", _set, "reset keys to their defaults")
    _add_resource(unset)
    unset.add_argument("unset", metavar="KEY", nargs="+", help="a key to reset")
    unset.add_argument("--validate-only", action="store_true", help="check the change, but do not make it")
    unset.set_defaults(changes=[], append=[], subtract=[])
    add_connection_options(unset)


def _add_resource(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("kind", choices=_KINDS)
    parser.add_argument(
        "name",
        metavar="NAME",
        help=f"a broker id ({ALL_BROKERS}: the default of every broker), a topic, a group, a subscription of client metrics",
    )


def _resource(args: argparse.Namespace) -> ConfigResource:
    from odradek.client.admin import ConfigResource, ResourceType

    kind = ResourceType[args.kind.upper().replace("-", "_")]
    if kind is not ResourceType.BROKER:
        return ConfigResource(kind, args.name)
    if args.name == ALL_BROKERS:
        return ConfigResource(kind, "")
    if not (args.name.isascii() and args.name.isdigit()):
        raise CliError(
            f"{args.name!r} is not a broker id: give a number (`odradek broker list` shows the ids) or "
            f"{ALL_BROKERS}",
            USAGE,
        )
    return ConfigResource(kind, args.name)


def _get(args: argparse.Namespace) -> int:
    from odradek.client.admin import ConfigSource

    resource = _resource(args)
    of_topic = args.explain and args.kind == "topic"
    fights: list[tuple[str, str]] = []
    with connected(args) as client:
        # A topic's keys may affect one another, so the explanation of one key needs all keys.
        wanted = None if args.key is None or of_topic else [args.key]
        (found,) = client.admin.describe_configs([resource], wanted, include_documentation=args.explain)
        if found.error is not None:
            raise call_failure(found.error)
        entries = list(found.entries)
        if of_topic:
            fights = _fights(client, args.name, entries)
    if args.key is not None:
        entries = [entry for entry in entries if entry.name == args.key]
        fights = [each for each in fights if each[0] == args.key]
        if not entries:
            raise CliError(f"{args.kind} {args.name} has no configuration key {args.key}")
    if args.set_only:
        entries = [entry for entry in entries if entry.source is not ConfigSource.DEFAULT_CONFIG]
    if args.json:
        documents = [_document(entry) for entry in entries]
        shown = [{"key": key, "text": text} for key, text in fights]
        more = {"conflicts": shown} if of_topic else {}
        print_json({"kind": args.kind, "name": args.name, "configs": documents, **more})
    elif args.explain:
        _explain(entries, fights)
    elif args.key is not None:
        for entry in entries:
            say(entry.value if entry.value is not None else "")
    else:
        # The value is in the last column, because a long value would push later columns out of sight.
        print_table(("KEY", "SOURCE", "VALUE"), [(e.name, _source(e), _value(e)) for e in entries])
    return 0


def _set(args: argparse.Namespace) -> int:
    changes = changes_of(args.changes, args.unset, args.append, args.subtract)
    if not changes:
        raise CliError(
            "no change was given: give KEY=VALUE, --unset KEY, --append or --subtract KEY=VALUE", USAGE
        )
    keys = [change.name for change in changes]
    resource = _resource(args)
    with connected(args) as client, changing(not args.validate_only):
        change_config(client, resource, changes, validate_only=args.validate_only)
    if args.json:
        print_json({"kind": args.kind, "name": args.name, "changed": [] if args.validate_only else keys})
    else:
        what = "would be changed" if args.validate_only else "changed"
        say(f"{resource}: {', '.join(keys)} {what}")
    return 0


def _document(entry: ConfigEntry) -> dict[str, object]:
    document: dict[str, object] = {
        "key": entry.name,
        "value": entry.value,
        "source": entry.source.name.lower(),
        "read_only": entry.read_only,
        "sensitive": entry.sensitive,
        "type": entry.type.name.lower(),
    }
    if entry.documentation is not None:
        document["documentation"] = entry.documentation
    return document


def _fights(client: Client, topic: str, entries: list[ConfigEntry]) -> list[tuple[str, str]]:
    """Find the configuration keys of a topic that conflict with each other. Return the effect of the conflict
    for each key.
    """
    from odradek.cli.settings.config_conflicts import conflicts
    from odradek.client.admin import ConfigSource

    (known,) = client.admin.describe_topics([topic])
    replicas = min((len(each.replicas) for each in known.partitions.values()), default=1)
    own = {entry.name for entry in entries if entry.source is ConfigSource.TOPIC_CONFIG}
    return conflicts({entry.name: entry.value for entry in entries}, own, replicas)


def _explain(entries: list[ConfigEntry], fights: list[tuple[str, str]]) -> None:

    for number, entry in enumerate(entries):
        if number:
            say()
        say(f"{entry.name} = {_value(entry)}  ({_source(entry)}, {entry.type.name.lower()})")
        if entry.documentation:
            for line in _filled(" ".join(entry.documentation.split())):
                say(line)
        for text in [text for key, text in fights if key == entry.name]:
            for line in _filled(f"BUT {text}."):
                say(paint(YELLOW, line))


def _source(entry: ConfigEntry) -> str:
    """Return where a configuration value comes from, in one or two words."""
    return _SOURCES.get(entry.source.name, entry.source.name.lower())


def _value(entry: ConfigEntry) -> str | None:
    return "(hidden)" if entry.sensitive else entry.value


def _filled(text: str) -> list[str]:
    from textwrap import wrap

    return wrap(text, 78, initial_indent="  ", subsequent_indent="  ")
