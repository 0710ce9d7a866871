"""The order of steps: unchanged code first, then each mutant in turn with the seeds that reach its place, cheap ones
first.

All steps share one budget of CPU time. The mutant that has used the least time is next, so a mutant that is found early
leaves its share to the others. The last part of the budget is for drivers aimed at mutants that no seed has shown.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait

import attrs

from sim.alone.parts import SCHEDULES
from tests.mutants.bugs import BY_NAME
from tests.mutants.hunt.book import Book
from tests.mutants.hunt.steps import AIMED, CLUSTER, SOUND, Outcome, Step, perform
from tests.mutants.mutant import CAMPAIGN

AIMED_SHARE = 0.15
"""The part of the budget that is reserved for aimed drivers."""


@attrs.frozen
class Scope:
    """The limits of a hunt: seeds of parts and of clusters, mutants, and CPU seconds in total."""

    mutants: Sequence[str]
    part_seeds: int
    cluster_seeds: int
    cpu_seconds_max: float
    workers: int
    is_aimed: bool = True

    def survey(self) -> Iterator[Step]:
        """Yield the steps that unchanged code runs first."""
        for kind in SCHEDULES:
            for seed in range(self.part_seeds):
                yield Step(kind, seed)
        for seed in range(self.cluster_seeds):
            yield Step(CLUSTER, seed)


def steps_of(mutant: str, book: Book) -> list[Step]:
    """Return the steps that may show a mutant, cheap ones first. Unchanged code passes these steps and reaches the
    mutant's place."""
    sound = [each for each in book.sound.values() if not each.verdict and each.reached.get(mutant)]
    return [each.step for each in sorted(sound, key=lambda each: (each.cpu_seconds, each.step))]


class Hunt:
    """A hunt with a book. `run` goes on until all mutants are found, no step is left, or the budget is spent."""

    def __init__(self, scope: Scope, book: Book) -> None:
        self._scope = scope
        self._book = book
        self._steps = frozenset(scope.survey())
        self._under_way: dict[Future[Outcome], tuple[str, Step]] = {}

    def run(self) -> Iterator[Outcome]:
        """Yield outcomes as they come. Each is written into the book first."""
        with ProcessPoolExecutor(self._scope.workers, max_tasks_per_child=20) as pool:
            while True:
                while len(self._under_way) < self._scope.workers and (job := self._next()) is not None:
                    sound = self._book.sound.get(job[1])
                    future = pool.submit(perform, *job, 0.0 if sound is None else sound.cpu_seconds)
                    self._under_way[future] = job
                if not self._under_way:
                    return
                for future in wait(self._under_way, return_when=FIRST_COMPLETED).done:
                    del self._under_way[future]
                    self._book.add(future.result())
                    yield future.result()

    def _next(self) -> tuple[str, Step] | None:
        """Choose the next mutant and its step. Return None if there is none at present."""
        book, scope = self._book, self._scope
        spent = book.cpu_seconds
        busy = {name for name, _ in self._under_way.values()}
        if spent >= scope.cpu_seconds_max:
            return None
        for step in scope.survey():
            if step not in book.sound and (SOUND, step) not in self._under_way.values():
                return SOUND, step
        if SOUND in busy:
            # Only after all these steps is it known which seeds reach a mutant's place.
            return None
        open_names = [name for name in scope.mutants if name not in busy and book.found(name) is None]
        if spent < scope.cpu_seconds_max * (1 - AIMED_SHARE):
            for name in sorted(open_names, key=self._spent_on):
                tried = book.of_mutant.get(name, {})
                step = next(
                    (each for each in steps_of(name, book) if each in self._steps - tried.keys()), None
                )
                if step is not None:
                    return name, step
        return self._next_aimed(open_names)

    def _next_aimed(self, open_names: Sequence[str]) -> tuple[str, Step] | None:
        for name in open_names if self._scope.is_aimed else ():
            tried = self._book.of_mutant.get(name, {})
            if BY_NAME[name].driver != CAMPAIGN and Step(AIMED) not in tried:
                return name, Step(AIMED)
        return None

    def _spent_on(self, name: str) -> float:
        return sum(each.cpu_seconds for each in self._book.of_mutant.get(name, {}).values())
