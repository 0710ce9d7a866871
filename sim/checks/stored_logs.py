"""End offsets of logs, read from their bytes: in the page cache, or on the disk. PURE.

Files are read from batch to batch, and each read continues where the previous read ended. If the last header that was
read is no longer in its place, the file was truncated and written again. Then the file is read from its beginning.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import attrs

from odradek.data_plane.log.directory.checkpoints import LOG_START_FILE, decode_offsets
from odradek.data_plane.log.partition_log import PartitionLog
from odradek.wire.batches.batch_header import CONTROL_MASK, HEADER, HEADER_SIZE, SIZE_PREFIX, BatchHeader
from odradek.wire.topic_partition import TopicPartition
from sim.machine.disk import SimDisk
from sim.machine.platter import Folder, Inode

__all__ = ["StoredLogs", "is_segment", "stored_batches", "stored_start"]

_SUFFIX = ".log"


def is_segment(name: str) -> bool:
    """True if the file is a segment of a log, and is not waiting to be deleted."""
    return name.endswith(_SUFFIX) and name[: -len(_SUFFIX)].isdigit()


def stored_batches(data: bytearray) -> Iterator[tuple[int, BatchHeader]]:
    """Yield (position, header) of each complete batch."""
    position = 0
    while position + HEADER.size <= len(data):
        header = BatchHeader._make(HEADER.unpack_from(data, position))
        if header.batch_length < HEADER.size - SIZE_PREFIX or position + header.size > len(data):
            return
        yield position, header
        position += header.size


def stored_start(disk: SimDisk, log: PartitionLog) -> int:
    """Read a log's start offset from the checkpoint in the page cache; 0 if the checkpoint does not have it."""
    inode = disk.in_cache(log.directory.path.rpartition("/")[0]).get(LOG_START_FILE)
    if not isinstance(inode, Inode):
        return 0
    return decode_offsets(bytes(inode.data)).get(TopicPartition(log.topic, log.partition), 0)


@attrs.define(eq=False)
class _Walk:
    """How far a file has been read: the position after the last complete batch, and that batch's header."""

    position: int = 0
    next_offset: int = -1
    """The offset after the last batch; -1 if there is none."""
    last_position: int = 0
    last_header: bytes = b""
    controls: list[tuple[int, int]] = attrs.Factory(list)
    """(position, size) of each control batch."""
    joined: int = -1
    """The number of entries in the directory when this segment was last checked and had no gap before it; -1 if it was
    never checked.
    """

    def go_on(self, data: bytearray, size: int) -> None:
        """Read on through the complete batches in the first `size` bytes."""
        last = self.last_position
        if self.position > size or data[last : last + len(self.last_header)] != self.last_header:
            self.position, self.next_offset, self.last_position, self.last_header = 0, -1, 0, b""
            self.controls = []
        position = last = self.position
        while position + HEADER_SIZE <= size:
            base_offset, length, _, magic, _, attributes, delta, *_ = HEADER.unpack_from(data, position)
            end = position + length + SIZE_PREFIX
            if (
                magic != 2
                or length < HEADER_SIZE - SIZE_PREFIX
                or end > size
                or base_offset < self.next_offset
            ):
                break
            if attributes & CONTROL_MASK:
                self.controls.append((position, end - position))
            self.next_offset = base_offset + delta + 1
            last, position = position, end
        if position > self.position:
            self.position, self.last_position = position, last
            self.last_header = bytes(data[last : last + HEADER_SIZE])


class StoredLogs:
    """Reader of logs by their bytes: on the disk (`is_durable`), or in the page cache."""

    def __init__(self, *, is_durable: bool) -> None:
        self._is_durable = is_durable

    def entries(self, disk: SimDisk, path: str) -> Mapping[str, Inode | Folder]:
        """Return the entries of a directory."""
        return disk.on_platter(path) if self._is_durable else disk.in_cache(path)

    def segments(self, disk: SimDisk, path: str) -> list[tuple[int, Inode]]:
        """List (base offset, file) of a log's segments, in order."""
        return _segments(self.entries(disk, path))

    def end_offset(self, disk: SimDisk, path: str) -> int:
        """Return the offset after the last batch before the log's first gap; -1 without a segment."""
        entries = self.entries(disk, path)
        name = max((name for name in entries if name.endswith(_SUFFIX)), default=None)
        last = None if name is None else entries[name]
        if not isinstance(last, Inode):
            return -1
        walk = self.walk(last)
        if walk.joined != len(entries):
            end = self._end_before(last, _segments(entries))
            if end is not None:
                return end
            walk.joined = len(entries)
        next_offset = walk.next_offset
        return next_offset if next_offset >= 0 else int(str(name)[: -len(_SUFFIX)])

    def _end_before(self, last: Inode, segments: Sequence[tuple[int, Inode]]) -> int | None:
        """Return the end offset of a log that has a gap before its last segment; None without a gap."""
        end, whole = -1, True
        for base_offset, inode in segments:
            if end >= 0 and (base_offset > end or not whole):
                return end
            if inode is last:
                return None
            walk = self.walk(inode)
            end = base_offset if walk.next_offset < 0 else walk.next_offset
            whole = walk.position == len(inode.data)
        return end

    def walk(self, inode: Inode) -> _Walk:
        """Continue to read a file up to its present end, and return how far it has been read."""
        walk = inode.notes.get(self)
        if not isinstance(walk, _Walk):
            walk = inode.notes[self] = _Walk()
        walk.go_on(inode.data, inode.durable_size if self._is_durable else len(inode.data))
        return walk


def _segments(entries: Mapping[str, Inode | Folder]) -> list[tuple[int, Inode]]:
    return [
        (int(name[: -len(_SUFFIX)]), inode)
        for name, inode in sorted(entries.items())
        if is_segment(name) and isinstance(inode, Inode)
    ]
