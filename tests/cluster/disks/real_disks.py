"""Separate file systems on loop devices, which a test may fill, freeze, shut down or make read-only."""

from __future__ import annotations

import fcntl
import os
import shutil
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

_SHUTDOWN = 0x8004587D
"""EXT4_IOC_SHUTDOWN and XFS_IOC_GOINGDOWN are the same number: `_IOR('X', 125, __u32)`."""
_NO_LOG_FLUSH = struct.pack("I", 2)
SIZES_MIB = {"ext4": 48, "xfs": 320}
"""Size of the file systems, in MiB: mkfs.xfs refuses less than 300."""


class RealDisk:
    """A mounted file system; `path` is its root."""

    def __init__(self, path: Path, image: Path) -> None:
        self.path = path
        self._image = image
        self._ballast = path / "ballast"

    def fill(self) -> None:
        """Fill the file system completely."""
        with self._ballast.open("wb", buffering=0) as file, suppress(OSError):  # no space left
            while file.write(bytes(1 << 16)):
                pass

    def fill_up_to(self, free_bytes: int) -> None:
        """Fill the file system until only this much room is left."""
        found = os.statvfs(self.path)
        with self._ballast.open("wb", buffering=0) as file:
            os.posix_fallocate(file.fileno(), 0, found.f_bavail * found.f_frsize - free_bytes)

    def empty(self) -> None:
        self._ballast.unlink()

    def kill(self) -> None:
        """Make every later write and sync fail with EIO, as on a dead disk. Nothing more reaches the device."""
        fd = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.ioctl(fd, _SHUTDOWN, _NO_LOG_FLUSH)
        finally:
            os.close(fd)

    def freeze(self) -> None:
        """Make writes wait until `thaw`."""
        subprocess.run(["fsfreeze", "--freeze", self.path], check=True)

    def thaw(self) -> None:
        subprocess.run(["fsfreeze", "--unfreeze", self.path], check=True)

    def sync(self) -> None:
        """Write all cached data to the device."""
        subprocess.run(["sync", "--file-system", self.path], check=True)

    def make_read_only(self) -> None:
        """Make ext4 read-only, as the kernel does when it finds damage: writers get EROFS, and unsynced data is lost."""
        subprocess.run(["mount", "-o", "remount,abort", self.path], check=True)

    def mount_again(self) -> None:
        """Unmount, repair and mount the file system, as an operator does. No process may have a file open there."""
        subprocess.run(["umount", self.path], check=True)
        # Status 1 of fsck: errors were corrected.
        assert subprocess.run(["fsck", "-y", self._image], check=False, capture_output=True).returncode <= 1
        subprocess.run(["mount", "-o", "loop", self._image, self.path], check=True)


@contextmanager
def real_disk(folder: Path, kind: str, size_mib: int | None = None) -> Iterator[RealDisk]:
    """Mount a file system of this kind in a new folder. The test is skipped if mounting is impossible."""
    if os.geteuid() or shutil.which(f"mkfs.{kind}") is None:
        pytest.skip(f"mounting a test disk needs root and mkfs.{kind}")
    folder.mkdir()
    image, mounted = folder / "disk", folder / "mounted"
    mounted.mkdir()
    with image.open("wb") as file:
        file.truncate((size_mib or SIZES_MIB[kind]) << 20)
    subprocess.run([f"mkfs.{kind}", "-q", image], check=True)
    if subprocess.run(["mount", "-o", "loop", image, mounted], check=False).returncode:
        pytest.skip(f"this machine cannot mount a loop device with {kind}")
    try:
        yield RealDisk(mounted, image)
    finally:
        # A failed test may have left the file system frozen, which prevents unmounting.
        subprocess.run(["fsfreeze", "--unfreeze", mounted], check=False, stderr=subprocess.DEVNULL)
        subprocess.run(["umount", "--lazy", mounted], check=True)
