"""The sink of Spark's format `odradek`: Arrow batches in, our producer out. Exactly once, or at least once. SHELL.

Theory of operation
===================

The driver plans (`sink_plan`): options and columns are checked, the topic is looked up, and nothing has been sent
when it refuses. Each task then runs `write` in a Python worker (`sink_task`), and ends when every batch is
acknowledged. A failed task fails the batch of the query, and Spark repeats it.

With **delivery=exactly-once**, the default, a task writes in a transaction that also holds its progress
(`delivery/task_protocol.py`). An attempt that finds its batch committed writes nothing and compares its rows. The
driver decides nothing. At the end it looks for markers of the batch by tasks that this
run does not have. A repetition with fewer tasks would leave their rows beside those of others.

With **delivery=at-least-once** a worker keeps one idempotent producer (KIP-98) for all tasks of the same options. A
task that Spark repeats writes all its rows again, and rows are visible when they are acknowledged.

A stream's batches are known by the query's id and the batch's number, which Spark gives to each task as local
properties. A batch job is known by `txnAppId` and `txnVersion`, as in Delta; without them each run is another.

Metrics: Spark counts the rows itself (`numOutputRows` of the sink in a query's progress). It gives a Python data
source no way to add figures of its own. The driver's Python process logs the reports' sums: bytes, batches,
repetitions. It writes them to the file that the option `metricsPath` names, a line of JSON for each batch.
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

from odradek.client.core.requests import topics_with_metadata
from odradek.client.errors import ClientError
from odradek.client.shells.blocking import Client
from odradek.client.shells.producer import Producer
from wire.errors import KafkaError

from .delivery.decisions import Decisions
from .delivery.task_protocol import ProgressError, TaskProtocol
from .worker_process import spare_collector
from .writing.sink_plan import Delivery, SinkPlan, plan_write
from .writing.sink_task import SinkTask, TaskReport, Written, about_topic
from .writing.transactional_task import write_once

__all__ = ["TaskReport", "Written", "batch_writer", "stream_writer"]

_CLOSE_SECONDS_MAX = 1.0
_QUERY_ID = "sql.streaming.queryId"
_BATCH_ID = "streaming.sql.batchId"
"""The local properties by which Spark tells a task its streaming query and micro-batch."""
_LOGGER = logging.getLogger("odradek.spark")


def batch_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> BatchWriter:
    """The writer of a batch query. Raises `ValueError` with one sentence for what cannot be written."""
    if overwrite:
        raise ValueError("a topic cannot be overwritten: use .mode('append').")
    plan = plan_write(options, schema)
    if plan.delivery is Delivery.EXACTLY_ONCE and plan.app_id is None:
        # Attempts at this job's tasks are told apart from those of any other run.
        plan = attrs.evolve(plan, app_id=f"job-{uuid.uuid4()}", version=0)
    return BatchWriter(_checked(plan))


def stream_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> StreamWriter:
    """The writer of a streaming query; output mode complete writes all rows of the result anew each time.

    Raises `ValueError` with one sentence for what cannot be written.
    """
    plan = plan_write(options, schema)
    if plan.app_id is not None:
        raise ValueError(
            "the options txnAppId and txnVersion are for batch writes: a stream has its query's id and batches."
        )
    return StreamWriter(_checked(plan))


class BatchWriter(DataSourceArrowWriter):
    """The sink's writer of a batch query, pickled to the tasks; it notes the figures at commit or abort."""

    def __init__(self, plan: SinkPlan) -> None:
        self._plan = plan

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Runs in a task."""
        return _write(self._plan, iterator, self._plan.app_id, self._plan.version)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Called when every task succeeded. Raises `ProgressError` where another run had more tasks."""
        if self._plan.app_id is not None:
            _check_tasks(self._plan, self._plan.app_id, self._plan.version, len(messages))
        _note(self._plan, messages, {})

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Some task failed; the rows of those that ended are in the topic, and stay there."""
        _note(self._plan, messages, {"aborted": True})


class StreamWriter(DataSourceStreamArrowWriter):
    """The sink's writer of a streaming query, pickled to the tasks; it notes the figures of each batch."""

    def __init__(self, plan: SinkPlan) -> None:
        self._plan = plan

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Runs in a task."""
        context = TaskContext.get()
        query = batch = None
        if context is not None:
            query, batch = context.getLocalProperty(_QUERY_ID), context.getLocalProperty(_BATCH_ID)
        if query is None or batch is None:
            return _write(self._plan, iterator, None, None)
        return _write(self._plan, iterator, query, int(batch))

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Called when every task of the micro-batch succeeded. Raises `ProgressError` where an earlier run had more
        tasks."""
        queries = {message.query for message in messages if isinstance(message, TaskReport)}
        for query in filter(None, queries):
            _check_tasks(self._plan, query, batchId, len(messages))
        _note(self._plan, messages, {"batch": batchId})

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Some task failed: the query fails, and writes the whole micro-batch again when it is started again."""
        _note(self._plan, messages, {"batch": batchId, "aborted": True})


# The driver


def _checked(plan: SinkPlan) -> SinkPlan:
    """Ask the cluster whether the plan can be carried out. Raises `ValueError` with one sentence."""
    _look_up(plan)
    if plan.delivery is Delivery.AT_LEAST_ONCE:
        return plan
    try:
        with Decisions(plan.look_up_properties, plan.decisions_topic) as decisions:
            decisions.make()
            timeout_max_ms = decisions.transaction_timeout_max_ms()
    except (KafkaError, ClientError) as error:
        raise ValueError(
            f"delivery=exactly-once cannot use its topic '{plan.decisions_topic}': {str(error).rstrip('.')}"
            " (delivery=at-least-once needs neither topic nor transactions)."
        ) from None
    _LOGGER.info(
        "exactly once: readers need isolation.level=read_committed, and Spark's readers are read_uncommitted unless"
        " kafka.isolation.level says otherwise"
    )
    return plan.with_transaction_timeout(timeout_max_ms)


def _check_tasks(plan: SinkPlan, query: str, batch: int, tasks: int) -> None:
    """Raise `ProgressError` if a batch is committed for more tasks than this run has."""
    with Decisions(plan.look_up_properties, plan.decisions_topic) as decisions:
        key, end = decisions.end_of(query)
        markers = decisions.read(query, key, end).markers
    more = [task for task, marker in markers.items() if task >= tasks and marker.batch == batch]
    if more:
        raise ProgressError(
            f"batch {batch} of {query} has {tasks} tasks now and had {max(more) + 1} in an earlier run: rows may be there"
            " twice, so keep the number of partitions, or take delivery=at-least-once."
        )


def _look_up(plan: SinkPlan) -> None:
    """See that the topic is there (asking for it may create it, where brokers do so)."""
    if plan.topic is None:
        return
    settings = plan.settings
    where = plan.properties["bootstrap.servers"]
    try:
        config = settings.client_config(fail_fast=True)
        with Client(where, config=config, timeout_ms=plan.look_up_ms) as client:
            deadline = client.core.now + plan.look_up_ms / 1000
            client.run(topics_with_metadata(client.core, [plan.topic], deadline=deadline, auto_create=True))
    except KafkaError as error:
        raise ValueError(about_topic(plan.topic, where, error)) from None
    except ClientError as error:
        raise ValueError(
            f"no broker can be asked for the topic '{plan.topic}' at {where}: {error}."
        ) from None


def _note(plan: SinkPlan, messages: Sequence[WriterCommitMessage | None], about: dict[str, Any]) -> None:
    """Log the sums of the tasks' reports, and append them to the file of `metricsPath`."""
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
    _LOGGER.info("written: %s", sums)
    if plan.metrics_path is not None:
        try:
            with Path(plan.metrics_path).open("a") as file:
                file.write(json.dumps(sums) + "\n")
        except OSError as error:
            # The rows are written: to fail now would have Spark write them again.
            _LOGGER.warning("the figures of a batch are not noted: %s", error)


