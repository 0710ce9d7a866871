"""`odradek disk list|demote`: log directories, the health of their disks, leaderships off slow disks;
`cli/moves/disks.py` has `retire` and `balance`.
"""

from __future__ import annotations

import argparse
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from odradek.cli.clean_status import cleaning_document, uncleanable_texts
from odradek.cli.connecting import call_failure, changing, connected
from odradek.cli.failure import CliError
from odradek.cli.health.troubles import disk_troubles, health_texts, retiring_directories, trouble_text
from odradek.cli.log_dirs import add_broker_option, ask_log_dirs, look_seconds
from odradek.cli.moves.disks import register_moves
from odradek.cli.output import RED, YELLOW, bytes_text, counted, paint, print_json, print_table, say
from odradek.cli.parsing import Groups, add_command, add_connection_options, id_number

if TYPE_CHECKING:
    from odradek.client.admin import BrokerLogDirs, LogDirDescription
    from odradek.client.admin.admin_logs import DirectoryHealth
    from odradek.client.core.scatter import CallError
    from odradek.serving.disk_troubles import TroubledDirectory

__all__ = ["register"]


def register(groups: Groups) -> None:
    """Add the command group `disk` to the parser of the command line."""
    commands = groups.add_parser(
        "disk", help="list, empty and balance the log directories of brokers"
    ).add_subparsers(metavar="COMMAND", required=True)
    register_moves(commands)
    listing = add_command(commands, "list", _list, "list the log directories of the brokers", watch=True)
    add_broker_option(listing)
    listing.add_argument(
        "--topics",
        action="store_true",
        help="show how many bytes each topic uses in each directory, the largest first",
    )
    add_connection_options(listing)
    demote = add_command(commands, "demote", _demote, "move leaderships off a slow disk to other brokers")
    demote.add_argument(
        "disk", metavar="BROKER:DIR", type=_broker_and_path, help="the broker's id and its log directory"
    )
    demote.add_argument(
        "--undo",
        action="store_true",
        help="end the demotion, so that replicas in this directory may lead again",
    )
    add_connection_options(demote)


def _list(args: argparse.Namespace) -> int:
    with connected(args) as client:
        asked = ask_log_dirs(client, args)
        brokers, down = asked.brokers, asked.down
        answering = [broker.broker for broker in brokers if broker.error is None]
        hidden: dict[int, CallError] = {}
        troubles = disk_troubles(client, answering, look_seconds(args), errors=hidden)
        retiring = retiring_directories(client, answering, look_seconds(args))
    if args.json:
        documents = [
            _document(broker, troubles.get(broker.broker, ()), retiring, unseen=hidden.get(broker.broker))
            for broker in brokers
        ]
        documents += [
            {"broker": node, "online": False, "error": None, "troubles_unknown": None, "directories": []}
            for node in down
        ]
        print_json({"brokers": sorted(documents, key=lambda document: document["broker"])})
    elif args.topics:
        _print_topics(brokers, down)
    else:
        _print_directories(brokers, down, troubles, retiring, hidden)
    failed = next((broker.error for broker in brokers if broker.error is not None), None)
    if failed is None and not args.topics:
        failed = next(iter(hidden.values()), None)
    if failed is not None:
        raise call_failure(failed)
    return 0


def _demote(args: argparse.Namespace) -> int:
    """Demote a log directory, or undo its demotion, by a change of the broker's configuration. The controller
    then moves leaderships off a demoted disk.
    """
    from odradek.client.admin import AlterConfig, ConfigOperation, ConfigResource, ResourceType
    from odradek.serving.disk_troubles import DEMOTED_LOG_DIRS, demoted_paths, demoted_text

    broker, path = args.disk
    resource = ConfigResource(ResourceType.BROKER, str(broker))
    with connected(args) as client, changing():
        args.broker = [broker]
        asked = ask_log_dirs(client, args)
        known = [each.path for described in asked.brokers for each in described.directories]
        if asked.brokers and asked.brokers[0].error is not None:
            raise call_failure(asked.brokers[0].error)
        if path not in known and asked.brokers:
            raise CliError(f"broker {broker} has no log directory {path} (it has: {', '.join(known)})")
        if not asked.brokers and not args.undo:
            raise CliError(f"broker {broker} is down, so no replica on its disks leads anyway")
        (described,) = client.admin.describe_configs([resource], [DEMOTED_LOG_DIRS])
        if described.error is not None:
            raise call_failure(described.error)
        before = demoted_paths("".join(entry.value or "" for entry in described.entries))
        wanted = [each for each in before if each != path] + ([] if args.undo else [path])
        if set(wanted) != set(before):
            change = (
                AlterConfig(DEMOTED_LOG_DIRS, demoted_text(wanted))
                if wanted
                else AlterConfig(DEMOTED_LOG_DIRS, operation=ConfigOperation.DELETE)
            )
            ((_, error),) = client.admin.incremental_alter_configs({resource: [change]})
            if error is not None:
                raise call_failure(error, changes=True)
    if args.json:
        print_json({"broker": broker, "path": path, "demoted": not args.undo})
    elif args.undo:
        say(
            f"broker {broker}: replicas in {path} may lead again; `odradek partition elect --execute` "
            "gives the lead back to preferred leaders"
        )
    else:
        say(f"broker {broker}: {path} is demoted, so in-sync replicas on other brokers lead instead")
    return 0


