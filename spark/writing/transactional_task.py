"""One attempt at a task, in a transaction: the steps of `task_protocol` with real producers. SHELL."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from typing import TYPE_CHECKING

import pyarrow as pa

from odradek.client.errors import ClientError
from odradek.client.shells.producer import Producer
from odradek.client.shells.record_future import RecordFuture
from odradek.spark.delivery.decisions import Decisions
from odradek.spark.delivery.kept_clients import fencing, kept_decisions, kept_producer
from odradek.spark.delivery.markers import MarkerLog, marker_key, marker_value
from odradek.spark.delivery.pool import transactional_id
from odradek.spark.delivery.progress import judge_attempt, judge_commit
from odradek.spark.delivery.task_protocol import (
    Marker,
    ProgressError,
    RowSummary,
    Step,
    TaskProtocol,
    TopicIds,
    check_topics,
)
from odradek.spark.delivery.two_phase import Prepared
from odradek.spark.writing.prepared_before import refuse_beside_prepared
from odradek.spark.writing.progress_before import refuse_lost_progress
from odradek.spark.writing.sink_task import CountedRows, SinkTask, TaskReport
from odradek.wire.errors import ErrorCode, KafkaError
from odradek.wire.topic_partition import TopicPartition

if TYPE_CHECKING:
    from odradek.spark.writing.sink_plan import SinkPlan

__all__ = ["decisions_of", "transactional_id", "write_once"]

_OTHER_MODES = "delivery=at-least-once needs no transactions; change to it between two batches"


def write_once(plan: SinkPlan, protocol: TaskProtocol, iterator: Iterator[pa.RecordBatch]) -> TaskReport:
    """Write the task's rows exactly once. Task 0 always makes a transaction, other tasks make one for their rows.

    Raises:
        ProgressError: the markers contradict the batch.
        RuntimeError: the rows were not written; the text is one sentence.
    """
    started = time.monotonic()

    def overtaken(error: Exception) -> str:
        seconds = time.monotonic() - started
        if protocol.step is not Step.FENCE and seconds * 1000 >= plan.settings.transaction_timeout_ms:
            return _too_long(protocol, seconds)
        return f"another attempt at task {protocol.task} of {protocol.query} has taken over, so this attempt ends: {error}"

    try:
        with decisions_of(plan) as decisions:
            refuse_lost_progress(plan, protocol.query, decisions)
            if protocol.task:
                first = next((batch for batch in iterator if batch.num_rows), None)
                if first is None:
                    protocol.without_rows()
                    return _without_rows(plan, protocol, decisions)
                iterator = chain([first], iterator)
            name = transactional_id(protocol.query, protocol.task)
            with kept_producer(plan.properties, name) as producer:
                producer.init_transactions()
                protocol.fenced()
                return _steps(plan, protocol, decisions, producer, iterator)
    except (KafkaError, ClientError, RuntimeError) as error:
        fenced = fencing(error)
        if fenced is not None:
            raise RuntimeError(overtaken(fenced)) from error
        if isinstance(error, RuntimeError):
            raise
        raise RuntimeError(_sentence(protocol, error)) from error


def _without_rows(plan: SinkPlan, protocol: TaskProtocol, decisions: Decisions) -> TaskReport:
    """Make the checks of a task that has no rows, and report it."""
    _, marker, version = _read_progress(plan, protocol, decisions)
    if protocol.step is Step.COMPARE:
        protocol.compare(RowSummary(0, 0))
        return TaskReport(rows_compared=0, hash_version=version, topics=_topics_of(marker))
    protocol.counted()
    return TaskReport(hash_version=version)


def _steps(
    plan: SinkPlan,
    protocol: TaskProtocol,
    decisions: Decisions,
    producer: Producer,
    iterator: Iterator[pa.RecordBatch],
) -> TaskReport:
    key, marker, version = _read_progress(plan, protocol, decisions)
    before = () if plan.adopts else _topics_of(marker)
    rows = CountedRows(plan.hashed_columns, RowSummary(0, 0, version))
    if protocol.step is not Step.WRITE:
        for batch in iterator:
            rows.add(batch)
        if protocol.step is Step.COMPARE:
            protocol.compare(rows.summary)
        else:
            protocol.counted()
        summary = rows.summary
        return TaskReport(
            rows_compared=summary.rows,
            row_hash=summary.row_hash,
            hash_version=version,
            topics=_topics_of(marker),
        )
    task = SinkTask(plan, producer)
    producer.begin_transaction()
    for batch in iterator:
        rows.add(batch)
        task.add(batch)
    task.send_rest()
    check_topics(protocol.query, marker.batch if marker else -1, before, task.topics)
    own = producer.send(
        key.topic,
        key=marker_key(protocol.query, protocol.task),
        value=marker_value(Marker(protocol.batch, rows.summary, task.topics or before, plan.run)),
        partition=key.partition,
    )
    report = task.finish()
    report.row_hash, report.hash_version, report.topics = (
        rows.summary.row_hash,
        version,
        task.topics or before,
    )
    if not protocol.holds and not plan.is_fresh:
        protocol.holds = judge_commit(protocol, _read_again(protocol, decisions, key, own), plan.run)
    protocol.written()
    if protocol.holds:
        producer_id, _, epoch = producer._leave_open().partition(":")
        report.held = Prepared(protocol.task, -1, int(producer_id), int(epoch))
        protocol.held()
        return report
    producer.commit_transaction()
    protocol.committed()
    return report


def _read_progress(
    plan: SinkPlan, protocol: TaskProtocol, decisions: Decisions
) -> tuple[TopicPartition, Marker | None, int]:
    """Read the query's progress, and let the protocol decide by it. Return the partition of the markers, the last
    marker that is valid for this task, and the version of the batch's hashes. Raises `ProgressError`.
    """
    query = protocol.query
    key, end = decisions.end_of(query)
    protocol.end_taken()
    log = decisions.read(query, key, end)
    if plan.is_fresh and log.has_tombstones:
        raise ProgressError(f"the job {query} has ended, so this late attempt at task {protocol.task} ends")
    marker = judge_attempt(protocol, log, plan.run, plan.topic)
    refuse_beside_prepared(plan, query, decisions.client)
    if not plan.adopts:
        check_topics(query, marker.batch if marker else -1, _topics_of(marker), plan.planned_topics)
    return key, marker, log.hash_version(protocol.batch)


def _read_again(
    protocol: TaskProtocol, decisions: Decisions, key: TopicPartition, own: RecordFuture
) -> MarkerLog:
    """Read the query's progress before the attempt's own marker, which is acknowledged."""
    end = own.result().offset
    if end < 0:
        # The answer to a repeated request may lack the offset.
        _, end = decisions.end_of(protocol.query)
    return decisions.read(protocol.query, key, end, beside_own=True)


def _topics_of(marker: Marker | None) -> TopicIds:
    return () if marker is None else marker.topics


@contextmanager
def decisions_of(plan: SinkPlan) -> Iterator[Decisions]:
    """Provide the client of the decisions topic for this plan to a `with` block. The worker process keeps this client
    open.
    """
    with kept_decisions(plan.properties, plan.decisions_topic) as decisions:
        if plan.is_fresh and plan.app_id is not None:
            decisions.begins = {plan.app_id: plan.progress_begin}
        yield decisions


def _too_long(protocol: TaskProtocol, seconds: float) -> str:
    return (
        f"task {protocol.task} of {protocol.query} took {seconds:.0f} s, longer than its transaction "
        "may take, so its rows are aborted. Raise kafka.transaction.timeout.ms, and the brokers' "
        f"transaction.max.timeout.ms, until batch {protocol.batch} has ended as it began. For the next "
        "batch you may use smaller tasks, or delivery=two-phase, which has no timeout. Other tasks in the middle of a "
        "batch are refused."
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
