"""The leader's part of a quorum replica: it collects decisions, writes them to the log in groups, and syncs
the log. PORTED.

A decision gets its offsets at once. All waiting decisions are written as one batch, which is synced before
the next batch. Decisions that arrive meanwhile form the next group. If the sync is late and the other voters
are a majority, they get the next group without waiting for this sync. That group stays in memory until the
disk is ready (`log_tail.py`). The first batch of an epoch contains its LeaderChange. This batch also contains
the voter set if the set is only in the first snapshot, or has an outdated address of this node.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import partial

import attrs

from odradek.env.ports import DiskRefused
from odradek.metadata_quorum.ports import CommitListener
from odradek.metadata_quorum.raft.log_state import Batch
from odradek.metadata_quorum.raft.roles import Leader
from odradek.metadata_quorum.raft.voters import VoterSet
from odradek.metadata_quorum.replica.driver_protocol import QuorumDriver
from odradek.metadata_quorum.replica.log_tail import LogTail, append_batches
from odradek.metadata_quorum.replica.metadata_batches import (
    batch_of_control_records,
    batch_of_values,
    encode_values,
)
from odradek.named_states import reached
from odradek.wire.messages.control_records import (
    KRaftVersionRecord,
    LeaderChangeMessage,
    LeaderChangeMessageVoter,
)
from odradek.wire.structure import Message

__all__ = ["QuorumLeader"]

BATCH_BYTES_MAX = 8 << 20
"""The size of a group of decisions, in bytes, at which the group is full (Kafka's limit). Further decisions
go into the next batch. A single decision may be larger.
"""
WAITING_BYTES_MAX = 64 << 20
DISK_FULL_RETRY_SECONDS = 1.0
LATE_PER_FETCH_TIMEOUT = 4
"""A divisor of the fetch timeout. A sync that takes longer than this share of the timeout (1/4) is late. Then
decisions are sent to the followers without waiting for the sync.
"""
SYNC_SECONDS_MAX = 60.0
"""The time, in seconds, after which a sync counts as failed, if the other voters can continue without this
node.
"""
SECOND_LOOK_SECONDS = 1.0
"""The time, in seconds, between two checks that both must find a sync hanging. One check alone may be wrong.
After a pause of the process, the check may run before the process records the end of the sync.
"""
NO_EPOCH = -1


@attrs.frozen
class _Waiting:
    """An entry of the log that has offsets but is not written yet: one decision, or control records of the
    quorum.
    """

    base_offset: int
    count: int
    size: int
    values: list[bytes]
    control: list[Message] | None = None
    voters: VoterSet | None = None


class QuorumLeader:
    """The metadata log as a `DecisionLog`. This node can append only while it leads, but it always knows the
    high watermark.
    """

    def __init__(self, driver: QuorumDriver) -> None:
        self._driver = driver
        self._settings = driver.settings
        self._epoch_to_begin = NO_EPOCH
        self._led_last = NO_EPOCH
        self.epoch = NO_EPOCH
        """The epoch in which this node leads. It is -1 until the epoch's first batch is in the log, and while
        this node does not lead.
        """
        self.end_offset = 0
        """The end offset of the last decision."""
        self.high_watermark = 0
        """The offset below which all records are committed, as far as this node knows."""
        self._listeners: list[CommitListener] = []
        self._waiting: deque[_Waiting] = deque()
        self.waiting_bytes = 0
        """The size of the decisions that have offsets but are not written yet, in bytes."""
        self._tail = LogTail()
        self._sync_began_at: float | None = None
        """The time at which the present sync began, in monotonic seconds; None if there is none."""
        self._seen_hanging_at = float("inf")
        """The time at which the present sync was first found to hang, in monotonic seconds; infinity before.
        """
        self._is_late_logged = False
        self.no_room_until = float("-inf")
        self._batches = 0
        self._decisions = 0
        self._elections = 0
        self.written_bytes = 0
        """The size of all batches that this node has written as a leader, in bytes."""

    # -- called by the driver for effects of the core ---------------------------------------------------------

    def took(self, epoch: int) -> None:
        """Called when this node has won an election. The next `write` writes the epoch's first batch."""
        if epoch <= self._led_last:
            raise AssertionError(
                f"this node was elected in epoch {epoch}, although it has led epoch {self._led_last} before"
            )
        self._elections += 1
        self._epoch_to_begin = self._led_last = epoch

    def lost(self) -> None:
        """Called when this node has lost the leadership: drop the entries that are not written. The state
        machine answers the requests that led to these entries.

        The batches in the tail are kept. The core already counts them as part of the log, so they must still
        be written.
        """
        self._epoch_to_begin = self.epoch = NO_EPOCH
        if self._waiting:
            reached("quorum.waiting_decisions_lost")
        self._waiting.clear()
        self.waiting_bytes = 0

    # -- the log of decisions -------------------------------------------------------------------------------------------

    @property
    def log_end_offset(self) -> int:
        """The end offset of all decisions while this node leads. Otherwise it is the end offset of the log."""
        return self.end_offset if self.epoch >= 0 else self._driver.core.log.end_offset

    @property
    def is_beginning_or_leading(self) -> bool:
        """True if this node accepts decisions: it leads, and the epoch's first batch is in the log."""
        return self.epoch >= 0 and self.epoch == self._driver.core.epoch

    @property
    def is_leading(self) -> bool:
        """True if this node leads, and knows which records are committed."""
        return self.epoch >= 0 and self._driver.core.has_committed_in_epoch

    def read_committed(self, offset: int, bytes_max: int) -> bytes:
        """Read complete batches below the high watermark, beginning with the batch that has `offset`. Blocks
        if the pages are not in the cache.

        A worker may call it only while the driver's lock `reading` is held. Raises `KafkaError`
        OFFSET_OUT_OF_RANGE below the log's start.
        """
        if offset >= self.high_watermark:
            return b""
        return self.read(offset, bytes_max, upper_bound=self.high_watermark)

    def read(self, offset: int, bytes_max: int, *, upper_bound: int | None = None) -> bytes:
        """Read as `ReplicatedLog.read` does, but include batches that are not in the file yet."""
        # Read from the tail first. A batch leaves the tail only after it is in the file, so it is found in
        # one of the two.
        found = self._tail.read(offset, bytes_max, upper_bound)
        if found is not None:
            return found
        log = self._driver.log
        if upper_bound is not None:
            upper_bound = min(upper_bound, log.log_end_offset)
        return log.read(offset, bytes_max, upper_bound=upper_bound)

    def subscribe(self, listener: CommitListener) -> None:
        self._listeners.append(listener)

    def unsubscribe(self, listener: CommitListener) -> None:
        self._listeners.remove(listener)

    def advance(self, high_watermark: int) -> None:
        """Advance the high watermark, and notify the listeners."""
        if high_watermark <= self.high_watermark:
            raise AssertionError(f"the committed offset falls from {self.high_watermark} to {high_watermark}")
        self.high_watermark = high_watermark
        for listener in list(self._listeners):
            listener(high_watermark)

    # -- appending ------------------------------------------------------------------------------------------------------

    @property
    def has_room(self) -> bool:
        return self.waiting_bytes + self._tail.size_bytes < WAITING_BYTES_MAX

    @property
    def has_waiting_control(self) -> bool:
        return any(each.control is not None for each in self._waiting)

    def encode_batch(self, records: Sequence[Message]) -> list[bytes]:
        """Encode the records of one decision. Raises `LocalProtocolError`."""
        return encode_values(records)

    def append_batch(self, batch: list[bytes]) -> int:
        """Queue the encoded records of one decision to be written. Returns the offset of the last record."""
        return self._append(len(batch), batch, None, None)

    def append_control(self, records: list[Message], voters: VoterSet | None) -> int:
        """Queue control records of this leader to be written as one batch.

        `voters` is the new voter set, if the records contain one. Returns the offset of the last record.
        """
        return self._append(len(records), [], records, voters)

    def _append(
        self, count: int, values: list[bytes], control: list[Message] | None, voters: VoterSet | None
    ) -> int:
        assert self.epoch >= 0, "only the leader of the quorum may append records"
        size = sum(map(len, values))
        self._waiting.append(_Waiting(self.end_offset, count, size, values, control, voters))
        self.waiting_bytes += size
        self.end_offset += count
        self._driver.wake()
        return self.end_offset - 1

    # -- writing --------------------------------------------------------------------------------------------------------

    def may_write(self) -> bool:
        """True if this node leads and has something to write. False during the pause that follows a write to a full
        disk.
        """
        core = self._driver.core
        if not isinstance(core.role, Leader) or self._driver.clock.monotonic() < self.no_room_until:
            return False
        return self._epoch_to_begin == core.epoch or (self.epoch == core.epoch and bool(self._waiting))

    async def write(self) -> None:
        """Write and sync one batch: the first batch of a new epoch, or a group of waiting decisions."""
        driver = self._driver
        core = driver.core
        epoch = core.epoch
        begins = self._epoch_to_begin == epoch
        group = [self._first_words()] if begins else self._next_group()
        data = self._encoded(group, epoch)
        try:
            last_offset = driver.log.append(data, epoch)
        except DiskRefused as error:
            reached("quorum.no_room_for_batch")
            self.no_room_until = driver.clock.monotonic() + DISK_FULL_RETRY_SECONDS
            driver.report_no_room(error)
            return
        self.no_room_until = float("-inf")
        driver.report_room()
        if begins:
            self._epoch_to_begin = NO_EPOCH
            self.epoch = epoch
            self.end_offset = last_offset + 1
        else:
            self._take(group)
        self._batches += 1
        self.written_bytes += len(data)
        driver.report(core.append, Batch(group[0].base_offset, last_offset, epoch, b"", group[0].voters))
        await self._sync()
        if (
            driver.env.buggify("quorum.resign")
            and isinstance(core.role, Leader)
            and len(core.voters.voters) > 1
        ):
            driver.report(core.resign)

    def _encoded(self, group: list[_Waiting], epoch: int) -> bytearray:
        """Build the batch of a group. Control records are always alone in their group."""
        first, now_ms = group[0], self._driver.clock.wall_ms()
        if first.control is not None:
            return batch_of_control_records(first.control, first.base_offset, epoch, now_ms)
        values = [value for each in group for value in each.values]
        return batch_of_values(values, first.base_offset, epoch, now_ms)

    def _take(self, group: list[_Waiting]) -> None:
        """Remove the entries of a group from the queue, because they are in the log now."""
        for each in group:
            self._waiting.popleft()
            self.waiting_bytes -= each.size
            self._decisions += each.control is None

    # -- slow disks -------------------------------------------------------------------------------------------

    async def _sync(self) -> None:
        """Sync the log. Then write and sync the batches in the tail, until the tail is empty."""
        driver = self._driver
        batches: Sequence[Batch] = ()
        while True:
            self._sync_began_at = driver.clock.monotonic()
            self._seen_hanging_at = float("inf")
            if batches:
                await driver.patiently(partial(append_batches, driver.log, batches))
                reached("quorum.tail_came_to_disk")
                self._tail.drop(batches)
            end_offset = await driver.patiently(driver.log.flush)
            self._sync_began_at = None
            driver.report(driver.core.flushed, end_offset)
            batches = self._tail.batches
            if not batches:
                break
        if self._is_late_logged:
            self._is_late_logged = False
            driver.logger.info("metadata.disk_answers", end_offset=end_offset)

    def disk_refused(self) -> None:
        """Called when the full disk has refused a write.

        The refusal shows that the disk does not hang. So the time limit of the sync starts again.
        """
        if self._sync_began_at is not None:
            self._sync_began_at = self._driver.clock.monotonic()
            self._seen_hanging_at = float("inf")

    def _late_at(self) -> float:
        """Return the time at which the present sync becomes late, in monotonic seconds; infinity without a sync."""
        if self._sync_began_at is None:
            return float("inf")
        return self._sync_began_at + self._settings.raft.fetch_timeout_seconds / LATE_PER_FETCH_TIMEOUT

    @property
    def _others_suffice(self) -> bool:
        """True if the other voters alone are a majority. Then they can commit records without this node's
        disk.
        """
        voters = self._driver.core.voters
        others = sum(not voter.key.matches(self._settings.me) for voter in voters.voters)
        return others >= voters.majority

    def next_deadline(self) -> float:
        """Return the next time at which `look_at_disk` must be called, in monotonic seconds; infinity for
        never.
        """
        late_at, now = self._late_at(), self._driver.clock.monotonic()
        if self._sync_began_at is None or late_at > now:
            return late_at
        hung_at = self._sync_began_at + SYNC_SECONDS_MAX
        return next(
            (at for at in (hung_at, self._seen_hanging_at + SECOND_LOOK_SECONDS) if at > now), float("inf")
        )

    def may_write_ahead(self) -> bool:
        """True if the sync is late, and the other voters can commit the waiting decisions without this node's
        disk.

        All earlier records must already be committed. So only one group at a time is sent in this way.
        """
        core = self._driver.core
        return (
            bool(self._waiting)
            and self._sync_began_at is not None
            and isinstance(core.role, Leader)
            and self.epoch == core.epoch
            and core.high_watermark == core.log.end_offset
            and self._late_at() <= self._driver.clock.monotonic()
            and self._others_suffice
        )

    def look_at_disk(self) -> bool:
        """Send the next group without the sync, if the sync is late and the other voters can commit the
        group.

        Returns True if the sync hangs for so long that the node must end.
        """
        driver, began_at = self._driver, self._sync_began_at
        now = driver.clock.monotonic()
        if began_at is None or self._late_at() > now or not self._others_suffice:
            return False
        if not self._is_late_logged:
            reached("quorum.disk_was_late")
            self._is_late_logged = True
            driver.logger.warning("metadata.disk_late", waited_ms=round((now - began_at) * 1000))
        if self.may_write_ahead():
            reached("quorum.wrote_ahead_of_disk")
            self._write_ahead()
        if now - began_at >= SYNC_SECONDS_MAX:
            reached("quorum.disk_seen_hanging")
            self._seen_hanging_at = min(self._seen_hanging_at, now)
        return now - self._seen_hanging_at >= SECOND_LOOK_SECONDS

    def _write_ahead(self) -> None:
        """Send the next group to the followers from memory.

        The group is written to the file when the sync has ended.
        """
        group = self._next_group()
        data = bytes(self._encoded(group, self.epoch))
        last = group[-1]
        batch = Batch(
            group[0].base_offset, last.base_offset + last.count - 1, self.epoch, data, group[0].voters
        )
        self._take(group)
        self._batches += 1
        self.written_bytes += len(data)
        self._tail.add(batch)
        self._driver.report(self._driver.core.append, batch)

    def _first_words(self) -> _Waiting:
        """Make the control records for the first batch of this leader's epoch."""
        driver = self._driver
        core = driver.core
        assert isinstance(core.role, Leader)
        voters = [LeaderChangeMessageVoter(node_id) for node_id in core.voters.node_ids]
        granted = [each for each in voters if each.voter_id in core.role.granted]
        # Version 1 of the LeaderChange also has the voters' directories, but Kafka 4.3 reads each record as
        # version 0.
        control: list[Message] = [LeaderChangeMessage(0, self._settings.me.node_id, voters, granted)]
        known = core.voters
        me = known.get(self._settings.me.node_id)
        if driver.has_dynamic_voters and me is not None and self._settings.endpoints:
            # Only this voter's address may differ, so the set of voters and its majorities stay the same.
            known = known.with_voter(attrs.evolve(me, endpoints=self._settings.endpoints))
        is_first = core.log.voters_offset < 0
        brings_voters = driver.has_dynamic_voters and (is_first or known != core.voters)
        if brings_voters:
            control += [KRaftVersionRecord(0, 1), known.to_record()] if is_first else [known.to_record()]
        return _Waiting(core.log.end_offset, len(control), 0, [], control, known if brings_voters else None)

    def _next_group(self) -> list[_Waiting]:
        """Return the decisions for the next batch. Control records get a batch of their own."""
        group: list[_Waiting] = []
        size = 0
        bytes_max = 0 if self._driver.env.buggify("quorum.small_batch") else BATCH_BYTES_MAX
        for each in self._waiting:
            if group and (each.control is not None or size + each.size > bytes_max):
                break
            group.append(each)
            size += each.size
            if each.control is not None:
                break
        return group

    def statistics(self) -> dict[str, int]:
        """Return figures for metrics. Decisions per batch show how effective group commit is."""
        return {
            "waiting_bytes": self.waiting_bytes + self._tail.size_bytes,
            "batches": self._batches,
            "decisions": self._decisions,
            "elections": self._elections,
        }
