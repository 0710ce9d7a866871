"""Metrics of requests: how many, how large, how long they took, and their errors. PURE."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import attrs

from odradek.node.metrics.metrics_text import MetricsText
from odradek.serving.api_table import LATENCY_BOUNDS_SECONDS, ApiEntry
from odradek.wire.api import api_name
from odradek.wire.errors import ErrorCode

__all__ = ["RequestSums", "request_metrics", "request_sums"]


@attrs.define
class RequestSums:
    """Sums over all versions of one API, and over all listeners."""

    versions: dict[int, int] = attrs.field(factory=dict)
    """Answered requests by version."""
    errors: dict[str, int] = attrs.field(factory=dict)
    latencies: list[int] = attrs.field(factory=lambda: [0] * (len(LATENCY_BOUNDS_SECONDS) + 1))
    """Answered requests by bucket of latency."""
    latency_seconds: float = 0.0
    unanswered: int = 0
    delayed: int = 0
    elements: int = 0
    request_bytes: int = 0
    response_bytes: int = 0

    @property
    def answered(self) -> int:
        return sum(self.latencies)

    @property
    def failed(self) -> int:
        return sum(count for name, count in self.errors.items() if name != ErrorCode.NONE.name)


def request_sums(entries: Iterable[ApiEntry]) -> dict[str, RequestSums]:
    """Add up the counts of all APIs that were requested, by name, in the order of their keys."""
    found: dict[str, RequestSums] = {}
    for entry in sorted(
        (entry for entry in entries if entry.request_bytes), key=lambda entry: (entry.api_key, entry.version)
    ):
        sums = found.setdefault(api_name(entry.api_key), RequestSums())
        sums.versions[entry.version] = sums.versions.get(entry.version, 0) + sum(entry.latencies)
        for code, count in sorted((int(code), count) for code, count in entry.errors.items()):
            name = _error_name(code)
            sums.errors[name] = sums.errors.get(name, 0) + count
        sums.latencies = [a + b for a, b in zip(sums.latencies, entry.latencies, strict=True)]
        sums.latency_seconds += entry.latency_seconds
        sums.unanswered += entry.unanswered
        sums.delayed += entry.delayed
        sums.elements += entry.elements
        sums.request_bytes += entry.request_bytes
        sums.response_bytes += entry.response_bytes
    return found


def _error_name(code: int) -> str:
    try:
        return ErrorCode(code).name
    except ValueError:
        return str(code)


def request_metrics(page: MetricsText, apis: Mapping[str, RequestSums]) -> None:
    """Add the figures of all APIs to the page."""
    page.counter("odradek_requests_total", "Requests answered, by API and version.")
    for name, sums in apis.items():
        for version, answered in sums.versions.items():
            page.sample(answered, api=name, version=version)
    for field, metric, described in (
        ("unanswered", "requests_unanswered", "Requests without an answer: acks=0, and requests that closed their connection."),
        ("delayed", "requests_delayed", "Answered requests that had to wait, or were behind a waiting request of their connection."),
        ("elements", "request_elements", "Array elements of the requests that have more than 4,000."),
        ("request_bytes", "request_bytes", "Bytes of request frames."),
        ("response_bytes", "response_bytes", "Bytes of response frames."),
    ):  # fmt: skip
        page.counter(f"odradek_{metric}_total", described)
        for name, sums in apis.items():
            page.sample(getattr(sums, field), api=name)
    page.counter("odradek_errors_total", "Error codes in responses, each occurrence counted.")
    for name, sums in apis.items():
        for error, count in sums.errors.items():
            page.sample(count, api=name, error=error)
    page.histogram("odradek_request_seconds", "Time from receiving a request until its answer was sent.")
    for name, sums in apis.items():
        page.distribution(LATENCY_BOUNDS_SECONDS, sums.latencies, sums.latency_seconds, api=name)
