"""The driver's part of an exactly-once batch: it commits the transactions that tasks hold, and writes the completion.
SHELL.

The rules are in `completion.py`. Two-phase delivery has a driver of its own (`two_phase_driver.py`).

A driver may be suspended for a long time, while the next run of the query goes on. If it wrote its completion then,
compaction would keep this one, and remove those of later batches. So a driver takes the query's transactional id for
completions before it reads the progress, and writes in a transaction. The coordinator refuses the write of a driver
after the next one has begun.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from odradek.client.core.client_keys import ProducerSettings
from odradek.client.errors import ClientError, RequestTimedOut
from odradek.client.shells.producer import Producer
from odradek.spark.delivery.completion import BatchEnd, Completion, judge_end
from odradek.spark.delivery.decisions import Decisions
from odradek.spark.delivery.kept_clients import fencing, kept_decisions, kept_producer
from odradek.spark.delivery.markers import (
    MarkerLog,
    completion_key,
    completion_value,
    decision_key,
    marker_key,
)
from odradek.spark.delivery.pool import end_held, once_driver_id, open_tasks, transactional_id
from odradek.spark.delivery.two_phase import Prepared
from odradek.wire.errors import KafkaError

__all__ = ["completing_producer", "drop_open", "end_batch", "forget_job", "forget_tasks", "write_completion"]

_TIMEOUT = "transaction.timeout.ms"
_TIMEOUT_MS = 60_000
"""The longest time of a driver's transaction, which has a single record."""
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
        with (
            kept_decisions(properties, topic) as decisions,
            completing_producer(properties, end.query) as producer,
        ):
            log = _fence_dead(decisions, end, held, _read(decisions, end.query))
            others = log.of_other_runs(end.batch, end.run)
            if not judge_end(end, log.finished, others):
                _end_held(decisions, end.query, held, commit=False)
                return None
            before = _end_held(decisions, end.query, held, commit=True)
            _check_committed(decisions, end, before)
            completion = end.completion(log.finished)
            write_completion(decisions, producer, end.query, completion)
            return completion
    except (KafkaError, ClientError) as error:
        fenced = fencing(error)
        if fenced is not None:
            raise RuntimeError(
                f"another driver of {end.query} has taken over, so this driver ends: {fenced}"
            ) from error
        raise RuntimeError(
            f"batch {end.batch} of {end.query} could not be finished: {str(error).rstrip('.')}; the next "
            "run of the query finishes it."
        ) from error


def drop_open(
    properties: Mapping[str, str], topic: str, query: str, batch: int, run: str, held: Sequence[Prepared]
) -> None:
    """Abort the open transactions of a failed batch, which would hold up readers until their timeout. Raises
    `KafkaError`, `ClientError`.

    `held` are those that tasks have reported. Spark kills the other tasks, and drops the reports of tasks that end
    later. So their transactions are looked for, and fenced. If the markers show that another run has taken over, only
    transactions with a marker of this run are fenced. A run that has written no marker yet is unknown. Its tasks may be
    fenced, and Spark repeats them.
    """
    with kept_decisions(properties, topic) as decisions:
        if held:
            _end_held(decisions, query, held, commit=False)
        client = decisions.client
        left = set(client.run(open_tasks(client.core, query, decisions.timeout)))
        if left:
            log = _read(decisions, query)
            if log.is_taken_over(batch, run):
                left &= log.open_tasks_of(batch, run)
        failed: KafkaError | ClientError | None = None
        for task in sorted(left):
            try:
                client.admin.fence_producer(transactional_id(query, task))
            except (KafkaError, ClientError) as error:
                failed = error
        if failed is not None:
            raise failed


def forget_job(
    properties: Mapping[str, str], topic: str, query: str, begin: int, *, two_phase: bool = False
) -> None:
    """Delete the markers, or the decision, of a job that has ended and will never run again. They begin at offset
    `begin` of their partition. A late attempt at one of its tasks finds the tombstones, and ends. Raises `KafkaError`,
    `ClientError`.
    """
    with kept_decisions(properties, topic) as decisions:
        decisions.begins[query] = begin
        if two_phase:
            _send(decisions, properties, query, [(decision_key(query), None)])
            return
        # Task 0 is part of every job. So there is a tombstone even if no task has committed.
        forget_tasks(decisions, properties, query, {0, *_read(decisions, query).markers})


@contextmanager
def completing_producer(properties: Mapping[str, str], query: str) -> Iterator[Producer]:
    """Provide the producer of a query's completions, which has fenced all earlier ones. Raises `ClientError`."""
    timeout_ms = min(ProducerSettings.from_properties(properties).transaction_timeout_ms, _TIMEOUT_MS)
    with kept_producer({**properties, _TIMEOUT: str(timeout_ms)}, once_driver_id(query)) as producer:
        producer.init_transactions()
        yield producer


def write_completion(decisions: Decisions, producer: Producer, query: str, completion: Completion) -> None:
    """Write the record that a batch is finished, and wait until tasks can read it. Raises `KafkaError`,
    `ClientError`.
    """
    key = decisions.key_of(query)
    producer.begin_transaction()
    producer.send(
        key.topic, key=completion_key(query), value=completion_value(completion), partition=key.partition
    )
    producer.commit_transaction()
    # The coordinator answers before the transaction's control marker is in the partition.
    deadline = time.monotonic() + decisions.timeout
    while _read(decisions, query).completion != completion:
        if time.monotonic() > deadline:
            raise RequestTimedOut(f"the completion of batch {completion.batch} of {query} cannot be read yet")
        time.sleep(_AGAIN_SECONDS)


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
    key = decisions.key_of(query)
    safe = {**properties, "acks": "all", "enable.idempotence": "true", "linger.ms": "0"}
    with kept_producer(safe) as producer:
        sent = [
            producer.send(key.topic, key=name, value=value, partition=key.partition) for name, value in found
        ]
        for each in sent:
            each.result(decisions.timeout)


def _read(decisions: Decisions, query: str) -> MarkerLog:
    key, end = decisions.end_of(query)
    return decisions.read(query, key, end)


def _fence_dead(decisions: Decisions, end: BatchEnd, held: Sequence[Prepared], log: MarkerLog) -> MarkerLog:
    """Abort the open transactions of tasks that another run has, and this run lacks. Return the progress then.

    If such a task has committed meanwhile, its marker is there afterwards, and `judge_end` refuses the batch. If both
    runs have the task, the later attempt has fenced the earlier one, so nothing is aborted here.
    """
    open_now = log.open_tasks - end.compared - {each.task for each in held}
    dead = sorted(open_now & log.of_other_runs(end.batch, end.run).keys())
    for task in dead:
        decisions.client.admin.fence_producer(transactional_id(end.query, task))
    return _read(decisions, end.query) if dead else log


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
