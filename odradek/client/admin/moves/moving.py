"""Surveys the cluster for a plan of moves (each broker's load, disks too full) and executes it: throttles,
reassignments, progress, preferred leaders. The functions are operations. PURE.

A request to the controller starts a reassignment, which then needs no further requests. Brokers copy the
data; once the new replicas are in sync, the controller drops the old replicas. A few partitions move at a
time: when one has moved, the next starts. The execution of a plan may be stopped at any time without harm.
Reassignments that have started go on; the other partitions stay where they are.

A throttle consists of configuration values (KIP-73). Each broker has a rate, and each topic has the list of
replicas to which the rate applies. A throttle is removed at the end of the moves, unless moves of other
commands still need it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import attrs

from odradek.client.admin.admin_configs import (
    AlterConfig,
    ConfigOperation,
    ConfigResource,
    ResourceType,
    describe_configs,
    incremental_alter_configs,
)
from odradek.client.admin.admin_logs import describe_log_dirs
from odradek.client.admin.admin_partitions import (
    Reassignment,
    alter_partition_reassignments,
    elect_leaders,
    list_partition_reassignments,
)
from odradek.client.admin.admin_topics import ClusterDescription, describe_cluster, describe_topics
from odradek.client.admin.moves.placement import Move, Placement, Site
from odradek.client.core.operation import Operation, Wait
from odradek.client.errors import ClientError, RequestTimedOut
from odradek.wire.errors import ErrorCode, KafkaError
from odradek.wire.topic_partition import TopicPartition

if TYPE_CHECKING:
    from odradek.client.core.client_core import ClientCore
    from odradek.client.core.known_cluster import Topic
    from odradek.client.core.scatter import CallError

__all__ = [
    "ClusterSurvey",
    "MoveProgress",
    "elect_preferred",
    "move_partitions",
    "release_throttles",
    "survey_cluster",
    "throttle_moves",
    "unthrottle",
]

_POLL_SECONDS = 0.25
_POLL_SECONDS_MAX = 2.0
_IMAGE_SECONDS_MAX = 30.0
_MEASURE_SECONDS = 2.0
_FINISH_SECONDS = 1.0
_RATES = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
_EVERY = "*"
_REPLICAS = ("leader.replication.throttled.replicas", "follower.replication.throttled.replicas")
_SETTLED = frozenset((ErrorCode.ELECTION_NOT_NEEDED, ErrorCode.NONE))


@attrs.frozen
class ClusterSurvey:
    """The state of the cluster that a plan is computed from.

    `sizes` has the bytes of the largest replica of each partition. `unmeasured` has the brokers that did not report
    their replicas. `usable` has the free disk bytes of each broker that reported its replicas. `is_current` is False if
    no controller answered. All data then comes from one broker, which may lag behind.
    """

    cluster: ClusterDescription
    topics: tuple[Topic, ...]
    sizes: Mapping[TopicPartition, int]
    reassignments: Mapping[TopicPartition, Reassignment]
    unmeasured: tuple[int, ...]
    usable: Mapping[int, int] = attrs.field(factory=dict)
    is_current: bool = True

    @property
    def sites(self) -> list[Site]:
        """The brokers that may get replicas: all brokers that are alive."""
        return [
            Site(broker.node_id, broker.rack, broker.host)
            for broker in self.cluster.brokers
            if broker.node_id not in self.cluster.fenced
        ]

    @property
    def placements(self) -> list[Placement]:
        """The partitions that are not being reassigned."""
        return [
            Placement(topic.name, index, each.replicas, self.sizes.get(TopicPartition(topic.name, index), 0))
            for topic in self.topics
            for index, each in sorted(topic.partitions.items())
            if TopicPartition(topic.name, index) not in self.reassignments
        ]

    @property
    def placements_to_be(self) -> list[Placement]:
        """All partitions. A partition that is being reassigned has its future replicas."""
        return [
            Placement(
                topic.name,
                index,
                self.reassignments[key].target if key in self.reassignments else each.replicas,
                self.sizes.get(key, 0),
            )
            for topic in self.topics
            for index, each in sorted(topic.partitions.items())
            for key in (TopicPartition(topic.name, index),)
        ]

    def load_of(self, node: int) -> tuple[int, int, int]:
        """Return the number of partitions that a broker leads, the number of its replicas, and their bytes."""
        leads = replicas = size = 0
        for topic in self.topics:
            for index, each in topic.partitions.items():
                leads += each.leader == node
                if node in each.replicas:
                    replicas += 1
                    size += self.sizes.get(TopicPartition(topic.name, index), 0)
        return leads, replicas, size

    def too_full(self, moves: Iterable[Move]) -> dict[int, tuple[int, int]]:
        """Find the brokers that lack disk space for their part of a plan. Return (bytes that the plan adds,
        free bytes) for each.
        """
        gains: dict[int, int] = {}
        for move in moves:
            for nodes, sign in ((move.removing, -1), (move.adding, 1)):
                for node in nodes:
                    gains[node] = gains.get(node, 0) + sign * move.size
        return {
            node: (gain, self.usable[node])
            for node, gain in sorted(gains.items())
            if gain > self.usable.get(node, gain)
        }


@attrs.frozen
class MoveProgress:
    """The progress of a plan: the moved and the total number of partitions, the copied and the total bytes."""

    done: int
    partitions: int
    copied: int
    bytes: int


def _is_refused(error: Exception) -> bool:
    """True if the client is not authorized, so that a repetition does not help."""
    return isinstance(error, KafkaError) and error.code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED


def survey_cluster(
    core: ClientCore, *, patience: float | None = None, measured: bool = True
) -> Operation[ClusterSurvey]:
    """Collect the brokers, the topics, the moves under way, and (with `measured`) the replica sizes from
    every broker.

    `patience` (seconds) is for commands that only describe a cluster, which may be in trouble. With `patience`, a
    broker that does not answer in this time is listed in `unmeasured`. If the controller does not answer,
    `reassignments` is empty and `is_current` false. Without `patience`, a missing answer of the controller is an error.
    Raises `KafkaError` and `ClientError`.
    """
    cluster = yield from describe_cluster(core, include_fenced=True)
    topics = yield from describe_topics(core)
    reassignments: Mapping[TopicPartition, Reassignment] = {}
    is_current = True
    try:
        reassignments = yield from list_partition_reassignments(core, timeout=patience)
    except (KafkaError, ClientError) as error:
        if patience is None or _is_refused(error):
            raise
        is_current = False
    alive = [broker.node_id for broker in cluster.brokers if broker.node_id not in cluster.fenced]
    if not measured:
        alive = []
    sizes: dict[TopicPartition, int] = {}
    usable: dict[int, int] = {}
    unmeasured = []
    measures = (yield from describe_log_dirs(core, alive, timeout=patience)) if alive else []
    for found in measures:
        if found.error is not None:
            unmeasured.append(found.broker)
        if found.directories and all(each.usable_bytes >= 0 for each in found.directories):
            usable[found.broker] = sum(each.usable_bytes for each in found.directories)
        for directory in found.directories:
            for replica in directory.replicas:
                if not replica.is_future:
                    key = TopicPartition(replica.topic, replica.partition)
                    sizes[key] = max(sizes.get(key, 0), replica.size)
    return ClusterSurvey(cluster, tuple(topics), sizes, reassignments, tuple(unmeasured), usable, is_current)


def move_partitions(
    core: ClientCore,
    moves: Sequence[Move],
    *,
    at_once: int = 50,
    watch: Callable[[MoveProgress], None] | None = None,
    timeout: float | None = None,
) -> Operation[dict[TopicPartition, CallError | None]]:
    """Execute a plan to its end, at most `at_once` partitions at a time, then elect the preferred leaders.

    Returns None or an error for each partition: the controller's error, or the reason why the preferred
    replica does not lead. If another client cancelled a move, the error is INVALID_REPLICA_ASSIGNMENT.
    `watch` is called with the progress. A broker may be down for long, so only `timeout` (seconds) sets a
    deadline. A partition that has not moved by then has `RequestTimedOut`; a move that has started goes on.
    Raises `KafkaError` and `ClientError`.
    """
    deadline = None if timeout is None else core.now + timeout
    waiting = list(moves)
    moving: dict[TopicPartition, Move] = {}
    outcomes: dict[TopicPartition, CallError | None] = {}
    copied = dict.fromkeys((_key(move) for move in moves), 0)
    total = sum(move.bytes for move in moves)
    pause = _POLL_SECONDS
    measured_at = core.now
    while (waiting or moving) and (deadline is None or core.now < deadline):
        wave, waiting = waiting[: at_once - len(moving)], waiting[at_once - len(moving) :]
        if wave:
            refused = yield from _begun(core, wave, _left(core, deadline))
            outcomes |= refused
            moving |= {_key(m): m for m in wave if _key(m) not in refused}
        under_way = yield from list_partition_reassignments(core, list(moving), timeout=_left(core, deadline))
        ended = [key for key in moving if key not in under_way]
        for key in ended:
            copied[key] = moving.pop(key).bytes
            outcomes[key] = None
        if moving and core.now - measured_at >= _MEASURE_SECONDS:
            copied |= yield from _copied(core, moving, _left(core, deadline))
            measured_at = core.now
        if watch is not None:
            watch(MoveProgress(len(outcomes), len(moves), sum(copied.values()), total))
        pause = _POLL_SECONDS if ended else min(pause * 1.5, _POLL_SECONDS_MAX)
        if moving:
            wake_at = core.now + pause
            yield Wait(until=wake_at if deadline is None else min(wake_at, deadline))
    outcomes |= {key: RequestTimedOut(f"{key} has not moved within {timeout:.3g} s") for key in moving}
    outcomes |= {
        _key(move): RequestTimedOut(
            f"the brokers did not begin to move {move.topic}-{move.partition} within {timeout:.3g} s"
        )
        for move in waiting
    }
    outcomes |= yield from _checked(core, moves, outcomes, _left(core, deadline))
    done = [move for move in moves if outcomes[_key(move)] is None]
    outcomes |= yield from elect_preferred(core, [_key(move) for move in done], timeout=_left(core, deadline))
    return {_key(move): outcomes[_key(move)] for move in moves}


def _key(move: Move) -> TopicPartition:
    return TopicPartition(move.topic, move.partition)


def _begun(
    core: ClientCore, wave: Sequence[Move], timeout: float | None
) -> Operation[dict[TopicPartition, CallError]]:
    """Start these moves. Return the errors of the moves that the controller refused."""
    wanted = {_key(move): move.after for move in wave}
    asked = yield from alter_partition_reassignments(core, wanted, timeout=timeout)
    return {key: error for key, error in asked.items() if error is not None}


def _left(core: ClientCore, deadline: float | None) -> float | None:
    """Return the timeout in seconds for one more request: the time left until the deadline, but at least
    `_FINISH_SECONDS`.
    """
    return None if deadline is None else max(_FINISH_SECONDS, deadline - core.now)


def _copied(
    core: ClientCore, moving: Mapping[TopicPartition, Move], timeout: float | None
) -> Operation[dict[TopicPartition, int]]:
    """Measure the bytes that the new replicas of these partitions have copied so far."""
    takers = sorted({node for move in moving.values() for node in move.adding})
    copied: dict[TopicPartition, int] = {}
    for found in (yield from describe_log_dirs(core, takers, timeout=timeout)):
        for directory in found.directories:
            for replica in directory.replicas:
                key = TopicPartition(replica.topic, replica.partition)
                move = moving.get(key)
                if move is not None and found.broker in move.adding:
                    copied[key] = copied.get(key, 0) + min(replica.size, move.size)
    return copied


def _checked(
    core: ClientCore,
    moves: Sequence[Move],
    outcomes: Mapping[TopicPartition, CallError | None],
    timeout: float | None = None,
) -> Operation[dict[TopicPartition, KafkaError]]:
    """Find the partitions whose replicas differ from the plan after the move has ended, and return an error
    for each.

    The controller reports which moves have ended, and any broker reports the replicas. A broker with older
    metadata still reports old and new replicas together, and is asked again.
    """
    done = [move for move in moves if outcomes[_key(move)] is None]
    if not done:
        return {}
    until = core.now + (_IMAGE_SECONDS_MAX if timeout is None else min(timeout, _IMAGE_SECONDS_MAX))
    while True:
        topics = {topic.name: topic for topic in (yield from describe_topics(core))}
        wrong = {}
        behind = False
        for move in done:
            topic = topics.get(move.topic)
            found = topic.partitions.get(move.partition) if topic is not None else None
            if found is None or set(found.replicas) != set(move.after):
                behind |= found is not None and set(found.replicas) == {*move.before, *move.after}
                replicas = "gone" if found is None else f"on {', '.join(map(str, found.replicas))}"
                wrong[_key(move)] = KafkaError(
                    ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                    f"another client has changed the replicas of {move.topic}-{move.partition} to "
                    f"{replicas} during the move",
                )
        if not behind or core.now >= until:
            return wrong
        yield Wait(until=core.now + _POLL_SECONDS)


def elect_preferred(
    core: ClientCore, partitions: Sequence[tuple[str, int]], *, timeout: float | None = None
) -> Operation[dict[TopicPartition, KafkaError]]:
    """Elect the first replica of each of these partitions as its leader. Return an error for each partition
    whose first replica cannot lead.
    """
    if not partitions:
        return {}
    found = yield from elect_leaders(core, partitions, timeout=timeout)
    return {key: error for key, error in found.items() if error is not None and error.code not in _SETTLED}


def throttle_moves(core: ClientCore, moves: Sequence[Move], bytes_per_second: int) -> Operation[None]:
    """Limit the replication traffic of these moves to a rate, on every live broker that takes part.

    If other moves are throttled at the same time, their replicas stay in the lists of throttled replicas. A broker has
    only one rate: the rate that was set last applies to all moves. Raises `KafkaError` and `ClientError`.
    """
    # Metadata mention a broker that has just died for a moment longer.
    cluster = yield from describe_cluster(core, include_fenced=True)
    alive = {broker.node_id for broker in cluster.brokers} - set(cluster.fenced)
    nodes = sorted({node for move in moves for node in (*move.before, *move.after)} & alive)
    rates = [AlterConfig(key, str(bytes_per_second)) for key in _RATES]
    changes = {ConfigResource(ResourceType.BROKER, str(node)): rates for node in nodes}
    changes |= yield from _changed_lists(core, moves, ConfigOperation.APPEND)
    yield from _altered(core, changes)


def release_throttles(core: ClientCore, moves: Sequence[Move]) -> Operation[None]:
    """Remove the throttles of these moves. Raises `KafkaError` and `ClientError`.

    A broker keeps its rate while replicas of other moves are throttled there. The move that ends last removes
    the rate.
    """
    yield from _altered(core, (yield from _changed_lists(core, moves, ConfigOperation.SUBTRACT)))
    topics = yield from describe_topics(core)
    lists = yield from _throttled_lists(core, [topic.name for topic in topics])
    own = _replicas_of(moves)
    nodes = {node for move in moves for node in (*move.before, *move.after)}
    for topic, texts in lists.items():
        for text, gone in zip(texts, own.get(topic, ((), ())), strict=True):
            # The broker's answer may still list replicas that were removed just now.
            others = {item for item in text.split(",") if item and item not in gone}
            nodes = set() if _EVERY in others else nodes - {int(item.partition(":")[2]) for item in others}
    yield from unthrottle(core, nodes, ())


def _replicas_of(moves: Sequence[Move]) -> dict[str, tuple[list[str], list[str]]]:
    """List, for each topic, the replicas that these moves copy from, and the replicas that they copy to. An
    entry has the form PARTITION:BROKER, as in the configuration.
    """
    found: dict[str, tuple[list[str], list[str]]] = {}
    for move in moves:
        if move.adding:
            leaders, followers = found.setdefault(move.topic, ([], []))
            leaders.extend(f"{move.partition}:{node}" for node in move.before)
            followers.extend(f"{move.partition}:{node}" for node in move.adding)
    return found


def _changed_lists(
    core: ClientCore, moves: Sequence[Move], operation: ConfigOperation
) -> Operation[dict[ConfigResource, list[AlterConfig]]]:
    """Compute the configuration changes that add the replicas of these moves to their topics' lists of
    throttled replicas, or remove them from the lists.

    A list `*` does not change, because only an operator sets it.
    """
    own = _replicas_of(moves)
    lists = yield from _throttled_lists(core, list(own))
    return {
        ConfigResource(ResourceType.TOPIC, topic): changes
        for topic, texts in lists.items()
        if (
            changes := [
                AlterConfig(key, ",".join(items), operation)
                for key, items, text in zip(_REPLICAS, own[topic], texts, strict=True)
                if text != _EVERY
            ]
        )
    }


def _throttled_lists(core: ClientCore, topics: Sequence[str]) -> Operation[dict[str, tuple[str, ...]]]:
    """Return the two lists of throttled replicas (leaders, followers) of each topic that still exists."""
    resources = [ConfigResource(ResourceType.TOPIC, topic) for topic in topics]
    described = (yield from describe_configs(core, resources, _REPLICAS)) if resources else []
    return {
        each.resource.name: tuple(each[key].value or "" for key in _REPLICAS)
        for each in described
        if each.error is None
    }


def unthrottle(core: ClientCore, nodes: Iterable[int], topics: Iterable[str]) -> Operation[None]:
    """Remove the throttles of all moves from these brokers and topics. Raises `KafkaError` and `ClientError`."""
    rates = [AlterConfig(key, operation=ConfigOperation.DELETE) for key in _RATES]
    replicas = [AlterConfig(key, operation=ConfigOperation.DELETE) for key in _REPLICAS]
    alive = sorted(node for node in set(nodes) if node in core.cluster.brokers)
    changes = {ConfigResource(ResourceType.BROKER, str(node)): rates for node in alive}
    changes |= {ConfigResource(ResourceType.TOPIC, topic): replicas for topic in sorted(set(topics))}
    yield from _altered(core, changes)


def _altered(core: ClientCore, changes: Mapping[ConfigResource, Sequence[AlterConfig]]) -> Operation[None]:
    for _, error in (yield from incremental_alter_configs(core, changes)):
        if error is not None:
            raise error
