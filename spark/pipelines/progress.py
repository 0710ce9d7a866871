"""Shows the progress of a running job in one line on the terminal.

On a terminal the line is overwritten. A file or a pipe gets one line for each step. The numbers come from a streaming
query's own progress, or for a batch from Spark's status tracker.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["ProgressLine", "watch_query"]

_INTERVAL_SECONDS = 0.5


class ProgressLine:
    """The line that shows the progress of a job. Several threads may use it."""

    def __init__(self, name: str, out: TextIO | None = None) -> None:
        self._name = name
        self._out = sys.stderr if out is None else out
        self._lock = threading.Lock()
        self._started = time.monotonic()
        self._width = 0

    def show(self, text: str) -> None:
        """Show a text in the line; only on a terminal."""
        if self._out.isatty():
            self._put(text, "\r", "")

    def step(self, text: str) -> None:
        """Print the text of a finished step. It stays on the screen, and is also written to files and pipes."""
        self._put(text, "\r" if self._out.isatty() else "", "\n")

    def _put(self, text: str, before: str, after: str) -> None:
        with self._lock:
            line = f"{self._name} {time.monotonic() - self._started:6.1f} s  {text}"
            pad = " " * max(0, self._width - len(line)) if before else ""
            self._out.write(f"{before}{line}{pad}{after}")
            self._out.flush()
            self._width = 0 if after else len(line)

    @contextmanager
    def tasks(self, spark: SparkSession, text: str) -> Iterator[None]:
        """Show how many tasks of Spark's running stages are done, during a `with` block."""
        over = threading.Event()

        def watch() -> None:
            tracker = spark.sparkContext.statusTracker()
            while not over.wait(_INTERVAL_SECONDS):
                stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
                known = [stage for stage in stages if stage is not None]
                done = sum(stage.numCompletedTasks for stage in known)
                self.show(f"{text}: {done} of {sum(stage.numTasks for stage in known)} tasks")

        watcher = threading.Thread(target=watch, name="progress", daemon=True)
        watcher.start()
        try:
            yield
        finally:
            over.set()
            watcher.join()


def watch_query(line: ProgressLine, query: StreamingQuery) -> list[dict[str, Any]]:
    """Show each micro-batch of a query until the query ends. Return the progress entries. Raises the error that ended
    the query.
    """
    shown: list[dict[str, Any]] = []

    def look() -> None:
        for progress in query.recentProgress:
            known = shown[-1]["batch"] if shown else -1
            if progress["batchId"] > known and progress["numInputRows"]:
                figures = _figures(progress)
                shown.append(figures)
                line.step(
                    f"batch {figures['batch']}: {figures['rows']:,} records, {figures['rows_per_second']:,.0f}/s"
                    + (f", lag {figures['lag']:,}" if figures["lag"] is not None else "")
                    + (f", {figures['late']:,} too late" if figures["late"] else "")
                )

    while not query.awaitTermination(1):
        look()
    look()
    return shown


def _figures(progress: Any) -> dict[str, Any]:
    sources = progress["sources"]
    return {
        "batch": progress["batchId"],
        "rows": progress["numInputRows"],
        "rows_per_second": progress["processedRowsPerSecond"],
        "lag": _lag(sources[0]) if sources else None,
        "late": sum(int(state["numRowsDroppedByWatermark"]) for state in progress["stateOperators"]),
        "seconds": progress["batchDuration"] / 1000,
    }


def _lag(source: Any) -> int | None:
    """Return the number of records by which a source is behind; None if it does not report it."""
    text = source["latestOffset"]
    latest = json.loads(text) if isinstance(text, str) else text
    if isinstance(latest, dict) and "@lag" in latest:
        return int(latest["@lag"]["records"])
    behind = source["metrics"].get("maxOffsetsBehindLatest")
    return None if behind is None else int(behind)
