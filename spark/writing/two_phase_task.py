"""One attempt at a task in the two-phase protocol. The attempt claims a transaction, writes rows in it, and prepares
it. The driver ends the transaction. SHELL.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING

import pyarrow as pa

from odradek.client.errors import ClientError, UnsupportedByBroker
from odradek.client.shells.producer import Producer
from odradek.spark.delivery.decisions import Decisions
from odradek.spark.delivery.kept_clients import fencing, kept_producer
from odradek.spark.delivery.pool import PREFIX, free_slots, slot_id
from odradek.spark.delivery.task_protocol import HASH_VERSION, ProgressError, RowSummary, check_topics
from odradek.spark.delivery.two_phase import AttemptProtocol, Decision, Prepared
from odradek.spark.writing.progress_before import refuse_lost_progress
from odradek.spark.writing.sink_task import CountedRows, SinkTask, TaskReport
from odradek.spark.writing.transactional_task import decisions_of
from odradek.wire.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from odradek.spark.writing.sink_plan import SinkPlan

__all__ = ["check_two_phase", "prepare_rows"]

_TWO_PHASE = "transaction.two.phase.commit.enable"
_CLOSE_SECONDS_MAX = 1.0
_FEATURE = "transaction.version"
_LEVEL_MIN = 2
"""The level of `transaction.version` from which each transaction has a new epoch (KIP-890)."""
_OTHER_MODES = "use delivery=exactly-once or delivery=at-least-once"


def check_two_phase(plan: SinkPlan, decisions: Decisions) -> None:
    """Check that the brokers support prepared transactions, and that this user may use them. Called on the driver.
    Raises `ValueError`.
    """
    where = plan.properties["bootstrap.servers"]
    level = decisions.client.core.cluster.features.get(_FEATURE, 0)
    if level < _LEVEL_MIN:
        raise ValueError(
            f"delivery=two-phase needs the feature {_FEATURE} at level {_LEVEL_MIN}, but it is at "
            f"level {level} at {where}: raise the feature, or {_OTHER_MODES}."
        )
    probe = {**plan.look_up_properties, "transactional.id": f"{PREFIX}probe", _TWO_PHASE: "true"}
    producer = Producer(probe)
    try:
        producer.resume()
    except ClientError as error:
        cause = error.__cause__
        if isinstance(cause, KafkaError) and cause.code is ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
            raise ValueError(
                "this user has no right to prepare transactions for delivery=two-phase: grant WRITE, "
                "DESCRIBE and TWO_PHASE_COMMIT on transactional ids that begin with 'odradek-spark-', "
                f"or {_OTHER_MODES}."
            ) from None
        unsupported = isinstance(cause, UnsupportedByBroker) or (
            isinstance(cause, KafkaError) and cause.code is ErrorCode.UNSUPPORTED_VERSION
        )
        if not unsupported:
            raise
        raise ValueError(
            "delivery=two-phase needs brokers with two-phase commit (KIP-939), and the brokers at "
            f"{where} lack it: set {_TWO_PHASE}=true on Odradek's nodes, or {_OTHER_MODES}."
        ) from None
    finally:
        producer.close(_CLOSE_SECONDS_MAX)


def prepare_rows(
    plan: SinkPlan, protocol: AttemptProtocol, first_slot: int, iterator: Iterator[pa.RecordBatch]
) -> TaskReport:
    """Write the task's rows in a transaction, and prepare it. The attempt uses the first free slot from `first_slot`
    on.

    If the batch is already decided, its rows are only counted. Only a task that has rows makes a transaction.

    Raises:
        ProgressError: the decision contradicts the batch.
        RuntimeError: the rows were not written; the text is one sentence.
    """
    where = f"task {protocol.task} of {protocol.query}"
    try:
        return _steps(plan, protocol, first_slot, iterator)
    except (KafkaError, ClientError, RuntimeError) as error:
        fenced = fencing(error)
        if fenced is not None:
            raise RuntimeError(
                f"another attempt at {where} has taken over, so this attempt ends: {fenced}"
            ) from error
        if isinstance(error, RuntimeError):
            raise
        raise RuntimeError(f"{where} could not prepare its rows: {str(error).rstrip('.')}.") from error


def _steps(
    plan: SinkPlan, protocol: AttemptProtocol, first_slot: int, iterator: Iterator[pa.RecordBatch]
) -> TaskReport:
    with decisions_of(plan) as decisions:
        return _attempt(plan, protocol, first_slot, iterator, decisions)


def _attempt(
    plan: SinkPlan,
    protocol: AttemptProtocol,
    first_slot: int,
    iterator: Iterator[pa.RecordBatch],
    decisions: Decisions,
) -> TaskReport:
    refuse_lost_progress(plan, protocol.query, decisions)
    decision = _last(plan, protocol, decisions)
    writes = protocol.looked(decision)
    if decision is not None and not plan.adopts:
        check_topics(protocol.query, decision.batch, decision.topics, plan.planned_topics)
    if not writes:
        return _count(plan, protocol, decision, iterator)
    first = next((batch for batch in iterator if batch.num_rows), None)
    if first is None:
        protocol.counted()
        return TaskReport()
    with kept_producer(
        {**plan.properties, _TWO_PHASE: "true"}, slot_id(protocol.query, protocol.task, 0)
    ) as producer:
        slot = _claim(plan, protocol, first_slot, decisions, producer)
        protocol.claimed()
        decision = _last(plan, protocol, decisions)
        whole = chain([first], iterator)
        if not protocol.looked(decision):
            return _count(plan, protocol, decision, whole)
        return _write(plan, protocol, slot, producer, whole, decision)


def _last(plan: SinkPlan, protocol: AttemptProtocol, decisions: Decisions) -> Decision | None:
    """Return the query's last decision. Raises `ProgressError` if the query is a job that has ended."""
    decision = decisions.last_settled(protocol.query, protocol.batch, plan.look_up_ms / 1000)
    if plan.is_fresh and decision is None:
        # The driver deletes the decision of such a job, so this is read behind it.
        log = decisions.progress(protocol.query)
        if log is not None and log.has_tombstones:
            raise ProgressError(
                f"the job {protocol.query} has ended, so this late attempt at task {protocol.task} ends"
            )
    return decision


