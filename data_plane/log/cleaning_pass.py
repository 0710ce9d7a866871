"""The log's side of a cleaning pass: the end below which it may clean, groups of segments, cleaned segments
swapped in, the first dirty offset.

Theory of operation
-------------------
`begin_cleaning` makes a pass. It handles groups of neighbouring segments, the oldest first. Each group
becomes one segment, which replaces the group before the next group is begun. So the disk never needs room for
more than one group's copy. The README of `parts/` lists the steps in which the cleaner must carry out a pass.

Rules
* Only durable records are cleaned: `end_offset` is at most the recovery point. The cleaner removes a record
  because a later record has the same key. So the later record must survive a power loss.
* Only committed records are cleaned, below the last stable offset, in finished segments.
* A truncation, DeleteRecords, another policy, or closing the log aborts the pass. If retention has removed
  segments of a group, the pass skips that group.
* If the disk is full, nothing is lost. The cleaned files are removed, and the sources stay.
"""

from __future__ import annotations

import attrs

from odradek.data_plane.log.partition_log import PartitionLog
from odradek.data_plane.log.parts.cleaned_segment import CleanedSegment, CleaningAborted
from odradek.data_plane.log.parts.cleaning_state import PassToken
from odradek.data_plane.log.segments.segment import Segment
from odradek.data_plane.log.segments.small_files import remove_if_present
from odradek.env.pausing import pause
from odradek.env.ports import File
from odradek.named_states import reached

__all__ = ["Cleaning", "CleaningAborted", "Group", "Source", "begin_cleaning", "cleanable_end"]


@attrs.frozen(eq=False)
class Source:
    """A segment to be cleaned: the first `size` bytes of its file, which stays readable until the group is
    released.
    """

    base_offset: int
    size: int
    file: File


@attrs.define(eq=False)
class Group:
    """Neighbouring segments that will become one segment. A worker reads `sources`; `release` must be called
    once to unpin their files.
    """

    _segments: tuple[Segment, ...]
    sources: tuple[Source, ...]

    @property
    def base_offset(self) -> int:
        return self.sources[0].base_offset

    @property
    def source_bases(self) -> tuple[int, ...]:
        return tuple(source.base_offset for source in self.sources)

    @property
    def segments(self) -> tuple[Segment, ...]:
        return self._segments

    def release(self) -> None:
        """Unpin the sources' files."""
        sources, self.sources = self.sources, ()
        for source in sources:
            source.file.unpin()


