"""The hunt: unchanged code first, cheap steps first, one budget for all, and a file from which it resumes."""

from __future__ import annotations

from pathlib import Path

import attrs
import pytest

from sim.alone.parts import SCHEDULES
from tests.mutants.bugs import MUTANTS
from tests.mutants.hunt import results
from tests.mutants.hunt.book import Book
from tests.mutants.hunt.hunt import Hunt, Scope, steps_of
from tests.mutants.hunt.reach import counted
from tests.mutants.hunt.steps import AIMED, CLUSTER, SOUND, Outcome, Step, perform
from tests.mutants.mutant import CAMPAIGN

FIRST, SECOND = (each.name for each in MUTANTS[:2])
HIDDEN = next(each.name for each in MUTANTS if each.driver != CAMPAIGN)
SCOPE = Scope((FIRST, SECOND), part_seeds=1, cluster_seeds=1, cpu_seconds_max=1000.0, workers=1)


@pytest.fixture
def book(tmp_path: Path) -> Book:
    """Make a book in which unchanged code has passed all steps and has reached the places of both mutants."""
    book = Book(tmp_path / "book.jsonl")
    for at, step in enumerate(SCOPE.survey()):
        book.add(Outcome(SOUND, step, "", 10.0 - at, {FIRST: 1, SECOND: 3}))
    return book


def _next(book: Book, scope: Scope = SCOPE) -> tuple[str, Step] | None:
    return Hunt(scope, book)._next()


def test_the_place_of_each_mutant_can_be_counted() -> None:
    """A counter is inserted at the place of each mutant. The code with the counters compiles, and after the block the
    original code is back.
    """
    with counted(MUTANTS) as counts:
        assert not counts
    outcome = perform(SOUND, Step("raft", 0), 0.0)
    assert outcome.verdict == ""
    assert outcome.reached["vote-answered-before-saved"] > 0


def test_a_run_without_end_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """If a bug makes a run endless, the run is stopped, and the bug counts as found."""

    def loop(part: str, seed: int) -> None:
        while True:
            try:
                sum(range(1000))
            except Exception:  # noqa: BLE001 - the product may swallow errors like this, too
                continue

    monkeypatch.setattr("tests.mutants.hunt.steps._SPARE_SECONDS", 0.05)
    monkeypatch.setattr("tests.mutants.hunt.steps.run_part", loop)
    assert "runs on" in perform(FIRST, Step("raft", 0), 0.0).verdict


def test_sound_code_runs_before_any_mutant(tmp_path: Path) -> None:
    """Each step of the survey with unchanged code runs once, and only then the first mutant."""
    book = Book(tmp_path / "book.jsonl")
    taken = []
    while (job := _next(book)) is not None and job[0] == SOUND:
        taken.append(job[1])
        book.add(Outcome(*job, "", 1.0, {FIRST: 1}))
    assert taken == [*(Step(part, 0) for part in SCHEDULES), Step(CLUSTER, 0)]
    assert job == (FIRST, Step(CLUSTER, 0))


def test_steps_are_cheap_first_and_only_where_the_place_ran(book: Book) -> None:
    """Cheap steps come first. Steps that fail with unchanged code, or that never reach the place, are left out."""
    cheap, *_, dear = steps_of(FIRST, book)
    assert (cheap, dear) == (Step(CLUSTER, 0), Step("raft", 0))
    book.add(Outcome(SOUND, cheap, "it fails", 1.0, {FIRST: 1}))
    book.add(Outcome(SOUND, dear, "", 1.0, {SECOND: 1}))
    assert len(steps_of(FIRST, book)) == len(SCHEDULES) - 1


def test_the_mutant_that_has_had_least_time_goes_next(book: Book) -> None:
    """The mutant with the least CPU time is next, and a mutant that was found gets no more CPU time."""
    book.add(Outcome(FIRST, Step(CLUSTER, 0), "", 5.0))
    assert _next(book) == (SECOND, Step(CLUSTER, 0))
    book.add(Outcome(SECOND, Step(CLUSTER, 0), "safety: lost", 9.0))
    job = _next(book)
    assert job is not None
    assert job[0] == FIRST


