"""Metrics of the group coordinator: numbers of groups and members, and the lag of groups. PURE."""

from __future__ import annotations

from collections.abc import Mapping

from odradek.node.metrics.groups.group_lag import PAIRS_MAX, LagFigures
from odradek.node.metrics.metrics_text import MetricsText

__all__ = ["group_metrics", "lag_metrics"]


def group_metrics(page: MetricsText, statistics: Mapping[str, int]) -> None:
    """Add the figures of the group coordinator. The totals count all partitions of `__consumer_offsets` that this
    broker leads.
    """
    for field, metric, described in (
        ("groups", "groups", "Groups that this broker coordinates."),
        ("members", "group_members", "Members of these groups."),
        ("shards", "group_shards", "Partitions of __consumer_offsets that this broker leads."),
        (
            "loading",
            "group_shards_loading",
            "Partitions of __consumer_offsets whose groups are still being loaded.",
        ),
        ("unanswered", "group_requests_waiting", "Requests of groups that wait: a join, a sync, a commit."),
    ):
        page.gauge(f"odradek_{metric}", described)
        page.one(statistics.get(field, 0))


def lag_metrics(page: MetricsText, lag: LagFigures, has_names: bool) -> None:
    """Add the lag of each group in each topic, unless groups and topics must not be named, and the highest of all."""
    pairs = list(lag.pairs.items()) if has_names else []
    page.gauge("odradek_group_lag_records", "Records in the topic that the group has not committed yet.")
    for (group, topic), each in pairs:
        page.sample(each.records, group=group, topic=topic)
    page.gauge(
        "odradek_group_lag_seconds",
        "Age of the oldest record that the group has not committed, as far as this process has seen the topic grow.",
    )
    for (group, topic), each in pairs:
        page.sample(round(each.seconds, 3), group=group, topic=topic)
    page.gauge("odradek_group_lag_records_max", "The highest lag of a group in one topic, in records.")
    page.one(lag.records_max)
    page.gauge("odradek_group_lag_seconds_max", "The highest lag of a group in one topic, in seconds.")
    page.one(round(lag.seconds_max, 3))
    page.gauge(
        "odradek_group_lags_unlisted",
        f"Groups whose lag is left out: {PAIRS_MAX} pairs of a group and a topic are listed.",
    )
    page.one(lag.groups_left_out)
    page.gauge(
        "odradek_group_lag_unknown_partitions",
        "Partitions with committed offsets whose ends their leaders have not reported.",
    )
    page.one(lag.partitions_unknown)
    page.counter(
        "odradek_group_lag_requests_unanswered_total",
        "Requests to leaders for ends of partitions that were not answered within a second.",
    )
    page.one(lag.unanswered)
