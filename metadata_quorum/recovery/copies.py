"""Copies of the metadata log: reading them, comparing them, finding the greatest, and copies that contradict
each other. PURE.

A copy consists of its newest complete snapshot and the log after it. Copies are ordered by the epoch of the
last complete record, then by the end offset. (The epoch in a `quorum-state` says nothing about the records.)

By Raft's argument, the greatest copy of a majority has all committed records. With fewer copies, even the
greatest may lack committed records, and nothing can prove that it is complete. So the plan lists the
evidence.

A record that is only in the greatest copy may never have been committed. The recovery commits it. This is
allowed, since a new leader in Raft may commit such a record, too.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from odradek.metadata_quorum.image.image_builder import ImageBuilder
from odradek.metadata_quorum.image.image_records import records_of
from odradek.metadata_quorum.image.metadata_image import InvalidMetadata, MetadataImage
from odradek.metadata_quorum.ports import MetadataLogCorrupt, OffsetAndEpoch
from odradek.metadata_quorum.raft.voters import VoterSet
from odradek.metadata_quorum.recovery.found import CopyFiles
from odradek.metadata_quorum.replica.checkpoint_files import open_snapshot
from odradek.metadata_quorum.replica.metadata_batches import is_whole_batch, read_batches
from odradek.wire.batches.batch_header import iter_batches, parse_header
from odradek.wire.messages.control_records import VotersRecord
from odradek.wire.messages.metadata_records import AbortTransactionRecord

__all__ = ["CopyBatch", "MetadataCopy", "greatest", "parting_offset", "read_copy", "whole_batches"]


@attrs.frozen
class CopyBatch:
    """A batch of a copy. The checksum shows whether two copies have the same batch at an offset."""

    base_offset: int
    last_offset: int
    epoch: int
    crc: int


@attrs.frozen
class MetadataCopy:
    """A copy of the metadata log, and the image that it gives."""

    source: str
    """The name of the node or file with this copy, for operators."""
    node_id: int | None
    """The id of the node; None for a backup."""
    end: OffsetAndEpoch
    batches: tuple[CopyBatch, ...] = attrs.field(repr=False)
    image: MetadataImage = attrs.field(repr=False)
    voter_sets: tuple[VoterSet, ...] = ()
    """The newest voter set. If this set may be uncommitted, the committed set precedes it. The tuple is empty
    if configurations name the voters.
    """

    @property
    def rank(self) -> tuple[int, int]:
        """The sort key of this copy. The greatest copy has the largest sort key."""
        return self.end.epoch, self.end.offset

    @property
    def voters(self) -> VoterSet | None:
        """The newest voter set; None if configurations name the voters."""
        return self.voter_sets[-1] if self.voter_sets else None


def whole_batches(segments: Sequence[bytes]) -> bytes:
    """Join the batches in a log's files, up to the first incomplete batch or the first gap."""
    joined = bytearray()
    expected: int | None = None
    for data in segments:
        position = 0
        while (size := is_whole_batch(data, position)) is not None:
            header = parse_header(data, position)
            if expected is not None and header.base_offset > expected:
                return bytes(joined)
            # A crash may have undone a truncation. Then the last batches of a file are also in the next file,
            # so skip them.
            if expected is None or header.base_offset == expected:
                joined += data[position : position + size]
                expected = header.next_offset
            position += size
    return bytes(joined)


def read_copy(files: CopyFiles, source: str, node_id: int | None, cluster_id: str) -> MetadataCopy:
    """Read a copy, and replay its records. Raises `MetadataLogCorrupt`."""
    try:
        return _read(files, source, node_id, cluster_id)
    except InvalidMetadata as error:
        raise MetadataLogCorrupt(f"{source}: {error}") from error