def test_the_budget_ends_the_hunt(book: Book) -> None:
    """The last part of the budget is for aimed drivers. When the budget is spent, no step begins."""
    spent = book.cpu_seconds
    assert _next(book, attrs.evolve(SCOPE, cpu_seconds_max=spent)) is None
    aimed = attrs.evolve(SCOPE, mutants=(HIDDEN,), cpu_seconds_max=spent * 1.1)
    assert _next(book, aimed) == (HIDDEN, Step(AIMED))
    assert _next(book, attrs.evolve(aimed, is_aimed=False)) is None


def test_a_hunt_goes_on_from_its_file(book: Book, tmp_path: Path) -> None:
    """A resumed hunt reads outcomes of the present code. Outcomes of other code are skipped unless asked for."""
    book.add(Outcome(FIRST, Step("raft", 0), "safety", 2.0))
    path = tmp_path / "book.jsonl"
    again = Book(path)
    assert list(again.outcomes()) == list(book.outcomes())
    assert again.found(FIRST) == book.found(FIRST)
    path.write_text(path.read_text().replace('"code": "', '"code": "0'))
    assert list(Book(path).outcomes()) == []
    assert list(Book(path, keeps_all=True).outcomes()) == list(book.outcomes())


def test_a_result_says_who_found_a_mutant_or_why_nobody_did(book: Book) -> None:
    """A result names the driver that found the mutant: parts, clusters or an aimed driver. The result of a missed
    mutant says how often the mutant's place ran."""
    book.add(Outcome(FIRST, Step("raft", 0), "raft 3 alone: two leaders", 2.0))
    book.add(Outcome(SECOND, Step(CLUSTER, 0), "", 2.0))
    for seed in range(1, results.CLUSTERS_MIN):
        book.add(Outcome(SOUND, Step(CLUSTER, seed), "", 20.0))
    before = {name: results.Result(name, results.UNTRIED) for name in (FIRST, SECOND)}
    assert results.merged(before, book)[SECOND].found_by == results.UNTRIED
    steps = steps_of(SECOND, book)
    for step in steps:
        book.add(Outcome(SECOND, step, "", 2.0))
    merged = results.merged(before, book)
    assert merged[FIRST] == results.Result(
        FIRST, results.ALONE, "raft 0", "1", "2", "raft 3 alone: two leaders"
    )
    assert merged[SECOND].found_by == results.NOBODY
    assert merged[SECOND].remark == f"its place ran {3 * len(steps)} times, and no check failed"


def test_an_older_finding_outlasts_a_hunt_that_has_not_ended(book: Book) -> None:
    """A hunt that stopped early, or that aimed nobody, says less than an older hunt that found the mutant."""
    before = {SECOND: results.Result(SECOND, results.CAMPAIGN, "cluster 7")}
    book.add(Outcome(SECOND, Step(CLUSTER, 0), "", 2.0))
    assert results.merged(before, book) == before
    for seed in range(1, results.CLUSTERS_MIN):
        book.add(Outcome(SOUND, Step(CLUSTER, seed), "", 20.0))
    for step in steps_of(SECOND, book):
        book.add(Outcome(SECOND, step, "", 2.0))
    assert results.merged(before, book) == before
    book.add(Outcome(SECOND, Step(AIMED), "", 2.0))
    assert results.merged(before, book)[SECOND].found_by == results.NOBODY


def test_the_page_has_the_results_that_were_kept(tmp_path: Path) -> None:
    """The table in docs/simulation-findings.md equals the output of `python -m tests.mutants --table`."""
    kept = results.read()
    copy = tmp_path / "page.md"
    copy.write_text(results.PAGE.read_text())
    results.write_page(kept, copy)
    assert copy.read_text() == results.PAGE.read_text()
    results.write(kept, tmp_path / "results.tsv")
    assert results.read(tmp_path / "results.tsv") == kept
