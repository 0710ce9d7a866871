"""Changes between a crash and a restart, in every combination, with a model of the decisions topic.

A run writes a part of a batch and dies. The next run has another delivery, another number of tasks or other rows. Either
it ends, and each row is there once, or it is refused, and has added nothing; then the first plan ends the batch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import combinations, product

import attrs
import pytest

from odradek.spark.delivery.completion import BatchEnd, judge_end
from odradek.spark.delivery.markers import MarkerLog
from odradek.spark.delivery.progress import judge_attempt, judge_without_progress
from odradek.spark.delivery.task_protocol import Marker, ProgressError, RowSummary, Step, TaskProtocol
from odradek.spark.delivery.two_phase import (
    AttemptProtocol,
    AttemptStep,
    Decision,
    DriverProtocol,
    DriverStep,
    last_of,
)

ONCE, TWO_PHASE, AT_LEAST = "exactly-once", "two-phase", "at-least-once"
ROWS = tuple(range(12))
Rows = tuple[int, ...]


@attrs.frozen
class Plan:
    """The way in which a run writes its batch. With `other_rows`, its code gives other rows."""

    mode: str
    tasks: int
    other_rows: bool = False
    adopt: bool = False

    def rows(self, task: int) -> Rows:
        """Return the rows of a task: a range, like that of a file source."""
        size = len(ROWS) // self.tasks
        part = ROWS[task * size : (task + 1) * size]
        return part[::2] if self.other_rows else part


def summary(rows: Rows) -> RowSummary:
    return RowSummary(len(rows), sum(hash_of(row) for row in rows) % (1 << 64))


def hash_of(row: int) -> int:
    return (row + 1) * 0x9E3779B97F4A7C15 % (1 << 64)


@attrs.define
class World:
    """The topic's committed rows, the decisions topic, and the prepared transactions."""

    batch: int
    consecutive: bool = True
    log: MarkerLog = attrs.field(factory=lambda: MarkerLog("q"))
    visible: Counter[int] = attrs.field(factory=Counter)
    prepared: list[Rows] = attrs.field(factory=list)
    runs: int = 0

    def run(
        self,
        plan: Plan,
        dies_after: tuple[int, ...] | None = None,
        *,
        completes: bool = True,
        commits_max: int | None = None,
    ) -> None:
        """Run the batch. It may die after some tasks, before its driver has ended the batch, or while the driver has
        committed `commits_max` of the held transactions. Raises `ProgressError`.
        """
        self.runs += 1
        tasks = range(plan.tasks) if dies_after is None else dies_after
        if plan.mode == TWO_PHASE:
            self._prepare(plan, tasks, ends=dies_after is None and completes)
        elif plan.mode == ONCE:
            self._commit_tasks(plan, tasks, dies_after is None and completes, commits_max)
        else:
            for task in tasks:
                self._refuse_prepared()
                judge_without_progress("q", self.batch, self.log, plan.mode)
                self.visible.update(plan.rows(task))

    def _refuse_prepared(self) -> None:
        if self.prepared:
            raise ProgressError("prepared")

    def _commit_tasks(
        self, plan: Plan, tasks: range | tuple[int, ...], ends: bool, commits_max: int | None
    ) -> None:
        run = f"run {self.runs}"
        held: list[int] = []
        compared: set[int] = set()
        for task in tasks:
            attempt = TaskProtocol(
                "q", task, self.batch, consecutive=self.consecutive, adopt=plan.adopt, step=Step.READ_MARKER
            )
            judge_attempt(attempt, self.log, run, "t")
            self._refuse_prepared()
            rows = plan.rows(task)
            if attempt.step is Step.COMPARE:
                attempt.compare(summary(rows))
            if attempt.step in (Step.COUNT, Step.REPORT):
                compared.add(task)
            elif attempt.holds:
                held.append(task)
            elif rows or not task:
                self._commit_task(plan, task, run)
        if not ends:
            return
        whole = summary(tuple(row for task in tasks for row in plan.rows(task)))
        end = BatchEnd("q", self.batch, run, plan.tasks, whole, frozenset(compared), adopt=plan.adopt)
        if judge_end(end, self.log.finished, self.log.of_other_runs(self.batch, run)):
            for task in held[:commits_max]:
                self._commit_task(plan, task, run)
            if commits_max is not None:
                return
            self.log.completion = end.completion(None)

    def _commit_task(self, plan: Plan, task: int, run: str) -> None:
        rows = plan.rows(task)
        self.log.markers[task] = Marker(self.batch, summary(rows), (("t", b"1" * 16),), run)
        self.visible.update(rows)

    def _prepare(self, plan: Plan, tasks: range | tuple[int, ...], *, ends: bool) -> None:
        options = {"consecutive": self.consecutive, "adopt": plan.adopt}
        found: list[Rows] = []
        last = last_of("q", self.batch, self.log.decision, self.log.markers, self.log.completion)
        for task in tasks:
            attempt = AttemptProtocol("q", task, self.batch, **options)
            attempt.looked(last)
            if attempt.step is AttemptStep.CLAIM:
                found.append(plan.rows(task))
        self.prepared += found
        if not ends:
            return
        whole = summary(tuple(row for task in tasks for row in plan.rows(task)))
        driver = DriverProtocol("q", self.batch, (), whole, **options, step=DriverStep.READ)
        driver.read(last)
        if driver.step is DriverStep.DECIDE:
            for rows in found:
                self.visible.update(rows)
            driver.decided()
            self.log.decision = Decision(self.batch, whole, is_complete=True)
            self.prepared = []
        driver.check_rows()


