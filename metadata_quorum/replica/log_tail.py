"""The leader's batches that are not in its file yet, because a sync is late.

If the other voters are a majority, records can be committed without this leader's disk. (Thesis, 10.2.1: "The
leader may even commit an entry before it has been written to its own disk".) So while a sync is late, the
leader sends new batches to its followers from memory. They are written to the file after the sync, so that a
crash can leave at most one write incomplete.
"""

from __future__ import annotations

from collections.abc import Sequence

from odradek.metadata_quorum.ports import ReplicatedLog
from odradek.metadata_quorum.raft.log_state import Batch
from odradek.named_states import reached

__all__ = ["LogTail", "append_batches"]


class LogTail:
    """The batches that follow the end of the log's file. Only the event loop adds and drops batches; workers
    may read them at any time.
    """

    __slots__ = ("_batches", "size_bytes")

    def __init__(self) -> None:
        self._batches: tuple[Batch, ...] = ()
        """The batches, oldest first. The tuple is replaced as a whole, so that a worker always reads a
        consistent state.
        """
        self.size_bytes = 0

    @property
    def batches(self) -> tuple[Batch, ...]:
        return self._batches

    def add(self, batch: Batch) -> None:
        """Add a batch that continues the log."""
        self._batches = (*self._batches, batch)
        self.size_bytes += len(batch.data)

    def drop(self, written: Sequence[Batch]) -> None:
        """Remove the oldest batches, because they are in the file now."""
        self._batches = self._batches[len(written) :]
        self.size_bytes -= sum(len(batch.data) for batch in written)

    def read(self, offset: int, bytes_max: int, upper_bound: int | None) -> bytes | None:
        """Read complete batches as `ReplicatedLog.read` does.

        Returns None if the batch with this offset is in the file.
        """
        batches = self._batches
        if not batches or offset < batches[0].base_offset:
            return None
        found: list[bytes] = []
        size = 0
        for batch in batches:
            if batch.last_offset < offset:
                continue
            is_beyond = upper_bound is not None and batch.last_offset >= upper_bound
            if is_beyond or (found and size + len(batch.data) > bytes_max):
                break
            found.append(batch.data)
            size += len(batch.data)
        return b"".join(found)


def append_batches(log: ReplicatedLog, batches: Sequence[Batch]) -> None:
    """Append these batches to the log as one write. Batches that an earlier attempt has already written are
    skipped. Blocks.

    Raises `DiskRefused` (the caller may retry later), `DiskError`.
    """
    rest = [batch for batch in batches if batch.base_offset >= log.log_end_offset]
    if len(rest) < len(batches):
        # In an earlier attempt the disk became full between two segments, after some batches were written.
        # The remaining batches need a second write.
        reached("quorum.tail_split_by_full_disk")
        log.flush()
    if rest:
        data = bytearray().join(batch.data for batch in rest)
        log.append(data, rest[-1].epoch, count=len(rest))
