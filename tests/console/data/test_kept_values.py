"""Values that views share: threads that want the same one wait for it once, also if it cannot be had."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable

import pytest

from odradek.client.errors import RequestTimedOut
from odradek.console.sessions import samples as samples_module
from odradek.console.sessions.kept_values import KeptValues
from odradek.console.sessions.samples import Samples

THREADS = 5
SECONDS = 30


class Silent:
    """A cluster that lets all questions wait, and then gives no answer."""

    def __init__(self) -> None:
        self.asked = 0
        self.may_end = threading.Event()

    def ask(self, *_: object) -> int:
        """Wait, then fail."""
        self.asked += 1
        assert self.may_end.wait(SECONDS)
        raise RequestTimedOut("the cluster is silent")


class Clock:
    """A clock that counts how often somebody looks at it."""

    def __init__(self) -> None:
        self._looks = itertools.count(1)
        self.all_wait = threading.Event()

    def monotonic(self) -> float:
        """Return the time. Each thread looks once before it waits for the others, and the first one once more."""
        if next(self._looks) > THREADS:
            self.all_wait.set()
        return time.monotonic()


def fail_together(cluster: Silent, clock: Clock, ask: Callable[[], object]) -> list[Exception]:
    """Ask in several threads, let the first question fail when all of them wait, and return their errors."""
    errors: list[Exception] = []

    def run() -> None:
        try:
            ask()
        except RequestTimedOut as error:
            errors.append(error)

    threads = [threading.Thread(target=run) for _ in range(THREADS)]
    for each in threads:
        each.start()
    assert clock.all_wait.wait(SECONDS)
    cluster.may_end.set()
    for each in threads:
        each.join(SECONDS)
    return errors


def test_threads_that_wait_share_a_failure() -> None:
    """While the cluster is silent, threads do not wait for it one after the other. A later one asks anew."""
    cluster, clock = Silent(), Clock()
    kept = KeptValues(clock.monotonic)
    errors = fail_together(cluster, clock, lambda: kept.value("key", 1.0, cluster.ask))
    assert (cluster.asked, len(errors)) == (1, THREADS)
    assert kept.value("key", 1.0, lambda: 7) == 7
    for _ in range(2):
        with pytest.raises(RequestTimedOut):
            kept.value("other", 1.0, cluster.ask)
    assert cluster.asked == 3


def test_views_that_wait_for_a_sample_share_its_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sample that cannot be taken is asked for once, for all views that wait for it."""
    cluster, clock = Silent(), Clock()
    monkeypatch.setattr(samples_module, "look_at_cluster", cluster.ask)
    monkeypatch.setattr(samples_module, "time", clock)
    samples = Samples(None, lambda: None)
    errors = fail_together(cluster, clock, samples.latest)
    assert (cluster.asked, len(errors)) == (1, THREADS)
