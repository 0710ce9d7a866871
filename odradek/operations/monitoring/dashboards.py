"""The dashboards: for each a list of panels with their queries. PURE.

`JOB` stands for the selector of the nodes' scrape job, without braces. A dashboard may have one more variable, such as `$topic`.
"""

from __future__ import annotations

import attrs

__all__ = ["DASHBOARDS", "JOB", "Dashboard", "Panel", "Query"]

JOB = 'job=~"$job"'
_RATE = "[$__rate_interval]"


@attrs.frozen
class Query:
    """A query of a panel, with the pattern of its legend."""

    expr: str
    legend: str


@attrs.frozen
class Panel:
    """A panel: a graph over time, or a single number (`stat`)."""

    title: str
    unit: str
    """A unit of Grafana: short, bytes, Bps, s, ops, percentunit."""
    queries: tuple[Query, ...]
    is_stat: bool = False


@attrs.frozen
class Dashboard:
    """A dashboard. Its variable, if it has one, takes the values of a label."""

    name: str
    title: str
    panels: tuple[Panel, ...]
    variable: str | None = None
    """The label whose values can be chosen; None if there is no such variable."""
    variable_of: str = ""
    """The metric from which the values come."""


def _graph(title: str, unit: str, *queries: tuple[str, str]) -> Panel:
    return Panel(title, unit, tuple(Query(*each) for each in queries))


def _number(title: str, unit: str, expr: str) -> Panel:
    return Panel(title, unit, (Query(expr, ""),), is_stat=True)


def _rates(counter: str, by: str, more: str = "") -> str:
    return f"sum by ({by}) (rate({counter}{{{JOB}{more}}}{_RATE}))"


_TOPIC, _GROUP, _CLIENT = ',topic=~"$topic"', ',group=~"$group"', ',client_id=~"$client_id"'

_CLUSTER = Dashboard(
    "cluster",
    "Odradek / Cluster",
    (
        _number("Brokers", "short", f"max(odradek_cluster_brokers{{{JOB}}})"),
        _number("Fenced brokers", "short", f"max(odradek_cluster_fenced_brokers{{{JOB}}})"),
        _number("Active controllers", "short", f"sum(odradek_active_controller{{{JOB}}})"),
        _number("Offline partitions", "short", f"max(odradek_cluster_offline_partitions{{{JOB}}})"),
        _number("Under-replicated partitions", "short", f"sum(odradek_under_replicated_partitions{{{JOB}}})"),
        _number("Partitions under min ISR", "short", f"sum(odradek_under_min_isr_partitions{{{JOB}}})"),
        _graph("Records written", "ops", (f"sum by (instance) (clamp_min(deriv(odradek_log_end_offsets{{{JOB}}}{_RATE}), 0))", "{{instance}}")),
        _graph("Bytes in and out", "Bps", (_rates("odradek_request_bytes_total", "instance"), "{{instance}} in"), (_rates("odradek_response_bytes_total", "instance"), "{{instance}} out")),
        _graph("Requests", "ops", (_rates("odradek_requests_total", "api"), "{{api}}")),
        _graph(
            "Latency of Produce", "s",
            *((f"histogram_quantile({quantile}, sum by (le) (rate(odradek_request_seconds_bucket{{{JOB},api=\"Produce\"}}{_RATE})))", f"p{round(100 * quantile)}") for quantile in (0.5, 0.99)),
        ),
        _graph("Error codes", "ops", (_rates("odradek_errors_total", "api, error"), "{{api}} {{error}}")),
        _graph("Processor", "percentunit", (f"rate(odradek_cpu_seconds_total{{{JOB}}}{_RATE})", "{{instance}}")),
        _graph("Lateness of the event loop, p99", "s", (f"histogram_quantile(0.99, sum by (instance, le) (rate(odradek_loop_late_seconds_bucket{{{JOB}}}{_RATE})))", "{{instance}}")),
        _graph("Connections", "short", (f"sum by (instance, listener) (odradek_connections{{{JOB}}})", "{{instance}} {{listener}}")),
        _graph("Leaders and partitions", "short", (f"odradek_leaders{{{JOB}}}", "{{instance}} leads"), (f"odradek_partitions{{{JOB}}}", "{{instance}} has")),
        _graph("Lag of followers", "short", (f"max by (instance) (odradek_follower_lag_max_records{{{JOB}}})", "{{instance}}")),
        _graph("Changes of ISRs", "ops", (_rates("odradek_isr_shrinks_total", "instance"), "{{instance}} shrinks"), (_rates("odradek_isr_expands_total", "instance"), "{{instance}} expands")),
        _graph("Epoch and lag of the metadata", "short", (f"odradek_quorum_epoch{{{JOB}}}", "{{instance}} epoch"), (f"odradek_quorum_lag_records{{{JOB}}}", "{{instance}} lag")),
    ),
)  # fmt: skip

