"""A small campaign with fixed seeds, twice: every promise is kept, and another process with another hash seed agrees.

'Every failure found by the simulator replays from its seed, byte for byte.' The two workers have different
`PYTHONHASHSEED`s. A run that hangs on the order of a set, or on addresses, gives another digest.
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
"""The first one upgrades nodes. Seeds differ in cost by a factor of ten."""
DEFAULT_SECONDS = 8.0
LITE_SEEDS = (101,)
AGAIN = (0, 1)
"""The seeds that the second process runs, too."""


def _plans() -> list[tuple[int, RunOptions]]:
    plans = [(seed, RunOptions.draw(seed, seconds=DEFAULT_SECONDS)) for seed in DEFAULT_SEEDS]
    return plans + [(seed, RunOptions.draw(seed, "lite")) for seed in LITE_SEEDS]


def _run(number: int) -> list[Outcome]:
    worker = Worker(number, "test")
    try:
        return [worker.run(seed, options) for seed, options in _plans() if number == 1 or seed in AGAIN]
    finally:
        worker.close()


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="the pages say what CPython 3.11 to 3.13 give")
def test_a_reader_of_the_docs_gets_the_digest_that_they_state() -> None:
    """A seed gives the same run on any machine. The pages state its digest, and must state the present one."""
    digest = given()
    assert stated() == dict.fromkeys((page.name for page in PAGES), digest), (
        "the code has changed, and with it each run: `make sim-digest` writes the new digest into the pages"
    )


def test_fixed_seeds_keep_every_promise_in_any_process() -> None:
    """Storms leave nothing lost, all heals, and one digest per seed in two processes."""
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
