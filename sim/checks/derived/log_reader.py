"""Reader of the batches in a replica's log, from the bytes of the segments. Each call continues where the last call
stopped. PURE.
"""

from __future__ import annotations

from collections.abc import Iterator

from odradek.data_plane.log.partition_log import PartitionLog
from odradek.wire.batches.batch_header import BatchHeader
from sim.checks.stored_logs import stored_batches
from sim.machine.disk_files import SimFile

__all__ = ["LogReader"]


class LogReader:
    """A log, and the position up to which it has been read."""

    def __init__(self, log: PartitionLog) -> None:
        self._log = log
        self._truncations = log.durability.truncations
        self._offset = 0
        self._file: SimFile | None = None
        self._position = 0
        self.is_at_end = True
        """False if damaged bytes stopped the last read before the end of the log."""

    @property
    def is_valid(self) -> bool:
        """True as long as the log has not been truncated since the first read."""
        return self._log.durability.truncations == self._truncations

    def go_on(self) -> Iterator[tuple[BatchHeader, bytes]]:
        """Yield (header, bytes) of each batch that was not read yet."""
        segments = self._log.segments
        self.is_at_end = False
        for at in range(max(0, self._log.segment_list.index_of(self._offset)), len(segments)):
            file = segments[at].file
            assert isinstance(file, SimFile)
            begin = self._position if self._file is file else 0
            content = file.content[begin:]
            end = 0
            for position, header in stored_batches(content):
                end = position + header.size
                if header.next_offset > self._offset:
                    self._offset = header.next_offset
                    yield header, bytes(content[position:end])
            self._file, self._position = file, begin + end
            if end != len(content):
                return
        self.is_at_end = True