def _count(
    plan: SinkPlan, protocol: AttemptProtocol, decision: Decision | None, iterator: Iterator[pa.RecordBatch]
) -> TaskReport:
    """Count the rows as the decision has counted them, and report them. They are not written, but they must be read,
    because Spark then keeps the state that its plan computes.
    """
    version = HASH_VERSION if decision is None else decision.summary.hash_version
    rows = CountedRows(plan.hashed_columns, RowSummary(0, 0, version))
    for batch in iterator:
        rows.add(batch)
    protocol.counted()
    summary = rows.summary
    return TaskReport(
        rows_compared=summary.rows, row_hash=summary.row_hash, hash_version=summary.hash_version
    )


def _claim(
    plan: SinkPlan, protocol: AttemptProtocol, first_slot: int, decisions: Decisions, producer: Producer
) -> int:
    """Claim a slot without an open transaction for this producer, and return it. Transactions that other attempts have
    prepared are left alone.
    """
    client, seconds = decisions.client, plan.settings.max_block_ms / 1000
    while True:
        for slot in client.run(free_slots(client.core, protocol.query, protocol.task, first_slot, seconds)):
            producer._change_transactional_id(slot_id(protocol.query, protocol.task, slot))
            if producer.resume() is None:
                return slot
        first_slot = 0


def _write(
    plan: SinkPlan,
    protocol: AttemptProtocol,
    slot: int,
    producer: Producer,
    iterator: Iterator[pa.RecordBatch],
    decision: Decision | None,
) -> TaskReport:
    task, rows = SinkTask(plan, producer), CountedRows(plan.hashed_columns)
    producer.begin_transaction()
    for batch in iterator:
        rows.add(batch)
        task.add(batch)
    task.send_rest()
    protocol.written()
    report = task.finish()
    if decision is not None and not plan.adopts:
        check_topics(protocol.query, decision.batch, decision.topics, task.topics)
    producer_id, _, epoch = producer.prepare().partition(":")
    protocol.prepared()
    report.prepared = Prepared(protocol.task, slot, int(producer_id), int(epoch))
    report.row_hash, report.topics = rows.summary.row_hash, task.topics
    return report
