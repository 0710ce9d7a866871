"""Metrics of log directories: their health, room, scrubs, and moves of replicas between them. PURE."""

from __future__ import annotations

from collections.abc import Mapping

from odradek.data_plane.broker import Broker
from odradek.node.metrics.hosted_figures import HostedFigures
from odradek.node.metrics.metrics_text import MetricsText
from odradek.serving.disk_troubles import Trouble

__all__ = ["directory_metrics"]

HOUR_SECONDS = 3600


def directory_metrics(page: MetricsText, broker: Broker, hosted: HostedFigures) -> None:
    """Add the figures of all log directories to the page."""
    _directories(page, broker, hosted)
    _scrubs(page, broker)
    _moves(page, broker.moves.statistics())


def _directories(page: MetricsText, broker: Broker, hosted: HostedFigures) -> None:
    figures = {
        log_dir.path: log_dir.statistics(hosted.directories[log_dir].log_bytes) for log_dir in broker.log_dirs
    }
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
    _sizes_and_counts(page, figures)


def _sizes_and_counts(page: MetricsText, figures: Mapping[str, Mapping[str, float]]) -> None:
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
