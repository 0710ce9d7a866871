"""The job that follows each aircraft by its flights: sessions, and alerts while it is late again and again.

A session is a row of flights of one aircraft with no long gap between them. It ends when the aircraft flies again after the
gap, or when a timer says that none of its flights will come. Two departures in a row that are an hour late open an
alert. It is cleared by a departure in time, or by the end of the session. The state of each aircraft is kept by Spark
(`transformWithStateInPandas`), and timers run by event time.

    odradek spark sessions --topic flights --to sessions --alerts alerts --checkpoint sessions.checkpoint

Both topics are compacted, and their keys are aircraft. `sessions` keeps the last session of each. A cleared alert is a
tombstone, so `alerts` keeps the open ones. Flights of an aircraft are in one partition, in the order of their hours; those
that come later than the watermark are dropped. The job needs the package protobuf (the extra `spark`).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from importlib.util import find_spec

import attrs
import pandas
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's usual name
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.stateful_processor import (
    ExpiredTimerInfo,
    StatefulProcessor,
    StatefulProcessorHandle,
    TimerValues,
)

from odradek.spark.pipelines.flights import JSON_COLUMNS, create_topic
from odradek.spark.pipelines.job import (
    Failed,
    Topics,
    add_cluster_arguments,
    main_of,
    spark_setting,
    topics_of,
)
from odradek.spark.pipelines.progress import ProgressLine
from odradek.spark.pipelines.streams import add_stream_arguments, run_query, start_query, topic_writer

__all__ = ["COMPACTED", "Following", "Limits", "Session", "main"]

_STORE_KEY = "spark.sql.streaming.stateStore.providerClass"
_ROCKS_DB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
"""The class that keeps a query's state in RocksDB, as `transformWithState` needs it."""
COMPACTED = {"cleanup.policy": "compact"}
_MS_PER_HOUR = 3600 * 1000
_STATE = "start_ms long, last_ms long, flights long, delay_minutes double, late_in_a_row long"


@attrs.frozen
class Limits:
    """The limits of sessions and alerts."""

    gap_ms: int = 12 * _MS_PER_HOUR
    """The longest time between two flights of a session."""
    late_minutes: float = 60
    """The delay of a departure from which it is late."""
    late_flights: int = 2
    """The number of late departures in a row that open an alert."""


@attrs.frozen
class Session:
    """The state of an aircraft that is in a session."""

    start_ms: int
    last_ms: int
    flights: int = 0
    delay_minutes: float = 0.0
    late_in_a_row: int = 0

    @classmethod
    def begun(cls, time_ms: int) -> Session:
        """Make the session that begins with a flight at this time, which is not counted yet."""
        return cls(time_ms, time_ms)

    def after(self, time_ms: int, delay_minutes: float, limits: Limits) -> Session:
        """Return the session with one more departure."""
        is_late = delay_minutes >= limits.late_minutes
        return Session(
            min(self.start_ms, time_ms),
            max(self.last_ms, time_ms),
            self.flights + 1,
            self.delay_minutes + delay_minutes,
            self.late_in_a_row + 1 if is_late else 0,
        )

    def is_alert(self, limits: Limits) -> bool:
        """True if so many departures in a row were late that there is an alert."""
        return self.late_in_a_row >= limits.late_flights

    def summary(self, tail: str) -> str:
        """Return the JSON of the ended session."""
        return json.dumps(
            {
                "tailnum": tail,
                "start": _text(self.start_ms),
                "end": _text(self.last_ms),
                "flights": self.flights,
                "mean_dep_delay": round(self.delay_minutes / self.flights, 3),
            }
        )

    def alert(self, tail: str) -> str:
        """Return the JSON of the open alert."""
        late = {"late_in_a_row": self.late_in_a_row, "at": _text(self.last_ms)}
        return json.dumps({"tailnum": tail, **late})


