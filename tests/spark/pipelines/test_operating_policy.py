"""The restarts and alerts of `odradek spark operate`, with queries that are played, without Spark."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any, cast

import attrs
import pytest

pytest.importorskip("pyspark", reason="Spark is not installed (the extra spark)")

from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.query import StreamingQuery

from odradek.spark.pipelines.failure import Failed
from odradek.spark.pipelines.operating.checkpoints import finished_batch, finished_offsets, lag_records
from odradek.spark.pipelines.operating.policy import (
    LagLimits,
    LagWatch,
    RestartLimits,
    Restarts,
    is_hopeless,
)
from odradek.spark.pipelines.operating.supervisor import Supervised, Supervisor, sentence_of
from odradek.spark.pipelines.progress import ProgressLine


@attrs.define
class PlayedQuery:
    """A query that ends in the round after its start, with this error or well."""

    error: str | None
    is_stopped: bool = False
    isActive = False  # noqa: N815 - Spark's name

    def exception(self) -> StreamingQueryException | None:
        return None if self.error is None else StreamingQueryException(self.error)

    def stop(self) -> None:
        self.is_stopped = True


@attrs.define
class World:
    """A clock, the alerts that were sent, and a query that ends in these ways, one start after the other."""

    folder: Path
    ends: list[str | None]
    lags: list[int] = attrs.field(factory=list)
    seconds: float = 0.0
    starts: list[float] = attrs.field(factory=list)
    sent: list[dict[str, Any] | None] = attrs.field(factory=list)
    refused_alerts: int = 0

    def supervisor(self, limits: RestartLimits | None = None) -> Supervisor:
        query = Supervised("q", self.folder, self.start, self.lag)
        line = ProgressLine("test", io.StringIO())
        return Supervisor(
            [query],
            self.alert,
            line,
            LagLimits(100, 10.0),
            limits or RestartLimits(),
            lambda: self.seconds,
            self.pause,
        )

    def start(self) -> StreamingQuery:
        self.starts.append(self.seconds)
        return cast(StreamingQuery, PlayedQuery(self.ends.pop(0)))

    def lag(self) -> int:
        return self.lags.pop(0) if self.lags else 0

    def alert(self, name: str, text: str | None) -> None:
        if self.refused_alerts:
            self.refused_alerts -= 1
            raise Failed("no broker")
        self.sent.append(None if text is None else json.loads(text))

    def pause(self, seconds: float) -> None:
        self.seconds += seconds

    def finish_batch(self, number: int, offsets: str = "{}") -> None:
        for kind, text in (("offsets", f"v1\n{{}}\n{offsets}"), ("commits", "v1\n{}")):
            (self.folder / kind).mkdir(exist_ok=True)
            (self.folder / kind / str(number)).write_text(text)


def test_restarts_come_later_each_time_and_end(tmp_path: Path) -> None:
    """A query that fails again and again starts after 1, 2, 4 and 8 s, and then stays down with an alert."""
    world = World(tmp_path, ["broken"] * 5)
    assert not world.supervisor().run()
    waits = [b - a for a, b in zip(world.starts, world.starts[1:], strict=False)]
    # It takes one round to see an end.
    assert waits == [2, 3, 5, 9]
    assert [each and each["state"] for each in world.sent] == [None, "failing", "down"]
    assert world.sent[-1] == {"query": "q", "state": "down", "lag": 0, "error": "broken"}


def test_a_finished_batch_begins_the_count_anew() -> None:
    """Failures count only as long as no batch is finished between them."""
    limits = RestartLimits(failures_max=2)
    once = Restarts().failed(-1)
    assert once.wait_seconds(limits) == 1
    assert once.failed(-1).wait_seconds(limits) is None
    assert once.failed(0).wait_seconds(limits) == 1
    assert Restarts(30).wait_seconds(RestartLimits(failures_max=99)) == 60


def test_the_alert_of_a_failure_is_cleared_by_the_next_batch(tmp_path: Path) -> None:
    """An alert is sent again if no broker took it, and cleared when a batch is finished. A query that ends well is
    over."""
    world = World(tmp_path, ["broken", None], refused_alerts=1)
    supervisor = world.supervisor()
    (query,) = supervisor.queries
    for _ in range(3):
        supervisor.look(query)
    world.pause(5)
    supervisor.look(query)
    assert [each and each["state"] for each in world.sent] == ["failing"]
    world.finish_batch(0)
    supervisor.look(query)
    assert world.sent[-1] is None
    assert query.is_over
    assert not query.is_down
    supervisor.stop()


def test_an_error_that_no_restart_mends_stays_down_at_once(tmp_path: Path) -> None:
    """Code that does not match the state of the checkpoint is started once."""
    error = (
        "[STREAM_FAILED] Query x\n[STATE_STORE_KEY_SCHEMA_NOT_COMPATIBLE] Provided key schema does not match"
    )
    assert is_hopeless(error)
    assert not is_hopeless("[STREAM_FAILED] Query x: connection reset")
    world = World(tmp_path, [error])
    assert not world.supervisor().run()
    assert world.starts == [0]
    assert str((world.sent[-1] or {})["error"]).startswith("[STATE_STORE_KEY_SCHEMA_NOT_COMPATIBLE]")


def test_a_lag_is_an_alert_after_some_time_and_until_it_is_half() -> None:
    """A high lag is an alert after 10 s, and as long as it is above half of the limit."""
    limits = LagLimits(100, 10.0)
    watch = LagWatch()
    seen = []
    for now, records in enumerate([101] * 5 + [100] + [101] * 11 + [60, 99, 51, 50, 101]):
        watch = watch.seen(records, float(now), limits)
        seen.append(watch.is_alert)
    assert seen == [False] * 16 + [True] * 4 + [False] * 2


def test_the_lag_is_that_of_finished_batches(tmp_path: Path) -> None:
    """A batch that has only begun counts as lag. Partitions that the checkpoint lacks count from their begin."""
    world = World(tmp_path, [])
    assert finished_batch(tmp_path) == -1
    assert finished_offsets(tmp_path) == {}
    world.finish_batch(9, '{"t": {"0": 5}, "@id": {"t": "x"}}')
    world.finish_batch(10, '{"t": {"0": 7, "1": 1}, "@id": {"t": "x"}}')
    (tmp_path / "offsets" / "11").write_text('v1\n{}\n{"t": {"0": 99}}')
    assert finished_offsets(tmp_path) == {"t": {0: 7, 1: 1}}
    assert lag_records({0: (0, 10), 1: (3, 4), 2: (2, 9)}, {0: 7, 1: 1}) == 3 + 1 + 7
    (tmp_path / "offsets" / "10").write_text("v1\n{}\nno json")
    with pytest.raises(Failed, match="the offsets of batch 10 cannot be read from"):
        finished_offsets(tmp_path)


def test_the_sentence_is_that_of_python_or_of_spark() -> None:
    """The sentence of an error is the last of a Python traceback, else the first line."""
    assert (
        sentence_of("[STREAM_FAILED] x\nTraceback:\n  File y\nodradek.wire.KafkaError: no leader\n\tat org.z")
        == "no leader"
    )
    assert sentence_of("[STREAM_FAILED] x\n\tat org.z") == "[STREAM_FAILED] x"
    assert sentence_of("") == "unknown"
