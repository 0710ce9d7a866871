"""Finds out which of Spark's Python processes this one is, and tunes the garbage collector in those that run tasks.
SHELL.

Spark's daemon forks the processes that run tasks, keeps them for later tasks, and has each collect garbage between
two of them. By then pyspark, pyarrow and this package have made 80,000 objects that stay until the process ends. A
collection that visits them takes 60 ms of CPU, and the next task waits for it. So the first task excludes these
objects from collection.
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
    """Exclude the objects that exist now, at the end of a task, from garbage collection. Do this once per process.

    Later objects are collected as usual. Processes that are not Spark's are left alone.
    """
    global _spared
    if not _spared and runs_as(_DAEMON):
        _spared = True
        gc.freeze()


def worker_python() -> str:
    """Return the program for PYSPARK_PYTHON: the launcher next to this Python if it is installed, otherwise this
    Python itself.
    """
    return shutil.which(_LAUNCHER, path=str(Path(sys.executable).parent)) or sys.executable
