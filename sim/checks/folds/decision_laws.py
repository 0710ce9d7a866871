"""Laws that each decision of a controller must obey, whatever has led to it. PURE.

`judge_decision` takes the state before a record of the metadata log, and the record. It shares no rules with the product's
code. Whatever has led to a decision, some things may never be written.

* **Partitions.** The leader is in sync. Who is in sync or eligible is a replica, and nobody is both. Who joins the ISR is
  an active broker, or becomes the leader (KIP-841). An assignment shrinks only if all that stay are in sync, unless a
  reassignment is given up, and then the leader epoch grows (KIP-455).
* **Brokers.** A broker leads nothing when it is fenced, leaves, or registers in a new life. When it leaves, or its
  directory is gone, it is in no ISR that has other members (KIP-858).
* **New partitions.** Their replicas are in as many racks as there are, as long as all directories take new replicas.
* **Ids and tokens.** Ids of producers only grow. A delegation token never outlasts its latest time, which stays (KIP-48).
"""

from __future__ import annotations

from collections.abc import Iterator

from odradek.wire.messages import metadata_records as wire
from odradek.wire.structure import Message
from sim.checks.folds.metadata_fold import NO_LEADER_CHANGE, BrokerFold, MetadataFold, PartitionFold
from sim.history import SafetyViolation

__all__ = ["judge_decision"]

NOBODY = -1
RESERVED = 100
"""Directory ids below this number say that a directory is unknown, lost or unassigned."""
FENCE = 1


def judge_decision(state: MetadataFold, record: Message) -> None:
    """Raise `SafetyViolation` if a record breaks a law in the state before it."""
    match record:
        case wire.PartitionRecord():
            _new_partition(state, record)
        case wire.PartitionChangeRecord():
            _change(state, record)
        case wire.UnregisterBrokerRecord():
            _leads_nothing(state, record.broker_id, "is removed")
            _in_sync_alone(state, record.broker_id, (), "is removed")
        case wire.FenceBrokerRecord():
            _leads_nothing(state, record.id, "is fenced")
        case wire.RegisterBrokerRecord():
            known = state.brokers.get(record.broker_id)
            if known is None or known.epoch != record.broker_epoch:
                _leads_nothing(state, record.broker_id, "registers in a new life")
        case wire.BrokerRegistrationChangeRecord():
            if record.fenced == FENCE:
                _leads_nothing(state, record.broker_id, "is fenced")
            if record.log_dirs:
                _in_sync_alone(state, record.broker_id, tuple(record.log_dirs), "has lost a directory")
        case wire.ProducerIdsRecord():
            _must(
                state,
                record.next_producer_id > state.next_producer_id,
                f"ids of producers go on at {record.next_producer_id}, behind {state.next_producer_id}",
            )
        case wire.DelegationTokenRecord():
            _token(state, record)


def _must(state: MetadataFold, holds: bool, complaint: str) -> None:
    if not holds:
        raise SafetyViolation(f"decision: behind offset {state.offset} of the metadata log, {complaint}")


# --- partitions


def _change(state: MetadataFold, record: wire.PartitionChangeRecord) -> None:
    topic = state.topics.get(record.topic_id)
    before = None if topic is None else topic.partitions.get(record.partition_id)
    if topic is None or before is None:
        return  # The fold complains itself.
    name = f"{topic.name}-{record.partition_id}"
    replicas = before.replicas if record.replicas is None else tuple(record.replicas)
    isr = before.isr if record.isr is None else tuple(record.isr)
    given = record.eligible_leader_replicas
    elr = before.elr if given is None else tuple(given)
    leader = before.leader if record.leader == NO_LEADER_CHANGE else record.leader
    _must(state, leader == NOBODY or leader in isr, f"{name} is led by {leader}, and {isr} are in sync")
    _must(
        state,
        {*isr, *elr} <= set(replicas) and not set(isr) & set(elr),
        f"{name} has the replicas {replicas}; {isr} are in sync, and {elr} eligible",
    )
    for each in isr:
        if each not in before.isr and each != leader:
            _must(
                state,
                _is_active(state.brokers.get(each)),
                f"{each} is not active, and joins the ISR of {name}",
            )
    _shrinking(state, record, before, replicas, isr, name)


def _shrinking(
    state: MetadataFold,
    record: wire.PartitionChangeRecord,
    before: PartitionFold,
    replicas: tuple[int, ...],
    isr: tuple[int, ...],
    name: str,
) -> None:
    adding = before.adding_replicas if record.adding_replicas is None else tuple(record.adding_replicas)
    removing = (
        before.removing_replicas if record.removing_replicas is None else tuple(record.removing_replicas)
    )
    gone = set(before.replicas) - set(replicas) - set(before.adding_replicas)
    if not gone or adding or removing:
        return
    # Without a leader, an election follows in the same record, and those that are away leave the ISR.
    _must(
        state,
        set(replicas) <= set(isr) or before.leader == NOBODY,
        f"{gone} leave {name}, and of the others {replicas} only {isr} are in sync",
    )
    _must(
        state,
        record.leader != NO_LEADER_CHANGE,
        f"{gone} leave {name}, and its leader epoch stays, so they do not notice",
    )


def _new_partition(state: MetadataFold, record: wire.PartitionRecord) -> None:
    active = {number: each for number, each in state.brokers.items() if _is_active(each)}
    replicas = record.replicas
    if not set(replicas) <= set(active) or any(each.cordoned_log_dirs for each in active.values()):
        return
    racks = {each.rack for each in active.values()}
    used = {active[each].rack for each in replicas}
    _must(
        state,
        len(used) == min(len(replicas), len(racks)),
        f"partition {record.partition_id} begins on {list(replicas)} in {len(used)} racks of {len(racks)}",
    )


# --- brokers


def _is_active(broker: BrokerFold | None) -> bool:
    return broker is not None and not broker.fenced and not broker.in_controlled_shutdown


def _partitions(state: MetadataFold) -> Iterator[tuple[str, PartitionFold]]:
    for topic in state.topics.values():
        for number, partition in topic.partitions.items():
            yield f"{topic.name}-{number}", partition


def _leads_nothing(state: MetadataFold, broker_id: int, why: str) -> None:
    for name, partition in _partitions(state):
        _must(state, partition.leader != broker_id, f"broker {broker_id} {why}, and leads {name}")


def _in_sync_alone(state: MetadataFold, broker_id: int, log_dirs: tuple[bytes, ...], why: str) -> None:
    """Check that a broker is in no ISR with other members, unless its replica is in one of these directories."""
    for name, partition in _partitions(state):
        if broker_id not in partition.isr or len(partition.isr) == 1:
            continue
        directory = partition.directories[partition.replicas.index(broker_id)]
        is_there = bool(log_dirs) and (directory in log_dirs or int.from_bytes(directory) < RESERVED)
        _must(state, is_there, f"broker {broker_id} {why}, and is in sync with others in {name}")


# --- tokens


def _token(state: MetadataFold, record: wire.DelegationTokenRecord) -> None:
    end, latest = record.expiration_timestamp, record.max_timestamp
    _must(state, end <= latest, f"token {record.token_id} ends at {end}, behind its latest time {latest}")
    known = state.tokens.get(record.token_id)
    if known is not None:
        _must(
            state,
            known[4] == latest,
            f"the latest time of token {record.token_id} was {known[4]}, and is {latest}",
        )