def _read(files: CopyFiles, source: str, node_id: int | None, cluster_id: str) -> MetadataCopy:
    builder = ImageBuilder(MetadataImage.empty(cluster_id))
    committed: VoterSet | None = None
    end = OffsetAndEpoch(0, -1)
    batches = tuple(
        CopyBatch(header.base_offset, header.last_offset, header.partition_leader_epoch, header.crc)
        for _, header in iter_batches(files.log)
    )
    if files.snapshot_end is not None:
        end = files.snapshot_end
        contents = open_snapshot(files.snapshot, source=f"{source}: snapshot {end.offset}-{end.epoch}")
        for record in contents.records:
            builder.replay(end.offset - 1, record, end.epoch)
        builder.advance(end.offset - 1, end.epoch)
        found = [each for each in contents.control_records if isinstance(each, VotersRecord)]
        committed = VoterSet.from_record(found[-1]) if found else None
        if _is_replaced(batches, end):
            batches = ()
    if batches and batches[0].base_offset > end.offset:
        raise MetadataLogCorrupt(
            f"{source}: the log begins at offset {batches[0].base_offset}, and no snapshot ends there"
        )
    behind = _replay(files.log if batches else b"", builder, end, source)
    if builder.in_transaction:
        # The copy lacks the end of this metadata transaction, so its records must not take effect.
        builder.replay(end.offset, AbortTransactionRecord())
    image, _ = builder.build()
    if batches and batches[-1].last_offset >= end.offset:
        end = OffsetAndEpoch(batches[-1].last_offset + 1, batches[-1].epoch)
    return MetadataCopy(source, node_id, end, batches, image, _sets_that_may_hold(committed, behind))


def _is_replaced(batches: Sequence[CopyBatch], snapshot: OffsetAndEpoch) -> bool:
    """True if a snapshot from a leader was to replace this log, and a crash has interrupted the removal of
    the old log.
    """
    if not batches or batches[-1].last_offset + 1 < snapshot.offset:
        return bool(batches)
    epochs = [each.epoch for each in batches if each.base_offset < snapshot.offset <= each.last_offset + 1]
    return bool(epochs) and epochs[-1] != snapshot.epoch


def _replay(log: bytes, builder: ImageBuilder, begin: OffsetAndEpoch, source: str) -> list[VoterSet]:
    """Replay the batches from `begin` on. Returns the voter sets in them."""
    voters: list[VoterSet] = []
    for batch in read_batches(log, source=source):
        for offset, record in enumerate(batch.records, batch.base_offset):
            if offset < begin.offset:
                continue
            if batch.is_control or record is None:
                builder.advance(offset, batch.epoch)
                if isinstance(record, VotersRecord):
                    voters.append(VoterSet.from_record(record))
            else:
                builder.replay(offset, record, batch.epoch)
    return voters


def _sets_that_may_hold(committed: VoterSet | None, behind: Sequence[VoterSet]) -> tuple[VoterSet, ...]:
    """Return the voter sets that may be in force.

    Voters change one at a time, so all sets except the last are committed.
    """
    known = [*([] if committed is None else [committed]), *behind]
    return tuple(known[-2:] if behind else known[-1:])


def greatest(copies: Sequence[MetadataCopy]) -> MetadataCopy:
    """Return the copy with the largest `rank`. Among equal copies, a node's copy precedes a backup, and
    smaller node ids precede larger ones.
    """
    return max(copies, key=lambda each: (*each.rank, -1 if each.node_id is None else 0, -(each.node_id or 0)))


def parting_offset(one: MetadataCopy, other: MetadataCopy) -> int | None:
    """Return an offset at which two copies have different records of the same epoch, which means that one
    copy is damaged. Returns None if the copies agree.
    """
    known = {each.base_offset: each for each in other.batches}
    for batch in one.batches:
        twin = known.get(batch.base_offset)
        if twin is not None and twin.epoch == batch.epoch and twin != batch:
            return batch.base_offset
    if one.end == other.end and list(records_of(one.image)) != list(records_of(other.image)):
        return one.end.offset
    return None
