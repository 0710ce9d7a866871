"""The refusal of a write beside progress that it would ignore. Rows that an earlier run of the query has committed
would be written again. SHELL.

Two kinds of runs would ignore it. The first is at-least-once delivery, which has no progress of its own. The second has
lost the progress, because `decisionsTopic` names another topic, or the topic was deleted. The coordinators then still
know that the query has committed transactions. A process makes each check once for each run of a query.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from odradek.client.errors import ClientError
from odradek.spark.delivery.completion import command_of
from odradek.spark.delivery.decisions import Decisions
from odradek.spark.delivery.pool import has_committed
from odradek.spark.delivery.progress import judge_without_progress
from odradek.spark.delivery.task_protocol import ProgressError
from odradek.wire.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from odradek.spark.writing.sink_plan import SinkPlan

__all__ = ["refuse_beside_progress", "refuse_lost_progress"]

_asked: dict[tuple[str, ...], None] = {}
"""The runs of queries, by cluster and decisions topic, for which this process has made its check."""
_ASKED_MAX = 1024
_NO_RIGHT = (ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)


def _identity(plan: SinkPlan, query: str) -> tuple[str, ...]:
    return plan.properties["bootstrap.servers"], plan.decisions_topic, query, plan.run


def _remember(identity: tuple[str, ...]) -> None:
    while len(_asked) >= _ASKED_MAX:
        del _asked[next(iter(_asked))]
    _asked[identity] = None


def refuse_beside_progress(plan: SinkPlan, query: str, batch: int) -> None:
    """Raise `ProgressError` if another delivery mode has written rows of this batch or of a later one. Raises
    `RuntimeError` if the brokers do not answer.

    Progress that this user has no right to read is passed over.
    """
    identity = _identity(plan, query)
    if identity in _asked:
        return
    try:
        with Decisions(plan.look_up_properties, plan.decisions_topic) as decisions:
            if plan.decisions_topic in decisions.client.metadata([plan.decisions_topic]).topics:
                key, end = decisions.end_of(query)
                judge_without_progress(query, batch, decisions.read(query, key, end), plan.delivery.value)
    except (KafkaError, ClientError) as error:
        if not isinstance(error, KafkaError) or error.code not in _NO_RIGHT:
            raise RuntimeError(
                f"the brokers did not report the progress of {query} in the topic '{plan.decisions_topic}': "
                f"{str(error).rstrip('.')}."
            ) from error
    _remember(identity)


def refuse_lost_progress(plan: SinkPlan, query: str, decisions: Decisions) -> None:
    """Raise `ProgressError` if the decisions topic knows nothing of the query, but the query has committed
    transactions. Call it before an attempt takes its transactional id, because that hides its last transaction.

    Raises `KafkaError`, `ClientError`.
    """
    identity = _identity(plan, query)
    if plan.is_fresh or identity in _asked:
        return
    if _is_unknown(query, decisions):
        client = decisions.client
        committed = client.run(has_committed(client.core, query, plan.look_up_ms / 1000))
        # Another task of this batch may have committed meanwhile, so the topic is read again.
        if committed and _is_unknown(query, decisions):
            raise ProgressError(
                f"the topic '{plan.decisions_topic}' has no progress of {query}, but the query has committed "
                "transactions, so rows might be written twice. If the query had another decisionsTopic before, set the "
                "option decisionsTopic to that topic. If that topic is lost, "
                f"`{command_of(query)} --decisions-topic {plan.decisions_topic}` lets you say how far the query was."
            )
        return
    _remember(identity)


def _is_unknown(query: str, decisions: Decisions) -> bool:
    key, end = decisions.end_of(query)
    return decisions.read(query, key, end).is_empty
