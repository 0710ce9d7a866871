"""The sink of Spark's format `odradek`: writes Arrow batches to topics with this project's producer, exactly once or
at least once. SHELL.

Theory of operation
===================

The driver plans (`sink_plan`): it checks options and columns, and looks up the topic. If the driver refuses the write,
nothing has been sent yet. Each task then runs `write` in a Python worker (`sink_task`), and ends when every record
batch is acknowledged. Spark repeats a failed task, or else fails the micro-batch or the job.

With **delivery=exactly-once**, the default, a task writes in a transaction that also has its progress
(`delivery/task_protocol.py`). If an attempt finds that its batch is committed, it writes nothing and compares its
rows. At the end the driver writes that the batch is finished, so that no later run writes it again. If an earlier run
has begun the batch, the tasks leave their transactions to the driver. It commits them if this run has the same tasks
(`delivery/completion.py`).

With **delivery=two-phase** a task prepares its transaction, and the driver decides once for all tasks of a batch or a
job (`delivery/two_phase.py`). This mode is for plans of Spark whose tasks may give other rows when they are repeated.

With **delivery=at-least-once** a worker keeps one idempotent producer (KIP-98) for all tasks of the same options. If
Spark repeats a task, the task writes all its rows again. Rows are visible as soon as they are acknowledged.

A stream's batch is identified by the query's id and the batch's number, which Spark gives to each task as local
properties. A batch job is identified by `txnAppId` and `txnVersion`, as in Delta; without them each run counts as
another job.

Spark makes a stream's writer once in the process that plans the query. For each batch it makes another writer in the
process that commits. A writer in that process checks nothing.

Metrics: Spark counts the rows itself (`numOutputRows` of the sink in a query's progress). A Python data source cannot
add other metrics. So the driver's Python process logs the sums of the tasks' reports: bytes, batches, repetitions.
The process also appends these sums to the file that the option `metricsPath` names, with one line of JSON for each
batch.
"""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from odradek.client.core.known_cluster import NO_TOPIC_ID
from odradek.client.core.requests import topics_with_metadata
from odradek.client.errors import ClientError
from odradek.client.shells.blocking import Client
from odradek.spark.delivery.batch_driver import drop_open, end_batch, forget_job
from odradek.spark.delivery.completion import BatchEnd
from odradek.spark.delivery.decisions import Decisions
from odradek.spark.delivery.kept_clients import kept_producer
from odradek.spark.delivery.task_protocol import ProgressError, RowSummary, TaskProtocol
from odradek.spark.delivery.two_phase import AttemptProtocol, DriverProtocol, Prepared, sum_of
from odradek.spark.delivery.two_phase_driver import run_driver
from odradek.spark.worker_process import runs_as, spare_collector
from odradek.spark.writing.prepared_before import name_prepared_in_topic, refuse_beside_prepared
from odradek.spark.writing.progress_before import refuse_beside_progress
from odradek.spark.writing.sink_plan import Delivery, SinkPlan, plan_write
from odradek.spark.writing.sink_task import SinkTask, TaskReport, Written, about_topic
from odradek.spark.writing.transactional_task import write_once
from odradek.spark.writing.two_phase_task import check_two_phase, prepare_rows
from odradek.wire.errors import KafkaError

__all__ = ["TaskReport", "Written", "batch_writer", "stream_writer"]

_QUERY_ID = "sql.streaming.queryId"
_BATCH_ID = "streaming.sql.batchId"
"""The local property in which Spark passes the number of the micro-batch to a task. The property `_QUERY_ID`
has the id of the streaming query.
"""
_COMMITTING = "pyspark.sql.worker.python_streaming_sink_runner"
"""The module that Spark runs to commit or abort a micro-batch."""
_LOGGER = logging.getLogger("odradek.spark")


def batch_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> BatchWriter:
    """Make the writer of a batch query. Raises `ValueError`, with one sentence, if the query cannot be written."""
    if overwrite:
        raise ValueError("the sink cannot overwrite a topic: use .mode('append').")
    plan = attrs.evolve(plan_write(options, schema), run=uuid.uuid4().hex)
    if plan.delivery is not Delivery.AT_LEAST_ONCE and plan.app_id is None:
        # A random id distinguishes the attempts of this run from the attempts of all other runs.
        return BatchWriter(
            _checked(attrs.evolve(plan, app_id=f"job-{uuid.uuid4()}", version=0, is_fresh=True))
        )
    plan = _checked(plan)
    if plan.delivery is Delivery.TWO_PHASE:
        # An earlier run that died may have left a decision that is not complete.
        _abort(plan, [], plan.app_id, plan.version)
    return BatchWriter(plan)


