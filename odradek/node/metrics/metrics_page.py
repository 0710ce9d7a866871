"""The metrics page, made when it is requested, from figures that the parts of a node keep anyway. PURE.

The parts count in plain numbers (`ApiEntry`), or return their state when called (`statistics()`). So metrics cost
time only when a page is made. `docs/metrics.md` explains every name; a test compares it with the page.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import attrs

from odradek.data_plane.broker import Broker
from odradek.node.auditing import Auditing
from odradek.node.connections.connection_services import ConnectionServices
from odradek.node.connections.server import Server
from odradek.node.entrances import Entrances
from odradek.node.metrics.client_metrics import CLIENTS_SHOWN_MAX, client_metrics
from odradek.node.metrics.controller_metrics import ClusterFigures, cluster_figures, controller_metrics
from odradek.node.metrics.directory_metrics import directory_metrics
from odradek.node.metrics.groups.group_lag import GroupLag
from odradek.node.metrics.groups.group_metrics import group_metrics, lag_metrics
from odradek.node.metrics.hosted_figures import Slices, count_hosted
from odradek.node.metrics.image_figures import ImageCounter
from odradek.node.metrics.kafka_names import (
    KafkaMemory,
    broker_names,
    controller_names,
    lag_names,
    request_names,
)
from odradek.node.metrics.login_metrics import login_metrics
from odradek.node.metrics.metrics_text import MetricsText
from odradek.node.metrics.page.loop_lateness import LoopLateness, PageCosts
from odradek.node.metrics.page.page_forms import PLAIN, PageForm
from odradek.node.metrics.partition_metrics import TOPICS_MAX, partition_metrics, topic_metrics
from odradek.node.metrics.quota_metrics import SHOWN_MAX, quota_metrics
from odradek.node.metrics.replication_metrics import replication_metrics
from odradek.node.metrics.request_metrics import RequestSums, request_metrics, request_sums
from odradek.node.metrics.security_metrics import security_metrics
from odradek.node.metrics.transaction_metrics import transaction_metrics
from odradek.serving.api_table import LATENCY_BOUNDS_SECONDS
from odradek.serving.node_env import NodeEnv


@attrs.frozen(kw_only=True)
class MetricsSources:
    """The parts of a node whose figures are on the page."""

    version: str
    node_id: int
    cluster_id: str
    env: NodeEnv
    started_at: float
    """Start time by the node's monotonic clock."""
    services: Sequence[ConnectionServices]
    """The services of all listeners, both those for controllers and those for clients."""
    servers: Sequence[Server]
    broker: Broker | None
    controller: Any
    """The controller, whose `statistics()` has the figures of the quorum and its state machine."""
    channel: Any
    """The channel to the active controller; its `statistics()` has the figures of the requests."""
    lateness: LoopLateness
    costs: PageCosts
    auditing: Auditing
    """The counts of logins and refusals, which exist even without an audit log."""
    entrances: Entrances
    counter: ImageCounter
    lag: GroupLag | None
    """The lag of groups; None exactly if there is no broker."""
    kafka: KafkaMemory
    has_names: bool
    """False if the page must not name topics, users and client ids."""


def rendered(sources: MetricsSources, form: PageForm) -> Slices[bytes]:
    """Make a page in the form that its reader has asked for."""
    return kafka_page(sources) if form.has_kafka_names else metrics_page(sources, form)


def _request_sums(sources: MetricsSources) -> dict[str, RequestSums]:
    tables = dict.fromkeys(services.table for services in sources.services)
    return request_sums(entry for table in tables for entry in table.entries())


def kafka_page(sources: MetricsSources) -> Slices[bytes]:
    """Make the page with Kafka's names, in slices."""
    page, broker = MetricsText(), sources.broker
    figures = [(server.name, server.statistics()) for server in sources.servers]
    request_names(
        page,
        _request_sums(sources),
        sources.kafka,
        {name: statistics["connections"] for name, statistics in figures},
        waiting=sum(statistics["waiting"] for _, statistics in figures),
        parked=sum(each.held.statistics()["parked"] for each in sources.services),
    )
    if broker is not None and sources.lag is not None:
        hosted = yield from count_hosted(broker)
        placed = yield from sources.counter.count(broker.image)
        yield from sources.kafka.count_records(broker)
        broker_names(page, broker, hosted, placed, sources.kafka, has_names=sources.has_names)
        lag = yield from sources.lag.count(sources.env.clock.monotonic())
        lag_names(page, lag, has_names=sources.has_names)
    metadata = sources.controller
    cluster = ClusterFigures()
    if metadata.is_active:
        image = metadata.committed_image
        cluster = cluster_figures(image, (yield from sources.counter.count(image)))
    controller_names(
        page,
        cluster,
        is_active=metadata.is_active,
        unclean=metadata.decided.unclean_elections,
        errors=metadata.errors.count,
    )
    page.counter("process_cpu_seconds_total", "User and system CPU time of the process.")
    page.one(sources.env.meter.cpu_seconds())
    return page.render()


