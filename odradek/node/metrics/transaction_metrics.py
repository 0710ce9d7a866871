"""Metrics of transactions: the coordinators on this broker, and open transactions that delay `read_committed`
consumers. PURE.
"""

from __future__ import annotations

from collections.abc import Mapping

from odradek.data_plane.broker import Broker
from odradek.node.metrics.hosted_figures import HostedFigures
from odradek.node.metrics.metrics_text import MetricsText

_GAUGES = (
    ("transactions", "transactional_ids", "Transactional ids that this broker coordinates."),
    ("shards", "transaction_shards", "Partitions of __transaction_state that this broker leads."),
    (
        "loading",
        "transaction_shards_loading",
        "Partitions of __transaction_state whose transactional ids are still being loaded.",
    ),
    ("open", "transactions_open", "Open transactions of these ids."),
    ("ending", "transactions_ending", "Decided transactions whose markers are being written."),
    ("unanswered", "transaction_requests_waiting", "Requests to these coordinators that wait for replicas."),
    (
        "held",
        "transaction_requests_held",
        "Requests that wait for the markers of the previous transaction of their id.",
    ),
)
_COUNTERS = (
    ("committed", "transactions_committed", "Transactions committed, with all markers written."),
    ("aborted", "transactions_aborted", "Transactions aborted, with all markers written."),
    ("timed_out", "transactions_timed_out", "Transactions that coordinators aborted after their timeouts."),
    ("refused", "transaction_producers_refused", "Requests of fenced producers, which were refused."),
    (
        "refused_ids",
        "transactional_ids_refused",
        "New transactional ids refused, because their coordinator has too many.",
    ),
    (
        "refused_partitions",
        "transaction_partitions_refused",
        "Requests to add partitions refused, because the transaction, or all of its coordinator, would be too large.",
    ),
)


def transaction_metrics(
    page: MetricsText, broker: Broker, statistics: Mapping[str, int], hosted: HostedFigures
) -> None:
    """Add the transaction figures of one broker to the page. `statistics` has the figures of the broker's transaction
    coordinator.
    """
    for field, metric, described in _GAUGES:
        page.gauge(f"odradek_{metric}", described)
        page.one(statistics.get(field, 0))
    for field, metric, described in _COUNTERS:
        page.counter(f"odradek_{metric}_total", described)
        page.one(statistics[field])
    _ages(page, broker)
    _stable_lag(page, hosted)


def _ages(page: MetricsText, broker: Broker) -> None:
    now_ms = broker.clock.wall_ms()
    oldest = {index: shard.oldest_open() for index, shard in sorted(broker.transactions.shards.items())}
    page.gauge(
        "odradek_transaction_age_seconds",
        "Age of the oldest open transaction, by partition of __transaction_state.",
    )
    for index, each in oldest.items():
        if each.timed_ms is not None:
            page.sample(max(0, now_ms - each.timed_ms) / 1000, partition=index)
    page.gauge(
        "odradek_prepared_transaction_age_seconds",
        "Age of the oldest transaction without a timeout (KIP-939), by partition of __transaction_state.",
    )
    for index, each in oldest.items():
        if each.prepared_ms is not None:
            page.sample(max(0, now_ms - each.prepared_ms) / 1000, partition=index)


def _stable_lag(page: MetricsText, hosted: HostedFigures) -> None:
    """Add the lag of the last stable offset behind the high watermark."""
    page.gauge("odradek_open_transaction_partitions", "Led partitions with an open transaction.")
    page.one(hosted.with_open_transaction)
    page.gauge(
        "odradek_last_stable_offset_lag_max",
        "Offsets that an open transaction hides from read_committed consumers, in the worst led partition.",
    )
    page.one(hosted.stable_lag_max)
