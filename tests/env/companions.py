"""Objects for companions: what `test_companion.py` calls in another process."""

from __future__ import annotations

import os
import sys
import threading
from typing import Any

from odradek.env.ports import LentFile

MIB = 1 << 20


class Mirror:
    """Gives back what it gets."""

    def __init__(self, *args: Any) -> None:
        self.args = args
        self.kept: LentFile | None = None

    def echo(self, *args: Any) -> tuple[Any, ...]:
        return args

    def made_of(self) -> tuple[Any, ...]:
        return self.args

    def kinds(self, *args: Any) -> list[str]:
        return [type(value).__name__ for value in args]

    def fail(self, error: Exception) -> None:
        raise error

    def fail_oddly(self) -> None:
        raise Unpicklable("told", threading.Lock())

    def result_that_stays(self) -> Any:
        return threading.Lock()

    def read(self, file: LentFile, count: int, offset: int) -> tuple[str, int, bytes]:
        return file.path, file.size, file.pread(count, offset)

    def keep(self, file: LentFile) -> None:
        self.kept = file

    def read_kept(self) -> bytes:
        assert self.kept is not None
        return self.kept.pread(1, 0)

    def read_all(self, files: dict[str, list[LentFile]]) -> dict[str, list[bytes]]:
        return {name: [file.pread(file.size, 0) for file in each] for name, each in files.items()}


class Process:
    """Tells about the process that it is in."""

    def pid(self) -> int:
        return os.getpid()

    def status(self) -> dict[str, Any]:
        links = (f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd"))
        return {
            "nice": os.getpriority(os.PRIO_PROCESS, 0),
            "descriptors": sorted(os.readlink(link) for link in links if os.path.exists(link)),
            "sys.path": sys.path,
            "threads": os.environ["OMP_NUM_THREADS"],
        }

    def end(self, status: int) -> None:
        os._exit(status)

    def hold(self, fifo: str) -> None:
        """Tell through a named pipe that the call runs, and hold the interpreter for good."""
        with open(fifo, "w") as pipe:
            pipe.write(f"{os.getpid()}\n")
        while True:
            pass


class Unpicklable(Exception):
    """An error with a lock in it."""


class NeverMade:
    """Its making fails."""

    def __init__(self, reason: str) -> None:
        raise LookupError(reason)