def stream_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> StreamWriter:
    """Make the writer of a streaming query. In Spark's output mode "complete", each batch writes all rows of the
    result again.

    Raises `ValueError`, with one sentence, if the query cannot be written.
    """
    plan = attrs.evolve(plan_write(options, schema), run=uuid.uuid4().hex)
    if plan.app_id is not None:
        raise ValueError(
            "the options txnAppId and txnVersion are only for batch writes: a stream uses its query's "
            "id and batch numbers."
        )
    return StreamWriter(plan if runs_as(_COMMITTING) else _checked(plan))


class BatchWriter(DataSourceArrowWriter):
    """The writer of a batch query. Spark pickles it to the tasks. At the end, `commit` or `abort` records the
    metrics.
    """

    def __init__(self, plan: SinkPlan) -> None:
        self._plan = plan

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of one task, and report them. Spark calls this on an executor."""
        return _write(self._plan, iterator, self._plan.app_id, self._plan.version)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Finish the job after all tasks have succeeded. Raises `ProgressError` if this run contradicts an earlier
        run.
        """
        _commit(self._plan, messages, self._plan.app_id, self._plan.version)
        _note(self._plan, messages, {})

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Finish a failed job. The rows of finished tasks stay in the topic, except with two-phase delivery."""
        _abort(self._plan, messages, self._plan.app_id, self._plan.version)
        _note(self._plan, messages, {"aborted": True})


class StreamWriter(DataSourceStreamArrowWriter):
    """The writer of a streaming query. Spark pickles it to the tasks. `commit` or `abort` records the metrics of each
    batch.
    """

    def __init__(self, plan: SinkPlan) -> None:
        self._plan = plan

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of one task, and report them. Spark calls this on an executor."""
        context = TaskContext.get()
        query = batch = None
        if context is not None:
            query, batch = context.getLocalProperty(_QUERY_ID), context.getLocalProperty(_BATCH_ID)
        if query is None or batch is None:
            return _write(self._plan, iterator, None, None)
        return _write(self._plan, iterator, query, int(batch))

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Finish a micro-batch after all tasks have succeeded. Raises `ProgressError` if the batch
        contradicts an earlier run.
        """
        _commit(self._plan, messages, _query_of(messages), batchId)
        _note(self._plan, messages, {"batch": batchId})

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Finish a failed micro-batch. The query fails; when it starts again, it repeats the whole micro-batch."""
        _abort(self._plan, messages, _query_of(messages), batchId)
        _note(self._plan, messages, {"batch": batchId, "aborted": True})


# On the driver


def _checked(plan: SinkPlan) -> SinkPlan:
    """Check that the cluster can carry out the plan, log its notes, and return it. Raises `ValueError` with one
    sentence.
    """
    plan = attrs.evolve(plan, topic_id=_look_up(plan))
    if plan.delivery is Delivery.AT_LEAST_ONCE:
        return plan
    try:
        with Decisions(plan.look_up_properties, plan.decisions_topic) as decisions:
            decisions.make()
            if plan.is_fresh and plan.app_id is not None:
                plan = attrs.evolve(plan, progress_begin=decisions.end_of(plan.app_id)[1])
            if plan.delivery is Delivery.TWO_PHASE:
                check_two_phase(plan, decisions)
                return plan
            timeout_max_ms = decisions.transaction_timeout_max_ms()
    except (KafkaError, ClientError) as error:
        raise ValueError(
            f"delivery={plan.delivery.value} cannot use its topic '{plan.decisions_topic}': "
            f"{str(error).rstrip('.')}. (delivery=at-least-once needs neither that topic nor "
            "transactions. But if a batch is interrupted and run again, its rows are in the topic twice.)"
        ) from None
    return plan.with_transaction_timeout(timeout_max_ms)


def _query_of(messages: Sequence[WriterCommitMessage | None]) -> str | None:
    """Return the query id that the tasks have reported; None if no task has reported one."""
    return next(
        (message.query for message in messages if isinstance(message, TaskReport) and message.query), None
    )


