"""Helpers for streaming queries in tests: start them, wait for them, and kill their Python workers."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["kill_workers", "patiently", "started", "wait_for"]

WAIT_SECONDS = 120
_TOO_SLOW = "failed to connect back"
"""Spark's message about a Python process that took more than ten seconds to start."""
_TASKS = {b"pyspark.daemon", b"pyspark.worker"}
"""Words of the command line of each Python process that runs tasks."""


def wait_for(what: Callable[[], bool], query: StreamingQuery | None = None) -> None:
    """Wait until the condition is true. Raises the error that ended the query, or `AssertionError` after two minutes."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not what():
        if query is not None:
            failure = query.exception()
            if failure is not None:
                raise failure
        assert time.monotonic() < deadline, "the condition did not become true in time"
        time.sleep(0.05)


def started(start: Callable[[], StreamingQuery], attempts: int = 12) -> StreamingQuery:
    """Start a query and wait until its sources are created.

    Spark gives the source's Python process ten seconds to start, which is too short on a busy machine. After such a
    timeout the start is repeated.
    """
    for _ in range(attempts):
        query = start()
        wait_for(lambda query=query: not _begins(query))  # type: ignore[misc]
        failure = query.exception()
        if failure is None or _TOO_SLOW not in str(failure):
            break
    return query


def patiently(run: Callable[[], None], attempts: int = 12) -> None:
    """Call a function that starts a query and waits for it. Repeat it after a start timeout, like `started`.

    With Spark Connect the start of `foreachBatch` itself may raise that timeout.
    """
    from pyspark.errors import PySparkException

    for left in range(attempts, 0, -1):
        try:
            return run()
        except PySparkException as error:
            if _TOO_SLOW not in str(error) or left == 1:
                raise


def _begins(query: StreamingQuery) -> bool:
    return query.isActive and str(query.status["message"]).startswith("Initializing")


def kill_workers(spark: SparkSession) -> int:
    """Kill the Python processes that run tasks of this session's executor with SIGKILL; return their number.

    The daemon that forks them has the same command line, and is not killed.
    """
    # Spark repeats a task. It never repeats a call of the driver's Python, whose death ends the query: the daemons of
    # that Python run other modules.
    java = spark.sparkContext._gateway.proc.pid  # type: ignore[union-attr]  # a local Spark has both
    parents: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
            if set(stat.with_name("cmdline").read_bytes().split(b"\0")) >= _TASKS:
                parents[int(stat.parent.name)] = int(fields[1])
        except OSError:
            continue
    workers = [pid for pid, parent in parents.items() if parents.get(parent) == java]
    for pid in workers:
        os.kill(pid, signal.SIGKILL)
    return len(workers)
