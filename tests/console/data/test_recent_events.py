"""The newest changes and the releases of brokers on the overview: they never hold it up."""

from __future__ import annotations

import threading

import pytest

from odradek import Admin
from odradek.client.admin import NewTopic
from odradek.console.sessions.beside import Beside
from odradek.console.sessions.releases import release_of
from odradek.console.sessions.session import Session
from odradek.console.shapes.queries import NoQuery
from odradek.console.views.brokers import brokers
from odradek.console.views.cluster import CHANGES_MAX, overview
from tests.node_process import RunningNode


def test_the_overview_has_the_newest_changes_and_the_release(node: RunningNode) -> None:
    """A new topic is the first sentence. Who has asked is null where no audit log says it."""
    session = Session({"bootstrap.servers": node.bootstrap})
    try:
        with Admin(bootstrap_servers=node.bootstrap) as admin:
            admin.create_topics([NewTopic("recent-topic", 1, 1)])
        found = overview(session, NoQuery())
        assert found.events is not None, found.events_unknown
        assert 0 < len(found.events) <= CHANGES_MAX
        (created,) = [each for each in found.events if "topic recent-topic was created" in each.sentence]
        assert created.who is None
        assert found.events_unknown is None
        assert found.version == "4.3"
        (broker,) = brokers(session, NoQuery())
        assert broker.version == "4.3"
    finally:
        session.close()


def test_a_metadata_log_that_cannot_be_read_is_said_so(node: RunningNode) -> None:
    """If the controllers' listener refuses the console, all else of the overview is there."""
    session = Session({"bootstrap.servers": node.bootstrap})
    session.history.close()
    try:
        found = overview(session, NoQuery())
        assert found.events is None
        assert found.events_unknown
        assert found.brokers == 1
    finally:
        session.close()


def test_a_slow_value_holds_nobody_up() -> None:
    """While a value is computed, nobody waits longer than he wants; then it is there for all."""
    beside: Beside[int] = Beside(fresh_seconds=60.0, failed_seconds=60.0)
    go, runs = threading.Event(), []

    def make() -> int:
        runs.append(1)
        assert go.wait(20)
        return 7

    assert beside.get(make, 0.01) is None
    assert beside.get(make, 0.0) is None
    go.set()
    assert beside.get(make, 20.0) == 7
    assert beside.get(make, 0.0) == 7
    assert len(runs) == 1


def test_an_error_is_raised_and_not_tried_at_once() -> None:
    """After a failure, the next try has to wait."""
    beside: Beside[int] = Beside(fresh_seconds=60.0, failed_seconds=60.0)
    runs = []

    def make() -> int:
        runs.append(1)
        raise ValueError("no")

    for _ in range(3):
        with pytest.raises(ValueError, match="no"):
            beside.get(make, 20.0)
    assert len(runs) == 1


@pytest.mark.parametrize(
    ("level", "release"),
    [
        (None, None),
        (0, None),
        (7, "3.3"),
        (20, "3.8"),
        (21, "3.9"),
        (25, "4.0"),
        (30, "4.3"),
        (99, "4.3 or newer"),
    ],
)
def test_levels_belong_to_releases(level: int | None, release: str | None) -> None:
    """A level of metadata.version names the release of Apache Kafka that has brought it."""
    assert release_of(level) == release
