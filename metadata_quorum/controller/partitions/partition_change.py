"""The change of one partition: its leader (clean or unclean), ISR, eligible replicas (ELR) and the end of a
reassignment, decided together. A change follows when the in-sync replicas, the assignment or the brokers
change.

One function decides the leader, ISR, eligible replicas and last known leader together, because they depend on
each other. The rules are those of Kafka's PartitionChangeBuilder, with KIP-455 for reassignments and KIP-966
for the rest:

* **Leader.** The leader is a replica that is in sync and acceptable, which means that its broker is active
  and its directory online. The present leader stays if it still qualifies. Otherwise the first such replica
  in the order of assignment is elected. A replica in a directory that takes no records now
  (`odradek.serving.disk_troubles`) leads only if all others are in such directories, too.
* **No replica in sync.** If the ISR is empty, an eligible replica (ELR) leads. If there is none, the replica
  with the longest log leads (`unclean_recovery.py`), or the last known leader. As the last choice, any
  acceptable replica leads, if `unclean.leader.election.enable` allows it. A leader that was not eligible may
  lack acknowledged records. So after its election the ISR has only the leader, and the partition is
  RECOVERING until the leader reports otherwise.
* **Eligible replicas.** The high watermark does not advance while the ISR is below `min.insync.replicas`. So
  a replica that leaves such an ISR has all committed records, and becomes eligible. If the ISR has
  `min.insync.replicas` or more members, there are no eligible replicas.
* **Without the feature of eligible replicas**, the last in-sync replicas stay in the ISR when their brokers
  go away. If several brokers go away at once, the first broker that returns leads, and is the only one in
  sync.
* **Unclean restarts.** A broker that may have lost acknowledged records leaves ISR and ELR, even as the last
  member. If ISR and ELR are then both empty, the last known leader is recorded, and is elected when it is
  active again. (Kafka does this only with the feature, Odradek always.)
* **Replaced disks.** A replica that begins anew is empty. It leaves ISR and ELR, so clean elections skip it.
  If the partition then has no leader, the empty replica is moved to the end of the assignment. So an unclean
  election tries it last.
* **Reassignment.** During a reassignment, `replicas` has the old and the new replicas. When all replicas that
  will stay are in sync, the other replicas are removed. The leader epoch rises, so that the removed replicas
  notice it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from enum import Enum
from itertools import islice

import attrs

from odradek.metadata_quorum.controller.partitions.topic_rules import TopicRules
from odradek.metadata_quorum.controller.unclean_recovery import Recovery, is_held_back
from odradek.metadata_quorum.image.metadata_image import (
    NO_LEADER,
    NO_LEADER_CHANGE,
    RECOVERING,
    UNASSIGNED_DIRECTORY,
    MetadataImage,
    PartitionImage,
    is_subset,
)
from odradek.named_states import reached
from odradek.wire.messages.metadata_records import PartitionChangeRecord
from odradek.wire.topic_partition import TopicIdPartition

Acceptable = Callable[[PartitionImage, int], bool]


class Election(Enum):
    """The kinds of elections. They differ in the replicas that may become leader."""

    ONLINE = "the leader stays while it can"
    PREFERRED = "the first of the assignment, if it is in sync"
    UNCLEAN = "anybody, rather than nobody"


def acceptable_leaders(
    image: MetadataImage, *, also: int | None = None, without: Collection[int] = ()
) -> Acceptable:
    """Return a function that says whether a broker may lead a partition in `image`.

    This function treats the broker `also` as active, and the brokers `without` as inactive.
    """
    brokers = image.brokers

    def acceptable(partition: PartitionImage, broker_id: int) -> bool:
        broker = brokers.get(broker_id)
        if broker is None or broker_id in without or not (broker.is_active or broker_id == also):
            return False
        return partition.is_online(broker_id, broker)

    return acceptable


@attrs.define
class _Target:
    """The new state of a partition while it is being computed."""

    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]
    isr: tuple[int, ...]
    elr: tuple[int, ...]
    leader: int
    last_known: tuple[int, ...]
    begun_anew: int | None = None
    unclean: bool = False


@attrs.frozen
class Change:
    """A requested change of a partition. Unset fields request nothing."""

    isr: tuple[int, ...] | None = None
    removed: Collection[int] = ()
    """Replicas that leave the ISR at once. They have all records that are committed so far. So they become
    eligible if too few replicas stay in sync.
    """
    lost: int | None = None
    """A replica that may lack records that it has acknowledged. It leaves the eligible replicas and the ISR,
    even if it is the last member.
    """
    unclean: bool = False
    """True if `isr` may become empty although there is no eligible replica."""
    begun_anew: int | None = None
    """A replica that is empty, or whose log is about to be set aside. It leaves the ISR and all other sets of
    candidates, and does not count as a former leader.
    """
    replicas: tuple[int, ...] | None = None
    adding: tuple[int, ...] | None = None
    removing: tuple[int, ...] | None = None
    directories: Mapping[int, bytes] = attrs.field(factory=dict)
    """The directories of replicas by broker id. New replicas that are not listed are unassigned."""
    leader_recovery_state: int | None = None
    election: Election | None = None
    """The kind of election. By default it follows from the topic's rules."""