_TOPICS = Dashboard(
    "topic",
    "Odradek / Topic",
    (
        _graph("Records written", "ops", (f"max by (topic) (clamp_min(deriv(odradek_topic_log_end_offsets{{{JOB}{_TOPIC}}}{_RATE}), 0))", "{{topic}}")),
        _graph("Bytes on disk, all replicas", "bytes", (f"sum by (topic) (odradek_topic_log_bytes{{{JOB}{_TOPIC}}})", "{{topic}}")),
        _graph("Bytes on disk by node", "bytes", (f"sum by (instance, topic) (odradek_topic_log_bytes{{{JOB}{_TOPIC}}})", "{{topic}} {{instance}}")),
        _graph("Offsets that are kept, by node", "short", (f"odradek_topic_log_end_offsets{{{JOB}{_TOPIC}}} - odradek_topic_log_start_offsets{{{JOB}{_TOPIC}}}", "{{topic}} {{instance}}")),
        _graph("Offsets that are not replicated yet", "short", (f"odradek_topic_log_end_offsets{{{JOB}{_TOPIC}}} - odradek_topic_high_watermarks{{{JOB}{_TOPIC}}}", "{{topic}} {{instance}}")),
        _graph("Lag of the groups that read it", "short", (f"sum by (group, topic) (odradek_group_lag_records{{{JOB}{_TOPIC}}})", "{{topic}} {{group}}")),
    ),
    "topic",
    "odradek_topic_log_bytes",
)  # fmt: skip

_GROUPS = Dashboard(
    "group",
    "Odradek / Group",
    (
        _number("Groups", "short", f"sum(odradek_groups{{{JOB}}})"),
        _number("Members", "short", f"sum(odradek_group_members{{{JOB}}})"),
        _number("Groups that are not listed", "short", f"sum(odradek_group_lags_unlisted{{{JOB}}})"),
        _number("Partitions whose end is unknown", "short", f"sum(odradek_group_lag_unknown_partitions{{{JOB}}})"),
        _graph("Lag in records", "short", (f"sum by (group, topic) (odradek_group_lag_records{{{JOB}{_GROUP}}})", "{{group}} {{topic}}")),
        _graph("Lag in seconds", "s", (f"max by (group, topic) (odradek_group_lag_seconds{{{JOB}{_GROUP}}})", "{{group}} {{topic}}")),
        _graph("Highest lag of a node's groups", "s", (f"odradek_group_lag_seconds_max{{{JOB}}}", "{{instance}}")),
        _graph("Requests of groups that wait", "short", (f"odradek_group_requests_waiting{{{JOB}}}", "{{instance}}")),
        _graph("Joins, heartbeats and commits", "ops", (f"sum by (api) (rate(odradek_requests_total{{{JOB},api=~\"JoinGroup|SyncGroup|Heartbeat|ConsumerGroupHeartbeat|OffsetCommit\"}}{_RATE}))", "{{api}}")),
    ),
    "group",
    "odradek_group_lag_records",
)  # fmt: skip

