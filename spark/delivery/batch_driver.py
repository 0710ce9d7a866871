"""The driver's part of an exactly-once batch: it commits the transactions that tasks hold, and writes the completion.
SHELL.

The rules are in `completion.py`. Two-phase delivery has a driver of its own (`two_phase_driver.py`).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence

from odradek.client.errors import ClientError
from odradek.client.shells.producer import Producer
from odradek.spark.delivery.completion import BatchEnd, Completion, judge_end
from odradek.spark.delivery.decisions import Decisions
from odradek.spark.delivery.markers import MarkerLog, completion_key, completion_value, marker_key
from odradek.spark.delivery.pool import end_held
from odradek.spark.delivery.two_phase import Prepared
from odradek.wire.errors import KafkaError

__all__ = ["drop_held", "end_batch", "forget_job", "forget_tasks", "write_completion"]

_CLOSE_SECONDS_MAX = 1.0
_AGAIN_SECONDS = 0.05


def end_batch(
    properties: Mapping[str, str], topic: str, end: BatchEnd, held: Sequence[Prepared]
) -> Completion | None:
    """Commit the held transactions of a batch whose tasks have all reported, and write its completion to the
    decisions topic `topic`. Return None if the batch was finished before.

    Raises:
        ProgressError: this run contradicts an earlier one. Nothing is committed.
        RuntimeError: the batch was not finished; the text is one sentence. Running it again is safe.
    """
    try:
        with Decisions(properties, topic) as decisions:
            log = _read(decisions, end.query)
            others = log.of_other_runs(end.batch, end.run)
            if not judge_end(end, log.finished, others):
                _end_held(decisions, end.query, held, commit=False)
                return None
            before = _end_held(decisions, end.query, held, commit=True)
            _check_committed(decisions, end, before)
            completion = end.completion(log.finished)
            write_completion(decisions, properties, end.query, completion)
            return completion
    except (KafkaError, ClientError) as error:
        raise RuntimeError(
            f"batch {end.batch} of {end.query} could not be finished: {str(error).rstrip('.')}; the next "
            "run of the query finishes it."
        ) from error


def drop_held(properties: Mapping[str, str], topic: str, query: str, held: Sequence[Prepared]) -> None:
    """Abort the held transactions of a failed batch. Raises `KafkaError`, `ClientError`."""
    if held:
        with Decisions(properties, topic) as decisions:
            _end_held(decisions, query, held, commit=False)


def forget_job(properties: Mapping[str, str], topic: str, query: str, begin: int) -> None:
    """Delete the markers of a job that has ended and will never run again. They begin at offset `begin` of their
    partition. A late attempt at one of its tasks finds the tombstones, and ends. Raises `KafkaError`, `ClientError`.
    """
    with Decisions(properties, topic) as decisions:
        decisions.begins[query] = begin
        # Task 0 is part of every job. So there is a tombstone even if no task has committed.
        forget_tasks(decisions, properties, query, {0, *_read(decisions, query).markers})


def write_completion(
    decisions: Decisions, properties: Mapping[str, str], query: str, completion: Completion
) -> None:
    """Write the record that a batch is finished. Raises `KafkaError`, `ClientError`."""
    _send(decisions, properties, query, [(completion_key(query), completion_value(completion))])


def forget_tasks(
    decisions: Decisions, properties: Mapping[str, str], query: str, tasks: Iterable[int]
) -> None:
    """Delete the markers of these tasks, by tombstones. Raises `KafkaError`, `ClientError`."""
    _send(decisions, properties, query, [(marker_key(query, task), None) for task in tasks])


def _send(
    decisions: Decisions,
    properties: Mapping[str, str],
    query: str,
    found: Sequence[tuple[bytes, bytes | None]],
) -> None:
    key, _ = decisions.end_of(query)
    producer = Producer({**properties, "acks": "all", "enable.idempotence": "true", "linger.ms": "0"})
    try:
        sent = [
            producer.send(key.topic, key=name, value=value, partition=key.partition) for name, value in found
        ]
        for each in sent:
            each.result(decisions.timeout)
    finally:
        producer.close(_CLOSE_SECONDS_MAX)


def _read(decisions: Decisions, query: str) -> MarkerLog:
    key, end = decisions.end_of(query)
    return decisions.read(query, key, end)


def _end_held(decisions: Decisions, query: str, held: Sequence[Prepared], *, commit: bool) -> list[Prepared]:
    client = decisions.client
    return client.run(end_held(client.core, query, held, commit=commit, timeout=decisions.timeout))


def _check_committed(decisions: Decisions, end: BatchEnd, ended_before: Sequence[Prepared]) -> None:
    """Check by their markers that transactions, which had ended before the driver's request, were committed. Raises
    `RuntimeError`.
    """
    deadline = time.monotonic() + decisions.timeout
    tasks = {each.task for each in ended_before}
    while tasks:
        log = _read(decisions, end.query)
        known = {task: log.markers.get(task) for task in tasks}
        lost = sorted(
            task
            for task, each in known.items()
            if each is None or (each.batch, each.run) != (end.batch, end.run)
        )
        if not lost:
            return
        if not any(log.is_undecided(task) for task in lost) or time.monotonic() > deadline:
            raise RuntimeError(
                f"the transaction of task {lost[0]} of {end.query} was aborted before all tasks of batch {end.batch} "
                "had ended. An earlier run has begun this batch, so its transactions stay open until then. Start the query "
                "again. If this happens again, raise kafka.transaction.timeout.ms, and the brokers' "
                "transaction.max.timeout.ms, and switch off spark.speculation for this batch."
            )
        time.sleep(_AGAIN_SECONDS)
