"""Metrics of replication: replicas in sync, lagging replicas, moves to other brokers. PURE."""

from __future__ import annotations

from odradek.data_plane.broker import Broker
from odradek.node.metrics.hosted_figures import HostedFigures
from odradek.node.metrics.metrics_text import MetricsText


def replication_metrics(page: MetricsText, broker: Broker, hosted: HostedFigures) -> None:
    """Add the replication figures of one broker to the page."""
    page.gauge(
        "odradek_at_min_isr_partitions",
        "Led partitions that would refuse acks=all with one in-sync replica less.",
    )
    page.one(hosted.at_min_isr)
    page.gauge("odradek_reassigning_partitions", "Led partitions whose replicas are being moved.")
    page.one(hosted.reassigning)
    changes = broker.replication.isr_changes
    page.counter(
        "odradek_isr_shrinks_total",
        "ISRs of led partitions that shrank because followers"
        " lagged; the controller takes out brokers that are fenced.",
    )
    page.one(changes.shrinks)
    page.counter("odradek_isr_expands_total", "Times that replicas of led partitions have come back in sync.")
    page.one(changes.expansions)
    page.counter(
        "odradek_isr_update_failures_total",
        "Proposals for an ISR that the controller has refused or not received.",
    )
    page.one(changes.failures)
    fetchers = broker.replication.fetchers
    page.gauge(
        "odradek_follower_lag_max_records",
        "Records by which the slowest follower is behind its leader on this broker.",
    )
    for leader, fetcher in fetchers.items():
        page.sample(fetcher.lag_max, leader=leader)
    page.counter("odradek_replication_in_bytes_total", "Bytes of batches fetched from this leader.")
    known = broker.replication.known_fetchers
    for leader, fetcher in known.items():
        page.sample(fetcher.bytes_fetched, leader=leader)
    page.counter(
        "odradek_reassignment_in_bytes_total",
        "Bytes fetched for replicas that a reassignment adds on this broker.",
    )
    page.one(sum(fetcher.reassignment_bytes for fetcher in known.values()))
    page.counter("odradek_reassignment_out_bytes_total", "Bytes sent to followers that a reassignment adds.")
    page.one(broker.replication.reassignment_bytes_out)