def metrics_page(sources: MetricsSources, form: PageForm = PLAIN) -> Slices[bytes]:
    """Make the whole page in one of its forms. It is a generator, and pauses after each slice of the work."""
    page = MetricsText(is_openmetrics=form.is_openmetrics)
    _node(page, sources)
    request_metrics(page, _request_sums(sources))
    _connections(page, sources.services, sources.servers)
    security_metrics(page, sources.entrances)
    login_metrics(page, sources.auditing)
    if sources.broker is not None:
        hosted = yield from count_hosted(sources.broker)
        placed = (yield from sources.counter.count(sources.broker.image)).placed
        partition_metrics(page, sources.broker, hosted, placed)
        replication_metrics(page, sources.broker, hosted)
        topic_metrics(page, hosted, TOPICS_MAX if sources.has_names else 0)
        directory_metrics(page, sources.broker, hosted)
        yield
        statistics = sources.broker.statistics((hosted.led, hosted.under_replicated, hosted.under_min_isr))
        _cleaner(page, statistics["cleaner"])
        group_metrics(page, statistics["groups"])
        assert sources.lag is not None
        lag = yield from sources.lag.count(sources.env.clock.monotonic())
        lag_metrics(page, lag, sources.has_names)
        yield
        transaction_metrics(page, sources.broker, statistics["transactions"], hosted)
        quota_metrics(page, sources.broker.quotas, SHOWN_MAX if sources.has_names else 0)
        shown_max = CLIENTS_SHOWN_MAX if sources.has_names else 0
        client_metrics(page, sources.broker.telemetry, sources.env.clock.monotonic(), shown_max)
        shown = ("topics", "partitions", "groups", "transactions", "cleaner", "telemetry")
        _parts(page, "broker", statistics, skip=shown)
    _not_encoded(page, sources)
    yield from controller_metrics(page, sources.controller, sources.counter)
    _parts(page, "controller", sources.controller.statistics())
    _parts(page, "controller_channel", sources.channel.statistics())
    return page.render()


def _node(page: MetricsText, sources: MetricsSources) -> None:
    env = sources.env
    page.gauge("odradek_info", "Id, version and cluster of this node as labels; always 1.")
    page.sample(1, node_id=sources.node_id, cluster_id=sources.cluster_id, version=sources.version)
    page.gauge("odradek_uptime_seconds", "Seconds since this node's process began to start.")
    page.one(env.clock.monotonic() - sources.started_at)
    page.counter("odradek_cpu_seconds_total", "User and system CPU time of the process.")
    page.one(env.meter.cpu_seconds())
    page.histogram("odradek_loop_late_seconds", "How late the event loop woke a task that was due.")
    page.distribution(LATENCY_BOUNDS_SECONDS, sources.lateness.counts, sources.lateness.seconds)
    page.counter("odradek_pages_total", "Pages of metrics that were made, in all forms.")
    page.one(sources.costs.count)
    page.counter("odradek_page_seconds_total", "Time that the event loop has spent on these pages.")
    page.one(sources.costs.seconds)
    long_work = env.long_work.statistics()
    page.counter(
        "odradek_long_work_seconds_total",
        "Time of the pieces of long requests, on the event loop or in the worker.",
    )
    page.one(long_work["seconds"])
    page.gauge("odradek_long_work_waiting", "Long requests that wait for their next turn.")
    page.one(long_work["waiting"])
    page.counter(
        "odradek_described_total",
        "Partitions looked up and described for answers; more expensive things count as several.",
    )
    page.one(long_work["described"])


# -- connections ----------------------------------------------------------------------------------------------------


