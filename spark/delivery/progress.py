"""The judgement of one attempt by all that the decisions topic knows of its query. PURE.

The single rules are in `task_protocol.py` (markers), `completion.py` (batches that have begun or are finished) and
`two_phase.py` (decisions).
"""

from __future__ import annotations

from odradek.spark.delivery.completion import (
    Completion,
    check_batch_before,
    check_begun_topic,
    check_other_mode,
)
from odradek.spark.delivery.markers import MarkerLog
from odradek.spark.delivery.task_protocol import Marker, ProgressError, TaskProtocol
from odradek.spark.delivery.two_phase import check_mode

__all__ = ["judge_attempt", "judge_without_progress"]


def judge_attempt(protocol: TaskProtocol, log: MarkerLog, run: str, topic: str | None) -> Marker | None:
    """Let an exactly-once attempt choose its next step by the query's progress. Return the last marker that is valid
    for its task, or None. Raises `ProgressError`.

    `run` is the attempt's run of the query, `topic` the option `topic`.
    """
    query, batch = protocol.query, protocol.batch
    if log.is_undecided(protocol.task):
        raise ProgressError(
            f"another program has an open transaction with a marker of task {protocol.task} of {query}: "
            "end that transaction first (`odradek txn` shows it)."
        )
    check_mode(protocol, log.decision)
    finished, others = log.finished, log.of_other_runs(batch, run)
    is_finished = finished is not None and finished.batch == batch
    if not is_finished:
        check_begun_topic(query, batch, topic, others)
        check_batch_before(query, batch, log.markers, finished)
    marker = _newest(log.markers.get(protocol.task), finished)
    protocol.marker_read(
        marker,
        max(log.newest, -1 if finished is None else finished.batch),
        log.newest_begun,
        is_finished=is_finished,
        is_repeated=bool(others),
    )
    return marker


def judge_without_progress(query: str, batch: int, log: MarkerLog, mode: str) -> None:
    """Raise `ProgressError` if a run that stores no progress (its delivery is `mode`) would write rows that have
    progress.
    """
    known = (log.finished, log.decision)
    newest = max(log.newest_begun, *(-1 if each is None else each.batch for each in known))
    check_other_mode(query, batch, newest, mode)


def _newest(marker: Marker | None, finished: Completion | None) -> Marker | None:
    """Return the task's marker. If a later batch is finished, in which this task had no rows, or which was written by
    two-phase delivery, return a substitute marker with the number of that batch.
    """
    if finished is None or (marker is not None and marker.batch > finished.batch):
        return marker
    topics = finished.topics or (() if marker is None else marker.topics)
    return Marker(finished.batch, finished.summary, topics)
