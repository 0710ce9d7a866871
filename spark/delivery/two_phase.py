"""The two-phase protocol: attempts prepare, the driver decides once for all tasks of a batch. PURE.

Theory of operation
===================

Each attempt writes its rows in a transaction without timeout, and prepares it (KIP-939). Only the driver ends
it. The driver's record in the decisions topic names the winners: it is the commit point. So a batch becomes
visible as a whole or not at all, whatever a repeated task has written. An attempt goes these steps:

| step | action | reason |
| --- | --- | --- |
| LOOK | read the last decision | a decided batch needs no transaction |
| CLAIM | take a free slot of its task's pool: InitProducerId that keeps a prepared transaction | a prepared transaction may be a winner: no attempt ends one |
| LOOK_AGAIN | read the last decision up to the high watermark | a driver that has listed the pool before CLAIM has decided by now |
| WRITE | the rows, in a transaction | |
| PREPARE | wait until all are written | |
| COUNT | rows are counted only | the batch is decided |
| REPORT | slot, producer id and epoch go to the driver | |

The driver, when each task has reported (`commit`):

| step | action | reason |
| --- | --- | --- |
| FENCE | InitProducerId with the query's id | no other driver's decision comes between |
| READ | the last decision up to the high watermark | the first one counts; a complete one ends the run |
| ROLL_FORWARD | commit the winners of a decision that is not complete | a decision is never taken back |
| DECIDE | write the decision, in a transaction of its own | the commit point; there is one for each batch |
| COMPLETE | commit the winners, one by one | repeated until all are committed |
| LIST | the open transactions of the pool, with their producer ids and epochs | |
| PROVE | write the decision once more | a driver that was replaced cannot: so all that was listed is of this batch, or older |
| SWEEP | end what was listed, by producer id and epoch | losers, twins, attempts of dead drivers; an attempt that only claimed is fenced |
| FINISH | write that the decision is complete | the next batch begins behind it |
| DROP | abort the transactions that were reported to this driver | the batch has failed (`abort`) and has no decision |

A producer id and epoch name one transaction. So a driver that was asleep ends nothing that began later. An attempt at
the next batch refuses to begin before FINISH. So a driver that finds a decision which is not complete may sweep.
Behind a complete one the next batch may be under way. A job begins with an `abort` that has nothing to drop, which
takes the decision of a dead run to its end.

The pool of task p has the ids (query, p, slot). An id is used again once its transaction has ended. So there are as
many as attempts were open at a time. `tests/spark/delivery/test_two_phase.py` tries all orders of crashes, twins and
zombies. It shows that the rules are needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum

import attrs

from odradek.spark.delivery.task_protocol import Marker, ProgressError, RowSummary, TaskProtocol, TopicIds

__all__ = [
    "AttemptProtocol",
    "AttemptStep",
    "Decision",
    "DriverProtocol",
    "DriverStep",
    "Prepared",
    "check_mode",
    "judge_decision",
    "last_of",
    "sum_of",
]

_MASK = (1 << 64) - 1


@attrs.frozen(order=True)
class Prepared:
    """A transaction by its place in the pool of a query, and by the producer that wrote it."""

    task: int
    slot: int
    producer_id: int
    producer_epoch: int


@attrs.frozen
class Decision:
    """The last decided batch of a query: its rows, and the transactions that hold them."""

    batch: int
    summary: RowSummary
    winners: tuple[Prepared, ...] = ()
    is_complete: bool = False
    """True once all winners are committed."""
    topics: TopicIds = ()


def sum_of(summaries: Iterable[RowSummary]) -> RowSummary:
    """Add up the rows of several tasks."""
    rows = row_hash = 0
    for each in summaries:
        rows, row_hash = rows + each.rows, (row_hash + each.row_hash) & _MASK
    return RowSummary(rows, row_hash)


def judge_decision(
    query: str, batch: int, decision: Decision | None, *, consecutive: bool = True, adopt: bool = False
) -> bool:
    """True if the batch is still to be decided, false if it is decided. Raises `ProgressError` for all else."""
    if decision is not None and decision.batch == batch:
        return False
    if decision is not None and decision.batch > batch:
        way_out = (
            "the checkpoint is older than the topic, so use the newest checkpoint, or a new checkpoint"
            if consecutive
            else "txnVersion must only grow"
        )
        raise ProgressError(
            f"batches of {query} are decided up to batch {decision.batch}, and batch {batch} would be "
            f"written: {way_out}."
        )
    last = -1 if decision is None else decision.batch
    if last + 1 == batch or adopt or not consecutive:
        return True
    has = "no decision" if decision is None else f"a decision about batch {last}"
    raise ProgressError(
        f"the topic has {has} of {query}, and batch {batch} is next, so decisions are missing. If the "
        "query had another decisionsTopic before, set the option decisionsTopic to that topic. If the "
        "missing batches were written without decisions (another delivery), set the option "
        "adoptCheckpoint=true once."
    )


def check_mode(attempt: TaskProtocol, decision: Decision | None) -> None:
    """Raise `ProgressError` if an exactly-once task belongs to a batch that two-phase delivery has begun or decided."""
    if decision is not None and (decision.batch >= attempt.batch or not decision.is_complete):
        raise ProgressError(
            f"batch {decision.batch} of {attempt.query} was decided with delivery=two-phase, and batch "
            f"{attempt.batch} would be written: end that batch with delivery=two-phase, and change the "
            "option afterwards."
        )


def last_of(
    query: str, batch: int, decision: Decision | None, markers: Mapping[int, Marker]
) -> Decision | None:
    """Return the last decision, or a substitute for the batches that tasks have committed with
    delivery=exactly-once.

    Any task's marker counts: in a batch that has begun, task 0's may be missing. Raises `ProgressError` if this
    batch is among those batches.
    """
    newest = max(markers.values(), key=lambda each: each.batch, default=None)
    if newest is None or (decision is not None and decision.batch >= newest.batch):
        return decision
    if newest.batch == batch:
        raise ProgressError(
            f"batch {batch} of {query} began with delivery=exactly-once, and tasks have committed rows "
            "of it: end the batch with delivery=exactly-once and the same number of tasks, and change "
            "the option afterwards."
        )
    first = markers.get(0, newest)
    return Decision(newest.batch, first.summary, is_complete=True, topics=first.topics)


class AttemptStep(Enum):
    """The steps of an attempt."""

    LOOK = "look"
    CLAIM = "claim"
    LOOK_AGAIN = "look again"
    WRITE = "write"
    PREPARE = "prepare"
    COUNT = "count"
    REPORT = "report"


@attrs.define
class AttemptProtocol:
    """The state of one attempt at a task of `batch`; `step` is its next step."""

    query: str
    task: int
    batch: int
    consecutive: bool = True
    adopt: bool = False
    step: AttemptStep = AttemptStep.LOOK

    def looked(self, decision: Decision | None) -> bool:
        """Called with the last decision, or None; true if the rows are to be written. Raises `ProgressError`."""
        is_open = judge_decision(
            self.query, self.batch, decision, consecutive=self.consecutive, adopt=self.adopt
        )
        if is_open and decision is not None and not decision.is_complete:
            raise ProgressError(
                f"batch {decision.batch} of {self.query} is decided but not complete, because another "
                f"driver is at work: run batch {self.batch} again."
            )
        if self.step is AttemptStep.LOOK:
            self.step = AttemptStep.CLAIM if is_open else AttemptStep.COUNT
        else:
            self._leave(AttemptStep.LOOK_AGAIN, AttemptStep.WRITE if is_open else AttemptStep.COUNT)
        return is_open

    def claimed(self) -> None:
        """Called when a slot is this attempt's: nothing was open in it."""
        self._leave(AttemptStep.CLAIM, AttemptStep.LOOK_AGAIN)

    def written(self) -> None:
        """Called when all rows are on their way."""
        self._leave(AttemptStep.WRITE, AttemptStep.PREPARE)

    def prepared(self) -> None:
        """Note that all rows are in the log."""
        self._leave(AttemptStep.PREPARE, AttemptStep.REPORT)

    def counted(self) -> None:
        """Called when the rows of a decided batch are counted, or there are none to write."""
        if self.step is AttemptStep.CLAIM:
            self.step = AttemptStep.REPORT
        else:
            self._leave(AttemptStep.COUNT, AttemptStep.REPORT)

    def _leave(self, expected: AttemptStep, following: AttemptStep) -> None:
        if self.step is not expected:
            raise AssertionError(f"the step {expected.name} has ended, but the next step is {self.step.name}")
        self.step = following


