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
from odradek.node.metrics.controller_metrics import controller_metrics
from odradek.node.metrics.login_metrics import login_metrics
from odradek.node.metrics.metrics_text import MetricsText
from odradek.node.metrics.quota_metrics import SHOWN_MAX, quota_metrics
from odradek.node.metrics.replication_metrics import replication_metrics
from odradek.node.metrics.security_metrics import security_metrics
from odradek.node.metrics.transaction_metrics import transaction_metrics
from odradek.serving.api_table import LATENCY_BOUNDS_SECONDS, ApiEntry
from odradek.serving.disk_troubles import Trouble
from odradek.serving.node_env import NodeEnv
from odradek.wire.api import api_name
from odradek.wire.errors import ErrorCode

TOPICS_MAX = 200
"""The maximum number of topics with figures of their own; the totals count all topics."""
HOUR_SECONDS = 3600


@attrs.define
class LoopLateness:
    """The lateness of the event loop: how late it wakes tasks that are due. It has a histogram over
    `LATENCY_BOUNDS_SECONDS`, and the sum of the seconds.
    """

    counts: list[int] = attrs.field(factory=lambda: [0] * (len(LATENCY_BOUNDS_SECONDS) + 1))
    seconds: float = 0.0


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
    auditing: Auditing
    """The counts of logins and refusals, which exist even without an audit log."""
    entrances: Entrances
    has_names: bool
    """False if the page must not name topics, users and client ids."""


def metrics_page(sources: MetricsSources) -> bytes:
    """Make the whole page, in Prometheus' text format."""
    page = MetricsText()
    _node(page, sources)
    tables = dict.fromkeys(services.table for services in sources.services)
    _requests(page, [entry for table in tables for entry in table.entries()])
    _connections(page, sources.services, sources.servers)
    security_metrics(page, sources.entrances)
    login_metrics(page, sources.auditing)
    if sources.broker is not None:
        _partitions(page, sources.broker)
        replication_metrics(page, sources.broker)
        _topics(page, sources.broker, TOPICS_MAX if sources.has_names else 0)
        _directories(page, sources.broker)
        _scrubs(page, sources.broker)
        _moves(page, sources.broker.moves.statistics())
        statistics = sources.broker.statistics()
        _cleaner(page, statistics["cleaner"])
        _groups(page, statistics["groups"])
        transaction_metrics(page, sources.broker, statistics["transactions"])
        quota_metrics(page, sources.broker.quotas, SHOWN_MAX if sources.has_names else 0)
        shown_max = CLIENTS_SHOWN_MAX if sources.has_names else 0
        client_metrics(page, sources.broker.telemetry, sources.env.clock.monotonic(), shown_max)
        shown = ("topics", "partitions", "groups", "transactions", "cleaner", "telemetry")
        _parts(page, "broker", statistics, skip=shown)
    _not_encoded(page, sources)
    controller_metrics(page, sources.controller)
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


# -- requests -------------------------------------------------------------------------------------------------------


def _requests(page: MetricsText, entries: list[ApiEntry]) -> None:
    used = sorted(
        (entry for entry in entries if entry.request_bytes), key=lambda entry: (entry.api_key, entry.version)
    )
    by_api: dict[str, list[ApiEntry]] = {}
    for entry in used:
        by_api.setdefault(api_name(entry.api_key), []).append(entry)
    page.counter("odradek_requests_total", "Requests answered, by API and version.")
    for name, group in by_api.items():
        for version in sorted({entry.version for entry in group}):
            answered = sum(sum(entry.latencies) for entry in group if entry.version == version)
            page.sample(answered, api=name, version=version)
    for field, metric, described in (
        ("unanswered", "requests_unanswered", "Requests without an answer: acks=0, and requests that closed their connection."),
        ("delayed", "requests_delayed", "Answered requests that had to wait, or were behind a waiting request of their connection."),
        ("elements", "request_elements", "Array elements of the requests that have more than 4,000."),
        ("request_bytes", "request_bytes", "Bytes of request frames."),
        ("response_bytes", "response_bytes", "Bytes of response frames."),
    ):  # fmt: skip
        page.counter(f"odradek_{metric}_total", described)
        for name, group in by_api.items():
            page.sample(sum(getattr(entry, field) for entry in group), api=name)
    page.counter("odradek_errors_total", "Error codes in responses, each occurrence counted.")
    for name, group in by_api.items():
        errors: dict[int, int] = {}
        for entry in group:
            for code, count in entry.errors.items():
                errors[int(code)] = errors.get(int(code), 0) + count
        for code, count in sorted(errors.items()):
            page.sample(count, api=name, error=_error_name(code))
    page.histogram("odradek_request_seconds", "Time from receiving a request until its answer was sent.")
    for name, group in by_api.items():
        counts = [sum(bucket) for bucket in zip(*(entry.latencies for entry in group), strict=True)]
        seconds = sum(entry.latency_seconds for entry in group)
        page.distribution(LATENCY_BOUNDS_SECONDS, counts, seconds, api=name)


