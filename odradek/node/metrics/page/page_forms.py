"""The forms of a page: Prometheus' text or OpenMetrics, by HTTP's header Accept, and gzip, by Accept-Encoding. PURE.

A header names values with weights (RFC 9110, section 12.5): `text/plain;q=0.5, */*;q=0.1`. A weight of 0 refuses the
value.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator

import attrs

__all__ = [
    "OPENMETRICS_TYPE",
    "PLAIN",
    "TEXT_TYPE",
    "PageForm",
    "accepts_gzip",
    "compressed",
    "prefers_openmetrics",
]

TEXT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"
_OPENMETRICS = "application/openmetrics-text"
_VERSIONS = ("", "1.0.0")
GZIP_LEVEL = 1
"""Zlib's fastest level: a page shrinks to a fifth or, with many topics, an eighth. The highest level would take six times as long."""
_GZIP_WINDOW_BITS = 31
"""The window of 32 KiB, and 16 for gzip's header, which has no time: the same page has the same bytes."""


@attrs.frozen
class PageForm:
    """One form of the page. All requests for the same form share a page."""

    is_openmetrics: bool = False
    has_kafka_names: bool = False
    """True for the page with Kafka's names, which exists as text alone."""

    @property
    def content_type(self) -> str:
        return OPENMETRICS_TYPE if self.is_openmetrics else TEXT_TYPE


PLAIN = PageForm()


def prefers_openmetrics(accept: str) -> bool:
    """True if a reader with this header Accept would rather read OpenMetrics 1.0.0 than Prometheus' text."""
    openmetrics = text = wild = 0.0
    for name, parameters, weight in _weighed(accept):
        if name == _OPENMETRICS and parameters.get("version", "") in _VERSIONS:
            openmetrics = max(openmetrics, weight)
        elif name == "text/plain":
            text = max(text, weight)
        elif name in ("*/*", "text/*"):
            wild = max(wild, weight)
    return openmetrics > 0 and openmetrics >= max(text, wild)


def accepts_gzip(accept_encoding: str) -> bool:
    """True if a reader with this header Accept-Encoding understands gzip."""
    weights = {name: weight for name, _, weight in _weighed(accept_encoding)}
    return weights.get("gzip", weights.get("*", 0.0)) > 0


def _weighed(header: str) -> Iterator[tuple[str, dict[str, str], float]]:
    """Yield the values of a header with their parameters and weights. An unreadable weight counts as 0."""
    for each in header.split(","):
        name, *rest = (part.strip() for part in each.split(";"))
        parameters = {
            key.strip().lower(): value.strip().strip('"')
            for key, _, value in (part.partition("=") for part in rest)
        }
        try:
            weight = float(parameters.get("q", "1"))
        except ValueError:
            weight = 0.0
        yield name.lower(), parameters, weight


def compressed(page: bytes) -> bytes:
    """Compress a page by gzip. A page of 100 KB takes about a millisecond, in which other threads may run."""
    packer = zlib.compressobj(GZIP_LEVEL, zlib.DEFLATED, _GZIP_WINDOW_BITS)
    return packer.compress(page) + packer.flush()
