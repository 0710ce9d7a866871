"""The picture of a cluster that its health is judged by: the answers of brokers and controllers, and counts of
partitions.

A broker that died a moment ago is still listed as online, and its replicas as in sync, until the controllers miss it.
So each broker is asked a question of its own. Replicas on a broker that is fenced, or that does not answer, count as
missing.

A question without an answer leaves a gap. The picture keeps it in `unseen`, because what was not seen may be wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from odradek.cli.connecting import LOOK_SECONDS_MAX
from odradek.cli.health.troubles import Asker, disk_troubles, min_insync_replicas
from odradek.cli.output import counted

if TYPE_CHECKING:
    from odradek.client.admin import (
        BrokerLogDirs,
        ClusterDescription,
        HangingSearch,
        QuorumDescription,
        QuorumReplica,
        Reassignment,
    )
    from odradek.client.core.known_cluster import Partition, Topic
    from odradek.client.core.scatter import CallError
    from odradek.serving.disk_troubles import TroubledDirectory
    from odradek.wire.topic_partition import TopicPartition

__all__ = ["SILENT_MS", "Partitions", "Picture", "Unseen", "is_silent_voter", "look_at_cluster"]

SILENT_MS = 5000
"""A voter that has fetched nothing for this many milliseconds is called silent."""

T = TypeVar("T")


class Partitions(NamedTuple):
    """The number of partitions in the cluster, and the names of the partitions that need attention."""

    total: int
    offline: list[str]
    under_min_isr: list[str]
    behind: list[str]
    arriving: list[str]
    """The partitions of `behind` that lack only replicas which a move is adding. They need no attention."""
    leaders: dict[int, int]
    replicas: dict[int, int]
    away: dict[int, list[str]]
    """For each broker, the partitions whose replica on this broker is offline. Either the broker is down, or
    the replica's directory is offline.
    """

    @property
    def under_replicated(self) -> set[str]:
        """The partitions that lack replicas in sync. Replicas that a move is adding do not count."""
        return {*self.behind, *self.under_min_isr} - set(self.arriving)


class Unseen(NamedTuple):
    """A gap in a picture: the plural noun of the things that were not seen, and the reason. Where they are, and what
    helps, is there if it is known.
    """

    things: str
    reason: str
    broker: int | None = None
    partitions: Sequence[str] = ()
    remedy: str = ""


class Picture(NamedTuple):
    """The state of a cluster, as far as its nodes have answered."""

    cluster: ClusterDescription
    topics: list[Topic]
    quorum: QuorumDescription | None
    """The quorum as its leader describes it; None if nobody answered for it. There is no leader then, or it is silent."""
    moving: Mapping[TopicPartition, Reassignment] | None
    partitions: Partitions
    silent: Mapping[int, str]
    """The reasons for which brokers gave no answer, although the controllers list them as online."""
    log_dirs: Sequence[BrokerLogDirs]
    troubles: Mapping[int, Sequence[TroubledDirectory]]
    hanging: HangingSearch | None
    """None unless open transactions were searched."""
    unseen: Sequence[Unseen] = ()
    """The parts of the cluster about which nobody gave an answer. The quorum, and brokers that are down or silent, have
    fields of their own.
    """
    log_dirs_at: float = 0.0
    """When the log directories were asked, in seconds of the monotonic clock."""

    @property
    def is_current(self) -> bool:
        """True if there is an active controller. Otherwise all facts come from the last active controller."""
        return self.quorum is not None and self.quorum.leader is not None

    @property
    def away(self) -> dict[int, list[str]]:
        """The partitions by broker whose replica is on an offline disk of a broker that runs."""
        gone = {*self.cluster.fenced, *self.silent}
        return {node: names for node, names in sorted(self.partitions.away.items()) if node not in gone}


def is_silent_voter(quorum: QuorumDescription, voter: QuorumReplica) -> bool:
    """True if the leader has received no fetch from this voter for a long time, by the leader's clock."""
    leader = quorum.leader
    if leader is None or voter.node_id == quorum.leader_id:
        return False
    return leader.last_fetch_ms - voter.last_fetch_ms > SILENT_MS


