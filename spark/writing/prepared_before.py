"""The refusal of a write while transactions that an earlier run has prepared (delivery=two-phase) are still open.
SHELL.

Prepared transactions have no timeout, and readers at read_committed wait for them. A run in another mode would leave
these transactions open. So readers at read_committed would see no later record in those partitions. A process makes
this check once for each run of a query.

The driver also names the transactions that other queries have prepared in its topic. Such a query may have lost its
checkpoint, and then nobody starts it again.
"""

from __future__ import annotations

import logging
import shlex
from collections import Counter
from typing import TYPE_CHECKING

from odradek.client.errors import ClientError
from odradek.client.shells.blocking import Client
from odradek.spark.delivery.pool import PREFIX, prepared_slots, query_of
from odradek.spark.delivery.task_protocol import ProgressError
from odradek.wire.errors import KafkaError

if TYPE_CHECKING:
    from odradek.spark.writing.sink_plan import SinkPlan

__all__ = ["name_prepared_in_topic", "refuse_beside_prepared"]

_LOGGER = logging.getLogger("odradek.spark")
_LONG_MS = 60_000
"""The age from which a transaction of another query is named. Those of a running query are mostly younger."""

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


def name_prepared_in_topic(plan: SinkPlan, client: Client) -> None:
    """Log which queries have prepared transactions in the plan's topic for more than a minute, and how to end them.

    A failure is logged for debugging only, because the write itself does not need the list.
    """
    try:
        listed = client.admin.list_transactions(
            states=["Ongoing"], transactional_id_pattern=f"{PREFIX}.*", running_longer_than_ms=_LONG_MS
        )
        names = [each.transactional_id for each in listed]
        found = client.admin.describe_transactions(names) if names else []
    except (KafkaError, ClientError) as error:
        _LOGGER.debug("the brokers did not report prepared transactions: %s", error)
        return
    queries = Counter(
        query_of(each.transactional_id)
        for each in found
        if any(partition.topic == plan.topic for partition in each.partitions)
    )
    where = plan.properties["bootstrap.servers"]
    for query, count in queries.items():
        if query is not None:
            _LOGGER.warning(
                "the query %s has prepared %d transactions in the topic '%s', and read_committed consumers see no row behind "
                "them: start it again, or end them if it runs no more: odradek spark two-phase --bootstrap %s --end %s",
                query,
                count,
                plan.topic,
                where,
                shlex.quote(query),
            )
