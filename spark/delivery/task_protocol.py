"""The protocol by which one attempt at a task writes its rows exactly once. PURE.

Theory of operation
===================

Spark repeats a task after a failure or after a crash of the driver. It may also run a second attempt beside a
slow one (speculation). So a task writes with the transactional id of (query, task). Its transaction has the
rows and, as its last record, a marker that says which batch this task has written. Kafka Connect stores its
source offsets in the same way (KIP-618). An attempt makes these steps:

| step | action | reason or condition |
| --- | --- | --- |
| FENCE | send InitProducerId | ends the transactions of earlier attempts, and refuses their later writes |
| TAKE_END | look up the high watermark of the markers' partition | after FENCE, the task's last marker is below it |
| READ_MARKER | read the task's last committed marker below that offset | |
| WRITE | write rows and marker in a transaction | only if the marker is of the batch before |
| COMPARE | count and hash the rows, without writing them | only if the marker is of this batch, so that its rows are in the topic |
| COUNT | the same, without a marker to compare with | only if the whole batch is finished (`completion.py`) |
| READ_AGAIN | read the log once more, up to this attempt's marker | attempts of two runs with different tasks do not fence each other; the one whose marker is later in the log finds the other's, and holds |
| COMMIT | send EndTxn | if the outcome is unknown, the attempt fails, and the next attempt reads the marker |
| HOLD | leave the transaction open for the driver | instead of COMMIT, if another run of the query has begun this batch (`completion.py`) |
| REPORT | return the task's result to Spark | |

The marker is read up to the **high watermark**, never to the last stable offset. Because of another task's
open transaction, the last stable offset may be below this task's committed marker. Then a reader at
read_committed would miss the marker, and the rows would be written twice.
`tests/spark/delivery/test_task_protocol.py` tries all orders of crashes, retries, parallel attempts and late
writers, and shows that each of these rules is needed.

The function `judge` decides by the marker. If the marker is of the same batch, the rows are compared. If it
is of an earlier batch, they are written. Task 0 is part of each batch, so its marker must be of this batch or
the one before. Any other case, such as a checkpoint from a backup, raises an error with one sentence. The
markers of other tasks count as well: a batch that is older than any marker is refused.

If a batch has more tasks than earlier batches, the additional tasks have no marker yet. So for tasks other
than 0, the marker of any task for the batch before is enough. Such a marker counts even before its
transaction has ended, because the coordinator answers the commit before the partition has the control marker.
"""

from __future__ import annotations

import shlex
from enum import Enum

import attrs

__all__ = [
    "HASH_VERSION",
    "Marker",
    "ProgressError",
    "RowSummary",
    "Step",
    "TaskProtocol",
    "TopicIds",
    "check_topics",
    "judge",
]

TopicIds = tuple[tuple[str, bytes], ...]
"""(name, topic id) of each topic that was written (KIP-516)."""
_NO_ID = bytes(16)
HASH_VERSION = 2
"""The present function of the hashes (`row_hash.py`)."""


class ProgressError(RuntimeError):
    """Raised if the stored progress contradicts the batch, so that the sink cannot decide whether to write
    it.
    """


@attrs.frozen
class RowSummary:
    """A summary of a task's rows that does not depend on their order: their number, and the sum of their hashes
    modulo 2**64.
    """

    rows: int
    row_hash: int
    hash_version: int = attrs.field(default=HASH_VERSION, eq=False)
    """The function of the hashes: 1 is that of version 0.3 and before (`row_hash_before.py`)."""


@attrs.frozen
class Marker:
    """The marker of the last batch that a task has committed, with the summary of the batch's rows."""

    batch: int
    summary: RowSummary
    topics: TopicIds = ()
    run: str = ""
    """The run of the query that has written the batch. It is empty in markers that older versions have written."""


class Step(Enum):
    """The steps of an attempt, in the table above."""

    FENCE = "fence"
    TAKE_END = "take the end"
    READ_MARKER = "read the marker"
    WRITE = "write"
    COMPARE = "compare"
    COUNT = "count"
    COMMIT = "commit"
    HOLD = "hold"
    REPORT = "report"


