"""Work of a replica of the quorum while it leads: decisions wait, go to the log in groups, and are synced. PORTED.

Decisions get their offsets at once. What waits is written as one batch, and the next one only when it is synced; what
gathers meanwhile is the next group. The first batch of an epoch is its LeaderChange. The voters follow in the same
batch in two cases: only the first snapshot names them, or this node's address there is outdated.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import attrs

from odradek.env.ports import DiskRefused
from odradek.metadata_quorum.ports import CommitListener
from odradek.metadata_quorum.raft.log_state import Batch
from odradek.metadata_quorum.raft.roles import Leader
from odradek.metadata_quorum.raft.voters import VoterSet
from odradek.metadata_quorum.replica.driver_protocol import QuorumDriver
from odradek.metadata_quorum.replica.metadata_batches import (
    batch_of_control_records,
    batch_of_values,
    encode_values,
)
from odradek.wire.messages.control_records import (
    KRaftVersionRecord,
    LeaderChangeMessage,
    LeaderChangeMessageVoter,
)
from odradek.wire.structure import Message

__all__ = ["QuorumLeader"]

BATCH_BYTES_MAX = 8 << 20
"""A group goes on in the next batch beyond this (Kafka's limit); a single decision may be larger."""
WAITING_BYTES_MAX = 64 << 20
DISK_FULL_RETRY_SECONDS = 1.0
NO_EPOCH = -1


@attrs.frozen
class _Waiting:
    """An entry that has offsets but is not written yet: a decision, or control records of the quorum itself."""

    base_offset: int
    count: int
    size: int
    values: list[bytes]
    control: list[Message] | None = None
    voters: VoterSet | None = None


class QuorumLeader:
    """The metadata log as a `DecisionLog`: this node appends to it while it leads, and learns of commits always."""

    def __init__(self, driver: QuorumDriver) -> None:
        self._driver = driver
        self._settings = driver.settings
        self._epoch_to_begin = NO_EPOCH
        self._led_last = NO_EPOCH
        self.epoch = NO_EPOCH
        """The epoch whose first batch is in the log; -1 while this node does not lead."""
        self.end_offset = 0
        """The offset behind the last decision."""
        self.high_watermark = 0
        """Everything below is committed, as far as this node has heard."""
        self._listeners: list[CommitListener] = []
        self._waiting: deque[_Waiting] = deque()
        self.waiting_bytes = 0
        """Bytes of decisions that have offsets and wait to be written."""
        self.no_room_until = float("-inf")
        self._batches = 0
        self._decisions = 0
        self._elections = 0
        self.written_bytes = 0
        """Bytes of all batches that this node has written as a leader."""

    # -- what the core says ---------------------------------------------------------------------------------------------

    def took(self, epoch: int) -> None:
        """Take the lead after an election; `write` comes next."""
        if epoch <= self._led_last:
            raise AssertionError(f"elected in epoch {epoch} after it has led epoch {self._led_last}")
        self._elections += 1
        self._epoch_to_begin = self._led_last = epoch

    def lost(self) -> None:
        """Forget the entries that wait. The state machine answers their requests."""
        self._epoch_to_begin = self.epoch = NO_EPOCH
        self._waiting.clear()
        self.waiting_bytes = 0

    # -- the log that is decided ----------------------------------------------------------------------------------------

    @property
    def log_end_offset(self) -> int:
        """The end of all that is decided while this node leads, else of the log."""
        return self.end_offset if self.epoch >= 0 else self._driver.core.log.end_offset

    @property
    def is_beginning_or_leading(self) -> bool:
        """True if this node's decisions are taken: it leads, and its first batch is in the log."""
        return self.epoch >= 0 and self.epoch == self._driver.core.epoch

    @property
    def is_leading(self) -> bool:
        """True if this node leads and knows all that is committed."""
        return self.epoch >= 0 and self._driver.core.has_committed_in_epoch

    def read_committed(self, offset: int, bytes_max: int) -> bytes:
        """Read whole batches below the high watermark from the batch with `offset` on. Blocks when the pages are
        cold.

        In a worker only within the driver's `reading`. Raises `KafkaError` OFFSET_OUT_OF_RANGE below the log's
        start.
        """
        if offset >= self.high_watermark:
            return b""
        return self._driver.log.read(offset, bytes_max, upper_bound=self.high_watermark)

    def subscribe(self, listener: CommitListener) -> None:
        self._listeners.append(listener)

    def unsubscribe(self, listener: CommitListener) -> None:
        self._listeners.remove(listener)

    def advance(self, high_watermark: int) -> None:
        """Advance the high watermark, and notify the listeners."""
        if high_watermark <= self.high_watermark:
            raise AssertionError(f"the committed offset goes from {self.high_watermark} to {high_watermark}")
        self.high_watermark = high_watermark
        for listener in list(self._listeners):
            listener(high_watermark)

    # -- appending --------------------------------------------------------------------------------------------------------

    @property
    def has_room(self) -> bool:
        return self.waiting_bytes < WAITING_BYTES_MAX

    @property
    def has_waiting_control(self) -> bool:
        return any(each.control is not None for each in self._waiting)

    def encode_batch(self, records: Sequence[Message]) -> list[bytes]:
        """Encode the values of one decision's records. Raises `LocalProtocolError`."""
        return encode_values(records)

    def append_batch(self, batch: list[bytes]) -> int:
        """Append the encoded records of one decision; return the offset of the last."""
        return self._append(len(batch), batch, None, None)

    def append_control(self, records: list[Message], voters: VoterSet | None) -> int:
        """Append control records of this leader as one batch; return the offset of the last."""
        return self._append(len(records), [], records, voters)

    def _append(
        self, count: int, values: list[bytes], control: list[Message] | None, voters: VoterSet | None
    ) -> int:
        assert self.epoch >= 0, "only a leader appends"
        size = sum(map(len, values))
        self._waiting.append(_Waiting(self.end_offset, count, size, values, control, voters))
        self.waiting_bytes += size
        self.end_offset += count
        self._driver.wake()
        return self.end_offset - 1

    # -- writing ----------------------------------------------------------------------------------------------------------

    def may_write(self) -> bool:
        """True if this node leads, has something to write, and has room for it."""
        core = self._driver.core
        if not isinstance(core.role, Leader) or self._driver.clock.monotonic() < self.no_room_until:
            return False
        return self._epoch_to_begin == core.epoch or (self.epoch == core.epoch and bool(self._waiting))

    async def write(self) -> None:
        """Write and sync one batch: a new leader's first, or waiting decisions."""
        driver = self._driver
        core = driver.core
        epoch = core.epoch
        begins = self._epoch_to_begin == epoch
        group = [self._first_words()] if begins else self._next_group()
        first, base_offset = group[0], group[0].base_offset
        now_ms = driver.clock.wall_ms()
        if first.control is not None:
            data = batch_of_control_records(first.control, base_offset, epoch, now_ms)
        else:
            values = [value for each in group for value in each.values]
            data = batch_of_values(values, base_offset, epoch, now_ms)
        try:
            last_offset = driver.log.append(data, epoch)
        except DiskRefused as error:
            self.no_room_until = driver.clock.monotonic() + DISK_FULL_RETRY_SECONDS
            driver.tell_no_room(error)
            return
        self.no_room_until = float("-inf")
        driver.tell_room()
        if begins:
            self._epoch_to_begin = NO_EPOCH
            self.epoch = epoch
            self.end_offset = last_offset + 1
        else:
            for each in group:
                self._waiting.popleft()
                self.waiting_bytes -= each.size
                self._decisions += each.control is None
        self._batches += 1
        self.written_bytes += len(data)
        driver.report(core.append, Batch(base_offset, last_offset, epoch, b"", first.voters))
        end_offset = await driver.patiently(driver.log.flush)
        driver.report(core.flushed, end_offset)
        if (
            driver.env.buggify("quorum.resign")
            and isinstance(core.role, Leader)
            and len(core.voters.voters) > 1
        ):
            driver.report(core.resign)

    def _first_words(self) -> _Waiting:
        """Make the control records that begin an epoch."""
        driver = self._driver
        core = driver.core
        assert isinstance(core.role, Leader)
        voters = [LeaderChangeMessageVoter(node_id) for node_id in core.voters.node_ids]
        granted = [each for each in voters if each.voter_id in core.role.granted]
        # Version 1 has the voters' directories, too, but Kafka 4.3 reads each record as version 0.
        control: list[Message] = [LeaderChangeMessage(0, self._settings.me.node_id, voters, granted)]
        known = core.voters
        me = known.get(self._settings.me.node_id)
        if driver.has_dynamic_voters and me is not None and self._settings.endpoints:
            # The same voters, so the same majorities: only the address of this one may be new.
            known = known.with_voter(attrs.evolve(me, endpoints=self._settings.endpoints))
        is_first = core.log.voters_offset < 0
        brings_voters = driver.has_dynamic_voters and (is_first or known != core.voters)
        if brings_voters:
            control += [KRaftVersionRecord(0, 1), known.to_record()] if is_first else [known.to_record()]
        return _Waiting(core.log.end_offset, len(control), 0, [], control, known if brings_voters else None)

    def _next_group(self) -> list[_Waiting]:
        """Choose the decisions of the next batch; control records have a batch of their own."""
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
        """Return figures: decisions per batch show how well group commit works."""
        return {
            "waiting_bytes": self.waiting_bytes,
            "batches": self._batches,
            "decisions": self._decisions,
            "elections": self._elections,
        }