def look_at_cluster(client: Asker, timeout: float, *, hanging_since_ms: int | None = None) -> Picture:
    """Ask the cluster and each broker for their state. A node that does not answer delays this for at most
    `LOOK_SECONDS_MAX`.

    With `hanging_since_ms` (milliseconds since 1970), open transactions without a write since then are searched, too.
    Raises `KafkaError` if the user lacks the right to describe the cluster, and `ClientError` if no broker answers.
    """
    import time

    patience = min(timeout, LOOK_SECONDS_MAX)
    unseen: list[Unseen] = []
    cluster = client.admin.describe_cluster(include_fenced=True)
    quorum = _asked(lambda: client.admin.describe_quorum(timeout=patience), "voters", [])
    moving = None
    if quorum is not None:
        # Without a leader the quorum's problem stands for this gap.
        gaps = unseen if quorum.leader_id >= 0 else []
        moving = _asked(
            lambda: client.admin.list_partition_reassignments(timeout=patience),
            "moves of replicas between brokers",
            gaps,
        )
    alive = [broker.node_id for broker in cluster.brokers if broker.node_id not in cluster.fenced]
    log_dirs_at = time.monotonic()
    log_dirs = _asked(lambda: _log_dirs(client, alive, patience), "disks of all brokers", unseen) or []
    silent = _silent(log_dirs)
    if silent:
        # The controllers may have missed them while they were asked.
        cluster = client.admin.describe_cluster(include_fenced=True)
        silent = {node: reason for node, reason in silent.items() if node not in cluster.fenced}
    topics = client.admin.describe_topics()
    missing = {*cluster.fenced, *silent}
    errors: dict[int, CallError] = {}
    answering = [node for node in alive if node not in missing]
    troubles = _asked(
        lambda: disk_troubles(client, answering, patience, errors=errors),
        "troubles of disks of all brokers",
        unseen,
    )
    unseen += _unseen_disks(log_dirs, missing, errors)
    partitions = _partitions(client, topics, missing, moving or {}, patience, unseen)
    hanging = None
    if hanging_since_ms is not None:
        hanging = _search_hanging(client, hanging_since_ms, partitions, unseen)
    return Picture(
        cluster,
        topics,
        quorum,
        moving,
        partitions,
        silent,
        log_dirs,
        troubles or {},
        hanging,
        unseen,
        log_dirs_at,
    )


def _asked(question: Callable[[], T], things: str, unseen: list[Unseen]) -> T | None:
    """Call `question` and return its answer. Return None if the cluster cannot answer now; the picture then
    lacks this answer, and `unseen` gets the things that it would have shown.

    Raises `KafkaError` only if the user is not authorized.
    """
    from odradek.client.errors import ClientError
    from odradek.wire.errors import ErrorCode, KafkaError

    try:
        return question()
    except (KafkaError, ClientError) as error:
        if isinstance(error, KafkaError) and error.code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
            raise
        unseen.append(Unseen(things, str(error)))
        return None


def _unseen_disks(
    log_dirs: Sequence[BrokerLogDirs], missing: Collection[int], errors: Mapping[int, CallError]
) -> Iterator[Unseen]:
    """Find the brokers that run, but did not describe their disks. `errors` are those about the troubles of disks."""
    from odradek.wire.errors import ErrorCode, KafkaError

    failed = {each.broker: each.error for each in log_dirs if each.error is not None}
    for node, error in sorted({**errors, **failed}.items()):
        if node in missing:
            continue
        things, remedy = f"disks of broker {node}", ""
        if node not in failed:
            things = f"troubles of the {things}"
            if isinstance(error, KafkaError) and error.code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
                remedy = "that needs the right DESCRIBE_CONFIGS on the cluster (docs/acls.md)"
        yield Unseen(things, str(error), broker=node, remedy=remedy)


def _log_dirs(client: Asker, brokers: Sequence[int], patience: float) -> list[BrokerLogDirs]:
    if not brokers:
        return []
    return client.admin.describe_log_dirs(brokers, include_cleaning=True, timeout=patience)


