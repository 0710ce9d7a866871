"""A quorum of one voter: what it writes and syncs is committed.

Theory of operation
-------------------
`SingleVoterQuorum` is the `DecisionLog` of a node that is the only controller. It has three duties: epochs (each
start is a new leader epoch, remembered in `quorum-state` before anything is written in it), replay (snapshot,
then log, with every checksum verified), and commitment (the high watermark is what has been synced).

**One group, one batch, one write at a time.** Decisions get their offsets at once and wait in memory. A single
task takes all that wait, writes it as *one* record batch, syncs, advances the high watermark, and takes what has
gathered meanwhile: group commit without a timer. The next batch is written only when the one before is durable,
so the disk never holds more than one batch that a crash may tear. Hence a damaged batch with a sound one behind
it, or below the recovery point, is rot, and the log's owner refuses to open it (`data_plane.metadata_log`), while
a damaged last batch is a torn tail that nobody was told of.

**Failures.** A full disk is weather: nothing was written, the group is kept and tried again every second, and
answers wait; when too much waits `has_room` turns false and requests are refused. Any other `DiskError`, a
failed sync above all, ends `run` with that error, and with it the node.

Deliberately absent: elections, followers, snapshots of its own (they come with the Raft quorum, behind the same
`DecisionLog`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import attrs

from metadata_quorum.checkpoint_files import Snapshot
from metadata_quorum.image_builder import ImageBuilder
from metadata_quorum.metadata_batches import (
    batch_of_control_records,
    batch_of_values,
    encode_values,
    read_batches,
)
from metadata_quorum.ports import (
    CommitListener,
    MetadataLogCorrupt,
    QuorumState,
    QuorumStateStore,
    ReplicatedLog,
)
from odradek.env.ports import Clock, DiskFull, Event, Workers
from wire.messages.control_records import (
    KRaftVersionRecord,
    LeaderChangeMessage,
    LeaderChangeMessageVoter,
    VotersRecord,
)
from wire.structure import Message

BATCH_BYTES_MAX = 8 << 20
"""A group goes on in the next batch beyond this (Kafka's limit); a single decision may be larger."""
WAITING_BYTES_MAX = 64 << 20
READ_BYTES = 1 << 20
DISK_FULL_RETRY_SECONDS = 1.0


@attrs.frozen
class _Waiting:
    """A decision that has offsets but is not written yet."""

    base_offset: int
    values: list[bytes]
    size: int


class SingleVoterQuorum:
    """Open with `replay`, then `become_leader`, then keep `run` running. One task appends."""

    def __init__(
        self,
        log: ReplicatedLog,
        store: QuorumStateStore,
        *,
        node_id: int,
        clock: Clock,
        workers: Workers,
        new_event: Callable[[], Event],
        logger: Any,
    ) -> None:
        self._log = log
        self._store = store
        self._node_id = node_id
        self._clock = clock
        self._workers = workers
        self._new_event = new_event
        self._logger = logger
        self._epoch = -1
        self._end_offset = log.log_end_offset
        self._high_watermark = log.log_start_offset
        self._kraft_version: KRaftVersionRecord | None = None
        self._voters: VotersRecord | None = None
        self._voters_in_log = False
        self._waiting: deque[_Waiting] = deque()
        self._waiting_bytes = 0
        self._wake = new_event()
        self._idle: Event | None = None
        self._listeners: list[CommitListener] = []
        self._batches = 0
        self._decisions = 0

    # -- DecisionLog ------------------------------------------------------------------------------------------

    @property
    def log_end_offset(self) -> int:
        return self._end_offset

    @property
    def high_watermark(self) -> int:
        return self._high_watermark

    @property
    def epoch(self) -> int:
        return self._epoch

    @property
    def has_room(self) -> bool:
        return self._waiting_bytes < WAITING_BYTES_MAX

    def subscribe(self, listener: CommitListener) -> None:
        self._listeners.append(listener)

    def append_batch(self, records: Sequence[Message]) -> int:
        assert self._epoch >= 0, "only a leader appends"
        values = encode_values(records)
        size = sum(map(len, values))
        self._waiting.append(_Waiting(self._end_offset, values, size))
        self._waiting_bytes += size
        self._end_offset += len(values)
        self._wake.set()
        return self._end_offset - 1

    # -- opening ----------------------------------------------------------------------------------------------

    @property
    def voters(self) -> VotersRecord | None:
        """The voters as the log or its first snapshot has them; None for a log of static voters."""
        return self._voters

    def replay(self, builder: ImageBuilder, snapshot: Snapshot | None = None, snapshot_end: int = 0) -> None:
        """Replay the snapshot (which covers all below `snapshot_end`) and the log behind it. Blocks.

        Raises `MetadataLogCorrupt` or `InvalidMetadata`.
        """
        if snapshot is not None:
            for control in snapshot.control_records:
                self._take_control_record(control)
            for stored in snapshot.records:
                builder.replay(snapshot_end - 1, stored)
        if self._log.log_start_offset > snapshot_end:
            raise MetadataLogCorrupt(
                f"the metadata log begins at offset {self._log.log_start_offset}, but no snapshot ends there"
            )
        offset = snapshot_end
        epoch = -1
        while offset < self._log.log_end_offset:
            data = self._log.read(offset, READ_BYTES)
            if not data:
                raise MetadataLogCorrupt(f"the metadata log cannot be read at offset {offset}")
            for batch in read_batches(data, source=f"metadata log from offset {offset}"):
                if batch.last_offset < offset:
                    continue
                if batch.base_offset > offset or batch.epoch < epoch:
                    raise MetadataLogCorrupt(
                        f"batch {batch.base_offset} of epoch {batch.epoch} follows offset {offset} of epoch {epoch}"
                    )
                epoch = batch.epoch
                for at, record in enumerate(batch.records, batch.base_offset):
                    if at < snapshot_end:
                        continue
                    if batch.is_control:
                        builder.advance(at, epoch)
                        if record is not None:
                            self._take_control_record(record)
                            self._voters_in_log |= isinstance(record, VotersRecord)
                    elif record is not None:
                        builder.replay(at, record, epoch)
                offset = batch.last_offset + 1

    def _take_control_record(self, record: Message) -> None:
        if isinstance(record, VotersRecord):
            self._voters = record
        elif isinstance(record, KRaftVersionRecord):
            self._kraft_version = record

    async def become_leader(self) -> None:
        """Begin a new epoch: remember it, tell it to the log, and commit everything before it.

        Raises `MetadataLogCorrupt` when this node is not the only voter, `DiskError` (`DiskFull` too).
        """
        voters = [voter.voter_id for voter in self._voters.voters] if self._voters else [self._node_id]
        if voters != [self._node_id]:
            raise MetadataLogCorrupt(
                f"the voters of this metadata log are {voters}: node {self._node_id} alone cannot lead it"
            )
        state = self._store.load()
        known = state.leader_epoch if state is not None else 0
        epoch = max(known, self._log.latest_epoch) + 1
        await self._workers.run(self._store.save, QuorumState(self._node_id, epoch))
        self._epoch = epoch
        own = [LeaderChangeMessageVoter(self._node_id)]
        control: list[Message] = [LeaderChangeMessage(0, self._node_id, own, own)]
        if self._voters is not None and self._kraft_version is not None and not self._voters_in_log:
            control += [self._kraft_version, self._voters]
        batch = batch_of_control_records(control, self._end_offset, epoch, self._clock.wall_ms())
        self._log.append(batch, epoch)
        self._end_offset += len(control)
        self._committed(await self._workers.run(self._log.flush))

    # -- committing -------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Write and sync what is appended, until cancelled. Raises `DiskError` when the disk fails."""
        while True:
            while self._waiting:
                await self._write_group()
                self._committed(await self._workers.run(self._log.flush))
            if self._idle is not None:
                self._idle.set()
                self._idle = None
            self._wake = self._new_event()
            if self._waiting:
                continue
            await self._wake.wait()

    async def drained(self) -> None:
        """Wait until everything appended so far is committed (a clean stop)."""
        while self._high_watermark < self._end_offset:
            if self._idle is None:
                self._idle = self._new_event()
            await self._idle.wait()

    async def _write_group(self) -> None:
        group: list[bytes] = []
        size = 0
        base_offset = self._waiting[0].base_offset
        while self._waiting and (not group or size + self._waiting[0].size <= BATCH_BYTES_MAX):
            decision = self._waiting.popleft()
            group += decision.values
            size += decision.size
            self._decisions += 1
        batch = batch_of_values(group, base_offset, self._epoch, self._clock.wall_ms())
        told = False
        while True:
            try:
                self._log.append(batch, self._epoch)
                break
            except DiskFull as error:
                if not told:
                    self._logger.error(
                        "metadata.disk_full", error=str(error), waiting_bytes=self._waiting_bytes
                    )
                    told = True
                await self._clock.sleep_until(self._clock.monotonic() + DISK_FULL_RETRY_SECONDS)
        if told:
            self._logger.info("metadata.disk_has_room")
        self._waiting_bytes -= size
        self._batches += 1

    def _committed(self, end_offset: int) -> None:
        if end_offset < self._high_watermark:
            raise AssertionError(f"the high watermark fell from {self._high_watermark} to {end_offset}")
        self._high_watermark = end_offset
        for listener in self._listeners:
            listener(end_offset)

    def statistics(self) -> dict[str, int]:
        """Figures for metrics; decisions per batch show how well group commit works."""
        return {
            "epoch": self._epoch,
            "log_end_offset": self._end_offset,
            "high_watermark": self._high_watermark,
            "waiting_bytes": self._waiting_bytes,
            "batches": self._batches,
            "decisions": self._decisions,
        }
