"""Partitions without a leader: the brokers that they wait for, their replicas' logs, and the advice that
commands print.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from odradek.cli.connecting import LOOK_SECONDS_MAX
from odradek.cli.output import RED, paint, print_table, say

if TYPE_CHECKING:
    from odradek.client.admin import ClusterSurvey, ReplicaLog
    from odradek.client.core.known_cluster import Partition, Topic
    from odradek.client.shells.blocking import Client
    from odradek.wire.topic_partition import TopicPartition

__all__ = ["Leaderless", "Replica", "find_leaderless", "print_leaderless"]

_SHOWN = 20


class Replica(NamedTuple):
    """One replica of a partition. `state` is online, DOWN, OFFLINE (its directory), SILENT, or an error's
    name. `log` is the broker's report about the replica's log, or None.
    """

    node: int
    state: str
    log: ReplicaLog | None

    @property
    def rank(self) -> tuple[int, int]:
        """The rank of the replica in an unclean election. If a replica of a higher rank is elected, fewer records are
        lost. The leader epoch of the newest record is compared first, then the length of the log.
        """
        if self.log is None:
            return -1, -1
        return -1 if self.log.newest_epoch is None else self.log.newest_epoch, self.log.end


class Leaderless(NamedTuple):
    """One partition without a leader. `complete` lists the brokers whose replicas hold all acknowledged records,
    because they are in sync or eligible. If `complete` is empty, `last` lists the last leader. `complete` and `last`
    are None if the brokers are too old to report them.
    """

    key: TopicPartition
    complete: tuple[int, ...] | None
    last: tuple[int, ...] | None
    replicas: tuple[Replica, ...]

    @property
    def name(self) -> str:
        """Topic and partition, in the form that commands accept."""
        return f"{self.key.topic}:{self.key.partition}"

    @property
    def candidates(self) -> tuple[Replica, ...]:
        """The online replicas, which an unclean election may make the leader, in the order of the election."""
        return tuple(each for each in self.replicas if each.state == "online")

    @property
    def best(self) -> Replica | None:
        """The candidate whose election loses the fewest records."""
        return max(self.candidates, key=lambda each: each.rank, default=None)

    def document(self) -> dict[str, Any]:
        """Make the partition's object for `--json`."""
        best = self.best
        return {
            "complete_replicas": None if self.complete is None else list(self.complete),
            "last_leader": self.last[0] if self.last else None,
            "best_candidate": None if best is None else best.node,
            "replicas": [
                {
                    "broker": each.node,
                    "state": each.state.lower(),
                    "log_start_offset": None if each.log is None else each.log.start,
                    "log_end_offset": None if each.log is None else each.log.end,
                    "newest_record_ms": None if each.log is None else each.log.newest_ms,
                    "newest_record_epoch": None if each.log is None else each.log.newest_epoch,
                }
                for each in self.replicas
            ],
        }


def find_leaderless(
    args: argparse.Namespace, client: Client, survey: ClusterSurvey, wanted: dict[TopicPartition, Partition]
) -> dict[TopicPartition, Leaderless]:
    """Find the partitions of `wanted` that have no leader. Ask the brokers that have replicas of these partitions to
    describe the logs of the replicas.
    """
    keys = [key for key, each in wanted.items() if each.leader < 0]
    if not keys:
        return {}
    patience = min(args.timeout, LOOK_SECONDS_MAX)
    known = _eligible(client, sorted({key.topic for key in keys}), patience)
    brokers = {broker.node_id for broker in survey.cluster.brokers} - survey.cluster.fenced
    asked = {key: [node for node in wanted[key].replicas if node in brokers] for key in keys}
    logs = client.admin.describe_replica_logs(asked, timeout=patience)
    found = {}
    for key in keys:
        answer = known.get(key)
        replicas = tuple(_replica(node, logs.get((*key, node)), wanted[key]) for node in wanted[key].replicas)
        found[key] = Leaderless(
            key,
            None if answer is None else tuple(dict.fromkeys((*answer.isr, *answer.elr))),
            None if answer is None else answer.last_known_elr,
            replicas,
        )
    return found


def _eligible(client: Client, names: Sequence[str], patience: float) -> dict[TopicPartition, Partition]:
    """Describe the partitions of these topics, with their eligible replicas; empty if the brokers are too old to report them."""
    from odradek.client.errors import UnsupportedByBroker
    from odradek.wire.topic_partition import TopicPartition

    try:
        topics: list[Topic] = client.admin.describe_topic_partitions(names, timeout=patience)
    except UnsupportedByBroker:
        return {}
    return {
        TopicPartition(topic.name, index): each
        for topic in topics
        for index, each in topic.partitions.items()
    }