def _text(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class FollowedAircraft(StatefulProcessor):
    """The state of one aircraft after another. It gives rows with topic, key and value."""

    def __init__(self, limits: Limits, sessions: str, alerts: str) -> None:
        self._limits = limits
        self._sessions = sessions
        self._alerts = alerts

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Called when a task begins: get the state and the timers."""
        self._handle = handle
        self._state = handle.getValueState("session", _STATE)

    def handleInputRows(  # noqa: N802 - Spark's name
        self,
        key: tuple[str],
        rows: Iterator[pandas.DataFrame],
        timerValues: TimerValues,  # noqa: N803 - Spark's name
    ) -> Iterator[pandas.DataFrame]:
        """Called with the flights of an aircraft in a batch: count them, and restart its timer."""
        (tail,) = key
        before = session = self._session()
        given: list[tuple[str, str, str | None]] = []
        flights = pandas.concat(list(rows)).sort_values("time", kind="stable")
        times = (flights["time"].astype("int64") // 1_000_000).tolist()
        for time_ms, delay in zip(times, flights["dep_delay"], strict=True):
            if session is not None and time_ms > session.last_ms + self._limits.gap_ms:
                given += self._ended(tail, session)
                session = None
            known = session or Session.begun(time_ms)
            session = known.after(time_ms, float(delay), self._limits)
            if session.is_alert(self._limits):
                given.append((self._alerts, tail, session.alert(tail)))
            elif known.is_alert(self._limits):
                given.append((self._alerts, tail, None))
        assert session is not None, "Spark gives a key with its rows"
        self._state.update(attrs.astuple(session))
        if before is None or before.last_ms != session.last_ms:
            if before is not None:
                self._handle.deleteTimer(before.last_ms + self._limits.gap_ms)
            self._handle.registerTimer(session.last_ms + self._limits.gap_ms)
        yield _rows(given)

    def handleExpiredTimer(  # noqa: N802 - Spark's name
        self,
        key: tuple[str],
        timerValues: TimerValues,  # noqa: N803 - Spark's name
        expiredTimerInfo: ExpiredTimerInfo,  # noqa: N803 - Spark's name
    ) -> Iterator[pandas.DataFrame]:
        """Called when the watermark has passed the end of an aircraft's session: give it, and forget the aircraft."""
        (tail,) = key
        session = self._session()
        assert session is not None, "a session and its timer end together"
        self._state.clear()
        yield _rows(self._ended(tail, session))

    def _session(self) -> Session | None:
        values = self._state.get()
        return None if values is None else Session(*values)

    def _ended(self, tail: str, session: Session) -> list[tuple[str, str, str | None]]:
        ended: list[tuple[str, str, str | None]] = [(self._sessions, tail, session.summary(tail))]
        if session.is_alert(self._limits):
            ended.append((self._alerts, tail, None))
        return ended


def _rows(given: Sequence[tuple[str, str, str | None]]) -> pandas.DataFrame:
    return pandas.DataFrame(given, columns=["topic", "key", "value"], dtype="object")


@attrs.frozen
class Following:
    """The topics of the job, and its limits."""

    topics: Topics
    source: str
    sessions: str
    alerts: str
    limits: Limits = attrs.field(factory=Limits)
    watermark: str = "1 day"

    def start(
        self, checkpoint: str, records_per_batch: int, every_seconds: float | None = None
    ) -> StreamingQuery:
        """Start the query. Without `every_seconds`, it ends when it has read all present records.

        Raises `Failed` if protobuf is missing.
        """
        if not _has_protobuf():
            raise Failed("this job needs the package protobuf: pip install 'odradek[spark]'")
        records = self.topics.read_stream(
            self.source, startingOffsets="earliest", maxOffsetsPerTrigger=str(records_per_batch)
        )
        parsed = records.select(F.from_json(F.col("value").cast("string"), JSON_COLUMNS).alias("flight"))
        flown = parsed.select("flight.tailnum", F.col("flight.time_hour").alias("time"), "flight.dep_delay")
        rows = (
            flown.where("tailnum is not null and dep_delay is not null")
            .withWatermark("time", self.watermark)
            .groupBy("tailnum")
            .transformWithStateInPandas(
                FollowedAircraft(self.limits, self.sessions, self.alerts),
                outputStructType="topic string, key string, value string",
                outputMode="append",
                timeMode="EventTime",
            )
        )
        writer = topic_writer(rows.writeStream.outputMode("append"), self.topics)
        with spark_setting(self.topics.spark, _STORE_KEY, _ROCKS_DB):
            return start_query(writer, checkpoint, every_seconds)


def _has_protobuf() -> bool:
    try:
        return find_spec("google.protobuf") is not None
    except ModuleNotFoundError:
        return False


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_cluster_arguments(parser)
    parser.add_argument(
        "--topic", default="flights", help="the topic of flights, as `odradek spark flights` writes it"
    )
    parser.add_argument(
        "--to", default="sessions", help="the compacted topic of ended sessions (%(default)s)"
    )
    parser.add_argument("--alerts", default="alerts", help="the compacted topic of open alerts (%(default)s)")
    parser.add_argument(
        "--gap", type=float, default=12, metavar="HOURS", help="the gap that ends a session (%(default)s)"
    )
    parser.add_argument(
        "--late",
        type=float,
        default=60,
        metavar="MINUTES",
        help="from when a departure is late (%(default)s)",
    )
    parser.add_argument(
        "--watermark", default="1 day", help="how late a flight may come and still count (%(default)s)"
    )
    add_stream_arguments(parser)


def _run(spark: SparkSession, arguments: argparse.Namespace) -> int:
    line = ProgressLine("sessions")
    topics = topics_of(spark, arguments)
    limits = Limits(int(arguments.gap * _MS_PER_HOUR), arguments.late)
    job = Following(topics, arguments.topic, arguments.to, arguments.alerts, limits, arguments.watermark)
    _, bounds = topics.bounds(job.source)
    for topic in (job.sessions, job.alerts):
        create_topic(topics, topic, len(bounds), COMPACTED)
    read = run_query(line, job.start(arguments.checkpoint, arguments.records_per_batch, arguments.every))
    line.step(f"{read:,} flights read; sessions are in '{job.sessions}', open alerts in '{job.alerts}'")
    return 0


main = main_of("sessions", __doc__ or "", _add_arguments, _run)

if __name__ == "__main__":
    sys.exit(main())