class DriverStep(Enum):
    """The steps of a driver."""

    FENCE = "fence"
    READ = "read"
    ROLL_FORWARD = "roll forward"
    DECIDE = "decide"
    COMPLETE = "complete"
    LIST = "list"
    PROVE = "prove"
    SWEEP = "sweep"
    FINISH = "finish"
    DROP = "drop"
    DONE = "done"


@attrs.define
class DriverProtocol:
    """The state of a driver that commits batch `batch`, or aborts it; `step` is its next step."""

    query: str
    batch: int
    reported: tuple[Prepared, ...]
    """The transactions of the tasks that have reported: the winners, if this driver decides."""
    summary: RowSummary
    topics: TopicIds = ()
    """The topics that they have written to."""
    aborts: bool = False
    consecutive: bool = True
    adopt: bool = False
    step: DriverStep = DriverStep.FENCE
    decision: Decision | None = None
    """The last decision: read from the log, or made by this driver."""
    listed: tuple[Prepared, ...] = ()
    has_decided: bool = False

    @property
    def is_decided(self) -> bool:
        """True if this batch has its decision."""
        return self.decision is not None and self.decision.batch == self.batch

    def fenced(self) -> None:
        """Called when InitProducerId has succeeded."""
        self._leave(DriverStep.FENCE, DriverStep.READ)

    def read(self, decision: Decision | None) -> None:
        """Called with the last decision. Raises `ProgressError` if this batch contradicts it."""
        self.decision = decision
        if not self.aborts:
            judge_decision(self.query, self.batch, decision, consecutive=self.consecutive, adopt=self.adopt)
        if decision is not None and not decision.is_complete:
            following = DriverStep.ROLL_FORWARD
        elif self.aborts:
            following = DriverStep.DROP
        else:
            following = DriverStep.DONE if self.is_decided else DriverStep.DECIDE
        self._leave(DriverStep.READ, following)

    def rolled_forward(self) -> None:
        """Called when the winners of the decision that was read are committed."""
        sweeps = self.is_decided or self.aborts
        self._leave(DriverStep.ROLL_FORWARD, DriverStep.LIST if sweeps else DriverStep.DECIDE)

    def proposal(self) -> Decision:
        """Return the decision to write."""
        before = () if self.decision is None else self.decision.topics
        return Decision(self.batch, self.summary, self.reported, topics=self.topics or before)

    def decided(self) -> None:
        """Called when the decision is committed."""
        self.decision, self.has_decided = self.proposal(), True
        self._leave(DriverStep.DECIDE, DriverStep.COMPLETE)

    def completed(self) -> None:
        """Called when the winners are committed."""
        self._leave(DriverStep.COMPLETE, DriverStep.LIST)

    def found(self, listed: tuple[Prepared, ...]) -> None:
        """Called with the pool's slots that have an open transaction, or a producer that may begin one."""
        self.listed = listed
        self._leave(DriverStep.LIST, DriverStep.PROVE)

    def proved(self) -> None:
        """Called when the decision is written again, so this driver was not replaced meanwhile."""
        self._leave(DriverStep.PROVE, DriverStep.SWEEP)

    @property
    def superfluous(self) -> tuple[Prepared, ...]:
        """The transactions to end: the listed ones, or those that an abort drops."""
        return self.listed if self.step is DriverStep.SWEEP else self.reported

    def swept(self) -> None:
        """Called when the transactions of other attempts are ended."""
        self._leave(DriverStep.SWEEP, DriverStep.FINISH)

    def finished(self) -> None:
        """Called when the decision is marked as complete."""
        assert self.decision is not None
        self.decision = attrs.evolve(self.decision, is_complete=True)
        self._leave(DriverStep.FINISH, DriverStep.DROP if self.aborts else DriverStep.DONE)

    def dropped(self) -> None:
        """Note that the prepared transactions have ended."""
        self._leave(DriverStep.DROP, DriverStep.DONE)

    def check_rows(self) -> None:
        """Compare this run's rows with those of another run's decision. Raises `ProgressError`."""
        if self.aborts or self.has_decided or self.adopt or self.decision is None:
            return
        stored, found = self.decision.summary, self.summary
        if stored == found:
            return
        what = "as many rows with other contents" if found.rows == stored.rows else str(found.rows)
        raise ProgressError(
            f"batch {self.batch} of {self.query} was decided with {stored.rows} rows, and this run has "
            f"{what}. If the checkpoint comes from a backup, use the newest or a new checkpoint. If "
            "the plan gives other rows when it runs again, set the option adoptCheckpoint=true to keep "
            "the rows that are there."
        )

    def _leave(self, expected: DriverStep, following: DriverStep) -> None:
        if self.step is not expected:
            raise AssertionError(f"the step {expected.name} has ended, but the next step is {self.step.name}")
        self.step = following
