"""Safety checks of a consumer group, after every step of a schedule. PURE.

A model of the group is built from the committed log, record by record (`sim.checks.folds.consumer_fold`). Members
are compared with that model.

* Each partition has one owner at most, after each record. In one epoch, no two members have the same partition.
* Epochs of a group and of its target never fall. The target's epoch is at most the group's. A member's epoch falls
  only when it leaves.
* A complete target has no partition twice. It has every partition, unless members have joined or left since it was
  computed.
* A member starts to use a partition only if no present member still uses it.
* A commit is in the log only if the member that sent it was in the group. The commit's epoch is the member's present
  epoch, or an older epoch in which the member already had the partition. Commits with the epoch -1 are in the log only
  if the group was empty.
* The offset of a partition never goes back from one owner to the next.
* A member is removed if its session timeout passes without a request from it.
* Each member that a coordinator loads has a session that ends.
* The state that a coordinator loads equals the model of its log. The state of the coordinator that wrote the log
  equals the model too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import attrs

from odradek.data_plane.groups.records import (
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
)
from odradek.data_plane.groups.state import GroupsState
from odradek.data_plane.log.partition_log import PartitionLog
from odradek.wire.errors import ErrorCode
from odradek.wire.messages.coordinator_records import ConsumerGroupTargetAssignmentMetadataKey
from odradek.wire.topic_partition import TopicPartition
from sim.alone.groups.group_host import GroupHost
from sim.alone.logged_records import decoded, logged_records
from sim.alone.replication_broker import Broker
from sim.alone.replication_checks import Promises
from sim.checks.derived.consumer_states import consumers_difference
from sim.checks.derived.member_sessions import endless_session
from sim.checks.folds.consumer_fold import ConsumerFold, ConsumersFold, Slot
from sim.history import SafetyViolation

__all__ = ["ConsumerPromises", "Holder", "Sent", "topic_id"]

KNOWN_EPOCH_MIN = 1
FIRST_TOPIC, FIRST_PARTITIONS = "t", 4
"""The topic that exists from the beginning, and its number of partitions at that time."""


def topic_id(name: str) -> bytes:
    """Make a 16-byte topic id from the topic's name."""
    return name.encode().ljust(16)


@attrs.frozen
class Sent:
    """An offset commit that a simulated client has sent."""

    at: TopicPartition
    member_id: str
    epoch: int
    is_late: bool = False
    """True for a commit with a member id and epoch that the client had earlier. The offset of such a commit is
    arbitrary. The coordinator may accept it if the group still has that member.
    """


@attrs.define(eq=False)
class Holder:
    """A client and its partitions. `stay` is the number of times that the group had removed the client's member id
    before the client last joined.
    """

    name: str
    member_id: str = ""
    stay: int = 0
    held: dict[TopicPartition, int | None] = attrs.Factory(dict)
    """The client's position in each partition; None until the client has fetched the committed offset."""


