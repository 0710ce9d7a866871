"""Keeps bytes that recovery removes from a log although they had been synced. The bytes become files beside
the log.

A crash damages only bytes that were not synced yet, and recovery drops these bytes. Damage below the recovery
point is different. The device has changed stored bytes, and sound, acknowledged records may follow the
damaged ones. These records leave the log, too (Kafka deletes them). If other replicas have the records, this
replica fetches them again. If this was the only replica, the records exist nowhere else. So the bytes from
the damage on are kept in a file `<segment>.<position>.cut`. No part of the server reads or removes such
files. `odradek log dump` shows such a file if its first batch is sound.
"""

from __future__ import annotations

from odradek.data_plane.log.segments.file_names import LOG_SUFFIX
from odradek.data_plane.log.segments.segment import Segment
from odradek.data_plane.log.segments.small_files import remove_if_present
from odradek.env.ports import Dir, DiskError

__all__ = ["keep_segment", "keep_tail"]

_CUT_SUFFIX = ".cut"
_CHUNK_BYTES = 1 << 20


def keep_tail(directory: Dir, segment: Segment, position: int) -> str | None:
    """Copy a segment's bytes from `position` on to a file. Returns the file's name, or None if the disk
    refused the copy.
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
    """Rename a whole segment, so that its bytes leave the log but stay on the disk. Returns the new name.
    Raises `DiskError`.
    """
    name = segment.name(LOG_SUFFIX)
    kept = f"{name}.0{_CUT_SUFFIX}"
    directory.rename(name, kept)
    return kept
