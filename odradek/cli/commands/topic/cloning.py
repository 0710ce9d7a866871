"""`odradek topic clone`: a new topic with the partitions, replicas and configurations of another one, and on request with
its records.

A record keeps its partition, key, value, headers and timestamp, and its order in the partition. It gets a new offset.
The copy ends where the topic ended when the command began, and has only committed records. The producer is idempotent, so a
command that ends with status 0 has copied each record exactly once. A command that ends otherwise leaves a part of the
copy. It is not resumed: the new topic is deleted, and the command repeated.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from odradek.cli.connecting import (
    bootstrap_of,
    call_failure,
    changing,
    connected,
    kafka_failure,
    keys_judged,
    security_properties,
)
from odradek.cli.failure import CliError
from odradek.cli.output import Progress, counted, print_json, say
from odradek.cli.parsing import add_command, add_connection_options

if TYPE_CHECKING:
    from odradek.cli.parsing import Groups
    from odradek.client.core.known_cluster import Topic
    from odradek.client.shells.blocking import Client
    from odradek.client.shells.consumer import Consumer
    from odradek.client.shells.producer import Producer
    from odradek.client.shells.record_future import RecordFuture
    from odradek.wire.topic_partition import TopicPartition

__all__ = ["register_clone"]

_OF_REPLICAS = ("leader.replication.throttled.replicas", "follower.replication.throttled.replicas")
"""Configurations that name replicas of the topic, which the new topic does not have."""
_POLL_SECONDS = 0.5
_PENDING_MAX = 20_000
_BUFFER_BYTES = 64 << 20


def register_clone(commands: Groups) -> None:
    """Add the command `clone` to the group `topic`."""
    clone = add_command(
        commands,
        "clone",
        _clone,
        "create a topic with the partitions, replicas and configurations of another one",
    )
    clone.add_argument("topic", metavar="TOPIC", help="the topic to clone")
    clone.add_argument("new", metavar="NEW", help="the name of the new topic")
    clone.add_argument(
        "--with-records",
        action="store_true",
        help="also copy the committed records that the topic has now, each exactly once (unless the command fails)",
    )
    add_connection_options(clone)


def _clone(args: argparse.Namespace) -> int:
    copied = 0
    with connected(args) as client:
        (topic,) = client.admin.describe_topics([args.topic])
        if topic.is_internal:
            raise CliError(f"{topic.name} is an internal topic, which only the cluster itself writes")
        configs = _configs(client, topic.name)
        ends = _ends(client, topic) if args.with_records else {}
        _create(args, client, topic, configs)
        if any(end for _, end in ends.values()):
            copied = _copy(args, ends)
    if args.json:
        print_json(
            {
                "topic": args.new,
                "cloned_from": args.topic,
                "partitions": len(topic.partitions),
                "configs": configs,
                "records": copied if args.with_records else None,
            }
        )
        return 0
    own = ", ".join(f"{key}={value}" for key, value in configs.items())
    say(
        f"topic {args.new} created like {args.topic}: {counted(len(topic.partitions), 'partition')}"
        + (f", {own}" if own else "")
    )
    if args.with_records:
        say(f"{counted(copied, 'record')} copied")
    return 0


def _configs(client: Client, name: str) -> dict[str, str]:
    """Read the configurations that are set on the topic itself."""
    from odradek.client.admin import ConfigResource, ConfigSource, ResourceType

    (found,) = client.admin.describe_configs([ConfigResource(ResourceType.TOPIC, name)])
    if found.error is not None:
        raise call_failure(found.error)
    return {
        entry.name: entry.value
        for entry in found.entries
        if entry.source is ConfigSource.TOPIC_CONFIG
        and entry.value is not None
        and entry.name not in _OF_REPLICAS
    }


def _ends(client: Client, topic: Topic) -> dict[TopicPartition, tuple[int, int]]:
    """Find the start of each partition, and the end of its committed records."""
    from odradek.client.core.partition_offsets import EARLIEST, LATEST
    from odradek.wire.topic_partition import TopicPartition

    keys = [TopicPartition(topic.name, index) for index in sorted(topic.partitions)]
    starts = client.list_offsets(dict.fromkeys(keys, EARLIEST))
    ends = client.list_offsets(dict.fromkeys(keys, LATEST), isolation_level=1)
    return {key: (starts[key].offset, ends[key].offset) for key in keys}


def _create(args: argparse.Namespace, client: Client, topic: Topic, configs: Mapping[str, str]) -> None:
    from odradek.client.admin import NewTopic

    replicas = max(len(each.replicas) for each in topic.partitions.values())
    wanted = NewTopic(args.new, len(topic.partitions), replicas, dict(configs))
    with changing():
        (outcome,) = client.admin.create_topics([wanted])
    if outcome.error is not None:
        raise kafka_failure(outcome.error, changes=True)


def _copy(args: argparse.Namespace, spans: Mapping[TopicPartition, tuple[int, int]]) -> int:
    """Copy the records of these spans, and return their number. Raises `CliError` that says that the copy is a part."""
    from odradek.client.errors import ClientError
    from odradek.wire.errors import KafkaError

    progress = Progress("records copied")
    try:
        with progress, _consumer(args) as consumer, _producer(args) as producer:
            _copy_records(args, spans, consumer, producer, progress)
            producer.flush(args.timeout)
    except (KafkaError, ClientError, TimeoutError, KeyboardInterrupt) as error:
        match error:
            case KeyboardInterrupt():
                why = "it was interrupted"
            case TimeoutError():
                why = str(error)
            case _:
                why = str(call_failure(error))
        raise CliError(
            f"the copy is incomplete, because {why}. Delete topic {args.new} (`odradek topic delete {args.new}`), and "
            "repeat the command"
        ) from error
    return progress.count


def _copy_records(
    args: argparse.Namespace,
    spans: Mapping[TopicPartition, tuple[int, int]],
    consumer: Consumer,
    producer: Producer,
    progress: Progress,
) -> None:
    """Copy until the position in each partition is at its end. Raises `TimeoutError` if no position changes for the
    seconds of --timeout.
    """
    left = {key: end for key, (start, end) in spans.items() if start < end}
    consumer.assign(sorted(left))
    for key in left:
        consumer.seek(key, spans[key][0])
    pending: list[RecordFuture] = []
    places: dict[TopicPartition, int] = {}
    quiet_since = time.monotonic()
    while left:
        for record in consumer.poll(_POLL_SECONDS):
            end = spans[_key(record.topic, record.partition)][1]
            if record.offset < end:
                pending.append(
                    producer.send(
                        args.new, record.value, record.key, record.headers, record.partition, record.timestamp
                    )
                )
        if len(pending) > _PENDING_MAX or not left:
            _settle(pending, args.timeout, progress)
        # The last offsets of a span may have no record that is shown, so the position decides.
        before, places = places, {key: consumer.position(key) for key in left}
        if places != before:
            quiet_since = time.monotonic()
        elif time.monotonic() - quiet_since >= args.timeout:
            names = ", ".join(f"{key.topic}-{key.partition}" for key in sorted(left))
            raise TimeoutError(f"nothing came from {names} for {args.timeout:g} s: the leader may be down")
        for key in [key for key, end in left.items() if places[key] >= end]:
            del left[key]
            consumer.pause(key)
    _settle(pending, args.timeout, progress)


def _key(topic: str, partition: int) -> TopicPartition:
    from odradek.wire.topic_partition import TopicPartition

    return TopicPartition(topic, partition)


def _settle(pending: list[RecordFuture], patience: float, progress: Progress) -> None:
    """Wait until each record is acknowledged. Raises the first error, and `TimeoutError` after `patience` seconds for a
    record.
    """
    for future in pending:
        try:
            future.result(patience)
        except TimeoutError as error:
            raise TimeoutError(f"a record was not acknowledged within {patience:g} s") from error
    progress.add(len(pending))
    pending.clear()


@contextmanager
def _consumer(args: argparse.Namespace) -> Iterator[Consumer]:
    from odradek.client.shells.consumer import Consumer

    own = {
        "bootstrap.servers": bootstrap_of(args),
        "client.id": "odradek-cli",
        "enable.auto.commit": False,
        "allow.auto.create.topics": False,
        "auto.offset.reset": "none",
        "isolation.level": "read_committed",
        "fetch.max.wait.ms": 50,
    }
    with keys_judged():
        consumer = Consumer({**security_properties(args), **own})
    try:
        yield consumer
    finally:
        consumer.close(0)


@contextmanager
def _producer(args: argparse.Namespace) -> Iterator[Producer]:
    from odradek.client.shells.producer import Producer

    timeout_ms = int(args.timeout * 1000)
    own = {
        "bootstrap.servers": bootstrap_of(args),
        "client.id": "odradek-cli",
        "acks": "all",
        "enable.idempotence": True,
        "linger.ms": min(20, timeout_ms),
        "batch.size": 1 << 18,
        "buffer.memory": _BUFFER_BYTES,
        "max.request.size": _BUFFER_BYTES,
        "max.block.ms": timeout_ms,
        "delivery.timeout.ms": timeout_ms,
        "request.timeout.ms": timeout_ms - min(20, timeout_ms),
    }
    with keys_judged():
        producer = Producer({**security_properties(args), **own})
    try:
        yield producer
    finally:
        producer.close(0)