def _error_name(code: int) -> str:
    try:
        return ErrorCode(code).name
    except ValueError:
        return str(code)


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


# -- partitions -----------------------------------------------------------------------------------------------------


def _partitions(page: MetricsText, broker: Broker) -> None:
    hosted = [each for topic in broker.topics.values() for each in topic.partitions.values()]
    led = [each for each in hosted if each.is_leader]
    page.gauge("odradek_topics", "Topics with partitions on this broker.")
    page.one(len(broker.topics))
    page.gauge("odradek_partitions", "Partitions on this broker.")
    page.one(len(hosted))
    page.gauge("odradek_leaders", "Partitions that this broker leads.")
    page.one(len(led))
    page.gauge("odradek_under_replicated_partitions", "Led partitions with replicas that are not in sync.")
    page.one(sum(1 for each in led if each.image and len(each.image.isr) < len(each.image.replicas)))
    page.gauge(
        "odradek_under_min_isr_partitions",
        "Led partitions that refuse acks=all, because too few replicas are in sync.",
    )
    page.one(sum(1 for each in led if not each.has_min_isr))
    page.gauge("odradek_offline_partitions", "Partitions placed on this broker that it cannot serve.")
    page.one(_placed_here(broker) - len(hosted))
    rot = broker.rotten.statistics()
    page.gauge("odradek_rotten_partitions", "Partitions served here whose log fails its checksums.")
    page.one(rot["rotten"])
    page.counter(
        "odradek_replicas_set_aside_total",
        "Logs that failed their checksums and were replaced; the old files are kept.",
    )
    page.one(rot["set_aside"])


def _placed_here(broker: Broker) -> int:
    node_id = broker.settings.node_id
    return sum(
        1
        for topic in broker.image.topics.values()
        for partition in topic.partitions.values()
        if node_id in partition.replicas
    )


def _topics(page: MetricsText, broker: Broker, named_max: int) -> None:
    """Add offsets and bytes of logs: in total, and for each of the first `named_max` topics in the order of their
    names.
    """
    rows: list[tuple[str, list[int]]] = []
    for name in sorted(broker.topics):
        logs = [partition.log for partition in broker.topics[name].partitions.values()]
        rows.append(
            (
                name,
                [
                    sum(log.size_bytes for log in logs),
                    sum(log.log_start_offset for log in logs),
                    sum(log.high_watermark for log in logs),
                    sum(log.log_end_offset for log in logs),
                ],
            )
        )
    for column, metric, former, described in (
        (0, "log_bytes", "log_bytes", "Bytes of segments"),
        (1, "log_start_offsets", "log_start_offset", "Log start offsets"),
        (2, "high_watermarks", "high_watermark", "High watermarks"),
        (3, "log_end_offsets", "log_end_offset", "Log end offsets"),
    ):
        page.gauge(f"odradek_{metric}", f"{described}, added up over all partitions here.")
        page.one(sum(figures[column] for _, figures in rows))
        page.former(f"odradek_{former}_sum")
        page.gauge(f"odradek_topic_{metric}", f"{described}, added up over the topic's partitions here.")
        for name, figures in rows[:named_max]:
            page.sample(figures[column], topic=name)
        page.former(f"odradek_topic_{former}_sum")
    page.gauge("odradek_topics_unlisted", f"Topics without figures of their own: {TOPICS_MAX} have them.")
    page.one(max(0, len(rows) - named_max))


# -- disks ----------------------------------------------------------------------------------------------------------


