"""The checker is checked: some of the bugs that are found fast are found, within few seeds, and the harness refuses nonsense.

The whole set runs under `make sim-mutants`.
"""

from __future__ import annotations

import pytest

from odradek.data_plane.replication.truncation import truncation_offset
from tests.mutants.__main__ import BY_NAME, table
from tests.mutants.bugs import MUTANTS
from tests.mutants.drivers import DRIVERS
from tests.mutants.mutant import Mutant, search
from tests.mutants.patching import changed_code, find, patched

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
"""Seeds at most."""


@pytest.mark.parametrize("name", FAST)
def test_a_bug_of_history_is_found_within_few_seeds(name: str) -> None:
    """Each fast mutant is found within its number of seeds, and the seed that finds it passes without the bug."""
    found = search(BY_NAME[name], DRIVERS, seeds_max=FAST[name])
    assert found.seed is not None, found.line()
    assert found.line() == f"{name} found seed={found.seed} seeds={found.seeds}"
    assert name in table([found])


@pytest.mark.parametrize("mutant", MUTANTS, ids=str)
def test_each_patch_still_fits_its_function(mutant: Mutant) -> None:
    """Code moves on; a mutant whose text is gone would be sound, and missed for the wrong reason."""
    assert mutant.driver in DRIVERS
    for function, old, new in mutant.changes:
        assert changed_code(find(function), old, new) != find(function).__code__


def test_a_patch_is_taken_back() -> None:
    """A module that has the function by name runs the bug, while it is there."""
    name = "odradek.data_plane.replication.truncation:truncation_offset"
    sound = truncation_offset.__code__
    with patched(name, "if epoch < 0:", "if epoch < 1:"):
        assert truncation_offset.__code__ is not sound
    assert truncation_offset.__code__ is sound
    with pytest.raises(ValueError, match="0 times"):
        changed_code(truncation_offset, "no such text", "")


def test_what_is_not_found_is_missed() -> None:
    """A harmless change is reported as missed, since every seed passes."""
    harmless = Mutant(
        "harmless",
        "",
        "odradek.data_plane.replication.truncation:truncation_offset",
        "epoch < 0",
        "0 > epoch",
        "replication",
        3,
    )
    found = search(harmless, DRIVERS)
    assert found.line() == "harmless MISSED seeds=3 (no seed has failed)"
