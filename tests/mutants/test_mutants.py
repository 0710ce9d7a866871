"""Tests of the checkers: some bugs that are quick to find are found within a few seeds, and wrong input is refused.

The whole set runs under `make sim-mutants`.
"""

from __future__ import annotations

import pytest

from odradek.data_plane.replication.truncation import truncation_offset
from tests.mutants.bugs import BY_NAME, MUTANTS
from tests.mutants.drivers import DRIVERS
from tests.mutants.form.normal import find
from tests.mutants.form.seals import Seals, read
from tests.mutants.mutant import Mutant, search
from tests.mutants.patching import compiled

HARMLESS = Mutant(
    "harmless",
    "",
    "odradek.data_plane.replication.truncation:truncation_offset",
    """
    - epoch < 0
    + 0 > epoch
    """,
    "replication",
    3,
)

FAST = {
    "metadata-acknowledged-before-sync": 2,
    "vote-answered-before-saved": 4,
    "snapshot-over-newer-entries": 10,
    "truncation-by-high-watermark": 40,
    "fast-double-failover": 90,
    "stale-leader-acknowledges": 20,
    "high-watermark-over-a-removed-replica": 20,
    "producer-state-lost-at-leader-change": 4,
    "fetch-session-serves-a-truncated-offset": 10,
    "high-watermark-below-min-isr": 20,
    "promise-before-its-sync": 4,
    "voters-of-a-cut-record-in-force": 30,
    "older-log-under-an-installed-snapshot": 10,
    "answered-before-committed": 4,
    "commit-answered-before-its-high-watermark": 4,
    "coordinator-reads-the-newest-segment-alone": 20,
    "commit-of-an-old-generation": 20,
    "tombstones-forgotten-on-load": 30,
    "index-names-the-next-batch": 10,
    "reserve-ignored-by-retention": 1,
    "scrub-repairs-from-a-follower-that-lags": 1,
}
"""The most seeds in which each of these mutants must be found."""


@pytest.mark.parametrize("name", FAST)
def test_a_bug_of_history_is_found_within_few_seeds(name: str) -> None:
    """Each fast mutant is found within its number of seeds, and the seed that finds it passes without the bug."""
    found = search(BY_NAME[name], DRIVERS, seeds_max=FAST[name])
    assert found.seed is not None, found.line()
    assert found.line() == f"{name} found seed={found.seed} seeds={found.seeds}"


@pytest.fixture(scope="module")
def seals() -> Seals:
    """Read all seals."""
    return read()


@pytest.mark.parametrize("mutant", MUTANTS, ids=str)
def test_each_mutant_fits_the_functions_that_were_sealed(mutant: Mutant, seals: Seals) -> None:
    """Each mutant fits its sealed functions. After a change of a function, its mutant may no longer be a bug.

    If this fails, review the mutant, correct its change if necessary, and run `python -m tests.mutants --seal NAME`.
    """
    assert mutant.driver in DRIVERS
    mutant.check_seals(seals)
    for function, body in mutant.bodies().items():
        assert compiled(find(function), body) != find(function).__code__


def test_there_are_seals_for_mutants_only(seals: Seals) -> None:
    """Each seal belongs to a mutant that exists."""
    assert set(seals) == {(mutant, function) for each in MUTANTS for _, function, mutant in each.seal_keys()}


def test_a_bug_runs_where_its_function_is_known_by_name() -> None:
    """A module that has imported the function by name runs the bug while it is planted."""
    mutant = HARMLESS
    sound = truncation_offset.__code__
    with mutant.planted():
        assert truncation_offset.__code__ is not sound
    assert truncation_offset.__code__ is sound


def test_what_is_not_found_is_missed() -> None:
    """A harmless change is reported as missed, since every seed passes with it."""
    found = search(HARMLESS, DRIVERS)
    assert found.line() == "harmless MISSED seeds=3 (no seed has failed)"
