"""`odradek topic list|create|describe|alter|delete`: topics, their partitions and configurations."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from odradek.cli.clean_status import uncleanable_text
from odradek.cli.commands.topic.cloning import register_clone
from odradek.cli.commands.topic.purging import register_purge
from odradek.cli.connecting import call_failure, changing, connected, failure_of_some, kafka_failure
from odradek.cli.failure import USAGE, CliError
from odradek.cli.log_dirs import look_seconds
from odradek.cli.output import RED, paint, print_json, print_table, print_values, say
from odradek.cli.parsing import Groups, add_command, add_connection_options, key_value, positive, replicas
from odradek.cli.settings.config_changes import change_config, changes_of, once_each

if TYPE_CHECKING:
    from odradek.client.admin import ConfigEntry
    from odradek.client.core.known_cluster import Topic
    from odradek.client.core.partition_offsets import ListedOffset
    from odradek.client.shells.blocking import Client
    from odradek.wire.errors import KafkaError

__all__ = ["register"]


def register(groups: Groups) -> None:
    """Add the command group `topic` to the parser of the command line."""
    commands = groups.add_parser(
        "topic", help="list, create, describe, alter, clone, purge, delete topics"
    ).add_subparsers(metavar="COMMAND", required=True)
    add_connection_options(add_command(commands, "list", _list, "list the topics", watch=True))
    _register_create(commands)
    _register_describe(commands)
    _register_alter(commands)
    register_purge(commands)
    register_clone(commands)
    _register_delete(commands)


def _register_create(commands: Groups) -> None:
    create = add_command(commands, "create", _create, "create a topic")
    create.add_argument("topic", metavar="TOPIC", help="the name of the new topic")
    create.add_argument(
        "--partitions",
        type=positive,
        metavar="N",
        help="how many partitions (default: the broker's num.partitions)",
    )
    create.add_argument(
        "--replication-factor",
        type=replicas,
        metavar="N",
        help="how many replicas of each partition (default: the broker's default.replication.factor)",
    )
    create.add_argument(
        "--config",
        type=key_value,
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a topic configuration, for example retention.ms=3600000 (repeat for more)",
    )
    create.add_argument("--if-not-exists", action="store_true", help="succeed when the topic exists already")
    create.add_argument(
        "--validate-only", action="store_true", help="check the request, but do not create the topic"
    )
    add_connection_options(create)


def _register_describe(commands: Groups) -> None:
    describe = add_command(
        commands, "describe", _describe, "show a topic's partitions and settings", watch=True
    )
    describe.add_argument("topics", metavar="TOPIC", nargs="+", help="a topic to show")
    describe.add_argument("--offsets", action="store_true", help="show where each partition begins and ends")
    add_connection_options(describe)


def _register_alter(commands: Groups) -> None:
    alter = add_command(commands, "alter", _alter, "give a topic more partitions or other settings")
    alter.add_argument("topic", metavar="TOPIC", help="the topic to change")
    alter.add_argument(
        "--partitions", type=positive, metavar="N", help="raise the number of partitions to this total"
    )
    alter.add_argument(
        "--set",
        "--config",
        dest="config",
        type=key_value,
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="set a topic configuration (repeat for more)",
    )
    alter.add_argument(
        "--unset",
        action="append",
        default=[],
        metavar="KEY",
        help="reset a topic configuration to its default (repeat for more)",
    )
    alter.add_argument("--validate-only", action="store_true", help="check the change, but do not make it")
    add_connection_options(alter)


def _register_delete(commands: Groups) -> None:
    delete = add_command(commands, "delete", _delete, "delete topics with all their records")
    delete.add_argument("topics", metavar="TOPIC", nargs="+", help="a topic to delete")
    delete.add_argument("--if-exists", action="store_true", help="succeed for topics that do not exist")
    delete.add_argument("--force", action="store_true", help="delete internal topics too")
    add_connection_options(delete)


def _list(args: argparse.Namespace) -> int:
    with connected(args) as client:
        topics = client.admin.describe_topics()
    if args.json:
        print_json({"topics": [_summary(topic) for topic in topics]})
    else:
        rows = [(t.name, len(t.partitions), _replication_factor(t), t.is_internal) for t in topics]
        print_table(("TOPIC", "PARTITIONS", "REPLICAS", "INTERNAL"), rows)
    return 0


def _create(args: argparse.Namespace) -> int:
    from odradek.client.admin import NewTopic
    from odradek.wire.errors import ErrorCode

    once_each([key for key, _ in args.config])
    wanted = NewTopic(
        args.topic,
        -1 if args.partitions is None else args.partitions,
        -1 if args.replication_factor is None else args.replication_factor,
        dict(args.config),
    )
    with connected(args) as client, changing(not args.validate_only):
        (outcome,) = client.admin.create_topics([wanted], validate_only=args.validate_only)
    existed = outcome.error is not None and outcome.error.code is ErrorCode.TOPIC_ALREADY_EXISTS
    if outcome.error is not None and not (existed and args.if_not_exists):
        raise kafka_failure(outcome.error, changes=not args.validate_only)
    created = not existed and not args.validate_only
    if args.json:
        print_json(
            {
                "topic": args.topic,
                "created": created,
                "topic_id": None if existed or args.validate_only else _id_text(outcome.topic_id),
                "partitions": None if existed else outcome.partitions,
                "replication_factor": None if existed else outcome.replication_factor,
            }
        )
    elif existed:
        say(f"topic {args.topic} exists already")
    else:
        what = "would be created" if args.validate_only else "created"
        partitions = _count(outcome.partitions, "partition")
        say(f"topic {args.topic} {what}: {partitions}, {_count(outcome.replication_factor, 'replica')}")
    return 0


def _describe(args: argparse.Namespace) -> int:
    from odradek.client.admin import ConfigResource, ConfigSource, ResourceType

    with connected(args) as client:
        topics = client.admin.describe_topics(args.topics)
        configs = {}
        for found in client.admin.describe_configs(
            [ConfigResource(ResourceType.TOPIC, topic.name) for topic in topics]
        ):
            if found.error is not None:
                raise call_failure(found.error)
            configs[found.resource.name] = [
                entry for entry in found.entries if entry.source is ConfigSource.TOPIC_CONFIG
            ]
        offsets = [_offsets(client, topic) if args.offsets else {} for topic in topics]
        alarms = _uncleaned(client, args, configs)
    if args.json:
        documents = [
            _description(topic, configs[topic.name], ends)
            for topic, ends in zip(topics, offsets, strict=True)
        ]
        print_json({"topics": documents})
        return 0
    for number, (topic, ends) in enumerate(zip(topics, offsets, strict=True)):
        if number:
            say()
        _print_description(topic, configs[topic.name], ends)
        for text in alarms.get(topic.name, ()):
            say(paint(RED, text))
    return 0


def _uncleaned(
    client: Client, args: argparse.Namespace, configs: Mapping[str, list[ConfigEntry]]
) -> dict[str, list[str]]:
    """Return, for each compacted topic, warnings about the logs that the cleaner skips after an error."""
    if not any(
        entry.name == "cleanup.policy" and "compact" in (entry.value or "")
        for entries in configs.values()
        for entry in entries
    ):
        return {}
    found: dict[str, list[str]] = {}
    for broker in client.admin.describe_log_dirs(include_cleaning=True, timeout=look_seconds(args)):
        for directory in broker.directories:
            for replica in directory.replicas:
                if (text := uncleanable_text(broker.broker, directory.path, replica)) is not None:
                    found.setdefault(replica.topic, []).append(text)
    return found


def _alter(args: argparse.Namespace) -> int:
    from odradek.client.admin import ConfigResource, ResourceType

    changes = changes_of(args.config, args.unset)
    if not changes and args.partitions is None:
        raise CliError("no change was given: give --partitions, --set or --unset", USAGE)
    done = []
    with connected(args) as client, changing(not args.validate_only):
        # Change the configuration first. If the cluster refuses a value, no partitions have been added yet. Partitions
        # cannot be removed again.
        if changes:
            resource = ConfigResource(ResourceType.TOPIC, args.topic)
            change_config(client, resource, changes, validate_only=args.validate_only)
            done += [change.name for change in changes]
        if args.partitions is not None:
            ((_, error),) = client.admin.create_partitions(
                {args.topic: args.partitions}, validate_only=args.validate_only
            )
            if error is not None:
                failure = call_failure(error, changes=not args.validate_only)
                raise CliError(
                    f"{failure} (changed before: {', '.join(done)})" if done else str(failure)
                ) from error
    if args.json:
        changed = not args.validate_only
        print_json(
            {
                "topic": args.topic,
                "changed": changed,
                "partitions": args.partitions,
                "configs": done,
            }
        )
        return 0
    what = list(done) if args.partitions is None else [*done, _count(args.partitions, "partition")]
    say(f"topic {args.topic} {'would be altered' if args.validate_only else 'altered'}: {', '.join(what)}")
    return 0


def _delete(args: argparse.Namespace) -> int:
    with connected(args) as client:
        if not args.force:
            _spare_internal(client, args.topics)
        with changing():
            outcomes = client.admin.delete_topics(args.topics)
        _report_deleted(args, outcomes)
    return 0


def _report_deleted(args: argparse.Namespace, outcomes: Sequence[tuple[str, KafkaError | None]]) -> None:
    """Print the deleted topics. Raises `CliError` for those that were not deleted."""
    from odradek.wire.errors import ErrorCode

    deleted = []
    failures = []
    for name, error in outcomes:
        if error is None:
            deleted.append(name)
        elif not (args.if_exists and error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
            failures.append((name, error))
    if args.json:
        print_json({"deleted": deleted})
    else:
        for name in deleted:
            say(f"topic {name} deleted")
    if failures:
        raise failure_of_some(failures)


def _spare_internal(client: Client, names: list[str]) -> None:
    """Raise `CliError` if one of the topics is internal."""
    topics = client.metadata(names).topics
    for name in names:
        if name in topics and topics[name].is_internal:
            raise CliError(
                f"{name} is an internal topic: deleting it loses what the cluster keeps there "
                "(committed offsets, transactions). Add --force to delete it anyway"
            )


_Ends = dict[int, tuple["ListedOffset", "ListedOffset"]]


def _offsets(client: Client, topic: Topic) -> _Ends:
    """Find the start and the end offset of each partition."""
    from odradek.client.core.partition_offsets import EARLIEST, LATEST
    from odradek.wire.topic_partition import TopicPartition

    keys = [TopicPartition(topic.name, index) for index in sorted(topic.partitions)]
    starts = client.list_offsets(dict.fromkeys(keys, EARLIEST))
    ends = client.list_offsets(dict.fromkeys(keys, LATEST))
    return {key.partition: (starts[key], ends[key]) for key in keys}


def _summary(topic: Topic) -> dict[str, Any]:
    return {
        "topic": topic.name,
        "topic_id": _id_text(topic.topic_id),
        "partitions": len(topic.partitions),
        "replication_factor": _replication_factor(topic),
        "internal": topic.is_internal,
    }


def _description(topic: Topic, configs: list[ConfigEntry], offsets: _Ends) -> dict[str, Any]:
    partitions = []
    for index, partition in sorted(topic.partitions.items()):
        document: dict[str, Any] = {
            "partition": index,
            "leader": partition.leader if partition.leader >= 0 else None,
            "leader_epoch": partition.leader_epoch,
            "replicas": list(partition.replicas),
            "isr": list(partition.isr),
            "offline_replicas": list(partition.offline_replicas),
        }
        if offsets:
            start, end = offsets[index]
            document |= {"start_offset": start.offset, "end_offset": end.offset}
        partitions.append(document)
    settings = {entry.name: entry.value for entry in configs}
    return _summary(topic) | {"configs": settings, "partitions": partitions}


def _print_description(topic: Topic, configs: list[ConfigEntry], offsets: _Ends) -> None:
    print_values(
        [
            ("topic", topic.name),
            ("topic id", _id_text(topic.topic_id)),
            ("partitions", len(topic.partitions)),
            ("replicas", _replication_factor(topic)),
            ("configs", " ".join(f"{entry.name}={entry.value}" for entry in configs)),
        ]
    )
    say()
    header = ["PARTITION", "LEADER", "EPOCH", "REPLICAS", "ISR"]
    rows: list[list[object]] = [
        [index, p.leader if p.leader >= 0 else "none", p.leader_epoch, p.replicas, p.isr]
        for index, p in sorted(topic.partitions.items())
    ]
    if offsets:
        header += ["START", "END"]
        for row, index in zip(rows, sorted(topic.partitions), strict=True):
            row += [found.offset for found in offsets[index]]
    print_table(header, rows)


def _replication_factor(topic: Topic) -> int:
    return max((len(partition.replicas) for partition in topic.partitions.values()), default=0)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _id_text(topic_id: bytes) -> str:
    from odradek.wire.uuid_text import uuid_to_text

    return uuid_to_text(topic_id)
