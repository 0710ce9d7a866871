"""The alerts: the trouble, for how long it lasts, how urgent it is, and which section of docs/operations.md helps. PURE.

Three degrees of urgency stand in docs/operations.md: `critical` (at once), `warning` (today), `info` (this week). `JOB` stands
for the selector of the nodes' pages.
"""

from __future__ import annotations

import attrs

__all__ = ["ALERTS", "JOB", "Alert"]

JOB = "JOB"
"""The place of the label selector in an expression."""
_DAY = 86_400
_MINUTES = 60


@attrs.frozen
class Alert:
    """One alert rule."""

    name: str
    expr: str
    for_seconds: int
    severity: str
    summary: str
    """A sentence for the operator. `{{ ... }}` are values of Prometheus."""
    anchor: str
    """The heading in docs/operations.md, as links write it."""


_CONTROLLER = f"max by (job) (odradek_active_controller{JOB})"
ALERTS = (
    Alert(
        "OdradekNodeDown", f"up{JOB} == 0", 1 * _MINUTES, "critical",
        "The metrics page of {{ $labels.instance }} does not answer.", "a-node-does-not-start",
    ),
    Alert(
        "OdradekNoActiveController", f"{_CONTROLLER} == 0 or absent({_CONTROLLER})", 30, "critical",
        "No node is the active controller: metadata cannot change.", "the-quorum-has-no-leader",
    ),
    Alert(
        "OdradekOfflinePartitions", f"max by (job) (odradek_cluster_offline_partitions{JOB}) > 0", 15, "critical",
        "{{ $value }} partitions have no leader.", "a-partition-is-offline",
    ),
    Alert(
        "OdradekUnderMinIsr", f"sum by (job) (odradek_under_min_isr_partitions{JOB}) > 0", 1 * _MINUTES, "critical",
        "{{ $value }} partitions refuse acks=all.", "a-topic-is-under-replicated",
    ),
    Alert(
        "OdradekUncleanElection", f"increase(odradek_active_controller_unclean_elections_total{JOB}[15m]) > 0", 0, "critical",
        "A leader was elected that may lack records.", "a-partition-is-offline",
    ),
    Alert(
        "OdradekRottenPartitions", f"odradek_rotten_partitions{JOB} > 0", 0, "critical",
        "{{ $value }} logs on {{ $labels.instance }} fail their checksums.", "a-disk-hangs-or-has-failed",
    ),
    Alert(
        "OdradekDirectoryFailed", f"odradek_directory_offline{JOB} == 1 or odradek_directory_hung{JOB} == 1", 1 * _MINUTES, "critical",
        "The log directory {{ $labels.directory }} of {{ $labels.instance }} has failed or hangs.", "a-disk-hangs-or-has-failed",
    ),
    Alert(
        "OdradekDirectoryFull", f"odradek_directory_full{JOB} == 1 or odradek_directory_short{JOB} == 1", 1 * _MINUTES, "critical",
        "The log directory {{ $labels.directory }} of {{ $labels.instance }} refuses records: it is full.", "a-disk-is-full",
    ),
    Alert(
        "OdradekDirectoryFills",
        f"odradek_directory_time_left_seconds{JOB} >= 0 and odradek_directory_time_left_seconds{JOB} < {_DAY}", 10 * _MINUTES, "warning",
        "The log directory {{ $labels.directory }} of {{ $labels.instance }} is full in {{ $value | humanizeDuration }}.", "a-disk-is-full",
    ),
    Alert(
        "OdradekUnderReplicated",
        f"sum by (job) (odradek_under_replicated_partitions{JOB}) > 0 unless sum by (job) (odradek_reassigning_partitions{JOB}) > 0",
        10 * _MINUTES, "warning",
        "{{ $value }} partitions have replicas that are not in sync.", "a-topic-is-under-replicated",
    ),
    Alert(
        "OdradekBrokerFenced", f"max by (job) (odradek_cluster_fenced_brokers{JOB}) > 0", 2 * _MINUTES, "warning",
        "{{ $value }} brokers are fenced.", "a-topic-is-under-replicated",
    ),
    Alert(
        "OdradekVoterSilent", f"odradek_quorum_voter_silent_seconds{JOB} > 60", 1 * _MINUTES, "warning",
        "The controller {{ $labels.voter }} has not fetched for {{ $value | humanizeDuration }}.", "the-quorum-has-no-leader",
    ),
    Alert(
        "OdradekGroupLags", f"odradek_group_lag_seconds{JOB} > 600", 5 * _MINUTES, "warning",
        "The group {{ $labels.group }} is {{ $value | humanizeDuration }} behind in {{ $labels.topic }}.", "consumers-lag",
    ),
    Alert(
        "OdradekUnnamedGroupLags",
        f"odradek_group_lag_seconds_max{JOB} > 600 unless on (job, instance) odradek_group_lag_seconds{JOB} > 600", 5 * _MINUTES, "warning",
        "A group that {{ $labels.instance }} does not name is {{ $value | humanizeDuration }} behind.", "consumers-lag",
    ),
    Alert(
        "OdradekTransactionHangs", f"odradek_transaction_age_seconds{JOB} > 900", 5 * _MINUTES, "warning",
        "A transaction is open for {{ $value | humanizeDuration }}.", "a-transaction-hangs",
    ),
    Alert(
        "OdradekLoopLate",
        f"histogram_quantile(0.99, sum by (job, instance, le) (rate(odradek_loop_late_seconds_bucket{JOB}[5m]))) > 0.5", 10 * _MINUTES, "warning",
        "The event loop of {{ $labels.instance }} is late by {{ $value | humanizeDuration }}.", "a-node-is-slow",
    ),
    Alert(
        "OdradekCoreUsedUp", f"rate(odradek_cpu_seconds_total{JOB}[5m]) > 0.95", 15 * _MINUTES, "warning",
        "{{ $labels.instance }} uses its whole core.", "a-node-is-slow",
    ),
    Alert(
        "OdradekReceiveBuffersFull",
        f"odradek_receive_buffer_bytes{JOB} > 0.9 * odradek_receive_buffer_limit_bytes{JOB}", 5 * _MINUTES, "warning",
        "Requests that have partly arrived fill the memory of {{ $labels.instance }}.", "memory-grows",
    ),
    Alert(
        "OdradekCertificateEndsSoon", f"odradek_certificate_time_left_seconds{JOB} < {3 * _DAY}", 0, "warning",
        "The certificate of {{ $labels.listener }} on {{ $labels.instance }} ends in {{ $value | humanizeDuration }}.", "a-client-cannot-connect",
    ),
    Alert(
        "OdradekCertificateEnds", f"odradek_certificate_time_left_seconds{JOB} < {14 * _DAY}", 0, "info",
        "The certificate of {{ $labels.listener }} on {{ $labels.instance }} ends in {{ $value | humanizeDuration }}.", "a-client-cannot-connect",
    ),
    Alert(
        "OdradekCertificateNotReloaded", f"increase(odradek_certificate_reload_failures_total{JOB}[1h]) > 0", 0, "info",
        "The changed certificate of {{ $labels.listener }} on {{ $labels.instance }} cannot be used.", "a-client-cannot-connect",
    ),
    Alert(
        "OdradekDirectorySlow", f"odradek_directory_is_slow{JOB} == 1", 10 * _MINUTES, "info",
        "Syncs of {{ $labels.directory }} on {{ $labels.instance }} take ten times as long as usual.", "a-disk-hangs-or-has-failed",
    ),
    Alert(
        "OdradekScrubFoundRot", f"increase(odradek_directory_scrub_rotten_total{JOB}[1h]) > 0", 0, "info",
        "The scrub has found damaged records in {{ $labels.directory }} on {{ $labels.instance }}.", "a-disk-hangs-or-has-failed",
    ),
    Alert(
        "OdradekScrubStandsStill",
        f"odradek_directory_scrub_ended_timestamp_seconds{JOB} > 0 and time() - odradek_directory_scrub_ended_timestamp_seconds{JOB} > {14 * _DAY}",
        0, "info",
        "The scrub of {{ $labels.directory }} on {{ $labels.instance }} has ended no round for two weeks.", "a-disk-hangs-or-has-failed",
    ),
    Alert(
        "OdradekUncleanablePartitions", f"odradek_cleaner_uncleanable_partitions{JOB} > 0", 10 * _MINUTES, "info",
        "The cleaner skips {{ $value }} logs on {{ $labels.instance }}.", "old-records-stay",
    ),
    Alert(
        "OdradekMoveGivenUp", f"increase(odradek_directory_given_up_moves_total{JOB}[1h]) > 0", 0, "info",
        "{{ $labels.instance }} has given up a move to another directory.", "a-disk-is-full",
    ),
    Alert(
        "OdradekMetadataUnreadable", f"odradek_metadata_errors_total{JOB} > 0", 0, "info",
        "{{ $labels.instance }} uses older metadata, because it cannot read newer values.", "a-node-does-not-start",
    ),
    Alert(
        "OdradekAuditLinesMissing", f"increase(odradek_audit_lines_missing_total{JOB}[1h]) > 0", 0, "info",
        "Lines of the audit log of {{ $labels.instance }} could not be written.", "a-disk-is-full",
    ),
)  # fmt: skip
"""All alerts, the most urgent first."""