class ConsumerPromises(Promises):
    """Checks of the committed log and of the answers of a coordinator, for one group with members of both protocols."""

    def __init__(self, min_isr: int, group_id: str) -> None:
        super().__init__(min_isr)
        self._group_id = group_id
        self.sent: dict[str, Sent] = {}
        """Sent commits by their metadata string, which is unique."""
        self.holders: list[Holder] = []
        self.removals: dict[str, int] = {}
        """How often each member id was removed from the group."""
        self._read_to = 0
        self._batches: dict[int, int] = {}
        """The end offset of each record's batch, by the offset of the record."""
        self._fold = ConsumersFold()
        self._classic: GroupMetadataValue | None = None
        self._offsets: dict[TopicPartition, tuple[tuple[str, int] | None, int]] = {}
        """For each partition, the newest committed offset, and who committed it. The committer is (member id, epoch
        since which the member owns the partition), or None for a member without the partition.
        """
        self._written: dict[tuple[int, int], GroupsState] = {}
        self._positions: dict[str, int] = {}
        self.commits = self.loads = self.migrations = self.handed_over = 0

    # -- the committed log ----------------------------------------------------------------------------------------

    def _contents(self, log: PartitionLog, start: int, end: int) -> dict[int, bytes]:
        found = {}
        for offset, record in logged_records(log, start, end).items():
            found[offset] = record.data
            self._batches[offset] = record.next_offset
        return found

    def look(self, living: Iterable[Broker]) -> None:
        """Check the replicas, and apply newly committed records to the model of the group, batch by batch."""
        super().look(living)
        while self._read_to in self._seen:
            end = self._batches[self._read_to]
            before = self.present
            for offset in range(self._read_to, end):
                self._read(offset, self._seen[offset])
            self._read_to = end
            for member_id in before - self.present:
                self.removals[member_id] = self.removals.get(member_id, 0) + 1

    @property
    def group(self) -> ConsumerFold | None:
        """The model of the group; None if it is a classic group or does not exist."""
        return self._fold.groups.get(self._group_id)

    @property
    def present(self) -> set[str]:
        """The ids of the group's present members, with either protocol."""
        found = set() if self.group is None else {*self.group.profiles}
        if self._classic is not None:
            found |= {each.member_id for each in self._classic.members}
        return found

    def _read(self, offset: int, data: bytes) -> None:
        key, value = decoded(data)
        if key is None:
            return
        if isinstance(key, OffsetCommitKey):
            if isinstance(value, OffsetCommitValue):
                self._read_commit(TopicPartition(key.topic, key.partition), offset, value)
        elif isinstance(key, GroupMetadataKey):
            assert value is None or isinstance(value, GroupMetadataValue)
            if value is not None and self.group is not None:
                raise SafetyViolation(f"at {offset} the group is a classic and a consumer group")
            self.migrations += value is None and self._classic is not None
            self._classic = value
        else:
            before = self._marks()
            self._fold.take(key, value)
            self._check_group(offset, before)
            if isinstance(key, ConsumerGroupTargetAssignmentMetadataKey) and self.group is not None:
                self._check_target(offset, self.group)

    def _marks(self) -> tuple[int, int, dict[str, int]]:
        group = self.group
        if group is None:
            return (0, 0, {})
        return (group.epoch, group.target_epoch, {each: group.member_epoch(each) for each in group.currents})

    def _check_group(self, offset: int, before: tuple[int, int, Mapping[str, int]]) -> None:
        group = self.group
        if group is None:
            return
        epoch, target_epoch, members = before
        # The epoch may fall to 0 when a classic group without a generation becomes a consumer group.
        fell = (
            KNOWN_EPOCH_MIN < epoch > group.epoch or KNOWN_EPOCH_MIN < target_epoch > group.target_epoch >= 0
        )
        if fell:
            raise SafetyViolation(
                f"at {offset} the group's epochs fell from {epoch} and {target_epoch} (target): {group}"
            )
        for member_id, was in members.items():
            now = group.member_epoch(member_id)
            if member_id in group.currents and KNOWN_EPOCH_MIN <= now < was:
                raise SafetyViolation(f"at {offset} {member_id} goes from epoch {was} to {now}")
        for slot, owners in group.owners().items():
            if len(owners) > 1:
                raise SafetyViolation(f"at {offset} {slot} belongs to {owners}")
        for member_id in group.currents:
            for slot, since in group.assigned(member_id).items():
                if since > max(group.member_epoch(member_id), 0):
                    raise SafetyViolation(
                        f"at {offset} {member_id} has {slot} since {since}, which is to come"
                    )

    def _check_target(self, offset: int, group: ConsumerFold) -> None:
        """Check a target that is complete: no partition is given twice. If it is the target of the group's present
        epoch, no partition is left out. (A target without a time comes from a classic group that was converted.)
        """
        given: dict[bytes, list[int]] = {}
        for target in group.targets.values():
            for name, partitions in target.items():
                given.setdefault(name, []).extend(partitions)
        if any(len(each) > len(set(each)) for each in given.values()):
            raise SafetyViolation(f"at {offset} a target gives partitions twice: {group.targets}")
        if group.target_epoch == group.epoch and group.target_ms:
            if any(FIRST_TOPIC in each.subscribed_topic_names for each in group.profiles.values()):
                given.setdefault(topic_id(FIRST_TOPIC), [])
            for name, all_given in given.items():
                count = max([*all_given, FIRST_PARTITIONS - 1 if name == topic_id(FIRST_TOPIC) else -1]) + 1
                if len(all_given) < count:
                    raise SafetyViolation(
                        f"at {offset} a target leaves partitions of {name!r} out: {group.targets}"
                    )

    def _read_commit(self, at: TopicPartition, offset: int, value: OffsetCommitValue) -> None:
        sent = self.sent[value.metadata]
        if sent.at != at or value.metadata in self._positions:
            raise SafetyViolation(
                f"commit {value.metadata} of {sent} is in the log at {offset} for {at}: for another partition, or twice"
            )
        self._positions[value.metadata] = offset
        since = self._accepted(sent, offset)
        stint = None if since is None or sent.is_late else (sent.member_id, since)
        last = self._offsets.get(at)
        if last is not None and None not in (stint, last[0]) and last[0] != stint and value.offset < last[1]:
            raise SafetyViolation(
                f"at {offset} {at} goes back from {last[1]} of {last[0]} to {value.offset} of {stint}"
            )
        if last is not None and last[0] != stint:
            self.handed_over += 1
        self._offsets[at] = (stint, value.offset)

    def _accepted(self, sent: Sent, offset: int) -> int | None:
        """Check that the group may accept this commit. Return the epoch since which the committing member has had the
        partition; None if the member does not have it.
        """
        group = self.group
        if sent.epoch < 0 and not self.present:
            # Kafka treats such a commit as that of a client without a group, whatever member id it names.
            return None
        if group is None:
            there = [] if self._classic is None else [each.member_id for each in self._classic.members]
            generation = None if self._classic is None else self._classic.generation
            if sent.member_id not in there or generation != sent.epoch:
                raise SafetyViolation(f"at {offset} {sent} is taken in generation {generation} of {there}")
            return sent.epoch
        if sent.member_id not in group.profiles:
            raise SafetyViolation(f"at {offset} {sent} is taken from none of {sorted(group.profiles)}")
        slot: Slot = (topic_id(sent.at.topic), sent.at.partition)
        epoch = group.member_epoch(sent.member_id)
        has = {**group.assigned(sent.member_id), **group.revoking(sent.member_id)}
        if sent.epoch != epoch and not has.get(slot, epoch + 1) <= sent.epoch <= epoch:
            raise SafetyViolation(f"at {offset} {sent} is taken in epoch {epoch}; the member has {has}")
        return has.get(slot)

    # -- members --------------------------------------------------------------------------------------------------

    def is_member(self, holder: Holder) -> bool:
        """True if the client is a member of the group, and was never removed since it joined."""
        return holder.member_id in self.present and self.removals.get(holder.member_id, 0) == holder.stay

    def joined(self, node: Broker, holder: Holder, member_id: str) -> int:
        """Return the value of `Holder.stay` for a client that the coordinator at `node` has just admitted to the group
        as `member_id`.
        """
        self.look([node])
        return self.removals.get(member_id, 0)

    def adopts(self, holder: Holder, at: TopicPartition) -> None:
        """Check that no present member still uses the partition, and record that this client uses it from now on."""
        if self.is_member(holder):
            for other in self.holders:
                if other is not holder and at in other.held and self.is_member(other):
                    raise SafetyViolation(f"{holder.name} adopts {at}, which {other.name} has")
        holder.held[at] = None

    def committed(self, node: Broker, commit: str, code: ErrorCode) -> None:
        """Check a coordinator's answer to a commit: a commit that succeeds must be in the committed log."""
        if code:
            return
        self.look([node])
        self.commits += 1
        if commit not in self._positions:
            raise SafetyViolation(f"commit {commit} is acknowledged, but not in the committed log")

    # -- states ---------------------------------------------------------------------------------------------------

    def wrote(self, host: GroupHost) -> None:
        """Record the coordinator's newest state, together with the present end of its log. Later `loaded` compares
        this state with a model of the log.
        """
        shard = host.shard
        if shard is not None and not shard.is_loading:
            end_offset = host.broker.log.log_end_offset
            self._written[shard.leader_epoch, end_offset] = shard.newest_state

    def loaded(self, host: GroupHost) -> None:
        """Check the state that a coordinator has just loaded against a model built from the records of its log."""
        shard, log = host.shard, host.broker.log
        assert shard is not None
        self.loads += 1
        endless = endless_session(shard.machine, shard.newest_state)
        if endless is not None:
            raise SafetyViolation(f"{host.broker.node_id} has loaded its groups: {endless}")
        fold, epoch = ConsumersFold(), -1
        for record in logged_records(log, log.log_start_offset, log.log_end_offset).values():
            epoch = record.leader_epoch
            key, value = decoded(record.data)
            if key is not None:
                fold.take(key, value)
        for state in (shard.newest_state, self._written.get((epoch, log.log_end_offset))):
            difference = None if state is None else consumers_difference(fold, state)
            if difference is not None:
                raise SafetyViolation(f"{host.broker.node_id} has {difference}")

    def check(self, nodes: Mapping[int, Broker]) -> None:
        """Check, after the cluster is healed, that all replicas are equal and have every acknowledged record."""
        self._check_replicas(nodes)