_CLIENTS = Dashboard(
    "client",
    "Odradek / Client",
    (
        _number("Clients that push metrics", "short", f"sum(odradek_clients{{{JOB}}})"),
        _number("Connections", "short", f"sum(odradek_connections{{{JOB}}})"),
        _graph("Libraries", "short", (f"count by (library, version) (odradek_client_info{{{JOB}{_CLIENT}}})", "{{library}} {{version}}")),
        _graph("Latency of requests, longest", "s", (f"max by (client_id, role) (odradek_client_request_latency_max_seconds{{{JOB}{_CLIENT}}})", "{{client_id}} {{role}}")),
        _graph("Time of records in the producer, longest", "s", (f"max by (client_id) (odradek_client_record_queue_time_max_seconds{{{JOB}{_CLIENT}}})", "{{client_id}}")),
        _graph("Partitions assigned to consumers", "short", (f"sum by (client_id) (odradek_client_assigned_partitions{{{JOB}{_CLIENT}}})", "{{client_id}}")),
        _graph("Throttle times by quota", "s", (f"sum by (user, client_id, key) (rate(odradek_quota_throttled_seconds_total{{{JOB}{_CLIENT}}}{_RATE}))", "{{user}} {{client_id}} {{key}}")),
        _graph("Use of quotas", "short", (f"sum by (user, client_id, key) (rate(odradek_quota_used_total{{{JOB}{_CLIENT}}}{_RATE}))", "{{user}} {{client_id}} {{key}}")),
        _graph("Connections accepted and refused", "ops", (_rates("odradek_connections_accepted_total", "listener"), "{{listener}} accepted"), (_rates("odradek_connections_refused_total", "listener"), "{{listener}} refused")),
        _graph("Protocol errors", "ops", (_rates("odradek_protocol_errors_total", "instance"), "{{instance}}")),
        _graph("Requests that wait", "short", (f"odradek_requests_waiting{{{JOB}}}", "{{instance}}"), (f"odradek_fetches_parked{{{JOB}}}", "{{instance}} fetches")),
    ),
    "client_id",
    "odradek_client_info",
)  # fmt: skip

_DISKS = Dashboard(
    "disks",
    "Odradek / Disks",
    (
        _number("Directories that have failed or hang", "short", f"sum(odradek_directory_offline{{{JOB}}}) + sum(odradek_directory_hung{{{JOB}}})"),
        _number("Directories that are full", "short", f"sum(odradek_directory_full{{{JOB}}}) + sum(odradek_directory_short{{{JOB}}})"),
        _number("Logs that fail their checksums", "short", f"sum(odradek_rotten_partitions{{{JOB}}})"),
        _graph("Free bytes", "bytes", (f"odradek_directory_free_bytes{{{JOB}}}", "{{instance}} {{directory}}")),
        _graph("Bytes of segments", "bytes", (f"odradek_directory_size_bytes{{{JOB}}}", "{{instance}} {{directory}}")),
        _graph("Time until full (-1: never)", "s", (f"odradek_directory_time_left_seconds{{{JOB}}}", "{{instance}} {{directory}}")),
        _graph("Time of a sync", "s", (f"odradek_directory_sync_seconds{{{JOB}}}", "{{instance}} {{directory}}"), (f"odradek_directory_usual_sync_seconds{{{JOB}}}", "{{instance}} {{directory}} usual")),
        _graph("Flushes and errors", "ops", (_rates("odradek_directory_flushes_total", "instance, directory"), "{{instance}} {{directory}} flushes"), (_rates("odradek_directory_errors_total", "instance, directory"), "{{instance}} {{directory}} errors")),
        _graph("Progress of the scrub", "percentunit", (f"odradek_directory_scrub_progress{{{JOB}}}", "{{instance}} {{directory}}")),
        _graph("Bytes that the cleaner has written", "Bps", (_rates("odradek_cleaner_bytes_written_total", "instance"), "{{instance}}")),
        _graph("Bytes moved between directories", "Bps", (_rates("odradek_directory_moved_bytes_total", "instance"), "{{instance}}")),
        _graph("Replication", "Bps", (_rates("odradek_replication_in_bytes_total", "instance"), "{{instance}} in"), (_rates("odradek_reassignment_in_bytes_total", "instance"), "{{instance}} for added replicas")),
    ),
)  # fmt: skip

DASHBOARDS = {each.name: each for each in (_CLUSTER, _TOPICS, _GROUPS, _CLIENTS, _DISKS)}
"""All dashboards by name."""
