"""Bytes that recovery takes out of a log although they had been synced: kept beside it, not thrown away.

What a crash tears was still waiting for its sync; recovery simply drops it. Damage below the recovery point is
another thing: the device has changed what it held, and sound records, acknowledged long ago, may follow the damage.
They are no part of the log any more (Kafka deletes them); where other replicas hold them they come back from there.
Where this was the only replica, they are all that is left. So they stay as `<segment>.<position>.cut`: no part of the
server reads or removes these files. `odradek log dump` shows those whose first batch is sound.
"""

from __future__ import annotations

from odradek.data_plane.log.segments.segment import LOG_SUFFIX, Segment, remove_if_present
from odradek.env.ports import Dir, DiskError

__all__ = ["keep_segment", "keep_tail"]

_CUT_SUFFIX = ".cut"
_CHUNK_BYTES = 1 << 20


def keep_tail(directory: Dir, segment: Segment, position: int) -> str | None:
    """Copy a segment's bytes from `position` on; returns the copy's name, None where the disk would not take it.

    An existing copy comes from an earlier, unfinished recovery, and is made again.
    """
    name = f"{segment.name(LOG_SUFFIX)}.{position}{_CUT_SUFFIX}"
    try:
        remove_if_present(directory, name)
        copy = directory.open(name, create=True)
    except DiskError:
        return None
    try:
        for at in range(position, segment.size, _CHUNK_BYTES):
            copy.append(segment.file.pread(min(_CHUNK_BYTES, segment.size - at), at))
        copy.sync()
    except DiskError:
        copy.close()
        remove_if_present(directory, name)
        return None
    copy.close()
    directory.sync()
    return name


def keep_segment(directory: Dir, segment: Segment) -> str:
    """Take a whole segment's bytes out of the log by another name, which is returned. Raises `DiskError`."""
    name = segment.name(LOG_SUFFIX)
    kept = f"{name}.0{_CUT_SUFFIX}"
    directory.rename(name, kept)
    return kept
