"""The view of what moves: partitions between brokers, replicas between disks, brokers and disks that are emptied."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs

from odradek.cli.health.troubles import retiring_directories
from odradek.client.admin import BrokerLogDirs, ConfigResource, Reassignment, ResourceType
from odradek.client.errors import ClientError
from odradek.console.sessions.session import Session
from odradek.console.sessions.topic_facts import TopicFacts, topic_facts
from odradek.console.shapes.fields import about
from odradek.console.shapes.pages import PAGE, page_of
from odradek.wire.errors import ErrorCode, KafkaError
from odradek.wire.topic_partition import TopicPartition

__all__ = ["Moves", "MovesQuery", "moves"]

ROWS_PER_PAGE = 200
_LOOK_SECONDS = 3.0
_THROTTLE = "leader.replication.throttled.rate"
_DISK_THROTTLE = "replica.alter.log.dirs.io.max.bytes.per.second"


@attrs.frozen(kw_only=True)
class MovesQuery:
    """The page of moves."""

    page: int = attrs.field(default=1, metadata=PAGE)


@attrs.frozen(kw_only=True)
class MoveRow:
    """A partition that is moved to other brokers."""

    topic: str = attrs.field(metadata=about("the topic"))
    partition: int = attrs.field(metadata=about("the partition"))
    from_: Sequence[int] = attrs.field(metadata=about("brokers that it leaves"))
    to: Sequence[int] = attrs.field(metadata=about("brokers that get a replica"))
    replicas: Sequence[int] = attrs.field(metadata=about("its brokers after the move"))
    bytes_done: int | None = attrs.field(metadata=about("bytes that the new replicas have"))
    bytes_total: int | None = attrs.field(metadata=about("bytes that they will have"))
    bytes_per_second: float | None = attrs.field(metadata=about("their growth; null at first"))
    eta_ms: int | None = attrs.field(metadata=about("the time until they have all bytes at this pace"))
    throttle_bytes_per_second: int | None = attrs.field(
        metadata=about("the lowest throttle of the brokers that take part; null without one")
    )


@attrs.frozen(kw_only=True)
class DiskMoveRow:
    """A replica that is moved to another log directory of its broker."""

    topic: str = attrs.field(metadata=about("the topic"))
    partition: int = attrs.field(metadata=about("the partition"))
    broker: int = attrs.field(metadata=about("the broker"))
    from_: str | None = attrs.field(metadata=about("the directory that it leaves"))
    to: str = attrs.field(metadata=about("the directory that it moves to"))
    bytes_done: int = attrs.field(metadata=about("bytes of the copy"))
    bytes_total: int | None = attrs.field(metadata=about("bytes of the replica"))
    records_left: int = attrs.field(metadata=about("records that the copy lacks"))
    bytes_per_second: float | None = attrs.field(metadata=about("its growth; null at first"))
    eta_ms: int | None = attrs.field(metadata=about("the time until it has all bytes at this pace"))
    throttle_bytes_per_second: int | None = attrs.field(
        metadata=about("the broker's throttle; null without one")
    )


@attrs.frozen(kw_only=True)
class DrainRow:
    """A broker that partitions are leaving."""

    broker: int = attrs.field(metadata=about("the broker"))
    moving: int = attrs.field(metadata=about("partitions that are leaving it"))
    staying: int = attrs.field(metadata=about("partitions with a replica there that do not leave"))
    bytes_left: int | None = attrs.field(
        metadata=about("bytes that must still be copied for those that leave")
    )


@attrs.frozen(kw_only=True)
class RetirementRow:
    """A log directory that `odradek disk retire` empties."""

    broker: int = attrs.field(metadata=about("the broker"))
    directory: str = attrs.field(metadata=about("the path"))
    replicas_left: int = attrs.field(metadata=about("replicas that are still there"))
    bytes_left: int = attrs.field(metadata=about("bytes that are still there"))
    is_released: bool = attrs.field(
        metadata=about("true if the broker has let go of it: the disk may be pulled")
    )


@attrs.frozen(kw_only=True)
class Moves:
    """All that moves in the cluster."""

    total: int = attrs.field(metadata=about("the number of partitions that are moved"))
    page: int = attrs.field(metadata=about("the page of moves"))
    pages: int = attrs.field(metadata=about("the number of pages"))
    moves: Sequence[MoveRow] = attrs.field(metadata=about(f"the moves of this page, at most {ROWS_PER_PAGE}"))
    disk_moves_total: int = attrs.field(metadata=about("the number of replicas that move between disks"))
    disk_moves: Sequence[DiskMoveRow] = attrs.field(metadata=about(f"the first {ROWS_PER_PAGE} of them"))
    drains: Sequence[DrainRow] = attrs.field(metadata=about("brokers that partitions are leaving"))
    retirements: Sequence[RetirementRow] = attrs.field(metadata=about("log directories that are emptied"))


_Sizes = Mapping[tuple[str, int, int], int]
"""The bytes of copies by (topic, partition, broker)."""


def moves(session: Session, query: MovesQuery) -> Moves:
    """Show what moves: partitions, replicas between disks, brokers and disks that are emptied, with the time left."""
    facts = topic_facts(session)
    sizes, speeds = _speeds(facts)
    keys = sorted(facts.moving)
    page = page_of(keys, query.page, ROWS_PER_PAGE)
    disk_keys = sorted(
        key for key, held in (facts.replicas or {}).items() if any(each.replica.is_future for each in held)
    )
    nodes = {node for key in page.rows for node in facts.moving[key].replicas}
    nodes |= {
        held.broker
        for key in disk_keys[:ROWS_PER_PAGE]
        for held in (facts.replicas or {})[key]
        if held.replica.is_future
    }
    throttles = session.cache.value(
        ("throttles", tuple(sorted(nodes))), _LOOK_SECONDS, lambda: _throttles(session, sorted(nodes))
    )
    disk_rows = [
        row for key in disk_keys[:ROWS_PER_PAGE] for row in _disk_rows(facts, key, speeds, throttles)
    ]
    return Moves(
        total=page.total,
        page=page.page,
        pages=page.pages,
        moves=[_move_row(facts, key, sizes, speeds, throttles) for key in page.rows],
        disk_moves_total=len(disk_keys),
        disk_moves=disk_rows,
        drains=_drains(facts, sizes),
        retirements=_retirements(session, facts),
    )


def _copies(facts: TopicFacts, log_dirs: Sequence[BrokerLogDirs]) -> dict[tuple[str, int, int], int]:
    """Return the bytes of each copy that grows: on brokers that get a replica, and in directories of the future."""
    found = {}
    for broker in log_dirs:
        for each in (replica for directory in broker.directories for replica in directory.replicas):
            move = facts.moving.get(TopicPartition(each.topic, each.partition))
            if each.is_future or (move is not None and broker.broker in move.adding):
                found[(each.topic, each.partition, broker.broker)] = each.size
    return found


def _speeds(facts: TopicFacts) -> tuple[_Sizes, dict[tuple[str, int, int], float]]:
    """Return the bytes of the copies, and their growth per second between the two samples of the facts."""
    sizes = _copies(facts, facts.log_dirs)
    seconds = facts.seconds_apart
    if not sizes or not seconds:
        return sizes, {}
    old = _copies(facts, facts.older_log_dirs)
    return sizes, {key: max(0, size - old[key]) / seconds for key, size in sizes.items() if key in old}


def _eta_ms(left: int | None, speed: float | None) -> int | None:
    if left is None or not speed:
        return None
    return round(left / speed * 1000)


def _move_row(
    facts: TopicFacts,
    key: TopicPartition,
    sizes: _Sizes,
    speeds: Mapping[tuple[str, int, int], float],
    throttles: Mapping[str, Mapping[int, int]],
) -> MoveRow:
    move = facts.moving[key]
    size = facts.size_of(key)
    total = None if size is None else size * len(move.adding)
    done = None if size is None else sum(min(size, sizes.get((*key, node), 0)) for node in move.adding)
    known = [speeds[(*key, node)] for node in move.adding if (*key, node) in speeds]
    speed = sum(known) if known else None
    rates = [throttles[_THROTTLE][node] for node in move.replicas if node in throttles.get(_THROTTLE, {})]
    return MoveRow(
        topic=key.topic,
        partition=key.partition,
        from_=move.removing,
        to=move.adding,
        replicas=move.target,
        bytes_done=done,
        bytes_total=total,
        bytes_per_second=speed,
        eta_ms=_eta_ms(None if total is None or done is None else total - done, speed),
        throttle_bytes_per_second=min(rates, default=None),
    )


def _disk_rows(
    facts: TopicFacts,
    key: TopicPartition,
    speeds: Mapping[tuple[str, int, int], float],
    throttles: Mapping[str, Mapping[int, int]],
) -> list[DiskMoveRow]:
    held = (facts.replicas or {})[key]
    rows = []
    for each in held:
        if not each.replica.is_future:
            continue
        present = next((one for one in held if one.broker == each.broker and not one.replica.is_future), None)
        total = None if present is None else present.replica.size
        speed = speeds.get((*key, each.broker))
        rows.append(
            DiskMoveRow(
                topic=key.topic,
                partition=key.partition,
                broker=each.broker,
                from_=None if present is None else present.directory,
                to=each.directory,
                bytes_done=each.replica.size,
                bytes_total=total,
                records_left=max(0, each.replica.offset_lag),
                bytes_per_second=speed,
                eta_ms=_eta_ms(None if total is None else max(0, total - each.replica.size), speed),
                throttle_bytes_per_second=throttles.get(_DISK_THROTTLE, {}).get(each.broker),
            )
        )
    return rows


def _throttles(session: Session, nodes: Sequence[int]) -> dict[str, dict[int, int]]:
    """Read the throttles of these brokers. A throttle that the user may not see, or that is not set, is left out."""
    resources = [ConfigResource(ResourceType.BROKER, str(node)) for node in nodes]
    if not resources:
        return {}
    try:
        described = session.client.describe_configs(
            resources, [_THROTTLE, _DISK_THROTTLE], timeout=_LOOK_SECONDS
        )
    except (KafkaError, ClientError):
        # The moves are worth showing without them.
        return {}
    found: dict[str, dict[int, int]] = {}
    for each in described:
        for entry in each.entries:
            rate = int(entry.value) if entry.value is not None and entry.value.isdecimal() else 0
            # Kafka writes "no throttle" as the greatest number.
            if 0 < rate < (1 << 63) - 1:
                found.setdefault(entry.name, {})[int(each.resource.name)] = rate
    return found


def _drains(facts: TopicFacts, sizes: _Sizes) -> list[DrainRow]:
    leaving: dict[int, list[tuple[TopicPartition, Reassignment]]] = {}
    for key, move in facts.moving.items():
        for node in move.removing:
            leaving.setdefault(node, []).append((key, move))
    held = dict.fromkeys(leaving, 0)
    if held:
        for topic in facts.topics.values():
            for each in topic.partitions.values():
                for node in each.replicas:
                    if node in held:
                        held[node] += 1
    rows = []
    for node, found in sorted(leaving.items()):
        left = 0
        for key, move in found:
            size = facts.size_of(key) or 0
            left += sum(max(0, size - sizes.get((*key, other), 0)) for other in move.adding)
        rows.append(
            DrainRow(
                broker=node,
                moving=len(found),
                staying=held[node] - len(found),
                bytes_left=None if facts.replicas is None else left,
            )
        )
    return rows


def _retirements(session: Session, facts: TopicFacts) -> list[RetirementRow]:
    """List the directories that are being retired. Only Odradek's brokers have such."""
    if facts.replicas is None:
        return []
    answering = [each for each in facts.log_dirs if each.error is None]

    def ask() -> set[tuple[int, str]]:
        try:
            nodes = [each.broker for each in answering]
            return retiring_directories(session.asker, nodes, _LOOK_SECONDS)
        except KafkaError as error:
            if error.code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
                return set()
            raise

    retiring = session.cache.value("retiring", _LOOK_SECONDS, ask)
    return [
        RetirementRow(
            broker=each.broker,
            directory=directory.path,
            replicas_left=len(directory.replicas),
            bytes_left=directory.size,
            is_released=directory.health is not None and directory.health.is_released,
        )
        for each in answering
        for directory in each.directories
        if (each.broker, directory.path) in retiring
    ]