def _connections(
    page: MetricsText, services: Sequence[ConnectionServices], servers: Sequence[Server]
) -> None:
    figures = {server.name: server.statistics() for server in servers}
    page.gauge("odradek_connections", "Client connections that are open.")
    for listener, statistics in figures.items():
        page.sample(statistics["connections"], listener=listener)
    for field, described in (
        ("accepted", "Connections accepted."),
        (
            "refused",
            "Connections refused: max.connections, max.connections.per.ip, or no descriptors left.",
        ),
        ("reaped", "Connections closed because they were idle for connections.max.idle.ms."),
    ):
        page.counter(f"odradek_connections_{field}_total", described)
        for listener, statistics in figures.items():
            page.sample(statistics[field], listener=listener)
    page.counter(
        "odradek_protocol_errors_total",
        "Connections closed because of malformed requests, or too many TLS records without data.",
    )
    page.one(sum(each.complaints.protocol_errors for each in services))
    page.gauge("odradek_requests_waiting", "Requests that are received and not answered yet.")
    page.one(sum(statistics["waiting"] for statistics in figures.values()))
    held = [each.held.statistics() for each in services]
    page.gauge("odradek_fetches_parked", "Fetches that wait for records.")
    page.one(sum(each["parked"] for each in held))
    page.gauge(
        "odradek_answers_waiting_bytes", "Bytes of answers and requests that wait behind an earlier answer."
    )
    page.one(sum(each["bytes"] for each in held))
    page.gauge(
        "odradek_answers_waiting_limit_bytes",
        "Limit of this memory: above it, connections that use much of it have to wait.",
    )
    page.one(sum(each.held.bytes_max for each in services))
    page.gauge(
        "odradek_connections_held_back",
        "Connections from which nothing is read until some of their answers are sent.",
    )
    page.one(sum(each["waiting"] for each in held))
    page.gauge("odradek_send_queue_bytes", "Bytes of answers that clients have not read yet.")
    page.one(sum(statistics["send_queue_bytes"] for statistics in figures.values()))
    buffers = [each.buffers.statistics() for each in services]
    page.gauge("odradek_receive_buffer_bytes", "Memory of incomplete requests.")
    page.one(sum(each["bytes_used"] for each in buffers))
    page.gauge("odradek_receive_buffer_limit_bytes", "Limit of this memory (queued.max.request.bytes).")
    page.one(sum(each.buffers.bytes_max for each in services))
    page.gauge("odradek_receive_buffer_free_bytes", "Free buffers that are kept for the next requests.")
    page.one(sum(each["bytes_free"] for each in buffers))
    page.gauge("odradek_receive_buffer_waiting", "Connections whose request waits for such memory.")
    page.one(sum(each["waiting"] for each in buffers))
    page.counter(
        "odradek_connections_evicted_total",
        "Connections closed because their incomplete request used memory that others needed.",
    )
    page.one(sum(each["evicted"] for each in buffers))


def _cleaner(page: MetricsText, figures: Mapping[str, float]) -> None:
    """Add the figures that Kafka has for its log cleaner, and our own counts of bytes."""
    for field, metric, described in (
        ("threads", "cleaner_threads", "Threads of the log cleaner."),
        (
            "dead_threads",
            "cleaner_dead_threads",
            "Threads of the log cleaner that have ended although they should run.",
        ),
        (
            "uncleanable_partitions",
            "cleaner_uncleanable_partitions",
            "Logs that the cleaner skips after an error.",
        ),
        (
            "uncleanable_bytes",
            "cleaner_uncleanable_bytes",
            "Bytes of the logs that the cleaner skips after an error.",
        ),
        (
            "max_dirty_percent",
            "cleaner_max_dirty_percent",
            "The dirty percentage of the dirtiest log, at the last check.",
        ),
        (
            "max_compaction_delay_seconds",
            "cleaner_max_compaction_delay_seconds",
            "The time by which the most overdue log has passed max.compaction.lag.ms.",
        ),
        (
            "seconds_max",
            "cleaner_max_clean_time_seconds",
            "The longest duration among the threads' last passes.",
        ),
        (
            "recopy_percent",
            "cleaner_recopy_percent",
            "The bytes that the last pass wrote, divided by those that it read.",
        ),
    ):
        page.gauge(f"odradek_{metric}", described)
        page.one(figures[field])
    for field, described in (
        ("passes", "Passes over a log that were completed."),
        ("passes_failed", "Passes that failed; logs.md has the events."),
        ("bytes_read", "Bytes of segments that passes have rewritten."),
        ("bytes_written", "Bytes of the new segments after rewriting."),
    ):
        page.counter(f"odradek_cleaner_{field}_total", described)
        page.one(figures[field])


def _not_encoded(page: MetricsText, sources: MetricsSources) -> None:
    """Add how many decisions of this node's coordinators and controller could not be encoded as records."""
    page.counter(
        "odradek_decisions_not_encoded_total",
        "Decisions that could not be encoded as records: each client got an error.",
    )
    page.sample(sources.controller.not_encoded.count, decider="controller")
    if sources.broker is not None:
        page.sample(sources.broker.groups.not_encoded.count, decider="groups")
        page.sample(sources.broker.transactions.not_encoded.count, decider="transactions")


# -- everything else ------------------------------------------------------------------------------------------------


def _parts(page: MetricsText, prefix: str, statistics: Mapping[str, Any], skip: Iterable[str] = ()) -> None:
    """Add every number in the nested `statistics()` of the parts, named by its path. A new part needs no code here."""
    for key, value in statistics.items():
        if key in skip:
            continue
        if isinstance(value, Mapping):
            _parts(page, f"{prefix}_{key}", value)
        elif isinstance(value, int | float):
            path = f"{prefix}_{key}"
            page.gauge(f"odradek_{path}", f"`{path.replace('_', ' ')}` of the node's statistics.")
            page.one(value)
