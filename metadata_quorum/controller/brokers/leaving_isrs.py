"""The removal of stopped or failed brokers from leaderships and ISRs, and the wait while the remaining members
may be dead.

A replica that has left an ISR may lack records that the remaining members commit later. So if the remaining
members are lost, this replica cannot be elected. A remaining member may be dead already, because its session
lasts for a while after its machine has lost power. The following rules prevent that a partition depends on
dead members alone. The argument is in docs/internals/replication.md ("Leaving in favour of the living").

* **A broker leaves an ISR only if the remaining members have sent heartbeats.** Until all of them have sent a
  heartbeat, the broker is fenced, leads nothing, and stays in the ISR. The leader still counts this broker's
  replica, so each committed record is in this replica, too.
* **All absent brokers leave together**, with one record per partition. No leader sees an intermediate ISR. So
  all the absent brokers become eligible if the remaining ISR is too small to commit.
* **If no member is active, all members leave** and become eligible.

These rules do not apply to a replica that may lack acknowledged records (after an unclean restart). Such a
replica leaves at once, even if it is the only member.

The set of waiting brokers is soft state (`BrokerSessions.wait`). A new controller derives the set from the
ISRs: all inactive members are waiting.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from odradek.metadata_quorum.controller.broker_sessions import NEVER, BrokerSessions
from odradek.metadata_quorum.controller.decision_basis import DecisionBasis
from odradek.metadata_quorum.controller.partitions.partition_change import (
    Change,
    acceptable_leaders,
    change_partition,
)
from odradek.metadata_quorum.controller.partitions.topic_rules import topic_rules
from odradek.metadata_quorum.image.metadata_image import (
    RESERVED_DIRECTORIES,
    MetadataImage,
    PartitionImage,
    TopicImage,
)
from odradek.named_states import reached
from odradek.wire.structure import Message

__all__ = ["AT_ONCE", "begin_waiting", "go_on_leaving", "leave_isrs", "sorted_topics"]

AT_ONCE = NEVER - 1
"""A value for `leaving` in `leave_isrs`, in place of a time. The broker then leaves at once, and does not
wait for heartbeats of other members.
"""


def sorted_topics(image: MetadataImage) -> list[TopicImage]:
    """List all topics, sorted by name, so that decisions do not depend on the image's history."""
    return [image.topics[name] for name in sorted(image.topics)]


def leave_isrs(
    image: MetadataImage,
    leaving: Mapping[int, int],
    basis: DecisionBasis,
    *,
    unclean: bool = False,
    log_dirs: Collection[bytes] | None = None,
) -> list[Message]:
    """Make the records that remove brokers from leaderships and ISRs. After an `unclean` restart of a single
    broker, the records also remove it from ELRs.

    `leaving` maps each broker to a time. The broker leaves an ISR if the remaining members have sent
    heartbeats since that time; otherwise it waits. `log_dirs` are the directories that a single broker
    registers. Its replicas in other directories leave at once.
    """
    sessions = basis.sessions
    acceptable = acceptable_leaders(image, without=leaving)
    records: list[Message] = []
    waits: set[int] = set()
    for topic in sorted_topics(image):
        rules = None
        for number, partition in topic.partitions.items():
            gone = [each for each in leaving if _concerns(partition, each)]
            if not gone:
                continue
            away = tuple(each for each in partition.isr if each in leaving or not _is_active(image, each))
            removed = _removed(partition, gone, away, leaving, sessions)
            if removed is None:
                reached("controller.leaving_waits_for_heartbeats")
                removed = tuple(each for each in gone if _is_homeless(partition, each, log_dirs))
                waits.update(each for each in gone if each in partition.isr and each not in removed)
            rules = rules or topic_rules(image, basis, topic)
            change = change_partition(
                topic.topic_id,
                number,
                partition,
                acceptable,
                rules,
                Change(removed=removed, lost=gone[0] if unclean else None),
            )
            if change is not None:
                records.append(change)
    for broker_id in sorted(waits):
        sessions.wait(broker_id, leaving[broker_id])
    return records


def _removed(
    partition: PartitionImage,
    gone: list[int],
    away: tuple[int, ...],
    leaving: Mapping[int, int],
    sessions: BrokerSessions,
) -> tuple[int, ...] | None:
    """Return the members that leave the ISR now; None if no member may leave before the remaining members
    have sent heartbeats.
    """
    staying = [each for each in partition.isr if each not in away]
    since_ms = max(leaving[each] for each in gone)
    if since_ms == AT_ONCE:
        return tuple(gone) if staying else away
    since_ms = max([since_ms, *(sessions.waits_since(each) for each in away)])
    return away if all(sessions.heard_since(each, since_ms) for each in staying) else None


def _concerns(partition: PartitionImage, broker_id: int) -> bool:
    return broker_id in partition.isr or broker_id in partition.elr or broker_id == partition.leader


def _is_active(image: MetadataImage, broker_id: int) -> bool:
    broker = image.brokers.get(broker_id)
    return broker is not None and broker.is_active


def _is_homeless(partition: PartitionImage, broker_id: int, log_dirs: Collection[bytes] | None) -> bool:
    """True if the broker registers without the directory that had this replica. In another directory, the
    replica may be empty.
    """
    directory = partition.directory_of(broker_id)
    return log_dirs is not None and directory not in log_dirs and directory not in RESERVED_DIRECTORIES


def go_on_leaving(image: MetadataImage, basis: DecisionBasis) -> list[Message]:
    """Remove waiting brokers from ISRs whose other members have sent heartbeats or are inactive.

    Returns the records.
    """
    leaving = basis.sessions.waiting(image)
    return leave_isrs(image, leaving, basis) if leaving else []


def begin_waiting(image: MetadataImage, now_ms: int, basis: DecisionBasis) -> None:
    """Mark inactive brokers that are still in an ISR as waiting. A new controller calls this, because its
    predecessor's list of waiting brokers is lost.
    """
    for broker_id in sorted(set(_inactive_members(image))):
        basis.sessions.wait(broker_id, now_ms)


def _inactive_members(image: MetadataImage) -> Iterator[int]:
    inactive = [broker_id for broker_id, broker in image.brokers.items() if not broker.is_active]
    if not inactive:
        return
    for topic in image.topics.values():
        for partition in topic.partitions.values():
            for broker_id in inactive:
                if broker_id in partition.isr:
                    yield broker_id
