"""Make a directory a log directory: what `odradek storage format` writes into each of `log.dirs`."""

from __future__ import annotations

from data_plane.log.checkpoints import META_PROPERTIES_FILE, MetaProperties
from odradek.env.ports import Dir


class AlreadyFormatted(Exception):
    """The directory belongs to a cluster already."""


def format_log_dir(directory: Dir, *, cluster_id: str, node_id: int, directory_id: bytes) -> None:
    """Write `meta.properties` (version 1), durably.

    Raises:
        AlreadyFormatted: there is one already.
        DiskError
    """
    if directory.exists(META_PROPERTIES_FILE):
        raise AlreadyFormatted(f"{directory.path} is formatted already")
    directory.write_atomic(META_PROPERTIES_FILE, MetaProperties(cluster_id, node_id, directory_id).encode())
