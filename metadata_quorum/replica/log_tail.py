"""A leader's batches that its own disk does not have yet, because a sync is late.

If the other voters are a majority, records can be committed without this leader's disk. The thesis says so in
10.2.1: "The leader may even commit an entry before it has been written to its own disk". So a leader whose sync is
late sends its followers new batches from here. They are written to the file after the sync, so a crash can tear
only one write.
"""

from __future__ import annotations

from collections.abc import Sequence

from odradek.metadata_quorum.ports import ReplicatedLog
from odradek.metadata_quorum.raft.log_state import Batch
from odradek.named_states import reached

__all__ = ["LogTail", "append_batches"]


class LogTail:
    """The batches behind the end of the file. The loop changes them; workers may read at any time."""

    __slots__ = ("_batches", "size_bytes")

    def __init__(self) -> None:
        self._batches: tuple[Batch, ...] = ()
        """Replaced as a whole, so a worker reads one state of it."""
        self.size_bytes = 0

    @property
    def batches(self) -> tuple[Batch, ...]:
        return self._batches

    def add(self, batch: Batch) -> None:
        """Keep a batch that continues the log."""
        self._batches = (*self._batches, batch)
        self.size_bytes += len(batch.data)

    def drop(self, written: Sequence[Batch]) -> None:
        """Forget the oldest batches, because the file has them now."""
        self._batches = self._batches[len(written) :]
        self.size_bytes -= sum(len(batch.data) for batch in written)

    def read(self, offset: int, bytes_max: int, upper_bound: int | None) -> bytes | None:
        """Read whole batches as `ReplicatedLog.read` does; None if the file has the batch with this offset."""
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
    """Append these batches to the log as one write; skip batches that an earlier attempt has written. Blocks.

    Raises `DiskRefused` (try again later), `DiskError`.
    """
    rest = [batch for batch in batches if batch.base_offset >= log.log_end_offset]
    if len(rest) < len(batches):
        # The disk became full between two segments: the batches before were one write, and the rest is another.
        reached("quorum.tail_split_by_full_disk")
        log.flush()
    if rest:
        data = bytearray().join(batch.data for batch in rest)
        log.append(data, rest[-1].epoch, count=len(rest))
