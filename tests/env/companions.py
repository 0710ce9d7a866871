"""Objects for companions. `test_companion.py` calls them in another process."""

from __future__ import annotations

import os
import sys
import threading
from typing import Any

from odradek.env.ports import LentFile

MIB = 1 << 20


class Mirror:
    """An object whose methods return their arguments, or raise one of them."""

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
    """An object that describes the process in which it lives."""

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
        """Announce the call through a named pipe, then keep the interpreter busy for ever."""
        with open(fifo, "w") as pipe:
            pipe.write(f"{os.getpid()}\n")
        while True:
            pass


class Unpicklable(Exception):
    """An error that cannot be pickled, since it contains a lock."""


class NeverMade:
    """A class whose constructor raises."""

    def __init__(self, reason: str) -> None:
        raise LookupError(reason)
