"""Reader of a replica's simulated disk, for the checks. It reads the files as processes see them, or as a power loss
would leave them. PURE.

The bytes are parsed without the product's own code. Batches that were parsed once are cached until a file is
truncated.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Iterator

import attrs

from odradek.metadata_quorum.replica.checkpoint_files import parse_snapshot_name
from odradek.wire.batches.batch_header import HEADER_SIZE, check_crc, parse_header
from odradek.wire.errors import KafkaError
from sim.machine.disk import SimDisk
from sim.machine.platter import Folder, Inode

__all__ = ["LoggedBatch", "QuorumPlatter"]

LOG_SUFFIX = ".log"


@attrs.frozen
class LoggedBatch:
    """A batch with a correct checksum in a segment. Batches are equal if their checksums, offsets and epochs are."""

    base_offset: int
    last_offset: int
    epoch: int
    crc: int
    is_control: bool = attrs.field(eq=False)
    data: bytes = attrs.field(eq=False, repr=False)
    end: int = attrs.field(eq=False)
    """The position in its file where the batch ends, in bytes."""


class QuorumPlatter:
    """Reader of the metadata log's directory on a simulated disk."""

    def __init__(self, disk: SimDisk, path: str) -> None:
        self._disk = disk
        self._path = path
        self._known: dict[Inode, list[LoggedBatch]] = {}
        disk.on_operation = self._on_operation

    def _on_operation(self, operation: str, path: str, position: int, count: int) -> None:
        if operation == "truncate":
            self._known.clear()

    def forget(self) -> None:
        """Drop all cached batches, since the disk has crashed."""
        self._known.clear()

    def _folder(self) -> Folder | None:
        try:
            return self._disk.folder_at(self._path)
        except KeyError:
            return None

    def _files(self, *, durable: bool) -> dict[str, Inode]:
        folder = self._folder()
        entries = {} if folder is None else folder.durable if durable else folder.entries
        return {name: node for name, node in entries.items() if isinstance(node, Inode)}

    # -- the log --------------------------------------------------------------------------------------------------

    def _batches(self, inode: Inode, *, durable: bool) -> list[LoggedBatch]:
        """Read the valid batches of a file, up to the first that is damaged or incomplete."""
        if durable and inode.durable_rest:
            return list(_sound(bytes(inode.data[: inode.durable_size]) + inode.durable_rest, 0))
        known = self._known.setdefault(inode, [])
        end = known[-1].end if known else 0
        if end < len(inode.data):
            known += _sound(inode.data, end)
        if not durable or not known or known[-1].end <= inode.durable_size:
            return known
        return [each for each in known if each.end <= inode.durable_size]

    def find(self, offset: int, *, durable: bool = False) -> LoggedBatch | None:
        """Return the batch that contains this offset, or None. With `durable` only bytes that survive a power loss
        count.
        """
        files = self._files(durable=durable)
        name = max((each for each in files if _is_segment(each) and int(each[:20]) <= offset), default=None)
        if name is None:
            return None
        batches = self._batches(files[name], durable=durable)
        at = bisect_left(batches, offset, key=lambda each: each.last_offset)
        return batches[at] if at < len(batches) and batches[at].base_offset <= offset else None

    def log(self) -> list[LoggedBatch]:
        """Read all batches of the log, as processes see them."""
        files = self._files(durable=False)
        names = sorted(name for name in files if _is_segment(name))
        found: list[LoggedBatch] = []
        for name in names:
            while found and found[-1].last_offset >= int(name[:20]):
                found.pop()
            found += self._batches(files[name], durable=False)
        return found

    # -- snapshots and votes --------------------------------------------------------------------------------------

    def snapshots(self, *, durable: bool = False) -> dict[tuple[int, int], bytes]:
        """Read all snapshots, by (end offset, epoch)."""
        found = {}
        for name, inode in self._files(durable=durable).items():
            end = parse_snapshot_name(name)
            if end is not None:
                data = inode.data[: inode.durable_size] + inode.durable_rest if durable else inode.data
                found[end] = bytes(data)
        return found

    def has_snapshot(self, offset: int) -> bool:
        """True if a snapshot that survives a power loss covers this offset."""
        return any(end > offset for end, _ in self._snapshot_ends())

    def _snapshot_ends(self) -> Iterator[tuple[int, int]]:
        for name, inode in self._files(durable=True).items():
            end = parse_snapshot_name(name)
            if end is not None and inode.durable_size == len(inode.data):
                yield end

    def promised_to(self, offset: int, epoch: int) -> bool:
        """True if the log up to `offset` would survive a power loss, and the last record before `offset` has this
        epoch.

        A durable snapshot that covers `offset` is enough, too.
        """
        if offset == 0 or (offset, epoch) in list(self._snapshot_ends()) or self.has_snapshot(offset):
            return True
        found = self.find(offset - 1, durable=True)
        return found is not None and found.last_offset == offset - 1 and found.epoch == epoch

    def vote(self) -> tuple[int, int]:
        """Read the durable vote: (epoch, id of the candidate). The id is -1 if the replica has not voted in this
        epoch.
        """
        inode = self._files(durable=True).get("quorum-state")
        if inode is None:
            return 0, -1
        state = json.loads(bytes(inode.data[: inode.durable_size] + inode.durable_rest))
        return state["leaderEpoch"], state["votedId"]


def _is_segment(name: str) -> bool:
    return name.endswith(LOG_SUFFIX)


def _sound(data: bytes | bytearray, position: int) -> Iterator[LoggedBatch]:
    while position + HEADER_SIZE <= len(data):
        try:
            header = parse_header(data, position)
        except KafkaError:
            return
        if position + header.size > len(data) or not check_crc(data, position, header.size):
            return
        batch = bytes(data[position : position + header.size])
        position += header.size
        yield LoggedBatch(
            header.base_offset,
            header.last_offset,
            header.partition_leader_epoch,
            int.from_bytes(batch[17:21], "big"),
            header.is_control,
            batch,
            position,
        )
