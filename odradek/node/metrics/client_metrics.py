"""Metrics that clients have pushed (KIP-714): each figure by user, client id and role. PURE."""

from __future__ import annotations

from odradek.data_plane.telemetry.client_telemetry import ClientTelemetry
from odradek.data_plane.telemetry.figures import FIGURES, Way, figure_of, role_of
from odradek.node.metrics.metrics_text import MetricsText

__all__ = ["CLIENTS_SHOWN_MAX", "client_metrics"]

CLIENTS_SHOWN_MAX = 100
"""The maximum number of clients that are listed with their own metrics: the clients that pushed last."""


def client_metrics(page: MetricsText, telemetry: ClientTelemetry, now: float, shown_max: int) -> None:
    """Add the client metrics that a broker has received to the page; at most `shown_max` clients are listed
    by name.
    """
    statistics = telemetry.statistics(now)
    page.gauge("odradek_client_instances", "Running clients that have a subscription from this broker.")
    page.one(statistics["instances"])
    page.gauge("odradek_clients", "Users and client ids of these clients, now or in the last minutes.")
    page.one(statistics["clients"])
    page.gauge(
        "odradek_client_subscriptions", "Subscriptions of the cluster: the metrics that clients should push."
    )
    page.one(statistics["subscriptions"])
    page.counter("odradek_client_pushes_total", "Pushes of metrics that were accepted.")
    page.one(statistics["pushes"])
    shown = telemetry.clients.all()[:shown_max]
    page.gauge("odradek_client_info", "The library that the client uses, and its version; always 1.")
    for client in shown:
        library, version = client.software
        page.sample(
            1, user=_user(client.principal), client_id=client.client_id, library=library, version=version
        )
    by_figure: dict[str, list[tuple[float, dict[str, str]]]] = {}
    for client in shown:
        for slot, value in client.figures():
            labels = {"user": _user(client.principal), "client_id": client.client_id, "role": role_of(slot)}
            by_figure.setdefault(figure_of(slot).name, []).append((value, labels))
    for figure in FIGURES:
        begin = page.counter if figure.way is Way.COUNT else page.gauge
        begin(f"odradek_client_{figure.name}", figure.described)
        for value, labels in by_figure.get(figure.name, ()):
            page.sample(value, **labels)


def _user(principal: str) -> str:
    """Return a principal's name without its type, as in the labels of quota metrics."""
    return principal.partition(":")[2]