def _commit(
    plan: SinkPlan, messages: Sequence[WriterCommitMessage | None], query: str | None, batch: int
) -> None:
    """Finish a batch after all its tasks have reported."""
    if query is None or plan.delivery is Delivery.AT_LEAST_ONCE:
        return
    if plan.delivery is Delivery.TWO_PHASE:
        begin = plan.progress_begin if plan.is_fresh else None
        run_driver(plan.properties, plan.decisions_topic, _protocol(plan, messages, query, batch), begin)
    if plan.is_fresh:
        _forget(plan, query)
    elif plan.delivery is Delivery.EXACTLY_ONCE:
        end = _end(plan, messages, query, batch)
        end_batch(plan.look_up_properties, plan.decisions_topic, end, _held(messages))
    if plan.app_id is not None or batch == 0:
        _log_once(plan)


def _abort(
    plan: SinkPlan, messages: Sequence[WriterCommitMessage | None], query: str | None, batch: int
) -> None:
    """Abort the prepared or held transactions of a failed batch. If the batch is already decided, complete it instead."""
    if query is None or plan.delivery is Delivery.AT_LEAST_ONCE:
        return
    if plan.delivery is Delivery.EXACTLY_ONCE and plan.is_fresh:
        _forget(plan, query)
        return
    if plan.delivery is Delivery.EXACTLY_ONCE:
        held = _held(messages)
        if not held and None not in messages:
            return
        try:
            run = _run_of(plan, messages)
            drop_open(plan.look_up_properties, plan.decisions_topic, query, batch, run, held)
        except (KafkaError, ClientError, ProgressError) as error:
            # As below. Unlike prepared transactions, these have a timeout.
            _LOGGER.warning("the transactions of %s stay open until their timeout: %s", query, error)
        return
    protocol = _protocol(plan, messages, query, batch, aborts=True)
    try:
        run_driver(
            plan.properties, plan.decisions_topic, protocol, plan.progress_begin if plan.is_fresh else None
        )
        if plan.is_fresh:
            _forget(plan, query)
    except RuntimeError as error:
        # Log this error only as a warning: the caller should see the error that caused the abort.
        _LOGGER.warning(
            "the prepared transactions of %s stay open until the query runs again: %s", query, error
        )


def _protocol(
    plan: SinkPlan,
    messages: Sequence[WriterCommitMessage | None],
    query: str,
    batch: int,
    *,
    aborts: bool = False,
) -> DriverProtocol:
    reports = [message for message in messages if isinstance(message, TaskReport)]
    counted = [
        RowSummary(max(report.rows, report.rows_compared), report.row_hash, report.hash_version)
        for report in reports
    ]
    return DriverProtocol(
        query,
        batch,
        tuple(report.prepared for report in reports if report.prepared is not None),
        sum_of(counted),
        topics=tuple(sorted({topic for report in reports for topic in report.topics})),
        aborts=aborts,
        consecutive=plan.app_id is None,
        adopt=plan.adopts,
    )


_is_logged = False


def _log_once(plan: SinkPlan) -> None:
    """Log how to read the query's records, once per process: Spark starts a process for each batch of a stream."""
    global _is_logged
    if not _is_logged:
        _is_logged = True
        _LOGGER.warning(
            "rows are written with delivery=%s: read them with the option kafka.isolation.level=read_committed, which is not"
            " Spark's default",
            plan.delivery.value,
        )


def _forget(plan: SinkPlan, query: str) -> None:
    """Delete the progress of a job that has ended, and that has no name by which it could run again."""
    try:
        two_phase = plan.delivery is Delivery.TWO_PHASE
        forget_job(
            plan.look_up_properties, plan.decisions_topic, query, plan.progress_begin, two_phase=two_phase
        )
    except (KafkaError, ClientError) as error:
        # The rows are not affected, and a failed job would be run again.
        _LOGGER.warning("the progress of %s stays in the topic %s: %s", query, plan.decisions_topic, error)


def _end(plan: SinkPlan, messages: Sequence[WriterCommitMessage | None], query: str, batch: int) -> BatchEnd:
    """Collect what the tasks of an exactly-once batch have reported."""
    protocol = _protocol(plan, messages, query, batch)
    reports = [message for message in messages if isinstance(message, TaskReport)]
    return BatchEnd(
        query,
        batch,
        _run_of(plan, messages),
        len(messages),
        protocol.summary,
        frozenset(report.task for report in reports if report.rows_compared >= 0),
        protocol.topics,
        adopt=plan.adopts,
    )


