"""The role of this process among Spark's Python processes, and the single step of those that run tasks. SHELL.

Spark's daemon forks the processes that run tasks, keeps them for later tasks, and has each collect garbage between
two of them. By then pyspark, pyarrow and this package have made 80,000 objects that live as long as the process. A
collection that goes through them takes 60 ms of CPU, and the next task waits for it. So the first task hides these
objects from the collector.
"""

from __future__ import annotations

import gc
import shutil
import sys
from pathlib import Path

__all__ = ["runs_as", "spare_collector", "worker_python"]

_DAEMON = "pyspark.daemon"
_LAUNCHER = "odradek-spark-python"
_spared = False


def runs_as(module: str) -> bool:
    """True if this process was started to run `module`, or forked from such a process."""
    return module in sys.modules or getattr(sys.modules["__main__"].__spec__, "name", None) == module


def spare_collector() -> None:
    """Hide the objects at the end of a task from the garbage collector; once in a process.

    Later objects are collected as usual. Processes that are not Spark's are left alone.
    """
    global _spared
    if not _spared and runs_as(_DAEMON):
        _spared = True
        gc.freeze()


def worker_python() -> str:
    """Return the program to set PYSPARK_PYTHON to: the launcher installed beside this Python, or this Python itself."""
    return shutil.which(_LAUNCHER, path=str(Path(sys.executable).parent)) or sys.executable