@attrs.define
class TaskProtocol:
    """The state of one attempt at task `task` of batch `batch`. `step` is the next step to make.

    `consecutive` is true for a stream, whose batches follow each other without gaps. It is false for batch jobs,
    whose versions must grow but may have gaps. With `adopt` (the option `adoptCheckpoint`) a query may begin at any
    batch.
    """

    query: str
    task: int
    batch: int
    consecutive: bool = True
    adopt: bool = False
    step: Step = Step.FENCE
    marker: Marker | None = None
    holds: bool = False
    """True if the driver, and not this attempt, commits the transaction."""

    def fenced(self) -> None:
        """Called when InitProducerId has succeeded."""
        self._leave(Step.FENCE, Step.TAKE_END)

    def without_rows(self) -> None:
        """Called when the attempt has no rows. It takes the end without FENCE."""
        self._leave(Step.FENCE, Step.TAKE_END)

    def end_taken(self) -> None:
        """Called when the high watermark of the markers' partition is known."""
        self._leave(Step.TAKE_END, Step.READ_MARKER)

    def marker_read(
        self,
        marker: Marker | None,
        newest: int = -1,
        begun: int = -1,
        *,
        is_finished: bool = False,
        is_repeated: bool = False,
    ) -> None:
        """Called with the task's last marker, or None if there is none. Raises `ProgressError`.

        `newest` is the last batch that any task of the query has committed; -1 if there is none. `begun` also
        counts markers in open transactions. `is_finished` says that this batch has its completion, `is_repeated`
        that another run of the query has begun it.
        """
        if is_finished and newest <= self.batch:
            self._leave(Step.READ_MARKER, Step.COUNT)
            return
        writes = judge(self, marker, newest, begun)
        self.marker = marker
        self.holds = writes and is_repeated
        self._leave(Step.READ_MARKER, Step.WRITE if writes else Step.COMPARE)

    def written(self) -> None:
        """Called when all rows and the marker are in the transaction."""
        self._leave(Step.WRITE, Step.HOLD if self.holds else Step.COMMIT)

    def held(self) -> None:
        """Called when the open transaction is left to the driver."""
        self._leave(Step.HOLD, Step.REPORT)

    def counted(self) -> None:
        """Called when the rows of a finished batch are counted, or when a task has no rows to write."""
        if self.step is Step.WRITE:
            self.step = Step.REPORT
        else:
            self._leave(Step.COUNT, Step.REPORT)

    def committed(self) -> None:
        """Called when the coordinator has accepted the commit."""
        self._leave(Step.COMMIT, Step.REPORT)

    def compare(self, found: RowSummary) -> None:
        """Compare the attempt's rows with the summary in the marker. Raises `ProgressError` if they differ."""
        assert self.marker is not None
        stored = self.marker.summary
        if found != stored:
            what = (
                f"{stored.rows} rows, and this attempt has {found.rows}"
                if found.rows != stored.rows
                else f"{stored.rows} rows, and this attempt has as many rows with other contents"
            )
            raise ProgressError(
                f"batch {self.batch} of {self.query} is committed for task {self.task} with {what}. "
                "Nothing was added. Repeat this batch with the same plan and number of tasks as at its beginning. If the plan "
                f"cannot repeat its rows, `odradek spark finish {shlex.quote(self.query)}` shows what is committed, and lets "
                "you choose; then use delivery=two-phase."
            )
        self._leave(Step.COMPARE, Step.REPORT)

    def _leave(self, expected: Step, following: Step) -> None:
        if self.step is not expected:
            raise AssertionError(f"the step {expected.name} has ended, but the next step is {self.step.name}")
        self.step = following


def judge(attempt: TaskProtocol, marker: Marker | None, newest: int = -1, begun: int = -1) -> bool:
    """True if the attempt must write its rows, false if this batch's rows are committed already. Raises
    `ProgressError` in all other cases.

    `newest` is the last batch that any task of the query has committed; -1 if there is none. `begun` also counts
    markers in open transactions.
    """
    batch, query = attempt.batch, attempt.query
    if marker is not None:
        newest = max(newest, marker.batch)
    if newest > batch:
        way_out = (
            "the checkpoint is older than the topic, so use the newest checkpoint, or a new checkpoint"
            if attempt.consecutive
            else "txnVersion must only grow"
        )
        raise ProgressError(
            f"the topic already has batch {newest} of {query}, so batch {batch} cannot be written: {way_out}."
        )
    if marker is not None and marker.batch == batch:
        return False
    if attempt.adopt or not attempt.consecutive:
        return True
    last = -1 if marker is None else marker.batch
    if attempt.task:
        # If this batch has more tasks than earlier batches, this task has no marker yet. So a marker of any
        # task is enough.
        last = max(newest, begun)
    if last + 1 >= batch:
        return True
    has = "no progress" if last < 0 else f"batch {last}"
    raise ProgressError(
        f"the topic has {has} of {query}, and batch {batch} is next, so batches are missing in its "
        "progress. If the query had another decisionsTopic before, set the option decisionsTopic to "
        "that topic. If the missing batches were written without progress (delivery=at-least-once), "
        "set the option adoptCheckpoint=true once."
    )


def check_topics(query: str, batch: int, before: TopicIds, now: TopicIds) -> None:
    """Raise `ProgressError` if a topic to which `batch` was written has been deleted and created again."""
    known = {name: topic_id for name, topic_id in before if topic_id != _NO_ID}
    for name, topic_id in now:
        if known.get(name, topic_id) != topic_id != _NO_ID:
            raise ProgressError(
                f"the topic '{name}' was deleted and created again since batch {batch} of {query}, so "
                "the rows of that batch are gone: to go on with the new topic, set the option "
                "adoptCheckpoint=true once."
            )