def _replica(node: int, answer: Any, partition: Partition) -> Replica:
    from odradek.client.errors import ClientError
    from odradek.wire.errors import ErrorCode, KafkaError

    match answer:
        case None:
            return Replica(node, "DOWN", None)
        case KafkaError(code=ErrorCode.KAFKA_STORAGE_ERROR):
            return Replica(node, "OFFLINE", None)
        case KafkaError():
            return Replica(node, answer.code.name, None)
        case ClientError():
            return Replica(node, "SILENT", None)
        case _:
            return Replica(node, "OFFLINE" if node in partition.offline_replicas else "online", answer)


def print_leaderless(found: Sequence[Leaderless]) -> None:
    """Print a table of the partitions' replicas, then the advice for each partition."""
    shown = found[:_SHOWN]
    print_table(
        ("TOPIC", "PARTITION", "REPLICA", "STATE", "HAS ALL", "START", "END", "EPOCH", "NEWEST RECORD"),
        [(*each.key, *_row(each, replica)) for each in shown for replica in each.replicas],
        less=("START",),
    )
    for each in shown:
        say(paint(RED, _waits_text(each)))
        say(_choice_text(each))
    if len(shown) < len(found):
        say(f"... and {len(found) - len(shown)} more without a leader: name topics, or use --json to see all")


def _row(each: Leaderless, replica: Replica) -> tuple[Any, ...]:
    log = replica.log
    return (
        replica.node,
        replica.state,
        _has_all(each, replica.node),
        None if log is None else log.start,
        None if log is None else log.end,
        None if log is None else log.newest_epoch,
        None if log is None or log.newest_ms is None else _clock(log.newest_ms),
    )


def _has_all(each: Leaderless, node: int) -> str | None:
    """Return whether the replica has all acknowledged records, as far as the cluster knows: `yes`, `led last`
    or `no`.
    """
    if each.complete is None:
        return None
    if node in each.complete:
        return "yes"
    return "led last" if node in (each.last or ()) else "no"


def _clock(time_ms: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(time_ms / 1000))


def _waits_text(each: Leaderless) -> str:
    """Return a text that names the broker that the partition waits for, and says how to bring the broker
    back.
    """
    if each.complete is None:
        return f"{each.name} has no leader: start the brokers that are down"
    if not each.complete and not each.last:
        return (
            f"{each.name} cannot get a leader by itself: the disk of its last leader is gone, and no "
            "other replica is known to have all its records"
        )
    nodes = each.complete or each.last or ()
    states = {replica.node: replica.state for replica in each.replicas}
    parts = []
    for node in nodes:
        match states.get(node):
            case "DOWN":
                parts.append(f"broker {node}, which is down: start the broker")
            case "OFFLINE":
                parts.append(
                    f"broker {node}, whose directory for the partition is offline: bring the disk "
                    "back, then start the broker again"
                )
            case "online":
                parts.append(f"broker {node}, which is running: check again in a moment")
            case _:
                parts.append(f"broker {node}, which does not answer: look at the broker's log")
    if each.complete:
        kind, link = "all its records are on", ", or "
    elif len(parts) > 1:
        kind, link = "of the replicas that were in sync last, the longest log leads:", ", and "
    else:
        kind, link = "its last leader was", ""
    return f"{each.name} has no leader; {kind} {link.join(parts)}"


def _choice_text(each: Leaderless) -> str:
    """Return advice for the case that the awaited broker cannot come back."""
    best = each.best
    waits = each.complete is None or each.complete or each.last
    when = "if that is impossible" if waits else "an operator has to choose"
    if best is None and len(each.replicas) == 1:
        return "    if that is impossible: the partition has no other replica, so its records are lost"
    if best is None or best.log is None:
        return (
            "    if that is impossible: start the other brokers that are down first, because no "
            "replica answers now"
        )
    gone = "other replicas have" if len(each.replicas) > 1 else "the disk that is gone had"
    choice = (
        f"    {when}: `odradek partition elect --unclean {each.name} --leader {best.node} --execute` goes on "
        f"from offset {best.log.end} of broker {best.node}, and loses the records that only {gone}"
    )
    if not waits and best.log.end:
        choice += (
            f"\n    if the log of broker {best.node} says partition.found_elsewhere or "
            'partition.move_given_up, its replica may have all records: see "A move that was not '
            'finished" in docs/disks.md'
        )
    return choice