@attrs.define(eq=False)
class Cleaning:
    """A cleaning pass over one log. The event loop begins the pass, swaps segments, and ends the pass.
    Workers write the cleaned segments.
    """

    _log: PartitionLog
    _token: PassToken
    end_offset: int
    """The offset below which the pass may clean records."""
    _doomed: list[str] = attrs.field(factory=list)
    """The names of files that are still to be removed; they belonged to replaced segments."""
    _is_prepared: bool = False
    _is_ended: bool = False
    bytes_before: int = 0
    bytes_after: int = 0

    @property
    def abort_reason(self) -> str | None:
        """The reason why the pass must end; None while it may continue. Workers may read it."""
        return self._token.abort_reason

    def is_over(self) -> bool:
        """True if the pass must end early."""
        return self.abort_reason is not None

    def take_group(self, base_offset: int, end_offset: int) -> Group | None:
        """Return the group of segments from `base_offset` up to the first segment that begins at `end_offset`
        or later.

        Returns None if the pass is aborted, or retention has removed the segments. Raises `DiskError`.
        """
        log = self._log
        if self.abort_reason is not None or end_offset > self.end_offset:
            return None
        reached("cleaner.group_given_up")
        segments = tuple(
            segment
            for segment in log.segments
            if base_offset <= segment.base_offset < end_offset and not segment.is_active
        )
        if not segments or segments[0].base_offset != base_offset:
            reached("cleaner.sources_went")
            return None
        after = log.segments[log.segment_list.index_of(segments[-1].base_offset) + 1]
        if after.base_offset > self.end_offset:
            raise AssertionError(
                f"{log}: the cleaning pass must not end at offset {self.end_offset}, within segment "
                f"{segments[-1].base_offset}"
            )
        sources: list[Source] = []
        try:
            for segment in segments:
                sources.append(Source(segment.base_offset, segment.size, segment.pinned_file()))
        finally:
            if len(sources) < len(segments):
                for source in sources:
                    source.file.unpin()
        return Group(segments, tuple(sources))

    def begin_segment(self, group: Group) -> CleanedSegment:
        """Create the cleaned segment that will replace the group (blocking, in a worker).

        Writes the recovery-point checkpoint before the first cleaned segment. Recovery derives leader epochs
        from the batches that it reads, and cleaning may have removed some of them. So recovery must begin
        after all cleaned batches. Raises `CleaningAborted`, `DiskError`.
        """
        log = self._log
        if not self._is_prepared and self.abort_reason is None:
            log.home.save_recovery_point(self.end_offset)
            self._is_prepared = True
        return CleanedSegment(
            log.directory,
            group.base_offset,
            log.config.index_interval_bytes,
            lambda: self._token.abort_reason,
        )

    def swap(self, group: Group, cleaned: CleanedSegment) -> bool:
        """Replace the group by its cleaned segment, on the loop; afterwards call `settle` in a worker.

        Returns False if the pass is aborted, or retention has removed segments of the group. In these cases
        nothing has changed, and the caller must discard `cleaned`.

        Raises:
            DiskRefused: nothing has changed, and the caller must discard `cleaned`. If it is `DiskHung`, the
                swap may still happen when the device answers.
            DiskError: the directory is offline now. The next start finishes the swap or undoes it.
        """
        log = self._log
        if self.abort_reason is not None or log.home.offline:
            return False
        self.check_end()
        if cleaned.next_offset > self.end_offset:
            raise AssertionError(
                f"{log}: the cleaned segments reach up to offset {cleaned.next_offset}, and only "
                f"{self.end_offset} is allowed"
            )
        sizes = sum(segment.size for segment in group.segments)
        with log.home.reporting_failures():
            if not log.segment_list.replace(group.segments, cleaned, self._note_doomed):
                return False
        self.bytes_before += sizes
        self.bytes_after += cleaned.size
        log.check()
        return True

    def _note_doomed(self, names: list[str]) -> None:
        if self._is_ended:
            reached("cleaner.swapped_after_its_pass")
            # Remove these files here, because the pass has ended, and `settle` will not do it.
            self._log.home.remove_later(names)
        else:
            self._doomed += names

    def settle(self) -> None:
        """Make the swap durable, and remove the files of the replaced segments (blocking, in a worker).
        Raises `DiskError`.
        """
        log = self._log
        if log.is_closed:
            return
        log.segment_list.sync_entry()
        pause()
        # Take all names from the list now. If the pass ends meanwhile, `end` then removes only the files of
        # later swaps.
        doomed, self._doomed = self._doomed, []
        try:
            while doomed:
                pause()
                remove_if_present(log.directory, doomed[0])
                del doomed[0]
        finally:
            self._doomed += doomed

    def note_unchanged(self, size: int) -> None:
        """Count a segment of `size` bytes that the pass leaves as it is."""
        self.bytes_before += size
        self.bytes_after += size

    def complete(self, clean_end: int) -> None:
        """Record in the checkpoint that all records below `clean_end` are clean. Does nothing if the pass was
        aborted.
        """
        if clean_end > self.end_offset:
            raise AssertionError(
                f"{self._log}: the cleaning pass claims offset {clean_end} as its end, and only "
                f"{self.end_offset} is allowed"
            )
        if self.abort_reason is None:
            self._log.cleaning.advance(clean_end)

    def end(self) -> None:
        """End the pass, whether it is complete or not (on the loop, once)."""
        log = self._log
        self._is_ended = True
        log.cleaning.end(self._token)
        doomed, self._doomed = self._doomed, []
        if doomed and not log.is_closed:
            log.home.remove_later(doomed)

    def check_end(self) -> None:
        """Raise `AssertionError` if `end_offset` lies too high: above the recovery point, uncommitted records
        or the active segment's start.
        """
        if self.end_offset > _bound(self._log):
            raise AssertionError(
                f"{self._log}: the cleaning pass reaches up to offset {self.end_offset}, and only "
                f"{_bound(self._log)} is allowed"
            )


def cleanable_end(log: PartitionLog) -> int:
    """Return the offset below which a pass may clean now. It is the base offset of a segment. A flush of the
    log may raise this offset.
    """
    at = log.segment_list.index_of(_bound(log))
    return log.segments[max(at, 0)].base_offset


def _bound(log: PartitionLog) -> int:
    return min(log.high_watermark, log.last_stable_offset, log.active.base_offset, log.recovery_point)


def begin_cleaning(log: PartitionLog, end_offset: int) -> Cleaning:
    """Begin a pass that cleans below `end_offset`, which is at most `cleanable_end` (on the loop). A log has
    at most one pass at a time.

    The caller must call `Cleaning.end` once, even after an error.
    """
    if log.home.is_closed or not log.config.is_compacted:
        raise AssertionError(f"{log}: the cleaner must not clean this log, which is closed or not compacted")
    cleaning = Cleaning(log, log.cleaning.begin(), end_offset)
    try:
        cleaning.check_end()
    except AssertionError:
        cleaning.end()
        raise
    return cleaning
