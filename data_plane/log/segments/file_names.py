"""The names of a segment's files, as Kafka writes them. PURE."""

from __future__ import annotations

from functools import lru_cache

LOG_SUFFIX = ".log"
INDEX_SUFFIX = ".index"
TIME_INDEX_SUFFIX = ".timeindex"
SNAPSHOT_SUFFIX = ".snapshot"
TXN_INDEX_SUFFIX = ".txnindex"
DELETED_SUFFIX = ".deleted"
CLEANED_SUFFIX = ".cleaned"
SWAP_SUFFIX = ".swap"
SEGMENT_SUFFIXES = (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, SNAPSHOT_SUFFIX, TXN_INDEX_SUFFIX)


@lru_cache(maxsize=256)
def file_name(offset: int, suffix: str) -> str:
    """Return the name of a segment's file as Kafka writes it: the base offset in twenty digits, and a suffix.

    The result is cached, so that equal names share one object. Open files keep their names in memory, and
    thousands of first segments have the same name.
    """
    return f"{offset:020d}{suffix}"
