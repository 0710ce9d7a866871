"""Metrics of quotas: what clients use, and how long they have waited. PURE."""

from __future__ import annotations

from odradek.data_plane.quotas.client_quotas import Account, ClientQuotas
from odradek.node.metrics.metrics_text import MetricsText

__all__ = ["SHOWN_MAX", "quota_metrics"]

SHOWN_MAX = 200
"""The maximum number of accounts with their own metrics: the accounts that waited the longest."""


def quota_metrics(page: MetricsText, quotas: ClientQuotas, shown_max: int) -> None:
    """Add the quota accounts of one broker to the page; at most `shown_max` are listed by name."""
    statistics = quotas.statistics()
    page.gauge("odradek_quota_accounts", "Quotas that clients use now.")
    page.one(statistics["accounts"])
    page.counter("odradek_quota_exempt_requests_total", "Requests of nodes, which are exempt from quotas.")
    page.one(statistics["exempt_requests"])
    page.counter("odradek_quota_exempt_bytes_total", "Their bytes.")
    page.one(statistics["exempt_bytes"])
    page.counter(
        "odradek_quota_connections_refused_total",
        "Connections refused because they exceeded the quota of their address.",
    )
    page.one(statistics["refused_connections"])
    accounts = sorted(quotas.accounts(), key=lambda each: (-each[1].throttled_seconds, -each[1].used))
    shown = accounts[:shown_max]

    def labels(sharers: tuple[str, str], account: Account) -> dict[str, str]:
        return {"key": account.key, "user": sharers[0], "client_id": sharers[1]}

    page.gauge("odradek_quota", "The limit of the quota: bytes per second, or cores.")
    for sharers, account in shown:
        page.sample(account.rate, **labels(sharers, account))
    page.counter(
        "odradek_quota_used_total", "Bytes, or seconds of processor time, that clients used of the quota."
    )
    for sharers, account in shown:
        page.sample(account.used, **labels(sharers, account))
    page.counter(
        "odradek_quota_throttled_seconds_total", "Throttle times in answers to clients because of the quota."
    )
    for sharers, account in shown:
        page.sample(account.throttled_seconds, **labels(sharers, account))
