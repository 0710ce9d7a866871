"""The pace of moves: what the two samples of a cluster say, by the times at which they were taken."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from odradek.client.admin import BrokerLogDirs, LogDirDescription, LogDirReplica, Reassignment
from odradek.console.sessions.kept_values import KeptValues
from odradek.console.sessions.samples import Sample
from odradek.console.views.moves import MovesQuery, moves
from odradek.wire.topic_partition import TopicPartition

KEY = TopicPartition("t", 0)


def sample(at: float, copied: int | None, *, late: float = 0.0) -> Sample:
    """Make a sample in which broker 3 has so many of the 1000 bytes that broker 1 has; None: it did not answer. Its
    log directories were asked `late` seconds after its begin.
    """
    sizes = {1: 1000} if copied is None else {1: 1000, 3: copied}
    log_dirs = [
        BrokerLogDirs(broker, (LogDirDescription("/data", 0, 0, (LogDirReplica("t", 0, size, 0, False),)),))
        for broker, size in sizes.items()
    ]
    picture = SimpleNamespace(
        topics=[],
        cluster=SimpleNamespace(fenced=[]),
        silent=frozenset(),
        log_dirs=log_dirs,
        log_dirs_at=at + late,
        moving={KEY: Reassignment((1, 2, 3), (3,), (1,))},
        partitions=SimpleNamespace(under_min_isr=[], under_replicated=set()),
    )
    return Sample(at, picture, {}, at)


@pytest.mark.parametrize(
    ("before", "speed", "eta_ms"),
    [
        (sample(90.0, 100), 20.0, 35_000),
        (sample(60.0, 100), 5.0, 140_000),
        (sample(90.0, 100, late=5.0), 40.0, 17_500),
        (sample(90.0, None), None, None),
        (None, None, None),
    ],
)
def test_a_pace_is_that_between_two_samples(
    before: Sample | None, speed: float | None, eta_ms: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The growth of a copy is divided by the time between its samples, however often somebody looks."""
    monkeypatch.setattr("odradek.console.views.moves._throttles", lambda *_: {})
    monkeypatch.setattr("odradek.console.views.moves._retirements", lambda *_: [])
    session = SimpleNamespace(
        cache=KeptValues(), samples=SimpleNamespace(latest=lambda: (before, sample(100.0, 300)))
    )
    for _ in range(3):
        (row,) = moves(session, MovesQuery()).moves
        assert (row.bytes_done, row.bytes_total) == (300, 1000)
        assert (row.bytes_per_second, row.eta_ms) == (speed, eta_ms)
