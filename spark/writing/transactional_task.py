"""One attempt at a task, in a transaction: the steps of `task_protocol` with real producers. SHELL."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

from odradek.client.errors import ClientError, ProducerFencedError
from odradek.client.shells.producer import Producer
from odradek.spark.delivery.decisions import Decisions
from odradek.spark.delivery.markers import marker_key, marker_value
from odradek.spark.delivery.task_protocol import Marker, ProgressError, Step, TaskProtocol, check_topics
from odradek.spark.delivery.two_phase import Decision, check_mode
from odradek.spark.writing.prepared_before import refuse_beside_prepared
from odradek.spark.writing.sink_task import CountedRows, SinkTask, TaskReport
from odradek.wire.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from odradek.spark.writing.sink_plan import SinkPlan

__all__ = ["decisions_of", "fencing", "transactional_id", "write_once"]

_CLOSE_SECONDS_MAX = 1.0
_OTHER_MODES = (
    "delivery=at-least-once needs no transactions, but doubles the rows that this batch has committed already"
)
_decisions: dict[tuple[object, ...], Decisions] = {}
"""The client of the decisions topic that this worker process has opened last. Later tasks use it again."""


def transactional_id(query: str, task: int) -> str:
    """Return the transactional id of a task. The next producer with this id fences all earlier attempts."""
    return f"odradek-spark-{query}-{task}"


def write_once(plan: SinkPlan, protocol: TaskProtocol, iterator: Iterator[pa.RecordBatch]) -> TaskReport:
    """Write the task's rows exactly once.

    Raises:
        ProgressError: the markers contradict the batch.
        RuntimeError: the rows were not written; the text is one sentence.
    """
    properties = {**plan.properties, "transactional.id": transactional_id(protocol.query, protocol.task)}
    producer = Producer(properties)
    started = time.monotonic()

    def overtaken(error: Exception) -> str:
        seconds = time.monotonic() - started
        if seconds * 1000 >= producer.settings.transaction_timeout_ms:
            return _too_long(protocol, seconds)
        return f"another attempt at task {protocol.task} of {protocol.query} has taken over, so this attempt ends: {error}"

    try:
        return _steps(plan, protocol, producer, iterator)
    except (KafkaError, ClientError, RuntimeError) as error:
        fenced = fencing(error)
        if fenced is not None:
            raise RuntimeError(overtaken(fenced)) from error
        if isinstance(error, RuntimeError):
            raise
        raise RuntimeError(_sentence(protocol, error)) from error
    finally:
        producer.close(_CLOSE_SECONDS_MAX)


def fencing(error: Exception) -> Exception | None:
    """Find the error that shows that another producer has fenced this one. It is `error` itself, or one of
    its causes. Returns None if there is no such error.
    """
    for each in (error, error.__cause__):
        if isinstance(each, ProducerFencedError):
            return each
        if isinstance(each, KafkaError) and each.code is ErrorCode.INVALID_PRODUCER_EPOCH:
            return each
    return None


def _steps(
    plan: SinkPlan, protocol: TaskProtocol, producer: Producer, iterator: Iterator[pa.RecordBatch]
) -> TaskReport:
    producer.init_transactions()
    protocol.fenced()
    decisions = decisions_of(plan)
    key, end = decisions.end_of(protocol.query)
    protocol.end_taken()
    log = decisions.read(protocol.query, key, end)
    if log.is_undecided(protocol.task):
        raise ProgressError(
            f"another program has an open transaction with a marker of task {protocol.task} of {protocol.query}: "
            "end that transaction first (`odradek txn` shows it)."
        )
    check_mode(protocol, log.decision)
    marker = _newest(log.markers.get(protocol.task), log.decision)
    protocol.marker_read(marker, log.newest, log.newest_begun)
    if protocol.step is Step.WRITE:
        refuse_beside_prepared(plan, protocol.query, decisions.client)
    before = () if marker is None or plan.adopts else marker.topics
    check_topics(protocol.query, marker.batch if marker else -1, before, plan.planned_topics)
    rows = CountedRows(plan.hashed_columns)
    if protocol.step is Step.COMPARE:
        for batch in iterator:
            rows.add(batch)
        protocol.compare(rows.summary)
        return TaskReport(rows_compared=rows.summary.rows)
    task = SinkTask(plan, producer)
    producer.begin_transaction()
    for batch in iterator:
        rows.add(batch)
        task.add(batch)
    task.send_rest()
    check_topics(protocol.query, marker.batch if marker else -1, before, task.topics)
    producer.send(
        key.topic,
        key=marker_key(protocol.query, protocol.task),
        value=marker_value(Marker(protocol.batch, rows.summary, task.topics or before)),
        partition=key.partition,
    )
    report = task.finish()
    protocol.written()
    producer.commit_transaction()
    protocol.committed()
    return report


def _newest(marker: Marker | None, decision: Decision | None) -> Marker | None:
    """Return the task's marker. If two-phase delivery has written later batches, return a substitute marker
    with the number of the last of these batches.
    """
    if decision is None or (marker is not None and marker.batch > decision.batch):
        return marker
    return Marker(decision.batch, decision.summary, decision.topics)


def decisions_of(plan: SinkPlan) -> Decisions:
    """Return the client of the decisions topic for this plan. The worker process keeps this client open."""
    identity = (tuple(sorted(plan.properties.items())), plan.decisions_topic)
    found = _decisions.get(identity)
    if found is None:
        for other in _decisions.values():
            other.close()
        _decisions.clear()
        found = _decisions[identity] = Decisions(plan.properties, plan.decisions_topic)
    return found


def _too_long(protocol: TaskProtocol, seconds: float) -> str:
    return (
        f"task {protocol.task} of {protocol.query} took {seconds:.0f} s, longer than its transaction "
        "may take, so its rows are aborted. Raise kafka.transaction.timeout.ms, and the brokers' "
        f"transaction.max.timeout.ms, until batch {protocol.batch} has ended as it began. For the next "
        "batch you may use smaller tasks, or delivery=two-phase, which has no timeout; more tasks in "
        "the middle of a batch double rows."
    )


def _sentence(protocol: TaskProtocol, error: Exception) -> str:
    cause = error.__cause__ if isinstance(error.__cause__, KafkaError) else error
    code = cause.code if isinstance(cause, KafkaError) else None
    where = f"task {protocol.task} of {protocol.query}"
    if code is ErrorCode.INVALID_TRANSACTION_TIMEOUT:
        return (
            f"{where} got no transaction, because its timeout is too long: set the option "
            "kafka.transaction.timeout.ms to at most the brokers' transaction.max.timeout.ms "
            f"({_OTHER_MODES})."
        )
    if code is ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
        return (
            f"{where} may not use its transactional id: grant WRITE and DESCRIBE on transactional ids that begin with"
            f" 'odradek-spark-' ({_OTHER_MODES})."
        )
    return f"{where} could not write its rows: {str(error).rstrip('.')} ({_OTHER_MODES})."
