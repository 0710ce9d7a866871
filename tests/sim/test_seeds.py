"""A small campaign with fixed seeds, run by two processes: promises are kept, and both get the same digests.

The two processes have different `PYTHONHASHSEED`s. A run that depends on the order of a set, or on addresses, gets
another digest.
"""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from sim.campaign.results import Outcome
from sim.campaign.workers import Worker
from sim.options import RunOptions
from tests.sim.stated import PAGES, given, stated

DEFAULT_SEEDS = (0, 1, 3)
"""The first seed upgrades nodes. The costs of seeds differ by a factor of ten."""
DEFAULT_SECONDS = 8.0
LITE_SEEDS = (101,)
AGAIN = (0, 1)
"""The seeds that the second process also runs."""


def _plans() -> list[tuple[int, RunOptions]]:
    plans = [(seed, RunOptions.draw(seed, seconds=DEFAULT_SECONDS)) for seed in DEFAULT_SEEDS]
    return plans + [(seed, RunOptions.draw(seed, "lite")) for seed in LITE_SEEDS]


def _run(number: int) -> list[Outcome]:
    worker = Worker(number, "test")
    try:
        return [worker.run(seed, options) for seed, options in _plans() if number == 1 or seed in AGAIN]
    finally:
        worker.close()


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="the pages say what CPython 3.11 gives")
def test_a_reader_of_the_docs_gets_the_digest_that_they_state() -> None:
    """The digest that the docs state is that of the present code."""
    digest = given()
    assert stated() == dict.fromkeys((page.name for page in PAGES), digest), (
        "the code has changed, so runs are different: `make sim-digest` writes the new digest into the pages"
    )


def test_fixed_seeds_keep_every_promise_in_any_process() -> None:
    """After storms nothing is lost and the cluster heals. Each seed has the same digest in both processes."""
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(_run, (1, 2))
    failed = [(each.seed, each.signature, each.message) for each in first if each.verdict != "ok"]
    assert failed == []
    digests = {each.seed: each.digest for each in first}
    assert {each.seed: each.digest for each in second} == {seed: digests[seed] for seed in AGAIN}
    assert len({each.digest for each in first}) == len(first)
    wanted = ("acknowledged", "troubles", "read", "upgrades")
    totals = {name: sum(each.statistics[name] for each in first) for name in wanted}
    assert all(total > 0 for total in totals.values()), totals