def _run_of(plan: SinkPlan, messages: Sequence[WriterCommitMessage | None]) -> str:
    return next((each.run for each in messages if isinstance(each, TaskReport)), plan.run)


def _held(messages: Sequence[WriterCommitMessage | None]) -> list[Prepared]:
    return [each.held for each in messages if isinstance(each, TaskReport) and each.held is not None]


def _look_up(plan: SinkPlan) -> bytes:
    """Return the topic's id. Raises an error if the topic does not exist. (If the brokers create topics
    automatically, this request creates the topic.)
    """
    if plan.topic is None:
        return NO_TOPIC_ID
    settings = plan.settings
    where = plan.properties["bootstrap.servers"]
    try:
        config = settings.client_config(fail_fast=True)
        with Client(where, config=config, timeout_ms=plan.look_up_ms) as client:
            deadline = client.core.now + plan.look_up_ms / 1000
            client.run(topics_with_metadata(client.core, [plan.topic], deadline=deadline, auto_create=True))
            name_prepared_in_topic(plan, client)
            return client.core.cluster.topic(plan.topic).topic_id
    except KafkaError as error:
        raise ValueError(about_topic(plan.topic, where, error)) from None
    except ClientError as error:
        raise ValueError(f"no broker answers for the topic '{plan.topic}' at {where}: {error}.") from None


def _note(plan: SinkPlan, messages: Sequence[WriterCommitMessage | None], about: dict[str, Any]) -> None:
    """Log the sums of the tasks' reports, and append them to the file of the option `metricsPath`."""
    reports = [message for message in messages if isinstance(message, TaskReport)]
    sums = {
        **about,
        "tasks": len(reports),
        "rows": sum(report.rows for report in reports),
        "record_bytes": sum(report.record_bytes for report in reports),
        "batch_bytes": sum(report.batch_bytes for report in reports),
        "batches": sum(report.batches for report in reports),
        "batches_repeated": sum(report.batches_repeated for report in reports),
        "task_seconds": round(sum(report.seconds for report in reports), 3),
    }
    _LOGGER.info("figures of a batch: %s", sums)
    if plan.metrics_path is not None:
        try:
            with Path(plan.metrics_path).open("a") as file:
                file.write(json.dumps(sums) + "\n")
        except OSError as error:
            # Log this error only as a warning: the rows are written, and after a failure Spark would write them
            # again.
            _LOGGER.warning(
                "the metrics of a batch could not be written (its records are not affected): %s", error
            )


# On the executors


def _write(
    plan: SinkPlan, iterator: Iterator[pa.RecordBatch], query: str | None, batch: int | None
) -> TaskReport:
    """Write the rows of a task, and wait until all are acknowledged."""
    try:
        if plan.delivery is Delivery.AT_LEAST_ONCE:
            if query is not None:
                refuse_beside_prepared(plan, query)
                if batch is not None:
                    refuse_beside_progress(plan, query, batch)
            return _write_at_least_once(plan, iterator)
        context = TaskContext.get()
        if context is None or query is None or batch is None:
            raise RuntimeError(
                f"delivery={plan.delivery.value} needs the query's id and batch number, which this "
                "version of Spark does not pass to its tasks: use delivery=at-least-once."
            )
        consecutive, task = plan.app_id is None, context.partitionId()
        if plan.delivery is Delivery.TWO_PHASE:
            attempt = AttemptProtocol(query, task, batch, consecutive=consecutive, adopt=plan.adopts)
            report = prepare_rows(plan, attempt, context.attemptNumber(), iterator)
        else:
            protocol = TaskProtocol(query, task, batch, consecutive=consecutive, adopt=plan.adopts)
            report = write_once(plan, protocol, iterator)
        report.query, report.task, report.run = query, task, plan.run
        return report
    finally:
        spare_collector()


def _write_at_least_once(plan: SinkPlan, iterator: Iterator[pa.RecordBatch]) -> TaskReport:
    with kept_producer(plan.properties) as producer:
        task = SinkTask(plan, producer)
        for batch in iterator:
            task.add(batch)
        return task.finish()
