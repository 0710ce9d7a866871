"""The leader epochs of a log with their start offsets (KIP-101, KIP-279): where an epoch ends, which epoch an
offset has; their checkpoint file.

The start offset of an entry (epoch, start offset) is the offset of the epoch's first record. An epoch without
records has the offset that its first record would get. Entries are an immutable tuple that is replaced as a
whole. Epochs change rarely, and readers in other threads always see one state. Most logs of a node with many
partitions have a single epoch. Logs with equal entries share one tuple.
"""

from __future__ import annotations

from bisect import bisect_right
from functools import lru_cache
from itertools import pairwise
from typing import TypeAlias

from odradek.env.ports import Dir, DiskError
from odradek.named_states import reached

FILE_NAME = "leader-epoch-checkpoint"
UNDEFINED_EPOCH = -1
UNDEFINED_OFFSET = -1
_NUMBER_MAX = (1 << 63) - 1
_EPOCH_MAX = (1 << 31) - 1

Entries: TypeAlias = tuple[tuple[int, int], ...]


class MalformedCheckpoint(Exception):
    """Raised if the text of a checkpoint file does not have the expected form."""


class LeaderEpochs:
    """The leader epochs of one log with their start offsets. Both the epochs and the offsets ascend."""

    __slots__ = ("entries", "is_dirty", "latest")

    def __init__(self, entries: Entries = ()) -> None:
        self.entries = _shared(entries)
        self.latest = entries[-1][0] if entries else UNDEFINED_EPOCH
        self.is_dirty = False
        """True if the epochs differ from those in the file on disk."""

    def _replace(self, entries: Entries) -> None:
        if entries != self.entries:
            for (epoch, start), (later_epoch, later_start) in pairwise(entries):
                if epoch >= later_epoch or start > later_start:
                    raise AssertionError(
                        f"leader epoch {later_epoch} from offset {later_start} cannot follow epoch "
                        f"{epoch} from offset {start}"
                    )
            self.entries = _shared(entries)
            self.latest = entries[-1][0] if entries else UNDEFINED_EPOCH
            self.is_dirty = True

    def check_end(self, log_end_offset: int) -> None:
        """Raise `AssertionError` unless all epochs begin within the log, or at its end."""
        if self.entries and self.entries[-1][1] > log_end_offset:
            raise AssertionError(
                f"the last leader epoch and its start, {self.entries[-1]}, lie above the log end "
                f"offset {log_end_offset}"
            )

    def assign(self, epoch: int, start_offset: int) -> None:
        """Record that records of this epoch begin or continue at `start_offset`. Removes the entries that
        contradict the new entry.

        For example, this replica may have been the leader in an epoch in which it appended nothing. If
        records of an earlier epoch are then appended at its start offset or later, its entry is removed.
        """
        if epoch < 0:
            return
        entries = self.entries
        kept = len(entries)
        while kept and (entries[kept - 1][0] > epoch or entries[kept - 1][1] > start_offset):
            kept -= 1
        if kept and entries[kept - 1][0] == epoch:
            self._replace(entries[:kept])
            return
        if kept and entries[kept - 1][1] == start_offset:
            kept -= 1
        self._replace((*entries[:kept], (epoch, start_offset)))

    def end_offset_for(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """Return the greatest known epoch that is at most `epoch`, and its end offset (KIP-320).

        The end offset is the start of the next epoch, or the log's end for the latest one. An epoch before
        all known epochs ends at the start of the first. Returns (-1, -1) for epoch -1, for an epoch newer
        than all known epochs, and for a log without epochs.
        """
        entries = self.entries
        if epoch == UNDEFINED_EPOCH or not entries or epoch > entries[-1][0]:
            return UNDEFINED_EPOCH, UNDEFINED_OFFSET
        if epoch == entries[-1][0]:
            return epoch, log_end_offset
        above = bisect_right(entries, epoch, key=_epoch)
        if above == 0:
            return epoch, entries[0][1]
        return entries[above - 1][0], entries[above][1]

    def epoch_for_offset(self, offset: int) -> int | None:
        """Return the leader epoch to which the record at `offset` belongs, or would belong. Returns None for
        an offset before the start of the first entry.
        """
        above = bisect_right(self.entries, offset, key=_start)
        return self.entries[above - 1][0] if above else None

    def last_written(self, log_end_offset: int) -> int:
        """Return the epoch of the log's last record; -1 if there never was one.

        If all records are deleted, the last one's epoch begins at the log's end. A later epoch without records may
        have taken its place there.
        """
        written = self.epoch_for_offset(log_end_offset - 1)
        if written is None and self.entries and log_end_offset > 0:
            reached("log.epoch_of_deleted_records")
            return self.entries[0][0]
        return UNDEFINED_EPOCH if written is None else written

    def truncate_from_end(self, end_offset: int) -> None:
        """Remove the epochs that start at `end_offset` or later."""
        self._replace(tuple(entry for entry in self.entries if entry[1] < end_offset))

    def truncate_from_start(self, start_offset: int) -> None:
        """Remove the epochs that end before `start_offset`. The epoch to which `start_offset` belongs gets it
        as its new start offset.
        """
        above = bisect_right(self.entries, start_offset, key=_start)
        if above:
            self._replace(((self.entries[above - 1][0], start_offset), *self.entries[above:]))

    def clear(self) -> None:
        self._replace(())

    def save(self, directory: Dir) -> None:
        """Write the epochs to `leader-epoch-checkpoint`. Raises `DiskError`; then the file must be written
        again.
        """
        self.is_dirty = False
        try:
            directory.write_atomic(FILE_NAME, self.encode())
        except DiskError:
            self.is_dirty = True
            raise

    def encode(self) -> bytes:
        """Encode the epochs as Kafka's text: version 0, count, then `epoch offset` lines."""
        lines = [f"{epoch} {start}\n" for epoch, start in self.entries]
        return f"0\n{len(lines)}\n{''.join(lines)}".encode()

    @classmethod
    def decode(cls, data: bytes) -> LeaderEpochs:
        """Decode the text of a checkpoint. An empty file is an empty checkpoint. Raises
        `MalformedCheckpoint`.
        """
        entries: list[tuple[int, int]] = []
        for fields in checkpoint_lines(data):
            if len(fields) != 2:
                raise MalformedCheckpoint(f"a line is not an epoch and an offset: {fields}")
            epoch, start = _number(fields[0]), _number(fields[1])
            if epoch > _EPOCH_MAX:
                raise MalformedCheckpoint(f"{epoch} is not a leader epoch")
            if entries and (epoch <= entries[-1][0] or start < entries[-1][1]):
                raise MalformedCheckpoint(
                    f"epoch {epoch} from offset {start} cannot follow the entry {entries[-1]}"
                )
            entries.append((epoch, start))
        return cls(tuple(entries))


def _shared(entries: Entries) -> Entries:
    return _one_of_all(entries) if len(entries) == 1 else entries


@lru_cache(maxsize=1024)
def _one_of_all(entries: Entries) -> Entries:
    """Return the same tuple for equal entries, so that logs share one object."""
    return entries


def _epoch(entry: tuple[int, int]) -> int:
    return entry[0]


def _start(entry: tuple[int, int]) -> int:
    return entry[1]


def _number(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        raise MalformedCheckpoint(f"{text!r} is not a number") from None
    if not 0 <= number <= _NUMBER_MAX:
        raise MalformedCheckpoint(f"{number} is out of range for an epoch, offset or count")
    return number


def checkpoint_lines(data: bytes) -> list[list[str]]:
    """Return the entries of a version 0 checkpoint: each line, split at blanks. Raises `MalformedCheckpoint`."""
    try:
        lines = data.decode("ascii").split("\n")
    except UnicodeDecodeError:
        raise MalformedCheckpoint("the file is not ASCII") from None
    if not data:
        return []
    if lines[0].strip() != "0":
        raise MalformedCheckpoint(f"the file has version {lines[0]!r}, and only 0 is known")
    entries = [line.split() for line in lines[2:] if line.strip()]
    if len(lines) < 2 or len(entries) != _number(lines[1]):
        raise MalformedCheckpoint(
            f"the file has {len(entries)} entries, and its second line says {lines[1:2]}"
        )
    return entries
