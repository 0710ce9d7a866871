"""The refusal of a write while transactions that an earlier run has prepared (delivery=two-phase) are still open.
SHELL.

Prepared transactions have no timeout, and readers at read_committed wait for them. A run in another mode would leave
these transactions open. So readers at read_committed would see no later record in those partitions. A process makes
this check once for each query.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from odradek.client.errors import ClientError
from odradek.client.shells.blocking import Client
from odradek.spark.delivery.pool import prepared_slots
from odradek.spark.delivery.task_protocol import ProgressError
from odradek.wire.errors import KafkaError

if TYPE_CHECKING:
    from odradek.spark.writing.sink_plan import SinkPlan

__all__ = ["refuse_beside_prepared"]

_asked: dict[tuple[str, str, str], None] = {}
"""The runs of queries, by cluster, for which this worker process has checked that nothing is prepared."""
_ASKED_MAX = 1024


def refuse_beside_prepared(plan: SinkPlan, query: str, client: Client | None = None) -> None:
    """Raise `ProgressError` if the query has prepared transactions, and `RuntimeError` if the brokers do not answer.

    Without `client` it opens a separate connection.
    """
    where = plan.properties["bootstrap.servers"]
    if plan.is_fresh or (where, query, plan.run) in _asked:
        return
    try:
        if client is not None:
            found = client.run(prepared_slots(client.core, query, plan.look_up_ms / 1000))
        else:
            config = plan.settings.client_config()
            with Client(where, config=config, timeout_ms=plan.look_up_ms) as own:
                found = own.run(prepared_slots(own.core, query, plan.look_up_ms / 1000))
    except (KafkaError, ClientError) as error:
        raise RuntimeError(
            f"the brokers did not report which transactions {query} has prepared with "
            f"delivery=two-phase: {str(error).rstrip('.')}."
        ) from error
    if found:
        raise ProgressError(
            f"{query} began with delivery=two-phase, and has {len(found)} prepared transactions. Until these end, read_committed consumers would not see the rows that delivery={plan.delivery.value} writes. Start the "
            "query with delivery=two-phase until the batch has ended, or end the transactions: odradek "
            f"spark two-phase --bootstrap {where} --end {query}"
        )
    while len(_asked) >= _ASKED_MAX:
        del _asked[next(iter(_asked))]
    _asked[where, query, plan.run] = None
