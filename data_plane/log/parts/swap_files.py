"""Carries out swaps: a cleaned segment replaces its source segments by a series of renames of files. A start
finishes or undoes an interrupted swap.

The file names are Kafka's. So Odradek can finish a swap that Kafka has begun, and Kafka can finish a swap that
Odradek has begun. The steps are:

1. `NNN.log.cleaned` and its indexes are written and synced. A start removes them.
2. Their suffix changes from `.cleaned` to `.swap`; the `.log` file is renamed last. From here on a start
   finishes the swap.
3. The sources' files get the suffix `.deleted`. A start removes files with that suffix.
4. The `.swap` files lose their suffix, the `.log` first.

A directory's entries reach the device in the order of their changes. So after a power loss, the files show
how far the swap had come. A swap that was interrupted before the end of step 2 is undone. A swap that was
interrupted later is finished. The sources are the segments between the cleaned segment's base offset and its
end. If Kafka was interrupted while it split one segment into several, `.cleaned` and `.swap` files lie side
by side. Such a split is undone, too.

A damaged file must not replace sound files. While the first source has its old name, all other sources have
theirs, too. If in this state the `.swap` file is found damaged, the swap is undone.
"""

from __future__ import annotations

from collections.abc import Callable

from odradek.data_plane.log.segments.file_names import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SEGMENT_SUFFIXES,
    SWAP_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    file_name,
)
from odradek.data_plane.log.segments.scan import SegmentScan
from odradek.data_plane.log.segments.small_files import remove_if_present
from odradek.env.ports import Dir, FileMissing
from odradek.named_states import reached

__all__ = ["begin_swap", "end_swap", "put_in_order"]

_NAME_DIGITS = 20
_INDEX_SUFFIXES = (INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX)


def begin_swap(directory: Dir, base_offset: int) -> None:
    """Rename the cleaned files to `.swap` (step 2). After the last rename, a start would finish the swap.
    Raises `DiskError`.
    """
    for suffix in (*_INDEX_SUFFIXES, LOG_SUFFIX):
        _rename(directory, file_name(base_offset, suffix), CLEANED_SUFFIX, SWAP_SUFFIX)


def end_swap(directory: Dir, base_offset: int) -> None:
    """Remove the suffix `.swap` from the files (step 4). Raises `DiskError`."""
    for suffix in (LOG_SUFFIX, *_INDEX_SUFFIXES):
        _rename(directory, file_name(base_offset, suffix), SWAP_SUFFIX, "")


def _rename(directory: Dir, name: str, old_suffix: str, new_suffix: str) -> None:
    try:
        directory.rename(name + old_suffix, name + new_suffix)
    except FileMissing:
        if name.endswith(LOG_SUFFIX):
            raise


def put_in_order(directory: Dir, names: list[str], on_undone: Callable[[str, str], None]) -> list[str]:
    """Finish or undo a swap that a crash interrupted, and remove files marked for removal (at start,
    blocking).

    `on_undone` is called with the name of each damaged `.swap` file and its fault. Returns the names of all
    files in the directory afterwards. Raises `DiskError`.
    """
    ours = [name for name in names if name[:_NAME_DIGITS].isdigit()]
    cleaned = [name for name in ours if name.endswith(CLEANED_SUFFIX)]
    swapped = [name for name in ours if name.endswith(SWAP_SUFFIX)]
    deleted = [name for name in ours if name.endswith(DELETED_SUFFIX)]
    if not cleaned and not swapped and not deleted:
        return names
    for name in deleted:
        remove_if_present(directory, name)
    if cleaned:
        first = min(map(_base_offset, cleaned))
        for name in swapped:
            if _base_offset(name) >= first:
                reached("recovery.half_begun_swap_undone")
                remove_if_present(directory, name)
        swapped = [name for name in swapped if _base_offset(name) < first]
    for name in cleaned:
        remove_if_present(directory, name)
    for name in _logs(swapped):
        damage = _damage(directory, name, ours)
        if damage is not None and name.removesuffix(SWAP_SUFFIX) in ours:
            reached("recovery.damaged_cleaned_segment_undone")
            on_undone(name, damage)
            undone = [each for each in swapped if _base_offset(each) == _base_offset(name)]
            for each in undone:
                remove_if_present(directory, each)
            swapped = [each for each in swapped if each not in undone]
    _remove_sources(directory, swapped, ours)
    for name in swapped:
        directory.rename(name, name.removesuffix(SWAP_SUFFIX))
    directory.sync()
    return directory.list()


def _logs(swapped: list[str]) -> list[str]:
    return [name for name in swapped if name.endswith(LOG_SUFFIX + SWAP_SUFFIX)]


def _damage(directory: Dir, name: str, names: list[str]) -> str | None:
    """Describe the fault of a cleaned segment; returns None if it is sound."""
    scan = _scan(directory, name, check_crc=True)
    if scan.damage is not None:
        return f"{scan.damage}, at position {scan.position}"
    limit = _last_base(names)
    if _base_offset(name) < limit < scan.next_offset:
        return (
            f"the segment ends at offset {scan.next_offset}, which lies within or after the log's "
            "last segment"
        )
    return None


def _remove_sources(directory: Dir, swapped: list[str], names: list[str]) -> None:
    """Remove the segments that the cleaned segments replace, as far as they still exist."""
    logs = _logs(swapped)
    if not logs:
        return
    reached("recovery.swap_finished")
    start = min(map(_base_offset, logs))
    end = max(_scan(directory, name).next_offset for name in logs)
    if start < _last_base(names):
        # The last segment is never a source. No checksum covers base offsets, so `end` may be damaged. Limit it
        # here, so that the last segment is not removed.
        end = min(end, _last_base(names))
    for name in names:
        base_offset = _base_offset(name)
        # Keep the snapshot at `start`, because it describes the producers before the first source. Remove the
        # first source's other files even if the cleaned segment is empty, and `end` thus equals `start`.
        if (start < base_offset < end and name.endswith(SEGMENT_SUFFIXES)) or (
            base_offset == start and name.endswith((LOG_SUFFIX, *_INDEX_SUFFIXES))
        ):
            remove_if_present(directory, name)


def _last_base(names: list[str]) -> int:
    """Return the base offset of the last segment; -1 if there is none."""
    return max((_base_offset(name) for name in names if name.endswith(LOG_SUFFIX)), default=-1)


def _scan(directory: Dir, name: str, *, check_crc: bool = False) -> SegmentScan:
    """Scan a cleaned segment to its end. Returns the finished scan."""
    file = directory.open(name)
    try:
        scan = SegmentScan(file, 0, file.size, _base_offset(name), check_crc=check_crc)
        for _ in scan:
            continue
        return scan
    finally:
        file.close()


def _base_offset(name: str) -> int:
    return int(name[:_NAME_DIGITS])
