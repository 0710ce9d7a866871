"""What happens to one partition when its in-sync replicas or the brokers behind them change.

One function decides leader, ISR and the last known leader together, because they only make sense together:

* The leader is the first replica, in the order of assignment, that is in sync and acceptable (its broker active,
  its directory online). A leader that still qualifies stays.
* The last in-sync replica stays in the ISR when its broker goes away: only it is known to hold everything.
* After an unclean restart a broker may have lost what it acknowledged: it leaves the ISR even if it was the
  last. If that empties the ISR, the last known leader is recorded, and elected when it is active again (KIP-966;
  Kafka does so where eligible leader replicas are enabled, we always do). The partition is then RECOVERING.
"""

from __future__ import annotations

from collections.abc import Callable

from metadata_quorum.image import (
    NO_LEADER,
    NO_LEADER_CHANGE,
    RECOVERING,
    MetadataImage,
    PartitionImage,
)
from wire.messages.metadata_records import PartitionChangeRecord

Acceptable = Callable[[PartitionImage, int], bool]


def acceptable_leaders(
    image: MetadataImage, *, also: int | None = None, without: int | None = None
) -> Acceptable:
    """Whether a broker may lead a partition, as `image` has it; `also` counts as active, `without` as not."""
    brokers = image.brokers

    def acceptable(partition: PartitionImage, broker_id: int) -> bool:
        broker = brokers.get(broker_id)
        if broker is None or broker_id == without or not (broker.is_active or broker_id == also):
            return False
        return partition.is_online(broker_id, broker)

    return acceptable


def change_partition(
    topic_id: bytes,
    number: int,
    partition: PartitionImage,
    acceptable: Acceptable,
    *,
    removed: int | None = None,
    unclean: bool = False,
) -> PartitionChangeRecord | None:
    """The record that brings a partition in line with its brokers, None when nothing changes.

    `removed` leaves the ISR; with `unclean` also as its last member, and leaves the eligible replicas.
    """
    isr = tuple(replica for replica in partition.isr if replica != removed)
    elr = partition.elr
    if unclean:
        elr = tuple(replica for replica in elr if replica != removed)
    elif not isr:
        isr = partition.isr
    last_known = partition.last_known_elr
    if not isr and not elr and partition.isr:
        last_known = _last_known_leader(partition)

    leader = _elect(partition, isr + elr, acceptable)
    recovering = False
    if (
        leader == NO_LEADER
        and not isr
        and not elr
        and len(last_known) == 1
        and acceptable(partition, last_known[0])
    ):
        leader = last_known[0]
        recovering = True
    if leader != NO_LEADER and leader not in isr:
        isr = (leader,)
        elr = tuple(replica for replica in elr if replica != leader)
    if isr:
        last_known = ()

    record = PartitionChangeRecord(partition_id=number, topic_id=topic_id)
    if isr != partition.isr:
        record.isr = list(isr)
    if leader != partition.leader:
        record.leader = leader
    if recovering and partition.leader_recovery_state != RECOVERING:
        record.leader_recovery_state = RECOVERING
    if elr != partition.elr:
        record.eligible_leader_replicas = list(elr)
    if last_known != partition.last_known_elr:
        record.last_known_elr = list(last_known)
    unchanged = (
        record.isr is None
        and record.leader == NO_LEADER_CHANGE
        and record.eligible_leader_replicas is None
        and record.last_known_elr is None
    )
    return None if unchanged else record


def _elect(partition: PartitionImage, candidates: tuple[int, ...], acceptable: Acceptable) -> int:
    for replica in (partition.leader, *partition.replicas):
        if replica in candidates and acceptable(partition, replica):
            return replica
    return NO_LEADER


def _last_known_leader(partition: PartitionImage) -> tuple[int, ...]:
    if partition.leader != NO_LEADER:
        return (partition.leader,)
    if len(partition.isr) == 1:
        return partition.isr
    return partition.last_known_elr
