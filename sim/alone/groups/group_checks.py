"""Safety checks of a group coordinator, after every step of a schedule and at its end. PURE.

The replicas of the partition must obey the rules of `sim.alone.replication_checks`. In addition, this module reads
the committed log record by record. It compares each answer with that log when the coordinator gives the answer.

* An offset whose commit was acknowledged is in the committed part of the log. Each later OffsetFetch returns that
  offset or a newer one, even from a later coordinator. A tombstone is written only for an expired offset
  (`sim.checks.folds.group_laws`), or after a request to delete.
* A deposed coordinator that has not yet learned of its successor answers fetches, as in Apache Kafka. Such an answer
  is compared only with records up to that coordinator's epoch.
* An offset of a generation is in the log after the record of that generation, and before the record of the next
  generation.
* In a generation each partition has one owner. Each member receives the assignment that the log has. Generations
  never fall.
* Each member that a coordinator loads has a session that ends.
* A coordinator has no offset of a topic that is deleted, also if it was loading the log then.
* The state that a coordinator loads equals a replay of the log. The state of the coordinator that wrote the log
  equals that replay too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import attrs

from odradek.data_plane.groups.offsets import FetchedOffsets
from odradek.data_plane.groups.records import (
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
)
from odradek.data_plane.groups.state import GroupsState
from odradek.data_plane.log.partition_log import PartitionLog
from odradek.wire.errors import ErrorCode
from sim.alone.groups.group_host import GroupHost
from sim.alone.logged_records import LoggedRecord, decoded, logged_records
from sim.alone.replication_broker import Broker
from sim.alone.replication_checks import Promises
from sim.checks.derived.member_sessions import endless_session
from sim.checks.folds.group_laws import expiry_complaint
from sim.history import SafetyViolation

__all__ = ["Floor", "GroupPromises", "OffsetAt", "Sent", "partitions_of"]

OffsetAt = tuple[str, str, int]
"""(group id, topic name, partition number) of an offset."""


@attrs.frozen
class Sent:
    """An offset commit that a client has sent. For a client that is in no group, the generation is -1 and the member
    id is empty.
    """

    key: OffsetAt
    member_id: str
    generation: int


@attrs.frozen
class Floor:
    """The log offsets of the newest acknowledged commits and tombstones. The answer to an OffsetFetch that is sent now
    must agree with these records or newer ones.

    For each key the log offsets are grouped by the record's leader epoch. A deposed coordinator must know only the
    records up to its own epoch.
    """

    commits: Mapping[OffsetAt, Mapping[int, int]]
    tombstones: Mapping[OffsetAt, Mapping[int, int]]


def _newest(positions: Mapping[int, int], epoch: int) -> int:
    """Return the highest position that was written in leader epoch `epoch` or before; -1 if there is none."""
    return max((position for written, position in positions.items() if written <= epoch), default=-1)


def partitions_of(assignment: bytes) -> tuple[int, ...]:
    """Parse an assignment as simulated clients write it: partition numbers with commas between them."""
    return tuple(int(each) for each in assignment.split(b",") if each)


class GroupPromises(Promises):
    """Checks of a group coordinator's committed log and of its answers."""

    def __init__(self, min_isr: int, retention_ms: int, wall_ms: Callable[[], int]) -> None:
        super().__init__(min_isr)
        self._wall_ms = wall_ms
        self._retention_ms = retention_ms
        self.sent: dict[str, Sent] = {}
        """Sent commits by their metadata string, which is unique."""
        self.forgiven: dict[str, None] = {}
        """Groups from which an operator has deleted offsets. A tombstone of such a group is valid before the retention
        time is over.
        """
        self._read_to = 0
        self._positions: dict[str, int] = {}
        """The offset of each commit's record in the committed log, by the commit's metadata string."""
        self._epochs: dict[int, int] = {}
        """The leader epoch in which each committed record was written, by the offset of the record."""
        self._tombstones: dict[OffsetAt, dict[int, int]] = {}
        """For each key and leader epoch, the log offset of the newest tombstone."""
        self._values: dict[OffsetAt, OffsetCommitValue] = {}
        self._groups: dict[str, GroupMetadataValue] = {}
        self._owned: dict[tuple[str, int], list[dict[str, bytes]]] = {}
        """For each (group id, generation): a list with an entry for each record of the group. The entry has the
        assignments by member. A static member is named by its instance id.
        """
        self._acknowledged: dict[OffsetAt, dict[int, int]] = {}
        """For each key and leader epoch, the log offset of the newest acknowledged commit."""
        self._written: dict[tuple[int, int], GroupsState] = {}
        """By (leader epoch, log end offset): the state of that epoch's coordinator when its log ended there."""
        self.loads = 0
        self.commits = 0
        self.forgotten = 0

    # -- the committed log ----------------------------------------------------------------------------------------

    def _contents(self, log: PartitionLog, start: int, end: int) -> dict[int, bytes]:
        found = {}
        for offset, record in logged_records(log, start, end).items():
            found[offset] = record.data
            self._epochs.setdefault(offset, record.leader_epoch)
        return found

    def look(self, living: Iterable[Broker]) -> None:
        """Check the replicas, and read newly committed records."""
        super().look(living)
        while self._read_to in self._seen:
            self._read(self._read_to, self._seen[self._read_to])
            self._read_to += 1

    def _read(self, offset: int, data: bytes) -> None:
        key, value = decoded(data)
        if isinstance(key, OffsetCommitKey):
            at = (key.group, key.topic, key.partition)
            if value is None:
                self._read_tombstone(at, offset)
            else:
                assert isinstance(value, OffsetCommitValue)
                self._read_commit(at, offset, value)
        elif isinstance(key, GroupMetadataKey):
            if value is None:
                # A group that is created again starts with generation 1.
                self._groups.pop(key.group, None)
            else:
                assert isinstance(value, GroupMetadataValue)
                self._read_group(key.group, value)

    def _read_tombstone(self, at: OffsetAt, offset: int) -> None:
        self._tombstones.setdefault(at, {})[self._epochs[offset]] = offset
        value = self._values.pop(at, None)
        if value is not None and at[0] not in self.forgiven:
            groups = self._groups.get(at[0]), None
            complaint = expiry_complaint(at[1], value, groups, self._wall_ms(), self._retention_ms)
            if complaint is not None:
                raise SafetyViolation(f"{at} is removed at {offset}: {complaint}")

    def _read_commit(self, at: OffsetAt, offset: int, value: OffsetCommitValue) -> None:
        sent = self.sent[value.metadata]
        if sent.key != at or value.metadata in self._positions:
            raise SafetyViolation(
                f"commit {value.metadata} of {sent} is in the log at {offset} for {at}: for another partition, or twice"
            )
        self._positions[value.metadata] = offset
        self._values[at] = value
        group = self._groups.get(at[0])
        members = [] if group is None else [each.member_id for each in group.members]
        if sent.generation < 0:
            if members:
                raise SafetyViolation(
                    f"commit {value.metadata} without a member is accepted while the group has the members {members}"
                )
        elif group is None or group.generation != sent.generation or sent.member_id not in members:
            now = None if group is None else group.generation
            raise SafetyViolation(
                f"commit {value.metadata} of {sent.member_id} in generation {sent.generation} is taken at offset "
                f"{offset}, in generation {now} of {members}"
            )

    def _read_group(self, group_id: str, value: GroupMetadataValue) -> None:
        before = self._groups.get(group_id)
        if before is not None and value.generation < before.generation:
            raise SafetyViolation(
                f"{group_id} goes from generation {before.generation} to {value.generation}"
            )
        self._groups[group_id] = value
        owned = {each.group_instance_id or each.member_id: each.assignment for each in value.members}
        numbers = [number for assignment in owned.values() for number in partitions_of(assignment)]
        if len(dict.fromkeys(numbers)) != len(numbers):
            raise SafetyViolation(
                f"a partition has two owners in generation {value.generation} of {group_id}"
            )
        known = self._owned.setdefault((group_id, value.generation), [])
        if before is not None and before.generation == value.generation and known and known[-1] != owned:
            raise SafetyViolation(
                f"generation {value.generation} of {group_id} gives {known[-1]}, and then {owned}"
            )
        known.append(owned)

    # -- answers --------------------------------------------------------------------------------------------------

    def floor(self) -> Floor:
        """Return a copy of the log offsets with which the answer to an OffsetFetch that is sent now must agree."""
        return Floor(
            {key: dict(positions) for key, positions in self._acknowledged.items()},
            {key: dict(positions) for key, positions in self._tombstones.items()},
        )

    def committed(self, node: Broker, commit: str, code: ErrorCode) -> None:
        """Check a coordinator's answer to a commit: a commit that succeeds must be in the committed log."""
        if code:
            return
        self.look([node])
        self.commits += 1
        position = self._positions.get(commit)
        if position is None:
            raise SafetyViolation(f"commit {commit} is acknowledged, but not in the committed log")
        acknowledged = self._acknowledged.setdefault(self.sent[commit].key, {})
        epoch = self._epochs[position]
        acknowledged[epoch] = max(position, acknowledged.get(epoch, -1))

    def fetched(self, node: Broker, group_id: str, floor: Floor, answer: FetchedOffsets) -> None:
        """Check a coordinator's answer to OffsetFetch. For each record of `floor` the answer must have that record's
        offset, or a newer committed offset.
        """
        if answer.code:
            return
        self.look([node])
        epoch = node.partition.leader_epoch
        for (topic, partition), value in answer.offsets.items():
            key = (group_id, topic, partition)
            position = self._positions.get(value.metadata)
            if position is None:
                raise SafetyViolation(f"{key} is answered with {value.metadata}, which is not committed")
            least = max(
                _newest(floor.commits.get(key, {}), epoch), _newest(floor.tombstones.get(key, {}), epoch)
            )
            if position < least:
                raise SafetyViolation(f"{key} is answered with what stands at {position}, {least} is newer")
        for key, positions in floor.commits.items():
            if key[0] == group_id and key[1:] not in answer.offsets:
                least = _newest(positions, epoch)
                if _newest(self._tombstones.get(key, {}), epoch) < least:
                    raise SafetyViolation(f"{key} was committed at {least}, and is not found")

    def synced(self, node: Broker, group_id: str, generation: int, name: str, assignment: bytes) -> None:
        """Check that the committed log has the assignment that a coordinator sends to a member."""
        self.look([node])
        if not any(each.get(name) == assignment for each in self._owned.get((group_id, generation), [])):
            raise SafetyViolation(
                f"{name} gets the partitions {assignment!r} in generation {generation}, which is not committed"
            )

    # -- states ---------------------------------------------------------------------------------------------------

    def wrote(self, host: GroupHost) -> None:
        """Record the coordinator's state, together with the present end of its log. Check that the last record has
        the leader's epoch.
        """
        shard = host.shard
        if shard is not None and not shard.is_loading:
            runtime = shard._runtime
            assert runtime is not None
            end_offset = host.broker.log.log_end_offset
            self._written[shard.leader_epoch, end_offset] = runtime.state
            partition = host.broker.partition
            if partition.is_leader and end_offset > partition.epoch_start_offset:
                last = logged_records(host.broker.log, end_offset - 1, end_offset)[end_offset - 1]
                if last.leader_epoch != partition.leader_epoch:
                    raise SafetyViolation(
                        f"in epoch {partition.leader_epoch} a record of epoch {last.leader_epoch} is written"
                    )

    def has_forgotten(self, host: GroupHost) -> None:
        """Check that a coordinator has no offset of the only topic, which was deleted."""
        shard = host.shard
        assert shard is not None
        assert shard._runtime is not None
        kept = sorted(group for group, offsets in shard._runtime.state.offsets.items() if offsets)
        if kept:
            raise SafetyViolation(
                f"{host.broker.node_id} keeps offsets of {kept} in a topic that was deleted"
            )
        self.forgotten += 1

    def loaded(self, host: GroupHost) -> None:
        """Check the state that a coordinator has just loaded against a replay of its log. Check the state of the
        coordinator that wrote the log against the same replay.
        """
        shard, log = host.shard, host.broker.log
        assert shard is not None
        assert shard._runtime is not None
        self.loads += 1
        state = shard._runtime.state
        endless = endless_session(shard.machine, state)
        if endless is not None:
            raise SafetyViolation(f"{host.broker.node_id} has loaded its groups: {endless}")
        found = logged_records(log, log.log_start_offset, log.log_end_offset)
        expected = _replay(found)
        if _plain(state) != expected:
            raise SafetyViolation(
                f"{host.broker.node_id} has loaded {_plain(state)}, its log says {expected}"
            )
        epoch = max((each.leader_epoch for each in found.values()), default=-1)
        written = self._written.get((epoch, log.log_end_offset))
        if written is not None and _plain(written) != expected:
            raise SafetyViolation(
                f"{host.broker.node_id} has loaded {state}; the coordinator of epoch {epoch}, which wrote it, had {written}"
            )

    # -- the end of a schedule ------------------------------------------------------------------------------------

    def check(self, nodes: Mapping[int, Broker]) -> None:
        """Check, after the cluster is healed, that all replicas are equal and have every acknowledged record."""
        self._check_replicas(nodes)


def _replay(found: Mapping[int, LoggedRecord]) -> dict[object, object]:
    """Replay the records in order. Return the newest value of each key; a key names a group or an offset."""
    state: dict[object, object] = {}
    for record in found.values():
        key, value = decoded(record.data)
        if isinstance(key, OffsetCommitKey):
            at: object = (key.group, key.topic, key.partition)
        elif isinstance(key, GroupMetadataKey):
            at = key.group
        else:
            continue
        if value is None:
            state.pop(at, None)
        else:
            state[at] = value
    return state


def _plain(state: GroupsState) -> dict[object, object]:
    """Convert a coordinator's state to the form that `_replay` returns, so that the two can be compared."""
    plain: dict[object, object] = {}
    for group, metadata in state.metadata.items():
        plain[group] = metadata
    for group, offsets in state.offsets.items():
        for (topic, partition), value in offsets.items():
            plain[group, topic, partition] = value
    return plain
