"""The figures that a node keeps about its clients: their source metrics, and how the values of several
instances are combined. PURE.

A client may use any names for metrics and labels. A node reads only the metrics in this table, and only
numbers without labels. So the memory that a client can use up is bounded. There is one exception. If a client
reports a figure only with labels, e.g. the request time of each node, the mean or the largest number counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum

import attrs

from odradek.data_plane.telemetry.otlp import Point

__all__ = ["FIGURES", "ROLES", "SLOTS", "Figure", "Pushed", "Way", "figure_of", "gather", "role_of"]

PREFIX = "org.apache.kafka."
ROLES = ("producer", "consumer", "admin")
"""The kinds of clients. The metrics of an admin client begin with `admin.client.`."""
VALUE_MAX = 1e15
"""The largest number that a figure may have. Larger numbers are replaced by it, so that sums stay finite."""


class Way(Enum):
    """The way in which the numbers of several instances are combined into one."""

    COUNT = "added up for as long as the client is known"
    SUM = "added up over the instances"
    MEAN = "the mean of the instances"
    LARGEST = "the largest of the instances"


@attrs.frozen
class Figure:
    """One figure on the metrics page: its name, the way to combine it, and its source metrics."""

    name: str
    """The name on the metrics page, without the prefix `odradek_client_`."""
    way: Way
    described: str
    sources: tuple[str, ...]
    """The names of the pushed metrics from which the figure is read, without the common prefix and the role.
    """
    scale: float = 1.0
    """The factor that converts the metric's unit to the figure's unit."""


def _times(name: str, described: str, *sources: str) -> tuple[Figure, Figure]:
    """Make two figures about a time that clients report in milliseconds: the mean time and the longest time."""
    mean = tuple(f"{source}.avg" for source in sources)
    longest = tuple(f"{source}.max" for source in sources)
    return (
        Figure(f"{name}_avg_seconds", Way.MEAN, f"{described}, on average.", mean, 0.001),
        Figure(f"{name}_max_seconds", Way.LARGEST, f"{described}, at most.", longest, 0.001),
    )


def _count(name: str, described: str, source: str) -> Figure:
    return Figure(f"{name}_total", Way.COUNT, described, (source,))


FIGURES = (
    *_times(
        "request_latency", "Time from a request to its answer", "request.latency", "node.request.latency"
    ),
    *_times(
        "throttle_time",
        "Time that brokers made the client wait by quotas",
        "produce.throttle.time",
        "fetch.manager.fetch.throttle.time",
    ),
    *_times("record_queue_time", "Time that a record waits in the producer", "record.queue.time"),
    *_times("fetch_latency", "Time that a fetch takes", "fetch.manager.fetch.latency"),
    *_times("commit_latency", "Time that a commit of offsets takes", "coordinator.commit.latency"),
    *_times("rebalance_latency", "Time that a rebalance takes", "coordinator.rebalance.latency"),
    Figure(
        "poll_idle_ratio",
        Way.MEAN,
        "The share of time that the consumer spends in poll.",
        ("poll.idle.ratio.avg",),
    ),
    Figure(
        "assigned_partitions",
        Way.SUM,
        "Partitions that groups have assigned to the consumers.",
        ("coordinator.assigned.partitions",),
    ),
    Figure(
        "records_lag_max",
        Way.LARGEST,
        "Lag of the consumer, in records, in the partition where it is largest.",
        ("fetch.manager.records.lag.max",),
    ),
    _count("connections_created", "Connections that the client has opened.", "connection.creation.total"),
    _count("records_sent", "Records that the producer has sent.", "record.send.total"),
    _count("record_errors", "Records that the producer could not deliver.", "record.error.total"),
    _count("record_retries", "Records that the producer has sent again.", "record.retry.total"),
    _count("records_consumed", "Records that the consumer has read.", "fetch.manager.records.consumed.total"),
    _count(
        "consumed_bytes",
        "Bytes of the records that the consumer has read.",
        "fetch.manager.bytes.consumed.total",
    ),
    _count("outgoing_bytes", "Bytes that the client has sent to brokers.", "outgoing.byte.total"),
    _count("incoming_bytes", "Bytes that the client has received from brokers.", "incoming.byte.total"),
    _count("rebalances", "Rebalances that the consumer took part in.", "coordinator.rebalance.total"),
    _count("failed_rebalances", "Rebalances that failed.", "coordinator.failed.rebalance.total"),
)
"""All figures, in the order of the metrics page. Each of them is one metric family there."""


def _slots() -> dict[bytes, int]:
    slots = {}
    for role_number, role in enumerate(ROLES):
        of_role = f"{PREFIX}{role}." if role != "admin" else f"{PREFIX}admin.client."
        for number, figure in enumerate(FIGURES):
            for source in figure.sources:
                slots[f"{of_role}{source}".encode()] = role_number * len(FIGURES) + number
    return slots


SLOTS: Mapping[bytes, int] = _slots()
"""For each full metric name, its slot: one number that stands for a role and a figure."""


def role_of(slot: int) -> str:
    """Return the role that a slot stands for, one of `ROLES`."""
    return ROLES[slot // len(FIGURES)]


def figure_of(slot: int) -> Figure:
    """Return the figure that a slot stands for."""
    return FIGURES[slot % len(FIGURES)]


@attrs.frozen
class Pushed:
    """The numbers of one push, by slot (see `SLOTS`)."""

    gauges: Mapping[int, float]
    counts: Mapping[int, float]
    """Counts of events since the instance's previous push."""


def gather(points: Iterable[Point]) -> Pushed:
    """Make the numbers of one push from its points.

    A number without labels has priority; otherwise the numbers with labels are combined.
    """
    whole: dict[int, float] = {}
    parts: dict[int, list[float]] = {}
    counts: dict[int, float] = {}
    for point in points:
        slot = SLOTS[point.name]
        figure = figure_of(slot)
        value = max(-VALUE_MAX, min(VALUE_MAX, point.value * figure.scale))
        if figure.way is Way.COUNT:
            if point.is_sum and not point.is_labelled and value >= 0:
                counts[slot] = min(VALUE_MAX, counts.get(slot, 0.0) + value)
        elif not point.is_sum:
            if point.is_labelled:
                parts.setdefault(slot, []).append(value)
            else:
                whole[slot] = value
    for slot, values in parts.items():
        if slot not in whole and figure_of(slot).way is not Way.SUM:
            whole[slot] = joined(figure_of(slot).way, values)
    return Pushed(whole, counts)


def joined(way: Way, values: list[float]) -> float:
    """Combine several numbers into one by their mean, sum or largest value."""
    if way is Way.LARGEST:
        return max(values)
    return sum(values) / len(values) if way is Way.MEAN else sum(values)
