"""The end of an exactly-once batch: the record that the driver writes, and the rules for a batch that is run again.
PURE.

Theory of operation
===================

Tasks commit one by one, so a driver that dies leaves a batch that has **begun**: some tasks have markers. When all
tasks have reported, the driver writes a `Completion`: the batch has this many tasks, and rows with this sum of hashes.
From then on the batch is **finished**. A finished batch is never written again, whatever plan, number of tasks or
delivery mode a later run has. Its tasks only count their rows, and the driver compares the sums.

A begun batch that another run repeats is the hard case. Spark does not pass the number of tasks to a task. So a task
without its marker may have rows that other tasks have committed. Only the driver can see this. If **each committed task
has the same rows in the new run**, the other tasks have exactly the other rows. So each marker names its run. An attempt that finds a marker of another run for its batch writes its rows, and leaves its transaction open. When
all tasks have reported, the driver makes the check (`judge_end`) and commits these transactions. If one task has other
rows, it fails, and the driver aborts them: nothing was added.

Executors of a killed run may still write while the next run has other tasks. So each attempt reads the log again when
its marker is there. Of two attempts, at least one then finds the marker of the other, and holds. The driver aborts
what another run holds, and refuses the batch if another run has committed tasks that this run lacks.

| the batch is | an attempt | the driver |
| --- | --- | --- |
| not begun, or begun by this run | writes and commits | writes the completion |
| begun by another run, the task has a marker | compares its rows | |
| begun by another run, the task has no marker; or begun by it meanwhile | writes and holds its transaction | checks, commits those, writes the completion |
| finished | counts its rows | compares the sums |

A driver fences the query's earlier drivers before it reads the progress. So a driver that was suspended never writes a
completion behind that of a later batch (`batch_driver.py`).

If the plan of a begun batch cannot be had again, `odradek spark finish` shows the committed tasks, and the operator
chooses how the batch ends.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping

import attrs

from odradek.spark.delivery.task_protocol import Marker, ProgressError, RowSummary, TopicIds

__all__ = [
    "BatchEnd",
    "Completion",
    "check_batch_before",
    "check_begun_topic",
    "check_other_mode",
    "check_sum",
    "command_of",
    "judge_end",
]


@attrs.frozen
class Completion:
    """The record that batch `batch` of a query is finished: its tasks, and the summary of all its rows."""

    batch: int
    summary: RowSummary
    tasks: int = 0
    topics: TopicIds = ()
    by_hand: bool = False
    """True if an operator has ended the batch. Its rows are then not compared."""


@attrs.frozen
class BatchEnd:
    """The reports of all tasks of one batch, as the driver has them."""

    query: str
    batch: int
    run: str
    tasks: int
    summary: RowSummary
    compared: frozenset[int] = frozenset()
    """The tasks that have found their marker, and have the same rows."""
    topics: TopicIds = ()
    adopt: bool = False

    def completion(self, before: Completion | None) -> Completion:
        """Return the record that finishes the batch. A batch without rows keeps the topics of the batch `before`."""
        topics = self.topics or (() if before is None else before.topics)
        return Completion(self.batch, self.summary, self.tasks, topics)


def command_of(query: str) -> str:
    """Return the command that shows and ends a begun batch."""
    return f"odradek spark finish {shlex.quote(query)}"


def judge_end(end: BatchEnd, finished: Completion | None, others: Mapping[int, Marker]) -> bool:
    """True if the driver must commit held transactions and write the completion, false if the batch was finished
    before. Raises `ProgressError` if the tasks of this run are not those of an earlier run.

    `others` has the markers of this batch that other runs have written.
    """
    if finished is not None and finished.batch > end.batch:
        raise ProgressError(
            f"batch {finished.batch} of {end.query} is finished, so batch {end.batch} cannot be written: "
            "another run of the query is ahead, so end one of them."
        )
    if finished is not None and finished.batch == end.batch:
        check_sum(end, finished)
        return False
    unknown = sorted(task for task in others if task not in end.compared)
    if unknown:
        rows = sum(others[task].summary.rows for task in unknown)
        raise ProgressError(
            f"batch {end.batch} of {end.query} has {end.tasks} tasks now, but an earlier run has committed {rows} "
            f"rows of {_tasks(unknown)}, which this run does not have. Nothing was added. "
            + _way_out(end.query)
        )
    return True


def check_sum(end: BatchEnd, finished: Completion) -> None:
    """Compare the rows of a finished batch with those of this run. Raises `ProgressError` if they differ."""
    if finished.by_hand or end.adopt or finished.summary == end.summary:
        return
    stored, found = finished.summary, end.summary
    what = "as many rows with other contents" if found.rows == stored.rows else str(found.rows)
    raise ProgressError(
        f"batch {end.batch} of {end.query} is finished with {stored.rows} rows, and this run has {what}. "
        "Nothing was added. If the checkpoint comes from a backup, use the newest or a new checkpoint. If the "
        "plan gives other rows when it runs again, set the option adoptCheckpoint=true once to keep the rows "
        "that are there."
    )


def check_begun_topic(query: str, batch: int, topic: str | None, markers: Mapping[int, Marker]) -> None:
    """Raise `ProgressError` if tasks have committed rows of this batch to other topics than `topic`.

    `topic` is None if each row names its topic.
    """
    for task, marker in sorted(markers.items()):
        names = [name for name, _ in marker.topics]
        # The marker of a task without rows names the topics of the batch before.
        if topic is None or not marker.summary.rows or not names or topic in names:
            continue
        raise ProgressError(
            f"batch {batch} of {query} began with the topic '{names[0]}', which has {marker.summary.rows} rows of task "
            f"{task}: end the batch with that topic, and change the option 'topic' afterwards. If that cannot be, "
            f"`{command_of(query)}` lets you choose."
        )


def check_batch_before(
    query: str, batch: int, markers: Mapping[int, Marker], finished: Completion | None
) -> None:
    """Raise `ProgressError` if an earlier batch has begun and was never finished, so that some of its rows are
    missing.

    Markers without a run were written before there were completions, so they count as finished.
    """
    end = -1 if finished is None else finished.batch
    open_now = {task: each for task, each in markers.items() if each.run and end < each.batch < batch}
    if not open_now:
        return
    newest = max(each.batch for each in open_now.values())
    tasks = sorted(task for task, each in open_now.items() if each.batch == newest)
    rows = sum(open_now[task].summary.rows for task in tasks)
    raise ProgressError(
        f"batch {newest} of {query} has begun and was not finished ({rows} rows of {_tasks(tasks)} are "
        f"committed), so batch {batch} cannot be written: run batch {newest} again. " + _way_out(query)
    )


def check_other_mode(query: str, batch: int, newest: int, mode: str) -> None:
    """Raise `ProgressError` if a run without progress (`mode`) would write a batch that has progress.

    `newest` is the last batch that has a marker, a completion or a decision; -1 if there is none.
    """
    if newest < batch:
        return
    if newest > batch:
        raise ProgressError(
            f"the topic already has batch {newest} of {query}, so batch {batch} would be written twice: the "
            "checkpoint is older than the topic, so use the newest checkpoint, or a new checkpoint."
        )
    raise ProgressError(
        f"batch {batch} of {query} began with another delivery, and rows of it are committed, so "
        f"delivery={mode} would write them twice: end the batch with the delivery with which it began, and "
        f"change the option afterwards. If that cannot be, `{command_of(query)}` lets you choose."
    )


def _tasks(tasks: list[int]) -> str:
    shown = ", ".join(map(str, tasks[:8])) + (", ..." if len(tasks) > 8 else "")
    return f"task {shown}" if len(tasks) == 1 else f"tasks {shown}"


def _way_out(query: str) -> str:
    return (
        "Use the plan and the number of tasks with which the batch began. If they cannot be had again, "
        f"`{command_of(query)}` shows what is committed, and lets you choose."
    )
