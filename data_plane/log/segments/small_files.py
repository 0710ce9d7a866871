"""Writes, syncs, truncates and removes small files of a directory, each in one call (blocking). PURE."""

from __future__ import annotations

from odradek.env.ports import Dir, FileMissing


def append_to(directory: Dir, name: str, data: bytes) -> None:
    """Append to a file, which is created if necessary, without syncing it. Raises `DiskError`."""
    file = directory.open(name, create=True)
    try:
        if data:
            file.append(data)
    finally:
        file.close()


def write_whole(directory: Dir, name: str, data: bytes) -> None:
    """Write a small file, without syncing it. A crash may leave only a part of it."""
    file = directory.open(name, create=True)
    try:
        if file.size:
            file.truncate(0)
        file.append(data)
    finally:
        file.close()


def sync_file(directory: Dir, name: str) -> None:
    """Sync one file, if it exists (blocking)."""
    try:
        file = directory.open(name)
    except FileMissing:
        return
    try:
        file.sync()
    finally:
        file.close()


def remove_if_present(directory: Dir, name: str) -> bool:
    """Remove a file. Returns False if there was none. Raises `DiskError` if it cannot be removed."""
    try:
        directory.remove(name)
    except FileMissing:
        return False
    return True


def truncate_file(directory: Dir, name: str, size: int) -> None:
    """Truncate a file to `size` bytes, if it exists and is longer."""
    try:
        file = directory.open(name)
    except FileMissing:
        return
    try:
        if file.size > size:
            file.truncate(size)
    finally:
        file.close()