NO_CHANGE = Change()
"""A change that requests nothing. It is used when only the brokers or the rules have changed."""


def change_partition(
    topic_id: bytes,
    number: int,
    partition: PartitionImage,
    acceptable: Acceptable,
    rules: TopicRules = TopicRules(),  # noqa: B008  (frozen)
    change: Change = NO_CHANGE,
) -> PartitionChangeRecord | None:
    """Compute the new state of a partition, and make its record; None if nothing changes."""
    isr = partition.isr if change.isr is None else change.isr
    lost = change.lost if change.begun_anew is None else change.begun_anew
    target = _Target(
        partition.replicas if change.replicas is None else change.replicas,
        partition.adding_replicas if change.adding is None else change.adding,
        partition.removing_replicas if change.removing is None else change.removing,
        tuple(each for each in isr if each != lost and each not in change.removed),
        partition.elr,
        partition.leader,
        tuple(each for each in partition.last_known_elr if each != change.begun_anew),
        change.begun_anew,
    )
    if not target.isr and not change.unclean and not rules.eligible_replicas:
        target.isr = tuple(each for each in partition.isr if each != lost)
    _complete_reassignment(target)
    _keep_eligible(target, partition, rules, lost)
    election = change.election
    if election is None:
        is_unclean = rules.unclean_election and not is_held_back(partition, rules.awaited)
        election = Election.UNCLEAN if is_unclean else Election.ONLINE
    _elect(TopicIdPartition(topic_id, number), target, partition, acceptable, election, rules)
    if target.leader == NO_LEADER:
        target.replicas = _empty_last(target)
    if _is_sufficient(target, rules):
        target.elr = ()
    _remember_last(target, partition, rules)
    _check(target)
    return _record(topic_id, number, partition, target, change.directories, change.leader_recovery_state)


def _complete_reassignment(target: _Target) -> None:
    """Complete a reassignment if all replicas that stay are in sync: remove the other replicas (KIP-455)."""
    if not target.adding and not target.removing:
        return
    isr = tuple(each for each in target.isr if each not in target.removing)
    replicas = tuple(each for each in target.replicas if each not in target.removing)
    if isr and replicas and set(replicas) <= set(isr):
        target.isr, target.replicas = isr, replicas
        target.adding = target.removing = ()


def _keep_eligible(target: _Target, partition: PartitionImage, rules: TopicRules, lost: int | None) -> None:
    candidates = set(partition.elr)
    if rules.eligible_replicas:
        candidates.update(partition.isr)
    if _is_sufficient(target, rules):
        candidates.clear()
    candidates.discard(-1 if lost is None else lost)
    elr = tuple(sorted(each for each in candidates if each in target.replicas and each not in target.isr))
    target.elr = partition.elr if set(elr) == set(partition.elr) else elr


