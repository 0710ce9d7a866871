"""The protocol by which one attempt at a task writes its rows exactly once. PURE.

Theory of operation
===================

Spark repeats tasks: after a failure, after a crash of the driver, and beside a slow one (speculation). So a task
writes with the transactional id of (query, task). Its transaction holds the rows and, as its last record, a marker:
this task has written this batch. Kafka Connect keeps its source offsets so (KIP-618). An attempt goes these steps:

| step | what it does | why |
| --- | --- | --- |
| FENCE | InitProducerId | ends the transaction of every earlier attempt, and no later write of it is taken |
| TAKE_END | the high watermark of the markers' partition | after FENCE, so it lies behind the task's last marker |
| READ_MARKER | the task's last committed marker below that end | |
| WRITE | rows and marker, in a transaction | the batch follows the marker |
| COMPARE | the rows, counted and hashed only | the marker names this batch: it is in the topic |
| COMMIT | EndTxn | after an unknown outcome the attempt fails, and the next one reads the marker |
| REPORT | the task's result goes to Spark | |

The marker is read up to the **high watermark**, never to the last stable offset. Another task's
open transaction may hold that one below the task's committed marker. A committed reader would miss the marker, and the
rows would be written twice. `tests/spark/delivery/test_task_protocol.py` tries all orders of crashes, retries, twins and
late writers, and shows that each of these rules is needed.

What the marker allows (`judge`): the same batch is compared, a later one is written. Task 0 is part of each batch, so
its marker must name this batch or the one before. Whatever else is there, such as a checkpoint from a backup, is an
error in one sentence. The other tasks' markers count, too: a batch older than one of them is refused to each task. A
backup's batch may have more tasks than the topic knows, and those have no marker of their own. Any other
task is refused where task 0 would be: some task must have a marker of the batch before. There a marker counts
before its transaction has ended, since the coordinator answers the commit before the partition has it.
"""

from __future__ import annotations

from enum import Enum

import attrs

__all__ = [
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
"""The topics that were written, by name, with their ids (KIP-516)."""
_NO_ID = bytes(16)


class ProgressError(RuntimeError):
    """The marker contradicts the batch: any next step of the sink would be a guess."""


@attrs.frozen
class RowSummary:
    """The rows of a task without their order: their number, and the sum of their hashes modulo 2**64."""

    rows: int
    row_hash: int


@attrs.frozen
class Marker:
    """The last batch that a task has committed, with its rows."""

    batch: int
    summary: RowSummary
    topics: TopicIds = ()


class Step(Enum):
    """The steps of the table above."""

    FENCE = "fence"
    TAKE_END = "take the end"
    READ_MARKER = "read the marker"
    WRITE = "write"
    COMPARE = "compare"
    COMMIT = "commit"
    REPORT = "report"


@attrs.define
class TaskProtocol:
    """The state of one attempt at task `task` of batch `batch`; `step` is its next step.

    `consecutive` holds for the batches of a stream: each follows the one before. Versions of batch jobs only grow.
    `adopt` lets a query begin at any batch, as `adoptCheckpoint` does.
    """

    query: str
    task: int
    batch: int
    consecutive: bool = True
    adopt: bool = False
    step: Step = Step.FENCE
    marker: Marker | None = None

    def fenced(self) -> None:
        """Called when InitProducerId has succeeded."""
        self._leave(Step.FENCE, Step.TAKE_END)

    def end_taken(self) -> None:
        """Called when the high watermark is known."""
        self._leave(Step.TAKE_END, Step.READ_MARKER)

    def marker_read(self, marker: Marker | None, newest: int = -1, begun: int = -1) -> None:
        """Called with the task's last marker, or None if there is none. Raises `ProgressError`.

        `newest` is the last batch that any task of the query has committed; -1: none. `begun` counts markers of open
        transactions, too.
        """
        writes = judge(self, marker, newest, begun)
        self.marker = marker
        self._leave(Step.READ_MARKER, Step.WRITE if writes else Step.COMPARE)

    def written(self) -> None:
        """Called when all rows and the marker are in the transaction."""
        self._leave(Step.WRITE, Step.COMMIT)

    def committed(self) -> None:
        """Called when the coordinator has the commit."""
        self._leave(Step.COMMIT, Step.REPORT)

    def compare(self, found: RowSummary) -> None:
        """Compare the attempt's rows with those of the marker. Raises `ProgressError`."""
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
                "Repeat this batch with the same plan and number of tasks as at its beginning. If the plan cannot repeat its rows, end this batch with delivery=at-least-once, which doubles the committed rows, and then use delivery=two-phase."
            )
        self._leave(Step.COMPARE, Step.REPORT)

    def _leave(self, expected: Step, following: Step) -> None:
        if self.step is not expected:
            raise AssertionError(f"the step {expected.name} has ended, but the next step is {self.step.name}")
        self.step = following


def judge(attempt: TaskProtocol, marker: Marker | None, newest: int = -1, begun: int = -1) -> bool:
    """True if the attempt writes its rows, false if they are committed. Raises `ProgressError` for all else.

    `newest` is the last batch that any task of the query has committed; -1: none. `begun` counts markers of open
    transactions, too.
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
            f"the topic has batch {newest} of {query} already, and batch {batch} would be written: {way_out}."
        )
    if marker is not None and marker.batch == batch:
        return False
    if attempt.adopt or not attempt.consecutive:
        return True
    last = -1 if marker is None else marker.batch
    if attempt.task:
        # Not every batch has more tasks than the first: small ones have fewer. Any task's marker will do.
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
    """Raise `ProgressError` if a topic that `batch` was written to has been replaced."""
    known = {name: topic_id for name, topic_id in before if topic_id != _NO_ID}
    for name, topic_id in now:
        if known.get(name, topic_id) != topic_id != _NO_ID:
            raise ProgressError(
                f"the topic '{name}' was deleted and created again since batch {batch} of {query}, so "
                "the rows of that batch are gone: to go on with the new topic, set the option "
                "adoptCheckpoint=true once."
            )