def _broker_and_path(text: str) -> tuple[int, str]:
    broker, colon, path = text.partition(":")
    if not (colon and path.startswith("/")):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a disk: write BROKER:DIR, for example 1:/disks/a/odradek"
        )
    return id_number(broker), path


def _is_silent(broker: BrokerLogDirs) -> bool:
    """True if the broker has not answered. It may have died only a moment ago, so that the controller has not
    fenced it yet.
    """
    from odradek.client.errors import ClientError

    return isinstance(broker.error, ClientError)


def _print_directories(
    brokers: list[BrokerLogDirs],
    down: Collection[int],
    troubles: Mapping[int, Sequence[TroubledDirectory]],
    retiring: Collection[tuple[int, str]],
    hidden: Mapping[int, CallError],
) -> None:
    rows: list[tuple[Any, ...]] = [(node, "DOWN", *[None] * _EMPTY) for node in down]
    alarms, notes = [], []
    for broker in brokers:
        if broker.error is not None:
            rows.append((broker.broker, "SILENT" if _is_silent(broker) else "FAILED", *[None] * _EMPTY))
        for each in broker.directories:
            trouble = _trouble_of(each.path, troubles.get(broker.broker, ()))
            state = _state(each, trouble, is_retiring=(broker.broker, each.path) in retiring)
            used = _used(each)
            full = None if used is None else f"{used:.0%}"
            # The path is in the last column, because a long path would push later columns out of sight.
            rows.append(
                (
                    broker.broker,
                    state,
                    # If the broker cannot read the directory, its contents are unknown.
                    len(each.replicas) if each.error is None else None,
                    bytes_text(each.size) if each.error is None else None,
                    bytes_text(each.usable_bytes),
                    full,
                    *_health_cells(None if state == "released" else each.health),
                    each.path,
                )
            )
            if state == "released":
                notes.append(f"broker {broker.broker}: {each.path} is released, so its disk may be pulled")
                continue
            if (broker.broker, each.path) in retiring:
                notes.append(f"broker {broker.broker}: {each.path} is being retired, {_left_text(each)}")
            notes += _arriving_texts(broker.broker, each)
            if each.error is not None:
                alarms.append(f"broker {broker.broker}: {each.path} is offline")
            elif trouble is not None:
                alarms.append(trouble_text(broker.broker, trouble))
            alarms += health_texts(broker.broker, each.path, each.health)
            alarms += uncleanable_texts(broker.broker, each)
    print_table(_HEAD, _by_broker(rows))
    for line in notes:
        say(line)
    for line in alarms:
        say(paint(RED, line))
    for node, error in sorted(hidden.items()):
        say(paint(YELLOW, f"the troubles of the disks of broker {node} were not seen: {error}"))


def _left_text(directory: LogDirDescription) -> str:
    """Return a text about the replicas that are still in a directory that is being retired."""
    if directory.error is not None:
        return "and it is offline"
    if not directory.replicas:
        return "the directory is empty; repeat `odradek disk retire` if it ended before the disk was released"
    replicas = counted(len(directory.replicas), "replica")
    return f"{replicas} with {bytes_text(directory.size)} are still in it"


def _arriving_texts(broker: int, directory: LogDirDescription) -> list[str]:
    """Return a line about replicas that move to this directory from another directory of the broker
    (KIP-113).
    """
    arriving = [each for each in directory.replicas if each.is_future]
    if not arriving:
        return []
    behind = counted(sum(max(0, each.offset_lag) for each in arriving), "record")
    return [
        (
            f"broker {broker}: {counted(len(arriving), 'replica')} on the way to {directory.path}, "
            f"{behind} left to copy"
        )
    ]