def _is_sufficient(target: _Target, rules: TopicRules) -> bool:
    """True if this ISR is large enough to commit records. Then replicas outside of the ISR may lack committed
    records.
    """
    min_isr = min(rules.min_isr, len(target.replicas)) if rules.eligible_replicas else 1
    return len(target.isr) >= min_isr


def _elect(
    key: TopicIdPartition,
    target: _Target,
    partition: PartitionImage,
    acceptable: Acceptable,
    election: Election,
    rules: TopicRules,
) -> None:
    candidates = target.isr or target.elr
    order = [partition.leader, *target.replicas]
    if election is Election.PREFERRED:
        order.insert(0, target.replicas[0])
    qualified = [each for each in order if each in candidates and acceptable(partition, each)]
    if qualified:
        sound = (each for each in qualified if partition.directory_of(each) not in rules.troubled_directories)
        leader = next(sound, qualified[0])
        assert leader != target.begun_anew, (
            f"the empty replica on broker {leader} is in the ISR or eligible to lead"
        )
        if partition.leader == NO_LEADER and not rules.eligible_replicas:
            target.isr = tuple(each for each in target.isr if acceptable(partition, each))
        _lead(target, leader)
        return
    found = _least_loss(key, target, partition, acceptable, election, rules)
    if found is None:
        target.leader = NO_LEADER
    else:
        _lead_uncleanly(target, found)


def _least_loss(
    key: TopicIdPartition,
    target: _Target,
    partition: PartitionImage,
    acceptable: Acceptable,
    election: Election,
    rules: TopicRules,
) -> int | None:
    """Choose a leader that may lack committed records. Returns None if no replica may lead, or if the
    partition must still wait for a better replica.
    """
    at_once = election is Election.UNCLEAN
    has_candidates = bool(target.isr or target.elr)
    if has_candidates and not at_once:
        reached("controller.members_waited_for")
        return None

    def may_lead(replica: int) -> bool:
        return replica in target.replicas and replica != target.begun_anew and acceptable(partition, replica)

    last_known = target.last_known
    recovery = _recovery(target, rules)
    if recovery is not None:
        found = recovery.elect(
            key, partition, last_known, may_lead, at_once=at_once, without_limit=rules.awaited
        )
        if found is not None:
            reached("controller.longest_log_elected")
            return found
    is_free = recovery is None and not is_held_back(partition, rules.awaited)
    if (is_free or at_once) and not has_candidates and last_known and may_lead(last_known[0]):
        reached("controller.last_known_leader_elected")
        return last_known[0]
    if at_once:
        reached("controller.elected_uncleanly")
        return next((each for each in _empty_last(target) if acceptable(partition, each)), None)
    return None


def _recovery(target: _Target, rules: TopicRules) -> Recovery | None:
    recovery = rules.recovery
    return recovery if recovery is not None and recovery.covers(target.replicas) else None


def _empty_last(target: _Target) -> tuple[int, ...]:
    """Return the replicas in the order of an unclean election: a replica that begins anew is empty, so it is last."""
    return tuple(sorted(target.replicas, key=lambda each: each == target.begun_anew))


def _lead(target: _Target, leader: int) -> None:
    target.leader = leader
    if leader not in target.isr:
        reached("controller.eligible_replica_elected")
        target.isr = (leader,)
        target.elr = tuple(each for each in target.elr if each != leader)


def _lead_uncleanly(target: _Target, leader: int) -> None:
    target.leader = leader
    target.isr = (leader,)
    target.elr = ()
    target.unclean = True


