"""One attempt at a task, in a transaction: the steps of `task_protocol`, done with real producers. SHELL."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import attrs
import pyarrow as pa

from odradek.client.errors import ClientError, ProducerFencedError
from odradek.client.shells.producer import Producer
from wire.errors import ErrorCode, KafkaError

from ..delivery.decisions import Decisions
from ..delivery.markers import marker_key, marker_value
from ..delivery.row_hash import hash_rows
from ..delivery.task_protocol import Marker, ProgressError, RowSummary, Step, TaskProtocol
from .sink_task import SinkTask, TaskReport

if TYPE_CHECKING:
    from .sink_plan import SinkPlan

__all__ = ["transactional_id", "write_once"]

_CLOSE_SECONDS_MAX = 1.0
_MASK = (1 << 64) - 1
_HASHED = ("key", "value", "headers", "topic", "partition")
_OTHER_MODES = "delivery=at-least-once needs no transactions"
_decisions: dict[tuple[object, ...], Decisions] = {}
"""The last one that this worker process has used: workers outlive their tasks."""


def transactional_id(query: str, task: int) -> str:
    """The id whose next producer fences all earlier attempts at the task."""
    return f"odradek-spark-{query}-{task}"


def write_once(plan: SinkPlan, protocol: TaskProtocol, iterator: Iterator[pa.RecordBatch]) -> TaskReport:
    """Write the task's rows exactly once.

    Raises:
        ProgressError: the markers contradict the batch.
        RuntimeError: the rows were not written, in one sentence.
    """
    properties = {**plan.properties, "transactional.id": transactional_id(protocol.query, protocol.task)}
    producer = Producer(properties)
    try:
        return _steps(plan, protocol, producer, iterator)
    except ProducerFencedError as error:
        raise RuntimeError(_overtaken(protocol, error)) from error
    except (KafkaError, ClientError) as error:
        raise RuntimeError(_sentence(protocol, error)) from error
    except RuntimeError as error:
        cause = error.__cause__
        if isinstance(cause, KafkaError) and cause.code is ErrorCode.INVALID_PRODUCER_EPOCH:
            raise RuntimeError(_overtaken(protocol, cause)) from error
        raise
    finally:
        producer.close(_CLOSE_SECONDS_MAX)


def _steps(
    plan: SinkPlan, protocol: TaskProtocol, producer: Producer, iterator: Iterator[pa.RecordBatch]
) -> TaskReport:
    producer.init_transactions()
    protocol.fenced()
    decisions = _decisions_of(plan)
    key, end = decisions.end_of(protocol.query)
    protocol.end_taken()
    log = decisions.read(protocol.query, key, end)
    if log.is_undecided(protocol.task):
        raise ProgressError(
            f"a transaction that is none of the sink's holds a marker of task {protocol.task} of {protocol.query}."
        )
    protocol.marker_read(log.markers.get(protocol.task))
    rows = _Counted(plan.hashed_columns)
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
    producer.send(
        key.topic,
        key=marker_key(protocol.query, protocol.task),
        value=marker_value(Marker(protocol.batch, rows.summary)),
        partition=key.partition,
    )
    report = task.finish()
    protocol.written()
    producer.commit_transaction()
    protocol.committed()
    return report


@attrs.define
class _Counted:
    """The rows that have come, counted and hashed."""

    columns: Mapping[str, int]
    summary: RowSummary = attrs.field(factory=lambda: RowSummary(0, 0))

    def add(self, batch: pa.RecordBatch) -> None:
        found = [batch.column(self.columns[name]) if name in self.columns else None for name in _HASHED]
        rows, row_hash = self.summary.rows, self.summary.row_hash
        self.summary = RowSummary(rows + batch.num_rows, (row_hash + hash_rows(found)) & _MASK)


def _decisions_of(plan: SinkPlan) -> Decisions:
    identity = (tuple(sorted(plan.properties.items())), plan.decisions_topic)
    found = _decisions.get(identity)
    if found is None:
        for other in _decisions.values():
            other.close()
        _decisions.clear()
        found = _decisions[identity] = Decisions(plan.properties, plan.decisions_topic)
    return found


def _overtaken(protocol: TaskProtocol, error: Exception) -> str:
    return f"another attempt at task {protocol.task} of {protocol.query} has taken over, so this one ends: {error}"


def _sentence(protocol: TaskProtocol, error: Exception) -> str:
    cause = error.__cause__ if isinstance(error.__cause__, KafkaError) else error
    code = cause.code if isinstance(cause, KafkaError) else None
    where = f"task {protocol.task} of {protocol.query}"
    if code is ErrorCode.INVALID_TRANSACTION_TIMEOUT:
        return (
            f"{where} is refused its time: set the option kafka.transaction.timeout.ms to at most the brokers'"
            f" transaction.max.timeout.ms ({_OTHER_MODES})."
        )
    if code is ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
        return (
            f"{where} may not use its transactional id: grant WRITE and DESCRIBE on transactional ids that begin with"
            f" 'odradek-spark-' ({_OTHER_MODES})."
        )
    return f"{where} has not written its rows: {str(error).rstrip('.')} ({_OTHER_MODES})."
