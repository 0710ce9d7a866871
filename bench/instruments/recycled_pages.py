"""Provides recently used memory pages for the page cache during a measurement.

A virtual machine with free page reporting gives its free memory back to the host within two seconds. The first use of
such a page then costs 15 times as much as that of a recycled page. (Measured: 2.6 against 0.18 seconds of system time
per GiB.) This is more than all work of a broker with the page. A server that has been up for a while writes to
recycled pages, since its memory is full of page cache. `RecycledPages` keeps a file in the page cache, and shortens
it bit by bit while a pass runs. So the free memory is always small and recently used.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

AHEAD_BYTES = 256 << 20
"""The bytes of free memory that are provided in advance during a measurement."""
TURN_SECONDS = 0.01
_CHUNK = bytes(1 << 20)


class RecycledPages:
    """A file with `size_bytes` in the page cache. `directory` should be on the file system of the data."""

    def __init__(self, directory: Path, size_bytes: int) -> None:
        self._path = directory / "recycled-pages"
        self._file = self._path.open("wb", buffering=0)
        self._size_bytes = size_bytes
        self._left_bytes = 0

    def __enter__(self) -> RecycledPages:
        self.refill()
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        self._path.unlink()

    def refill(self) -> None:
        """Extend the file to its full size again."""
        self._file.seek(self._left_bytes)
        while self._left_bytes < self._size_bytes:
            self._left_bytes += self._file.write(_CHUNK)

    @contextmanager
    def feeding(self) -> Iterator[None]:
        """Shorten the file during the block, so that about `AHEAD_BYTES` more memory than before are always free."""
        goal = free_bytes() + AHEAD_BYTES
        over = threading.Event()

        def feed() -> None:
            while not over.wait(TURN_SECONDS):
                self._release(goal - free_bytes())

        self._release(AHEAD_BYTES)
        feeder = threading.Thread(target=feed)
        feeder.start()
        try:
            yield
        finally:
            over.set()
            feeder.join()

    def _release(self, count: int) -> None:
        if count > 0:
            self._left_bytes = max(0, self._left_bytes - count) & ~0xFFF
            os.ftruncate(self._file.fileno(), self._left_bytes)


def free_bytes() -> int:
    """Return the free memory in bytes (`MemFree` of /proc/meminfo)."""
    with open("/proc/meminfo", "rb") as file:
        for line in file:
            if line.startswith(b"MemFree:"):
                return int(line.split()[1]) << 10
    raise RuntimeError("/proc/meminfo has no MemFree")
