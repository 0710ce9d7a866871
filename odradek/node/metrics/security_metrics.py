"""Metrics of TLS and logins: certificates, handshakes, refused clients. PURE."""

from __future__ import annotations

from odradek.node.entrances import Entrances
from odradek.node.metrics.metrics_text import MetricsText

__all__ = ["security_metrics"]

DAY_SECONDS = 86_400


def security_metrics(page: MetricsText, entrances: Entrances) -> None:
    """Add the figures of all listeners that authenticate their clients to the page."""
    certificates = entrances.certificates.statistics()
    page.gauge(
        "odradek_certificate_time_left_seconds",
        "Seconds until the first of the listener's own certificates expires.",
    )
    for listener, figures in certificates.items():
        if "days_left" in figures:
            page.sample(round(figures["days_left"] * DAY_SECONDS), listener=listener)
    page.former("odradek_certificate_days_left", lambda left: round(left / DAY_SECONDS, 3))
    for field, metric, described in (
        ("reloads", "certificate_reloads", "Times that changed keys or certificates came into use."),
        (
            "failures",
            "certificate_reload_failures",
            "Changed files or values that could not be used, so the former ones stay in use.",
        ),
    ):
        page.counter(f"odradek_{metric}_total", described)
        for listener, figures in certificates.items():
            page.sample(figures[field], listener=listener)
    entering = entrances.statistics()
    page.gauge("odradek_connections_entering", "Clients that have not authenticated yet.")
    for listener, counts in entering.items():
        page.sample(counts["half_open"], listener=listener)
    page.counter("odradek_connections_not_let_in_total", "Connections whose TLS handshake or login failed.")
    for listener, counts in entering.items():
        page.sample(counts["failed"], listener=listener)
    turns = {
        "clients": entrances.handshakes.statistics(),
        "nodes": entrances.peer_handshakes.statistics(),
    }
    page.gauge("odradek_handshakes_waiting", "TLS handshakes that wait for their turn.")
    for peers, statistics in turns.items():
        page.sample(statistics["waiting"], peers=peers)
    for field, metric, described in (
        ("begun", "handshakes", "TLS handshakes begun."),
        ("refused", "handshakes_refused", "TLS handshakes refused because too many waited for their turn."),
    ):
        page.counter(f"odradek_{metric}_total", described)
        for peers, statistics in turns.items():
            page.sample(statistics[field], peers=peers)
