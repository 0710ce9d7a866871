"""Check of the state that a log derives from its batches: leader epochs, producers and indexes must agree with the
batches. PURE.

1. Each batch has the leader epoch that the log's epoch cache has for its offset.
2. The producer state has the producers of the batches, each with its last five batches. A producer may remain in the
   state although all its batches were deleted. A producer that was idle for long may be missing. Compaction removes
   batches, but never the last batch of a producer.
3. Each entry of an index names the position and the last offset of a batch in the segment. Each entry of a time index
   names a batch with a larger timestamp than all batches before it.

Each call of `look` scans one random log, with probability `SCAN`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from random import Random

import attrs

from odradek.data_plane.log.partition_log import PartitionLog
from odradek.data_plane.log.parts.producer_entry import ProducerEntry
from odradek.data_plane.log.segments.file_names import INDEX_SUFFIX, TIME_INDEX_SUFFIX
from odradek.data_plane.log.segments.segment import Segment
from odradek.data_plane.log.segments.segment_index import SegmentIndex
from odradek.wire.batches.batch_header import BatchHeader
from sim.checks.folds.producer_fold import BATCHES, FoldedBatch, ProducerFold, ProducersFold
from sim.checks.stored_logs import stored_batches
from sim.checks.watched import Hosted, Processes, partition_name
from sim.history import SafetyViolation
from sim.machine.disk import SimDisk
from sim.machine.disk_files import SimFile
from sim.machine.platter import Inode

__all__ = ["DerivedState"]

SCAN = 0.05
"""The probability that a call of `look` scans the log of a random replica."""
CLOCKS_OFF_MS = 7_200_000
"""The largest difference between two clocks of a run, in milliseconds."""
_FIELDS = 4
"""How many numbers the producer state keeps for each batch of a producer."""


@attrs.define
class _Scan:
    """A log's segments, each with (position, header) of its batches."""

    segments: list[tuple[Segment, list[tuple[int, BatchHeader]]]]

    @classmethod
    def of(cls, log: PartitionLog) -> _Scan | None:
        """Scan a log; None if a disk has damaged its batches."""
        found = []
        for segment in log.segments:
            assert isinstance(segment.file, SimFile)
            batches = list(stored_batches(segment.file.content))
            if batches and batches[-1][0] + batches[-1][1].size != len(segment.file.content):
                return None
            found.append((segment, batches))
        return cls(found)

    def headers(self) -> Iterator[BatchHeader]:
        for _, batches in self.segments:
            for _, header in batches:
                yield header

    def with_markers(self) -> Iterator[tuple[BatchHeader, bytes | None]]:
        """Yield (header, bytes) of each batch; the bytes are None unless it is a control batch."""
        for segment, batches in self.segments:
            assert isinstance(segment.file, SimFile)
            for position, header in batches:
                end = position + header.size
                yield header, bytes(segment.file.content[position:end]) if header.is_control else None