# Tasks


_producers: dict[tuple[tuple[str, str], ...], Producer] = {}
"""One for each configuration that this worker process has written with: workers outlive their tasks."""
_PRODUCERS_MAX = 8
"""The least recently used one goes: each has a thread, and up to `buffer.memory`."""


def _write(
    plan: SinkPlan, iterator: Iterator[pa.RecordBatch], query: str | None, batch: int | None
) -> TaskReport:
    """Write the rows of a task, to the last acknowledgement."""
    try:
        if plan.delivery is Delivery.AT_LEAST_ONCE:
            return _write_at_least_once(plan, iterator)
        context = TaskContext.get()
        if context is None or query is None or batch is None:
            raise RuntimeError(
                "delivery=exactly-once needs the query's id and batch, and this Spark names neither to its tasks: take"
                " delivery=at-least-once."
            )
        protocol = TaskProtocol(
            query,
            context.partitionId(),
            batch,
            consecutive=plan.app_id is None,
            adopt=plan.adopts,
        )
        report = write_once(plan, protocol, iterator)
        report.query = query
        return report
    finally:
        spare_collector()


def _write_at_least_once(plan: SinkPlan, iterator: Iterator[pa.RecordBatch]) -> TaskReport:
    identity = tuple(sorted(plan.properties.items()))
    producer = _producers.pop(identity, None)
    if producer is None:
        while len(_producers) >= _PRODUCERS_MAX:
            _producers.pop(next(iter(_producers))).close(_CLOSE_SECONDS_MAX)
        producer = Producer(plan.properties)
    _producers[identity] = producer
    task = SinkTask(plan, producer)
    try:
        for batch in iterator:
            task.add(batch)
        return task.finish()
    except BaseException:
        # What is under way belongs to an attempt that has failed: the next one starts with nothing.
        del _producers[identity]
        producer.close(_CLOSE_SECONDS_MAX)
        raise
