"""The two-phase protocol: attempts prepare their transactions, and the driver decides once for all tasks of a batch.
PURE.

Theory of operation
===================

Each attempt writes its rows in a transaction without timeout, and prepares it (KIP-939). Only the driver ends it. The
driver writes a record with the winning attempts to the decisions topic. This record is the commit point. So a batch
becomes visible as a whole or not at all, even if a repeated task has written other rows. An attempt makes these
steps:

| step | action | reason |
| --- | --- | --- |
| LOOK | read the last decision | a decided batch needs no transaction |
| CLAIM | take a free slot of the task's pool, with an InitProducerId that keeps a prepared transaction | a prepared transaction may be a winner, so no attempt ends it |
| LOOK_AGAIN | read the last decision up to the high watermark | a driver whose LIST lacks this transaction had decided before CLAIM, so this step finds its decision |
| WRITE | write the rows in a transaction | |
| PREPARE | wait until all rows are in the log | |
| COUNT | count the rows without writing them | only if the batch is already decided |
| REPORT | send slot, producer id and epoch to the driver | |

The driver makes these steps when all tasks have reported (`commit`):

| step | action | reason |
| --- | --- | --- |
| FENCE | send InitProducerId with the query's id | from now on no other driver can write a decision |
| READ | read the last decision up to the high watermark | the first decision of a batch counts; if it is complete, the run ends |
| ROLL_FORWARD | commit the winners of a decision that is not complete | a decision is never taken back |
| DECIDE | write the decision, in a transaction of its own | the commit point; there is one for each batch |
| COMPLETE | commit the winners, one by one | repeated until all are committed |
| LIST | list the open transactions of the pool, with their producer ids and epochs | |
| PROVE | write the decision once more | only the newest driver can write it, so all listed transactions are of this batch or older |
| SWEEP | abort the listed transactions, by producer id and epoch | they belong to losing or parallel attempts, or to dead drivers; an attempt that has only claimed a slot is fenced |
| FINISH | write that the decision is complete | only then may the next batch begin |
| DROP | abort the transactions that were reported to this driver | the batch has failed (`abort`) and has no decision |

A producer id and epoch identify one transaction. So a driver that was suspended does not end later transactions.

An attempt at the next batch refuses to begin before FINISH. So if a driver finds an incomplete decision, it may make
the step SWEEP. If the decision is complete, the driver must not sweep, because the next batch may be under way.

A job begins with an `abort` without reported transactions. This completes the decision of an earlier run that has
died.

The pool of task p has the transactional ids (query, p, slot). An id is used again after its transaction has ended. So
the pool has only as many ids as attempts were ever open at the same time. `tests/spark/delivery/test_two_phase.py` tries all orders of crashes,
parallel attempts and suspended processes. The test shows that each rule is needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum

import attrs

from odradek.spark.delivery.completion import Completion, check_batch_before, command_of
from odradek.spark.delivery.task_protocol import (
    HASH_VERSION,
    Marker,
    ProgressError,
    RowSummary,
    TaskProtocol,
    TopicIds,
)

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
    """A prepared transaction: its slot in the pool of a query, and the producer id and epoch that wrote it."""

    task: int
    slot: int
    producer_id: int
    producer_epoch: int


@attrs.frozen
class Decision:
    """The decision about one batch of a query: the summary of its rows, and the transactions that must be committed."""

    batch: int
    summary: RowSummary
    winners: tuple[Prepared, ...] = ()
    is_complete: bool = False
    """True once all winners are committed and the other transactions are ended."""
    topics: TopicIds = ()
    by_hand: bool = False
    """True if an operator has ended the batch (`completion.py`), so that its rows are not compared."""


def sum_of(summaries: Iterable[RowSummary]) -> RowSummary:
    """Add the summaries of several tasks. All have hashes of one version."""
    rows = row_hash = 0
    version = HASH_VERSION
    for each in summaries:
        rows, row_hash = rows + each.rows, (row_hash + each.row_hash) & _MASK
        version = min(version, each.hash_version)
    return RowSummary(rows, row_hash, version)


def judge_decision(
    query: str, batch: int, decision: Decision | None, *, consecutive: bool = True, adopt: bool = False
) -> bool:
    """True if the batch must still be decided, false if it is decided. Raises `ProgressError` in all other cases."""
    if decision is not None and decision.batch == batch:
        return False
    if decision is not None and decision.batch > batch:
        way_out = (
            "the checkpoint is older than the topic, so use the newest checkpoint, or a new checkpoint"
            if consecutive
            else "txnVersion must only grow"
        )
        raise ProgressError(
            f"batches of {query} are decided up to batch {decision.batch}, so batch {batch} cannot be "
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
    """Raise `ProgressError` if delivery=two-phase has begun a batch of this exactly-once attempt's query, and not
    ended it.
    """
    if decision is not None and not decision.is_complete:
        raise ProgressError(
            f"delivery=two-phase has begun batch {decision.batch} of {attempt.query}, so batch {attempt.batch} cannot be "
            f"written with another delivery: run the query with delivery=two-phase until batch {decision.batch} has ended, "
            "and change the option afterwards."
        )


def last_of(
    query: str,
    batch: int,
    decision: Decision | None,
    markers: Mapping[int, Marker],
    completion: Completion | None = None,
) -> Decision | None:
    """Return the last decision of a query.

    If later batches were written with delivery=exactly-once, return a substitute: a decision with the number of the
    last of these batches. The marker of any task counts, because task 0's marker may still be missing. Raises
    `ProgressError` if one of these batches, or `batch` itself, has begun and is not finished.
    """
    newest = max(markers.values(), key=lambda each: each.batch, default=None)
    last = max(
        -2 if newest is None else newest.batch,
        -2 if completion is None else completion.batch,
    )
    if decision is not None and (not decision.is_complete or decision.batch >= last):
        return decision
    if completion is not None and completion.batch == last:
        return Decision(
            last, completion.summary, is_complete=True, topics=completion.topics, by_hand=completion.by_hand
        )
    if newest is None:
        return decision
    if newest.batch == batch:
        raise ProgressError(
            f"batch {batch} of {query} began with delivery=exactly-once, and tasks have committed rows "
            "of it: end the batch with delivery=exactly-once and the same number of tasks, and change "
            "the option afterwards. If that plan cannot be had again, "
            f"`{command_of(query)}` shows what is committed, and lets you choose."
        )
    check_batch_before(query, batch, markers, completion)
    first = markers.get(0, newest)
    return Decision(newest.batch, first.summary, is_complete=True, topics=first.topics)


class AttemptStep(Enum):
    """The steps of an attempt, in the table above."""

    LOOK = "look"
    CLAIM = "claim"
    LOOK_AGAIN = "look again"
    WRITE = "write"
    PREPARE = "prepare"
    COUNT = "count"
    REPORT = "report"


@attrs.define
class AttemptProtocol:
    """The state of one attempt at a task of `batch`. `step` is the next step to make."""

    query: str
    task: int
    batch: int
    consecutive: bool = True
    adopt: bool = False
    step: AttemptStep = AttemptStep.LOOK

    def looked(self, decision: Decision | None) -> bool:
        """Called with the last decision, or None. Returns true if the rows must be written. Raises `ProgressError`."""
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
        """Called when the attempt has a slot in which no transaction is open."""
        self._leave(AttemptStep.CLAIM, AttemptStep.LOOK_AGAIN)

    def written(self) -> None:
        """Called when all rows have been sent."""
        self._leave(AttemptStep.WRITE, AttemptStep.PREPARE)

    def prepared(self) -> None:
        """Called when all rows are in the log."""
        self._leave(AttemptStep.PREPARE, AttemptStep.REPORT)

    def counted(self) -> None:
        """Called when the rows of a decided batch are counted, or when there are no rows."""
        if self.step is AttemptStep.CLAIM:
            self.step = AttemptStep.REPORT
        else:
            self._leave(AttemptStep.COUNT, AttemptStep.REPORT)

    def _leave(self, expected: AttemptStep, following: AttemptStep) -> None:
        if self.step is not expected:
            raise AssertionError(f"the step {expected.name} has ended, but the next step is {self.step.name}")
        self.step = following


class DriverStep(Enum):
    """The steps of a driver, in the table above."""

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
    """The state of a driver that commits or aborts batch `batch`. `step` is the next step to make."""

    query: str
    batch: int
    reported: tuple[Prepared, ...]
    """The transactions of the tasks that have reported. They are the winners if this driver makes the decision."""
    summary: RowSummary
    topics: TopicIds = ()
    """The topics that the tasks have written to."""
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
        """True if this batch is decided."""
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
        """Called when all winners of the decision that this driver has read are committed."""
        sweeps = self.is_decided or self.aborts
        self._leave(DriverStep.ROLL_FORWARD, DriverStep.LIST if sweeps else DriverStep.DECIDE)

    def proposal(self) -> Decision:
        """Return the decision that this driver must write. The reported transactions are its winners."""
        before = () if self.decision is None else self.decision.topics
        return Decision(self.batch, self.summary, self.reported, topics=self.topics or before)

    def decided(self) -> None:
        """Called when the decision is written and committed."""
        self.decision, self.has_decided = self.proposal(), True
        self._leave(DriverStep.DECIDE, DriverStep.COMPLETE)

    def completed(self) -> None:
        """Called when all winners are committed."""
        self._leave(DriverStep.COMPLETE, DriverStep.LIST)

    def found(self, listed: tuple[Prepared, ...]) -> None:
        """Called with the slots of the pool that have an open transaction, or a producer that may open one."""
        self.listed = listed
        self._leave(DriverStep.LIST, DriverStep.PROVE)

    def proved(self) -> None:
        """Called when the decision was written again. This proves that no other driver has replaced this
        driver meanwhile.
        """
        self._leave(DriverStep.PROVE, DriverStep.SWEEP)

    @property
    def superfluous(self) -> tuple[Prepared, ...]:
        """The transactions that this driver must abort. In the step SWEEP these are the listed transactions,
        in the step DROP the reported ones.
        """
        return self.listed if self.step is DriverStep.SWEEP else self.reported

    def swept(self) -> None:
        """Called when the listed transactions are ended."""
        self._leave(DriverStep.SWEEP, DriverStep.FINISH)

    def finished(self) -> None:
        """Called when the decision is written as complete."""
        assert self.decision is not None
        self.decision = attrs.evolve(self.decision, is_complete=True)
        self._leave(DriverStep.FINISH, DriverStep.DROP if self.aborts else DriverStep.DONE)

    def dropped(self) -> None:
        """Called when the reported transactions are aborted."""
        self._leave(DriverStep.DROP, DriverStep.DONE)

    def check_rows(self) -> None:
        """Compare this run's rows with the decision, if the decision was made by another run. Raises `ProgressError`
        if the rows differ.
        """
        if self.aborts or self.has_decided or self.adopt or self.decision is None or self.decision.by_hand:
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
