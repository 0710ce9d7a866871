"""Appends to a disk: the cost of the time limit for writes on the event loop, and the possible gain of preallocation.

`python -m bench.disks.writes [--kinds ext4,xfs,here]`. ext4 and xfs are file systems on new loop devices (needs
root); `here` is the folder of `--at`. Each figure is the median of `--rounds`, in microseconds for one append.

* `plain`: the append on the event loop, as in a node with one directory.
* `bounded`: the append in the disk's thread (`odradek.env.bounded_calls`), as in a node with several directories.
* `ahead`: as `plain`, but `fallocate` with FALLOC_FL_KEEP_SIZE allocates `--ahead` bytes at a time in advance.

The table also has the CPU time of the process with all its threads, and the number of extents of the file.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from odradek.env.real_dirs import open_dir
from odradek.env.real_files import RealFile

KEEP_SIZE = 1
"""FALLOC_FL_KEEP_SIZE of <linux/falloc.h>."""
_libc = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.disks.writes", description=__doc__)
    parser.add_argument("--kinds", default="ext4,xfs,here")
    parser.add_argument("--at", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--sizes", default="200,4096,16384,262144")
    parser.add_argument("--file-bytes", type=int, default=64 << 20)
    parser.add_argument("--appends-max", type=int, default=20_000)
    parser.add_argument("--ahead", type=int, default=16 << 20)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    print("| disk | bytes | way | us | CPU us | sync ms | extents |")
    print("| --- | ---: | --- | ---: | ---: | ---: | ---: |")
    for kind in args.kinds.split(","):
        with place(kind, args.at) as folder:
            for size in map(int, args.sizes.split(",")):
                count = max(100, min(args.appends_max, args.file_bytes // size))
                rows: dict[str, list[tuple[float, float, float, int]]] = {}
                for _ in range(args.rounds):
                    for way in ("plain", "bounded", "ahead"):
                        rows.setdefault(way, []).append(measure(folder, way, size, count, args.ahead))
                for way, found in rows.items():
                    wall, cpu, sync, extents = (
                        statistics.median(column) for column in zip(*found, strict=True)
                    )
                    print(
                        f"| {kind} | {size:,} | {way} | {wall * 1e6:.1f} | {cpu * 1e6:.1f} | {sync * 1e3:.1f} | {extents:.0f} |",
                        flush=True,
                    )


@contextmanager
def place(kind: str, at: Path) -> Iterator[Path]:
    """Yield an empty folder on a file system of this kind."""
    folder = Path(tempfile.mkdtemp(prefix="odradek-disk-", dir=at))
    try:
        if kind == "here":
            yield folder
            return
        image, mounted = folder / "disk", folder / "mounted"
        mounted.mkdir()
        with image.open("wb") as file:
            file.truncate(1 << 30)
        subprocess.run([f"mkfs.{kind}", "-q", image], check=True)
        subprocess.run(["mount", "-o", "loop,noatime", image, mounted], check=True)
        try:
            yield mounted
        finally:
            subprocess.run(["umount", mounted], check=True)
    finally:
        shutil.rmtree(folder)


def measure(folder: Path, way: str, size: int, count: int, ahead: int) -> tuple[float, float, float, int]:
    """Measure appends to a file. Return seconds and CPU seconds of one append, the seconds of the sync after it, and
    the number of extents.
    """
    directory = open_dir(str(folder))
    if way == "bounded":
        directory.bound_calls(60.0)
    file = directory.open("0.log", create=True)
    append = _appending_ahead(file, ahead) if way == "ahead" else file.append
    data = memoryview(os.urandom(size))
    os.sync()
    began, cpu = time.perf_counter(), time.process_time()
    for _ in range(count):
        append(data)
    wall, cpu = time.perf_counter() - began, time.process_time() - cpu
    began = time.perf_counter()
    file.sync()
    sync = time.perf_counter() - began
    extents = _extents(folder / "0.log")
    file.close()
    directory.remove("0.log")
    directory.unlock()
    return wall / count, cpu / count, sync, extents


def _appending_ahead(file: RealFile, ahead: int) -> Callable[[memoryview], int]:
    taken = 0

    def append(data: memoryview) -> int:
        nonlocal taken
        if file.size + len(data) > taken:
            offset, count = ctypes.c_longlong(taken), ctypes.c_longlong(ahead)
            if _libc.fallocate(file.fileno(), KEEP_SIZE, offset, count):
                raise OSError(ctypes.get_errno(), "fallocate")
            taken += ahead
        return file.append(data)

    return append


def _extents(path: Path) -> int:
    if shutil.which("filefrag") is None:
        return -1
    out = subprocess.run(["filefrag", path], capture_output=True, text=True, check=False).stdout
    words = out.rpartition(":")[2].split()
    return int(words[0]) if words and words[0].isdigit() else -1


if __name__ == "__main__":
    main()
