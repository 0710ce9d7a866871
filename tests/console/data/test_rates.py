"""Rates of two samples: only what answered both times counts, by the clock of its own answers."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace

import pytest

from odradek.cli.health.picture import Partitions, Picture
from odradek.client.admin import BrokerLogDirs, ClusterDescription, LogDirDescription, LogDirReplica
from odradek.console.sessions.samples import Sample, growth_by_broker, records_by_partition
from odradek.console.sessions.session import Session
from odradek.console.sessions.topic_facts import topic_facts
from odradek.console.shapes.queries import NoQuery
from odradek.console.views.cluster import overview
from odradek.wire.errors import ErrorCode, KafkaError
from odradek.wire.topic_partition import TopicPartition

A0, B0 = TopicPartition("a", 0), TopicPartition("b", 0)
FAILED = -2


def directory(path: str, size: int) -> LogDirDescription:
    """Describe a log directory with one replica; with the size `FAILED`, it cannot be read."""
    if size == FAILED:
        return LogDirDescription(path, -1, -1, (), KafkaError(ErrorCode.KAFKA_STORAGE_ERROR))
    return LogDirDescription(path, -1, -1, (LogDirReplica("a", 0, size, 0, False),))


def sample(
    at: float,
    sizes: Mapping[int, Mapping[str, int]],
    ends: Mapping[TopicPartition, int],
    *,
    log_dirs_at: float | None = None,
    ends_at: float | None = None,
) -> Sample:
    """Make a sample. A broker without directories is silent."""
    log_dirs = [
        BrokerLogDirs(broker, tuple(directory(path, size) for path, size in paths.items()))
        if paths
        else BrokerLogDirs(broker, (), KafkaError(ErrorCode.BROKER_NOT_AVAILABLE))
        for broker, paths in sizes.items()
    ]
    cluster = ClusterDescription("c", 1, ())
    partitions = Partitions(0, [], [], [], [], {}, {}, {})
    picture = Picture(
        cluster,
        [],
        None,
        None,
        partitions,
        {},
        log_dirs,
        {},
        None,
        log_dirs_at=at if log_dirs_at is None else log_dirs_at,
    )
    return Sample(at, picture, ends, at if ends_at is None else ends_at)


class Given:
    """Samples that are given."""

    def __init__(self, before: Sample | None, now: Sample) -> None:
        self.samples = before, now

    def latest(self) -> tuple[Sample | None, Sample]:
        return self.samples


@pytest.fixture(autouse=True)
def no_releases(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the question which releases the brokers know."""
    monkeypatch.setattr("odradek.console.views.cluster.releases", lambda *_: ({}, None))


def session_with(before: Sample | None, now: Sample) -> Session:
    """Make a session that has these samples. Nobody connects."""
    session = Session({"bootstrap.servers": "127.0.0.1:1"})
    session.samples = Given(before, now)  # type: ignore[assignment]
    recent = SimpleNamespace(get=lambda look, wait_seconds: None)
    session.history = SimpleNamespace(recent=recent)  # type: ignore[assignment]
    return session


def test_a_broker_that_comes_back_is_no_growth() -> None:
    """Only brokers, and directories, that answered both times count."""
    before = sample(0.0, {1: {"/x": 1000}, 2: {}, 3: {"/x": 50, "/y": 70}}, {})
    now = sample(10.0, {1: {"/x": 3000}, 2: {"/x": 10**12}, 3: {"/x": 40, "/y": FAILED}}, {})
    assert growth_by_broker(before, now) == {1: 200.0, 3: -1.0}
    found = overview(session_with(before, now), NoQuery())
    assert found.bytes_per_second == 199.0


def test_each_rate_has_the_clock_of_its_own_answers() -> None:
    """A slow node delays the ends, and not the sizes. Each difference is divided by the time between its answers."""
    before = sample(0.0, {1: {"/x": 0}}, {A0: 0}, log_dirs_at=0.0, ends_at=8.0)
    now = sample(10.0, {1: {"/x": 1000}}, {A0: 20}, log_dirs_at=10.0, ends_at=10.0)
    assert growth_by_broker(before, now) == {1: 100.0}
    assert records_by_partition(before, now) == {A0: 10.0}
    found = overview(session_with(before, now), NoQuery())
    assert (found.records_per_second, found.bytes_per_second) == (10.0, 100.0)


def test_what_nobody_answered_is_unknown_and_not_zero() -> None:
    """A topic whose leader was silent once has no rate. A topic without new records has the rate 0."""
    before = sample(0.0, {1: {}}, {A0: 5})
    now = sample(10.0, {1: {"/x": 7}}, {A0: 5, B0: 1000})
    facts = topic_facts(session_with(before, now))
    assert (facts.rates.get("a"), facts.rates.get("b")) == (0.0, None)
    assert overview(session_with(before, now), NoQuery()).bytes_per_second is None
    silent = sample(20.0, {1: {"/x": 7}}, {})
    found = overview(session_with(now, silent), NoQuery())
    assert (found.records_per_second, found.bytes_per_second) == (None, 0.0)
    assert overview(session_with(None, now), NoQuery()).records_per_second is None