class DerivedState:
    """The check that a log's derived state agrees with its batches."""

    def __init__(self, processes: Processes) -> None:
        self._processes = processes
        self._random = Random(f"{processes.world.seed}/derived state")
        self.scans = self.entries_seen = self.producers_seen = 0

    def look(self, hosted: Sequence[Hosted]) -> None:
        """Check a random replica's log, with probability `SCAN`. Raises `SafetyViolation`."""
        if hosted and self._random.random() < SCAN:
            self.look_at(self._random.choice(hosted))

    def look_at_all(self, hosted: Sequence[Hosted]) -> None:
        """Check the logs of all replicas. Raises `SafetyViolation`."""
        for each in hosted:
            self.look_at(each)

    def look_at(self, each: Hosted) -> None:
        """Check one log. Raises `SafetyViolation`."""
        log = each.partition.log
        if log.offline or log.is_closed:
            return
        scan = _Scan.of(log)
        if scan is None:
            return
        self.scans += 1
        where = f"{partition_name(each.partition)} on {each.member.name}"
        self._check_epochs(where, log, scan)
        self._check_producers(where, log, scan, each)
        disk = self._processes.world.machine(each.member.name).disk
        for segment, batches in scan.segments:
            self._check_indexes(where, disk, segment, batches)

    # --- leader epochs

    @staticmethod
    def _check_epochs(where: str, log: PartitionLog, scan: _Scan) -> None:
        for header in scan.headers():
            if header.base_offset < log.log_start_offset:
                continue
            known = log.epochs.epoch_for_offset(header.base_offset)
            if known != header.partition_leader_epoch:
                raise SafetyViolation(
                    f"leader epochs: {where} takes epoch {known} for that of offset {header.base_offset}, and its batch has "
                    f"{header.partition_leader_epoch}"
                )

    # --- producers

    def _check_producers(self, where: str, log: PartitionLog, scan: _Scan, each: Hosted) -> None:
        state = log.producers.state
        if state is None:
            return  # The product has not loaded the producer state yet: it loads the state at its first use.
        scanned = ProducersFold()
        first_offset = log.log_end_offset
        next_offset = None
        has_gaps = False
        for header, batch in scan.with_markers():
            first_offset = min(first_offset, header.base_offset)
            has_gaps |= next_offset is not None and header.base_offset > next_offset
            next_offset = header.next_offset
            scanned.take(header, batch)
        for producer_id, fold in scanned.producers.items():
            self.producers_seen += 1
            known = state.entries.get(producer_id, ProducerEntry(fold.epoch))
            if has_gaps and known.epoch > fold.epoch:
                continue  # The newer epoch is that of a marker, which the cleaner has removed since.
            there = list(fold.batches)
            missing = len(there) - len(known.batches) // _FIELDS
            if missing > 0:
                # `there[missing - 1]` is the newest batch that the producer state lacks.
                if not self._may_be_forgotten(each, there[missing - 1].timestamp_ms):
                    raise SafetyViolation(
                        f"producers: {where} has forgotten producer {producer_id}, whose last batch ends at "
                        f"{fold.last_offset}"
                    )
                del there[:missing]
            _check_entry(where, producer_id, known, attrs.evolve(fold, batches=there), has_gaps=has_gaps)
        for producer_id, known in state.entries.items():
            if producer_id not in scanned.producers and known.last_offset >= first_offset:
                raise SafetyViolation(
                    f"producers: {where} knows a batch of producer {producer_id} that ends at {known.last_offset}, and its "
                    f"log has none"
                )

    def _may_be_forgotten(self, each: Hosted, last_timestamp_ms: int) -> bool:
        """True if the product may have dropped the producer, because the producer was idle for too long. The clock may
        have been set since the last batch, by at most `CLOCKS_OFF_MS`.
        """
        broker = each.node.broker
        assert broker is not None
        expiration_ms = min(directory.context.producer_id_expiration_ms for directory in broker.log_dirs)
        wall_ms = self._processes.world.node_env(each.member.name).clock.wall_ms()
        return wall_ms - last_timestamp_ms >= expiration_ms - CLOCKS_OFF_MS

    # --- indexes

    def _check_indexes(
        self, where: str, disk: SimDisk, segment: Segment, batches: list[tuple[int, BatchHeader]]
    ) -> None:
        if segment.index is not None:
            self._check_index(f"{where}, segment {segment.base_offset}", segment, segment.index, batches)
        if not segment.is_active and any(segment.index_is_written):
            stored = _stored_index(disk, segment)
            if stored is not None:
                self._check_index(f"{where}, index files of {segment.base_offset}", segment, stored, batches)

    def _check_index(
        self, where: str, segment: Segment, index: SegmentIndex, batches: list[tuple[int, BatchHeader]]
    ) -> None:
        last_offsets = {position: header.last_offset for position, header in batches}
        for offset, position in zip(index.offsets, index.positions, strict=True):
            self.entries_seen += 1
            if last_offsets.get(position) != segment.base_offset + offset:
                raise SafetyViolation(
                    f"index: {where} has offset {segment.base_offset + offset} at position {position}, where a batch ends at "
                    f"{last_offsets.get(position)}"
                )
        newest = dict(_newest(header for _, header in batches))
        for offset, timestamp_ms in zip(index.time_offsets, index.times, strict=True):
            self.entries_seen += 1
            if newest.get(segment.base_offset + offset) != timestamp_ms:
                raise SafetyViolation(
                    f"time index: {where} has timestamp {timestamp_ms} up to {segment.base_offset + offset}, where the newest "
                    f"is {newest.get(segment.base_offset + offset)}"
                )


def _newest(headers: Iterable[BatchHeader]) -> Iterator[tuple[int, int]]:
    """Yield (last offset, timestamp) of each batch with a larger timestamp than all before it."""
    newest = -1
    for header in headers:
        if header.max_timestamp > newest:
            newest = header.max_timestamp
            yield header.last_offset, newest


def _check_entry(
    where: str, producer_id: int, known: ProducerEntry, scanned: ProducerFold, *, has_gaps: bool
) -> None:
    """Check that a producer's epoch and last batches agree with the log. The producer state may also have batches
    that the log has deleted since.

    A log with gaps was compacted. The producer's last five batches in such a log may include batches that are older
    than the batches in the producer state.
    """
    kept, there = _batches_of(known.batches), list(scanned.batches)
    if scanned.coordinator_epoch >= 0:
        # Ignore the batches' timestamps once a marker was written. A snapshot has only one timestamp per producer: in
        # this case the timestamp of the marker.
        kept = [each._replace(timestamp_ms=0) for each in kept]
        there = [each._replace(timestamp_ms=0) for each in there]
    agree = len(kept) <= BATCHES and kept[len(kept) - len(there) :] == there
    if has_gaps and not agree:
        agree = there[-1:] == kept[-1:] and all(
            batch in kept or batch.last_offset < kept[0].last_offset for batch in there
        )
    if known.epoch != scanned.epoch or not agree or len(known.batches) % _FIELDS:
        raise SafetyViolation(
            f"producers: {where} knows of producer {producer_id} epoch {known.epoch} with batches up to "
            f"{known.last_offset}, and its log has epoch {scanned.epoch} with batches up to {scanned.last_offset}"
        )


def _batches_of(fields: Sequence[int]) -> list[FoldedBatch]:
    """Split the numbers of a producer's entry into batches."""
    return [FoldedBatch(*fields[at : at + _FIELDS]) for at in range(0, len(fields), _FIELDS)]


def _stored_index(disk: SimDisk, segment: Segment) -> SegmentIndex | None:
    """Read a segment's index from its two files; None if a file is missing."""
    files = disk.in_cache(segment.directory.path)
    names = (segment.name(INDEX_SUFFIX), segment.name(TIME_INDEX_SUFFIX))
    offsets, times = (files.get(name) for name in names)
    if not isinstance(offsets, Inode) or not isinstance(times, Inode):
        return None
    return SegmentIndex.from_bytes(bytes(offsets.data), bytes(times.data), segment.size)