def begun_worlds() -> Iterator[tuple[World, Plan]]:
    """Yield worlds in which a run has begun batch 0 or 1, with the plan of that run."""
    for batch, consecutive, mode, tasks in product((0, 1), (True, False), (ONCE, TWO_PHASE), (1, 2, 3, 4)):
        plan = Plan(mode, tasks)
        parts = [part for size in range(tasks + 1) for part in combinations(range(tasks), size)]
        ends: list[tuple[tuple[int, ...] | None, bool]] = [(part, False) for part in parts]
        for part, completes in [*ends, (None, False), (None, True)]:
            world = World(batch, consecutive)
            if batch:
                world.batch = 0
                world.run(Plan(mode, 2))
                world.batch = 1
                world.visible.clear()
            world.run(plan, part, completes=completes)
            yield world, plan


def copied(world: World) -> World:
    return attrs.evolve(
        world, log=world.log.copy(), visible=Counter(world.visible), prepared=[*world.prepared]
    )


MODES = (ONCE, TWO_PHASE, AT_LEAST)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("other_rows", [False, True], ids=["same rows", "other rows"])
@pytest.mark.parametrize("adopt", [False, True], ids=["", "adopt"])
def test_a_restart_writes_each_row_once_or_adds_nothing(mode: str, other_rows: bool, adopt: bool) -> None:
    """Whatever the next run changes, each row is there once, or nothing was added and the first plan still ends the
    batch."""
    outcomes = Counter[str]()
    for world, begun in begun_worlds():
        for tasks in (1, 2, 3, 4, 6):
            after, plan = copied(world), Plan(mode, tasks, other_rows, adopt)
            try:
                after.run(plan)
            except ProgressError:
                outcomes["refused"] += 1
                assert after.visible == world.visible, (world, begun, plan)
                after.run(begun)
                assert after.visible == Counter(ROWS), (world, begun, plan)
            else:
                outcomes["ended"] += 1
                kept = Counter(ROWS) if world.visible == Counter(ROWS) else None
                assert after.visible == (kept or Counter(plan_rows(plan))), (world, begun, plan)
            assert not after.prepared
    assert outcomes["ended"] > 0
    assert outcomes["refused"] > 0 or mode == TWO_PHASE


def test_a_restart_that_dies_as_well_changes_nothing() -> None:
    """A second run dies after some tasks, or in its driver's commit. After that the first plan still ends the batch, and
    each row is there once."""
    for world, begun in begun_worlds():
        for tasks, (dies_after, commits_max) in product((1, 2, 4), (((0,), None), (None, 0), (None, 1))):
            after, plan = copied(world), Plan(begun.mode, tasks)
            try:
                after.run(plan, dies_after, commits_max=commits_max)
            except ProgressError:
                assert after.visible == world.visible, (world, begun, plan)
            if after.visible != world.visible and not world.visible:
                # Nothing had been visible of the first run, so the second run has begun the batch.
                begun_again = plan
            else:
                begun_again = begun
            after.run(begun_again)
            assert after.visible == Counter(ROWS), (world, begun, plan, dies_after, commits_max)


@pytest.mark.parametrize("rule", ["of_other_runs", "finished"])
def test_each_rule_is_needed(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """If markers of other runs, or the completion, are passed over, the search finds duplicated or missing rows."""
    nothing = property(lambda _: None) if rule == "finished" else lambda *_: {}
    monkeypatch.setattr(MarkerLog, rule, nothing)
    with pytest.raises(AssertionError):
        test_a_restart_writes_each_row_once_or_adds_nothing(ONCE, other_rows=False, adopt=False)


def plan_rows(plan: Plan) -> list[int]:
    return [row for task in range(plan.tasks) for row in plan.rows(task)]