def _directories(page: MetricsText, broker: Broker) -> None:
    figures = {log_dir.path: log_dir.statistics() for log_dir in broker.log_dirs}
    page.gauge("odradek_directory_offline", "1 if the log directory has failed or is missing, else 0.")
    for path, statistics in figures.items():
        is_away = statistics["offline_reason"] is not None and not statistics["is_released"]
        page.sample(int(is_away), directory=path)
    for path in broker.placement.unavailable:
        page.sample(1, directory=path)
    page.gauge("odradek_directory_released", "1 if the broker has released the log directory, else 0.")
    for path, statistics in figures.items():
        page.sample(int(statistics["is_released"]), directory=path)
    page.gauge(
        "odradek_directory_stalled",
        "1 while the device does not answer and appends to its logs are refused, else 0.",
    )
    for path, statistics in figures.items():
        page.sample(int(statistics["is_stalled"]), directory=path)
    page.gauge(
        "odradek_directory_short", "1 while the disk is full up to its reserve and refuses records, else 0."
    )
    for path, statistics in figures.items():
        page.sample(int(statistics["is_short"]), directory=path)
    for trouble, described in (
        (
            Trouble.HUNG,
            "1 while the device does not answer and replicas on other brokers should lead, else 0.",
        ),
        (Trouble.FULL, "1 while the device has no room and replicas on other brokers should lead, else 0."),
    ):
        page.gauge(f"odradek_directory_{trouble.value}", described)
        for path, statistics in figures.items():
            page.sample(int(statistics["trouble"] == trouble.value), directory=path)
    for field, described in (
        ("logs", "Logs in the directory."),
        ("size_bytes", "Bytes of segments in the directory."),
        ("free_bytes", "Free bytes of the device at the last check; -1: not known."),
        ("is_slow", "1 while syncs take ten times as long as usual, else 0."),
        ("sync_seconds", "The mean time of the last few syncs."),
        ("usual_sync_seconds", "The mean time of the last few hundred syncs."),
        ("reserve_bytes", "Bytes of the device that are kept free of records."),
        ("fill_bytes_per_second", "The rate at which free space has decreased in the last hour."),
        ("files_to_remove", "Files of removed segments that are still on disk."),
        ("directories_to_remove", "Deleted partitions that are still on disk."),
    ):
        page.gauge(f"odradek_directory_{field}", described)
        for path, statistics in figures.items():
            page.sample(statistics.get(field, -1), directory=path)
    page.gauge(
        "odradek_directory_time_left_seconds",
        "Seconds until only the reserve is left, at that rate; -1: the disk does not fill.",
    )
    for path, statistics in figures.items():
        hours = statistics.get("hours_left", -1)
        page.sample(hours if hours < 0 else hours * HOUR_SECONDS, directory=path)
    page.former("odradek_directory_hours_left", lambda left: left if left < 0 else left / HOUR_SECONDS)
    for field, described in (
        ("errors", "Disk operations that failed, or were refused because space or file descriptors ran out."),
        ("flushes", "Flushes of logs."),
        ("segments_removed", "Segments removed by retention."),
    ):
        page.counter(f"odradek_directory_{field}_total", described)
        for path, statistics in figures.items():
            page.sample(statistics[field], directory=path)


def _scrubs(page: MetricsText, broker: Broker) -> None:
    scrubs = broker.scrubber.statistics()
    page.gauge(
        "odradek_directory_scrub_progress",
        "The share of logs that the present round of the scrub has read; 1 between rounds.",
    )
    for path, statistics in scrubs.items():
        page.sample(statistics["progress"], directory=path)
    page.gauge(
        "odradek_directory_scrub_ended_timestamp_seconds",
        "The end of the scrub's last complete round, in seconds since 1970; -1: there was none.",
    )
    for path, statistics in scrubs.items():
        ended_ms = statistics["ended_ms"]
        page.sample(ended_ms if ended_ms < 0 else ended_ms / 1000, directory=path)
    page.former("odradek_directory_scrub_ended_ms", lambda ended: ended if ended < 0 else round(ended * 1000))
    for field, described in (
        ("bytes", "Bytes that the scrub has read."),
        ("rotten", "Logs in which the scrub has found damaged records."),
    ):
        page.counter(f"odradek_directory_scrub_{field}_total", described)
        for path, statistics in scrubs.items():
            page.sample(statistics[field], directory=path)


def _moves(page: MetricsText, figures: Mapping[str, int]) -> None:
    """Add the figures of replicas that move between the directories of this broker."""
    page.gauge("odradek_directory_moving_replicas", "Replicas that move to another directory of this broker.")
    page.sample(figures["replicas_moving"])
    for field, metric, described in (
        ("moved_bytes", "directory_moved_bytes_total", "Bytes copied from one directory to another."),
        (
            "replicas_moved",
            "directory_moved_replicas_total",
            "Replicas that have moved to another directory.",
        ),
        (
            "moves_given_up",
            "directory_given_up_moves_total",
            "Moves to another directory that were given up.",
        ),
    ):
        page.counter(f"odradek_{metric}", described)
        page.sample(figures[field])


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


# -- groups ---------------------------------------------------------------------------------------------------------


def _groups(page: MetricsText, statistics: Mapping[str, int]) -> None:
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
