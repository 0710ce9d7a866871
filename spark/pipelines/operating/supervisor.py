"""The loop that looks after several streaming queries of one application. SHELL.

Each round looks at every query: has it ended or failed, how many records does it lag? A failed query starts again on its
checkpoint when `policy.py` says so, while the others go on. The lag is the end of the topic less the offsets that the
checkpoint has finished. So it is known while a query is down, or hangs in a batch.

Alerts go to a compacted topic, whose keys are the names of queries. An alert is a record, and a tombstone clears it. Every alert is written again at the start, so that a killed application leaves no stale one.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import attrs
from pyspark.errors import PySparkException
from pyspark.sql.streaming.query import StreamingQuery

from odradek.spark.pipelines.failure import Failed
from odradek.spark.pipelines.operating.checkpoints import finished_batch
from odradek.spark.pipelines.operating.policy import (
    LagLimits,
    LagWatch,
    RestartLimits,
    Restarts,
    is_hopeless,
)
from odradek.spark.pipelines.progress import ProgressLine

__all__ = ["Alerts", "Supervised", "Supervisor", "sentence_of"]

Alerts = Callable[[str, str | None], None]
"""A function that gets the name of a query and its alert as JSON, or None if it has none. Raises `Failed`."""

_SENTENCE_MAX = 300


@attrs.define
class Supervised:
    """One query, and the facts that are known of it."""

    name: str
    checkpoint: Path
    start: Callable[[], StreamingQuery]
    """Starts the query on its checkpoint."""
    lag: Callable[[], int]
    """Counts the records that the query has not finished. Raises `Failed`."""
    query: StreamingQuery | None = None
    restarts: Restarts = attrs.field(factory=Restarts)
    watch: LagWatch = attrs.field(factory=LagWatch)
    due: float | None = 0.0
    """When the query starts, on the clock of the supervisor; None if it runs or starts no more."""
    error: str | None = None
    """The sentence of the last failure; None if a batch was finished since then."""
    is_down: bool = False
    shown: str | None = ""
    """The alert that was sent last; "" before the first one."""

    @property
    def is_over(self) -> bool:
        """True if the query has read all that it should, or stays down."""
        return self.query is None and self.due is None


@attrs.define
class Supervisor:
    """Runs queries until all of them have ended or stay down."""

    queries: Sequence[Supervised]
    alerts: Alerts
    line: ProgressLine
    lag_limits: LagLimits
    restart_limits: RestartLimits = attrs.field(factory=RestartLimits)
    clock: Callable[[], float] = time.monotonic
    pause: Callable[[float], None] = time.sleep
    look_seconds: float = 1.0

    def run(self) -> bool:
        """Look after the queries until all are over. Return True if none of them is down."""
        try:
            while True:
                for each in self.queries:
                    self.look(each)
                if all(each.is_over for each in self.queries):
                    return not any(each.is_down for each in self.queries)
                self.pause(self.look_seconds)
        finally:
            self.stop()

    def stop(self) -> None:
        """Stop all queries. A batch that has begun is written by the next run."""
        for each in self.queries:
            if each.query is not None:
                each.query.stop()

    def look(self, each: Supervised) -> None:
        """Start the query if it is time, see whether it has ended, and send or clear its alert."""
        if each.due is not None and self.clock() >= each.due:
            self._start(each)
        elif each.query is not None:
            self._see_end(each)
        if each.error is not None and finished_batch(each.checkpoint) > each.restarts.batch:
            each.error = None
        try:
            lag = each.lag()
        except Failed as failed:
            self.line.step(f"{each.name}: its lag is unknown: {failed}")
            return
        each.watch = each.watch.seen(lag, self.clock(), self.lag_limits)
        try:
            self._alert(each, lag)
        except Failed as failed:
            # The alert is still new, so the next round sends it again.
            self.line.step(f"{each.name}: {failed}")

    def _start(self, each: Supervised) -> None:
        each.due = None
        try:
            each.query = each.start()
        except PySparkException as error:
            self._failed(each, error)
        else:
            self.line.step(f"{each.name}: started after batch {finished_batch(each.checkpoint)}")

    def _see_end(self, each: Supervised) -> None:
        query = each.query
        assert query is not None
        if query.isActive:
            return
        each.query = None
        failure = query.exception()
        if failure is not None:
            self._failed(each, failure)
        else:
            each.error = None
            self.line.step(f"{each.name}: ended after batch {finished_batch(each.checkpoint)}")

    def _failed(self, each: Supervised, error: Exception) -> None:
        each.error = sentence_of(str(error))
        each.restarts = each.restarts.failed(finished_batch(each.checkpoint))
        wait = None if is_hopeless(str(error)) else each.restarts.wait_seconds(self.restart_limits)
        if wait is None:
            each.is_down = True
            self.line.step(f"{each.name}: stays down: {each.error}")
        else:
            each.due = self.clock() + wait
            self.line.step(f"{each.name}: starts again in {wait:g} s: {each.error}")

    def _alert(self, each: Supervised, lag: int) -> None:
        state = None
        if each.is_down:
            state = "down"
        elif each.error is not None:
            state = "failing"
        elif each.watch.is_alert:
            state = "behind"
        # The lag itself changes all the time, and is no new alert.
        shown = None if state is None else f"{state} {each.error}"
        if shown == each.shown:
            return
        if shown is not None or each.shown:
            about = f", {each.error}" if each.error is not None and state != "behind" else ""
            self.line.step(f"{each.name}: alert: {state or 'cleared'}, lag {lag:,}{about}")
        found = {"query": each.name, "state": state, "lag": lag, "error": each.error}
        self.alerts(each.name, None if state is None else json.dumps(found))
        each.shown = shown


def sentence_of(text: str) -> str:
    """Return the line of an error's text that says what happened: the last one of a Python traceback, or the first.

    Spark puts the conditions and traces of all layers into one text.
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    python = [line for line in lines if line.split(":")[0].rpartition(".")[2].endswith(("Error", "Failed"))]
    states = [line for line in lines if is_hopeless(line)]
    chosen = [*states[:1], *(line.partition(": ")[2] or line for line in python[-1:]), *lines[:1], "unknown"]
    return chosen[0][:_SENTENCE_MAX]
