"""The log as the core knows it: offsets, epochs and voters, but not the bytes. PURE.

At the start of a node, this state is rebuilt from the log's batches. All records below `flushed_offset` are
on the disk. A replica never reports an end offset above `flushed_offset` to another node.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from odradek.metadata_quorum.ports import OffsetAndEpoch
from odradek.metadata_quorum.raft.voters import VoterSet

__all__ = ["Batch", "LogState"]


@attrs.frozen
class Batch:
    """A record batch as the core sees it.

    `voters` is the new voter set if the batch contains a VotersRecord.
    """

    base_offset: int
    last_offset: int
    epoch: int
    data: bytes = attrs.field(default=b"", repr=False)
    voters: VoterSet | None = None


@attrs.define
class LogState:
    """The offsets, epochs and voters of the log.

    `epochs` has (epoch, first offset) pairs; both numbers ascend. `voter_history` has (offset, voter set)
    pairs.
    """

    start_offset: int = 0
    end_offset: int = 0
    flushed_offset: int = 0
    snapshot: OffsetAndEpoch | None = None
    epochs: list[tuple[int, int]] = attrs.field(factory=list)
    voter_history: list[tuple[int, VoterSet]] = attrs.field(factory=list)

    @property
    def last_epoch(self) -> int:
        if self.epochs:
            return self.epochs[-1][0]
        return -1 if self.snapshot is None else self.snapshot.epoch

    @property
    def end(self) -> OffsetAndEpoch:
        return OffsetAndEpoch(self.end_offset, self.last_epoch)

    @property
    def voters(self) -> VoterSet:
        """The newest voter set in the log, committed or not (thesis, 4.1: a server uses the latest
        configuration in its log).
        """
        return self.voter_history[-1][1]

    @property
    def voters_offset(self) -> int:
        """The offset of the newest voter set. It is -1 if the log has no voter set of its own, so that the
        initial voter set is in force.
        """
        return self.voter_history[-1][0]

    def append(self, batch: Batch) -> None:
        """Add a batch at the end of the log."""
        if batch.base_offset != self.end_offset or batch.epoch < self.last_epoch:
            raise AssertionError(f"the batch {batch} cannot follow a log that ends at offset {self.end}")
        if not self.epochs or self.epochs[-1][0] != batch.epoch:
            self.epochs.append((batch.epoch, batch.base_offset))
        if batch.voters is not None:
            self.voter_history.append((batch.last_offset, batch.voters))
        self.end_offset = batch.last_offset + 1

    def end_offset_for_epoch(self, epoch: int) -> OffsetAndEpoch:
        """Return the largest epoch in this log that is not larger than `epoch`, and its end offset (KIP-101,
        KIP-279).

        If all known epochs are larger, the result is the snapshot's end, or offset 0 and epoch -1 without a
        snapshot.
        """
        if self.epochs and epoch >= self.epochs[-1][0]:
            return OffsetAndEpoch(self.end_offset, self.epochs[-1][0])
        found = OffsetAndEpoch(0, -1) if self.snapshot is None else self.snapshot
        for at, (known, _) in enumerate(self.epochs):
            if known > epoch:
                break
            found = OffsetAndEpoch(self.epochs[at + 1][1], known)
        return found

    def epoch_of(self, offset: int) -> int:
        """Return the epoch of the record at `offset`; -1 if it is unknown."""
        found = -1
        for epoch, start in self.epochs:
            if start > offset:
                break
            found = epoch
        return found

    def truncate(self, end_offset: int) -> None:
        """Remove all records from `end_offset` on, and the voter sets that they contain."""
        if end_offset > self.end_offset:
            raise AssertionError(
                f"a log that ends at offset {self.end_offset} cannot be truncated to offset {end_offset}"
            )
        self.end_offset = end_offset
        self.flushed_offset = min(self.flushed_offset, end_offset)
        while self.epochs and self.epochs[-1][1] >= end_offset:
            self.epochs.pop()
        while len(self.voter_history) > 1 and self.voter_history[-1][0] >= end_offset:
            self.voter_history.pop()

    def take_snapshot(self, snapshot: OffsetAndEpoch) -> None:
        """Set the newest snapshot of this log.

        The records below its end may then be removed (`drop_prefix`).
        """
        self.snapshot = snapshot

    def drop_prefix(self, start_offset: int) -> None:
        """Remove the records below `start_offset`, which a snapshot covers."""
        assert self.snapshot is not None
        assert start_offset <= self.snapshot.offset
        self.start_offset = start_offset
        self.epochs = [
            (epoch, max(start, start_offset))
            for at, (epoch, start) in enumerate(self.epochs)
            if at + 1 == len(self.epochs) or self.epochs[at + 1][1] > start_offset
        ]
        if self.end_offset == start_offset:
            self.epochs = []
        kept: Sequence[tuple[int, VoterSet]] = [
            each for each in self.voter_history if each[0] >= start_offset
        ]
        base = [each for each in self.voter_history if each[0] < start_offset][-1:]
        self.voter_history = [*base, *kept]

    def install(self, snapshot: OffsetAndEpoch, voters: VoterSet) -> None:
        """Replace the whole log by a snapshot from the leader."""
        self.snapshot = snapshot
        self.start_offset = self.end_offset = self.flushed_offset = snapshot.offset
        self.epochs = []
        self.voter_history = [(snapshot.offset - 1, voters)]