def _search_hanging(
    client: Asker, since_ms: int, partitions: Partitions, unseen: list[Unseen]
) -> HangingSearch | None:
    """Search open transactions. A partition without a leader is no further gap: it is a problem of its own."""
    import time

    now_ms = time.time_ns() // 1_000_000
    found = _asked(
        lambda: client.admin.find_hanging_transactions(
            now_ms=now_ms, older_than_ms=max(0, now_ms - since_ms)
        ),
        "open transactions",
        unseen,
    )
    if found is not None:
        gaps = {f"{key.topic}-{key.partition}": str(error) for key, error in sorted(found.errors.items())}
        names = [name for name in gaps if name not in set(partitions.offline)]
        if names:
            what = f"open transactions of {counted(len(names), 'partition')}"
            unseen.append(Unseen(what, gaps[names[0]], partitions=names))
    return found


def _silent(log_dirs: Sequence[BrokerLogDirs]) -> dict[int, str]:
    """Find the brokers that gave no answer at all, each with the reason. A broker that answers with an error is not
    silent.
    """
    from odradek.client.errors import BrokerUnavailable, ConnectionBroken, RequestTimedOut
    from odradek.wire.errors import ErrorCode, KafkaError

    return {
        each.broker: str(each.error)
        for each in log_dirs
        if isinstance(each.error, BrokerUnavailable | ConnectionBroken | RequestTimedOut)
        # The client gives this error itself, for a broker that metadata do not list any longer.
        or (isinstance(each.error, KafkaError) and each.error.code is ErrorCode.BROKER_NOT_AVAILABLE)
    }


def _partitions(
    client: Asker,
    topics: Sequence[Topic],
    missing: Collection[int],
    moving: Mapping[TopicPartition, Reassignment],
    patience: float,
    unseen: list[Unseen],
) -> Partitions:
    """Count partitions. A replica on a broker of `missing` is no replica in sync, whatever the ISR says."""
    from odradek.wire.topic_partition import TopicPartition

    found = Partitions(sum(len(topic.partitions) for topic in topics), [], [], [], [], {}, {}, {})

    def in_sync(each: Partition) -> set[int]:
        return set(each.isr) - set(missing)

    short = {
        topic.name
        for topic in topics
        if any(len(in_sync(each)) < len(each.replicas) for each in topic.partitions.values())
    }
    least = _least_in_sync(client, short, patience, unseen)
    for topic in topics:
        for index, each in sorted(topic.partitions.items()):
            name = f"{topic.name}-{index}"
            if each.leader >= 0:
                found.leaders[each.leader] = found.leaders.get(each.leader, 0) + 1
            else:
                found.offline.append(name)
            for node in each.replicas:
                found.replicas[node] = found.replicas.get(node, 0) + 1
            for node in each.offline_replicas:
                found.away.setdefault(node, []).append(name)
            alive = in_sync(each)
            if len(alive) == len(each.replicas):
                continue
            if len(alive) < min(least.get(topic.name, 1), len(each.replicas)):
                found.under_min_isr.append(name)
            elif each.leader >= 0:
                found.behind.append(name)
                move = moving.get(TopicPartition(topic.name, index))
                if move is not None and set(each.replicas) - alive <= set(move.adding):
                    found.arriving.append(name)
    return found


def _least_in_sync(
    client: Asker, short: Collection[str], patience: float, unseen: list[Unseen]
) -> dict[str, int]:
    """Read `min.insync.replicas` of the topics that lack replicas in sync. A topic that was deleted is no gap."""
    from odradek.wire.errors import ErrorCode, KafkaError

    errors: dict[str, CallError] = {}
    least = min_insync_replicas(client, short, patience, errors=errors)
    gaps = {
        name: str(error)
        for name, error in sorted(errors.items())
        if not (isinstance(error, KafkaError) and error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    }
    if gaps:
        first = next(iter(gaps))
        what = f"values of min.insync.replicas of {counted(len(gaps), 'topic')} ({first}{', ...' if len(gaps) > 1 else ''})"
        unseen.append(Unseen(what, gaps[first]))
    return least