def _state(each: LogDirDescription, trouble: TroubledDirectory | None, *, is_retiring: bool) -> str:
    """Return the word for a directory's state. The word is in capitals if an operator should act."""
    health = each.health
    if each.error is not None:
        return "released" if health is not None and health.is_released else "OFFLINE"
    if trouble is not None:
        return trouble.trouble.value.upper()
    if health is not None and health.is_stalled:
        return "STALLED"
    if health is not None and health.is_short:
        return "FULL"
    if health is not None and health.is_slow:
        return "SLOW"
    if is_retiring:
        return "retiring"
    return "cordoned" if each.is_cordoned else "online"


_HEAD = (
    *("BROKER", "STATE", "REPLICAS", "LOGS", "FREE", "USED"),
    *("FILLS/H", "HOURS LEFT", "SYNC", "ERRORS", "SCRUB", "DIRECTORY"),
)
_EMPTY = len(_HEAD) - 2


def _health_cells(health: DirectoryHealth | None) -> tuple[str | None, ...]:
    if health is None:
        return (None,) * 5
    hours = None if health.seconds_left is None else health.seconds_left / 3600
    scrub = f"{health.scrub_percent}%"
    return (
        bytes_text(health.fill_bytes_per_second * 3600),
        None if hours is None else f"{hours:,.{0 if hours >= 10 or not hours else 1}f}",
        f"{health.sync_us / 1000:.1f} ms",
        str(health.errors),
        f"{scrub}, {health.scrub_rotten} rotten" if health.scrub_rotten else scrub,
    )


def _trouble_of(path: str, troubles: Sequence[TroubledDirectory]) -> TroubledDirectory | None:
    return next((each for each in troubles if each.path == path), None)


def _by_broker(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return sorted(rows, key=lambda row: int(row[0]))


def _print_topics(brokers: list[BrokerLogDirs], down: Collection[int]) -> None:
    rows = []
    for broker in brokers:
        for each in broker.directories:
            sizes: dict[str, list[int]] = {}
            for replica in each.replicas:
                sizes.setdefault(replica.topic, []).append(replica.size)
            for topic, found in sorted(sizes.items(), key=lambda item: (-sum(item[1]), item[0])):
                rows.append((broker.broker, topic, len(found), bytes_text(sum(found)), each.path))
    print_table(("BROKER", "TOPIC", "REPLICAS", "LOGS", "DIRECTORY"), rows)
    for node in down:
        say(paint(RED, f"broker {node} is down, so its disks are not shown"))


def _used(directory: LogDirDescription) -> float | None:
    if directory.total_bytes <= 0 or directory.usable_bytes < 0:
        return None
    return 1 - directory.usable_bytes / directory.total_bytes


def _document(
    broker: BrokerLogDirs,
    troubles: Sequence[TroubledDirectory],
    retiring: Collection[tuple[int, str]],
    *,
    unseen: CallError | None,
) -> dict[str, Any]:
    from attrs import asdict

    named = {each.path: each for each in troubles}
    return {
        "broker": broker.broker,
        "online": True,
        "error": None if broker.error is None else str(call_failure(broker.error)),
        "troubles_unknown": None if unseen is None else str(unseen),
        "directories": [
            {
                "path": each.path,
                "online": each.error is None,
                "trouble": named[each.path].trouble.value if each.path in named else None,
                "trouble_since_ms": named[each.path].since_ms if each.path in named else None,
                "total_bytes": each.total_bytes if each.total_bytes >= 0 else None,
                "usable_bytes": each.usable_bytes if each.usable_bytes >= 0 else None,
                "cordoned": each.is_cordoned,
                "retiring": (broker.broker, each.path) in retiring,
                "released": each.health is not None and each.health.is_released,
                "health": None if each.health is None else asdict(each.health),
                "log_bytes": each.size if each.error is None else None,
                "replicas": [
                    {
                        "topic": replica.topic,
                        "partition": replica.partition,
                        "size": replica.size,
                        "offset_lag": replica.offset_lag,
                        "future": replica.is_future,
                        "cleaning": cleaning_document(replica.cleaning),
                    }
                    for replica in each.replicas
                ],
            }
            for each in broker.directories
        ],
    }
