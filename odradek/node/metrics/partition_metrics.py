"""Metrics of the partitions on this broker: counts, and sums of offsets and bytes by topic. PURE."""

from __future__ import annotations

from odradek.data_plane.broker import Broker
from odradek.node.metrics.hosted_figures import HostedFigures
from odradek.node.metrics.metrics_text import MetricsText

__all__ = ["TOPICS_MAX", "partition_metrics", "topic_metrics"]

TOPICS_MAX = 200
"""The maximum number of topics with figures of their own; the totals count all topics."""


def partition_metrics(page: MetricsText, broker: Broker, hosted: HostedFigures, placed: int) -> None:
    """Add the numbers of partitions to the page: all, led ones, and those in some trouble. `placed` is the number of
    partitions that the metadata place on this broker.
    """
    for number, name, described in (
        (len(broker.topics), "topics", "Topics with partitions on this broker."),
        (hosted.partitions, "partitions", "Partitions on this broker."),
        (hosted.led, "leaders", "Partitions that this broker leads."),
        (hosted.under_replicated, "under_replicated_partitions", "Led partitions with replicas that are not in sync."),
        (hosted.under_min_isr, "under_min_isr_partitions", "Led partitions that refuse acks=all, because too few replicas are in sync."),
        (placed - hosted.partitions, "offline_partitions", "Partitions placed on this broker that it cannot serve."),
    ):  # fmt: skip
        page.gauge(f"odradek_{name}", described)
        page.one(number)
    rot = broker.rotten.statistics()
    page.gauge("odradek_rotten_partitions", "Partitions served here whose log fails its checksums.")
    page.one(rot["rotten"])
    page.counter(
        "odradek_replicas_set_aside_total",
        "Logs that failed their checksums and were replaced; the old files are kept.",
    )
    page.one(rot["set_aside"])


def topic_metrics(page: MetricsText, hosted: HostedFigures, named_max: int) -> None:
    """Add offsets and bytes of logs: in total, and for each of the first `named_max` topics in the order of their
    names.
    """
    rows = list(hosted.topics.items())
    for column, former, described in (
        ("log_bytes", "log_bytes", "Bytes of segments"),
        ("log_start_offsets", "log_start_offset", "Log start offsets"),
        ("high_watermarks", "high_watermark", "High watermarks"),
        ("log_end_offsets", "log_end_offset", "Log end offsets"),
    ):
        page.gauge(f"odradek_{column}", f"{described}, added up over all partitions here.")
        page.one(sum(getattr(sums, column) for _, sums in rows))
        page.former(f"odradek_{former}_sum")
        page.gauge(f"odradek_topic_{column}", f"{described}, added up over the topic's partitions here.")
        for name, sums in rows[:named_max]:
            page.sample(getattr(sums, column), topic=name)
        page.former(f"odradek_topic_{former}_sum")
    page.gauge("odradek_topics_unlisted", f"Topics without figures of their own: {TOPICS_MAX} have them.")
    page.one(max(0, len(rows) - named_max))