def _remember_last(target: _Target, partition: PartitionImage, rules: TopicRules) -> None:
    """Update `last_known`, the replicas from which the leader is chosen when ISR and ELR are empty. It is
    cleared when it is no longer needed.

    With unclean recovery, `last_known` has all replicas that have left since the ISR became too small to
    commit. The last leader comes first.

    Without unclean recovery, it has only the last leader. If the last leader is unknown, it has one of the
    replicas that were eligible last. (This happens if a node without unclean recovery has joined the
    cluster.)
    """
    if _recovery(target, rules) is not None:
        _remember_members(target, partition, rules)
    elif target.leader != NO_LEADER:
        target.last_known = ()
    elif not target.isr and partition.isr:
        last = partition.leader
        if last == NO_LEADER and len(partition.isr) == 1:
            last = partition.isr[0]
        if last not in (NO_LEADER, target.begun_anew):
            target.last_known = (last,)
    elif not target.isr and not target.elr and not target.last_known:
        lost = (each for each in partition.elr if each in target.replicas and each != target.begun_anew)
        target.last_known = tuple(islice(lost, 1))


def _remember_members(target: _Target, partition: PartitionImage, rules: TopicRules) -> None:
    if target.unclean or _is_sufficient(target, rules):
        target.last_known = ()
        return
    order = (partition.leader, *target.last_known, *sorted({*partition.isr, *partition.elr}))
    held = {*partition.isr, *partition.elr, *target.last_known}
    target.last_known = tuple(
        each
        for each in dict.fromkeys(order)
        if each in held
        and each in target.replicas
        and each != target.begun_anew
        and each not in target.isr
        and each not in target.elr
    )


def _check(target: _Target) -> None:
    """Assert the invariants of a partition after a change. Raises `AssertionError`."""
    if not is_subset(target.isr, target.replicas) or not is_subset(target.elr, target.replicas):
        raise AssertionError(f"a broker without a replica is in the ISR or eligible to lead: {target}")
    if target.leader != NO_LEADER and target.leader not in target.isr:
        raise AssertionError(f"the leader is not in the ISR: {target}")


def _record(
    topic_id: bytes,
    number: int,
    partition: PartitionImage,
    target: _Target,
    directories: Mapping[int, bytes],
    leader_recovery_state: int | None,
) -> PartitionChangeRecord | None:
    record = PartitionChangeRecord(partition_id=number, topic_id=topic_id)
    if target.isr != partition.isr:
        record.isr = list(target.isr)
    if target.leader != partition.leader:
        record.leader = target.leader
    elif not set(partition.replicas) <= set(target.replicas):
        record.leader = partition.leader
    if target.elr != partition.elr:
        record.eligible_leader_replicas = list(target.elr)
    if target.last_known != partition.last_known_elr:
        record.last_known_elr = list(target.last_known)
    if target.replicas != partition.replicas:
        record.replicas = list(target.replicas)
    if target.removing != partition.removing_replicas:
        record.removing_replicas = list(target.removing)
    if target.adding != partition.adding_replicas:
        record.adding_replicas = list(target.adding)
    if record.replicas is not None or directories:
        held = [_directory(partition, directories, replica) for replica in target.replicas]
        if held != [partition.directory_of(replica) for replica in partition.replicas]:
            record.directories = held
    state = RECOVERING if target.unclean else leader_recovery_state
    if state is not None and state != partition.leader_recovery_state:
        record.leader_recovery_state = state
    return None if _changes_nothing(record) else record


def _directory(partition: PartitionImage, directories: Mapping[int, bytes], replica: int) -> bytes:
    if replica in partition.replicas and replica not in directories:
        return partition.directory_of(replica)
    return directories.get(replica, UNASSIGNED_DIRECTORY)


def _changes_nothing(record: PartitionChangeRecord) -> bool:
    return (
        record.isr is None
        and record.leader == NO_LEADER_CHANGE
        and record.leader_recovery_state < 0
        and record.replicas is None
        and record.adding_replicas is None
        and record.removing_replicas is None
        and record.directories is None
        and record.eligible_leader_replicas is None
        and record.last_known_elr is None
    )
