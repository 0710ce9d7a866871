"""Find the Java processes of executors, by their command lines and parents in `/proc`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

__all__ = ["executor_processes", "executors_of"]

_PROCESSES = Path("/proc")
_BACKEND = b"org.apache.spark.executor.CoarseGrainedExecutorBackend"


def executor_processes(is_ours: Callable[[int], bool]) -> list[int]:
    """Return the ids of executor processes whose parent's process id `is_ours` accepts.

    Processes that end meanwhile are left out: `is_ours` may raise `OSError` for them.
    """
    found = []
    for folder in _PROCESSES.glob("[0-9]*"):
        try:
            if _BACKEND in (folder / "cmdline").read_bytes().split(b"\0") and is_ours(
                _parent(int(folder.name))
            ):
                found.append(int(folder.name))
        except OSError:
            continue
    return found


def executors_of(driver: int) -> list[int]:
    """Return the executors of a Python driver, which are children of its Java process."""
    return executor_processes(lambda parent: _parent(parent) == driver)


def _parent(process: int) -> int:
    """Return the parent's process id. Raises `OSError` if the process has ended."""
    return int((_PROCESSES / str(process) / "stat").read_text().rpartition(")")[2].split()[1])
