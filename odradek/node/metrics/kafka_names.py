"""The page with the names of Apache Kafka's metrics, as dashboards know them. PURE.

Kafka has its metrics in JMX. Most installations translate them by the rules `kafka-2_0_0.yml` of Prometheus' JMX exporter, so
these names have become a convention: `kafka_SUBJECT_TYPE_NAME`, in small letters. The lag of groups has the name of the
program kafka_exporter. A figure is served here only if it means what Kafka's means, or nearly: docs/metrics.md has the table.

Kafka counts records by topic when they are appended. Here they are the growth of the log of led partitions between pages.
Kafka's quantiles favour the last five minutes. Here they are those of the requests since the page before.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import attrs

from odradek.data_plane.broker import Broker
from odradek.node.metrics.controller_metrics import ClusterFigures
from odradek.node.metrics.groups.group_lag import LagFigures
from odradek.node.metrics.hosted_figures import SLICE, HostedFigures, Slices
from odradek.node.metrics.image_figures import ImageFigures
from odradek.node.metrics.metrics_text import MetricsText
from odradek.node.metrics.partition_metrics import TOPICS_MAX
from odradek.node.metrics.request_metrics import RequestSums
from odradek.serving.api_table import LATENCY_BOUNDS_SECONDS

__all__ = ["KafkaMemory", "broker_names", "controller_names", "lag_names", "quantiles", "request_names"]

QUANTILES = {"0.50": 0.5, "0.75": 0.75, "0.95": 0.95, "0.98": 0.98, "0.99": 0.99, "0.999": 0.999}
"""The quantiles of Kafka's histograms, by their labels in the rules of the JMX exporter."""
_RUNNING, _STARTING, _STOPPING = 3, 1, 6
"""Kafka's states of a broker."""
_Gauges = Iterable[tuple[str, float, str]]


@attrs.define
class KafkaMemory:
    """The figures of the page before, from which growth is computed."""

    ends: dict[str, dict[int, int]] = attrs.field(factory=dict)
    """The log end offsets of led partitions, by topic."""
    records: dict[str, int] = attrs.field(factory=dict)
    """The records that were appended to led partitions, by topic, since the first page. Topics that are gone are left out."""
    records_total: int = 0
    """The records that were appended to led partitions of all topics since the first page. It never falls."""
    latencies: dict[str, list[int]] = attrs.field(factory=dict)
    """The buckets of latency by API."""

    def count_records(self, broker: Broker) -> Slices[None]:
        """Add the growth of led partitions since the page before. Only partitions that were led then count."""
        ends: dict[str, dict[int, int]] = {}
        work = 0
        for name in sorted(broker.topics):
            hosted = broker.topics.get(name)
            if hosted is None:
                continue
            before, now, grown = self.ends.get(name, {}), {}, 0
            for index, partition in hosted.partitions.items():
                if partition.is_leader:
                    end = now[index] = partition.log.log_end_offset
                    grown += max(0, end - before.get(index, end))
            ends[name] = now
            self.records[name] = self.records.get(name, 0) + grown
            self.records_total += grown
            work += len(hosted.partitions)
            if work >= SLICE:
                work = 0
                yield
        self.ends = ends
        self.records = {name: count for name, count in self.records.items() if name in broker.topics}


def broker_names(
    page: MetricsText,
    broker: Broker,
    hosted: HostedFigures,
    placed: ImageFigures,
    memory: KafkaMemory,
    *,
    has_names: bool,
) -> None:
    """Add the figures of a broker's partitions, replicas, directories and groups."""
    own = broker.image.brokers.get(broker.node_id)
    state = _STARTING if own is None or own.fenced else _STOPPING if own.in_controlled_shutdown else _RUNNING
    replication = broker.replication
    _gauges(
        page,
        (
            ("server_kafkaserver_brokerstate", state, "1: starting or fenced, 3: running, 6: stopping."),
            ("server_replicamanager_leadercount", hosted.led, "Partitions that this broker leads."),
            ("server_replicamanager_partitioncount", hosted.partitions, "Partitions on this broker."),
            ("server_replicamanager_underreplicatedpartitions", hosted.under_replicated, "Led partitions with replicas out of sync."),
            ("server_replicamanager_underminisrpartitioncount", hosted.under_min_isr, "Led partitions that refuse acks=all."),
            ("server_replicamanager_atminisrpartitioncount", hosted.at_min_isr, "Led partitions at min.insync.replicas."),
            ("server_replicamanager_reassigningpartitions", hosted.reassigning, "Led partitions whose replicas are moved."),
            ("server_replicamanager_offlinereplicacount", placed.placed - hosted.partitions, "Replicas placed here that are not served."),
            ("log_logmanager_offlinelogdirectorycount", sum(each.offline_reason is not None for each in broker.log_dirs), "Log directories that have failed."),
            ("coordinator_group_groupmetadatamanager_numgroups", broker.groups.statistics().get("groups", 0), "Groups coordinated here."),
        ),
    )  # fmt: skip
    fetchers, known = replication.fetchers.values(), replication.known_fetchers.values()
    page.gauge(
        "kafka_server_replicafetchermanager_maxlag", "Records by which the slowest follower here is behind."
    )
    page.sample(max((each.lag_max for each in fetchers), default=0), clientId="Replica")
    for name, count, described in (
        ("server_replicamanager_isrshrinks", replication.isr_changes.shrinks, "ISRs that shrank."),
        ("server_replicamanager_isrexpands", replication.isr_changes.expansions, "ISRs that grew."),
        ("server_replicamanager_failedisrupdates", replication.isr_changes.failures, "ISRs that the controller refused."),
        ("server_brokertopicmetrics_replicationbytesin", sum(each.bytes_fetched for each in known), "Bytes fetched from leaders."),
        ("server_brokertopicmetrics_reassignmentbytesin", sum(each.reassignment_bytes for each in known), "Bytes fetched for replicas that are added."),
        ("server_brokertopicmetrics_reassignmentbytesout", replication.reassignment_bytes_out, "Bytes sent to replicas that are added."),
    ):  # fmt: skip
        page.counter(f"kafka_{name}_total", described)
        page.one(count)
    _topics(page, hosted, memory, has_names)


def _topics(page: MetricsText, hosted: HostedFigures, memory: KafkaMemory, has_names: bool) -> None:
    topics = list(hosted.topics.items())[: TOPICS_MAX if has_names else 0]
    page.counter("kafka_server_brokertopicmetrics_messagesin_total", "Records appended to led partitions.")
    page.one(memory.records_total)
    for name, _ in topics:
        page.sample(memory.records.get(name, 0), topic=name)
    for name, column, described in (
        ("size", "log_bytes", "Bytes of segments"),
        ("logstartoffset", "log_start_offsets", "Log start offsets"),
        ("logendoffset", "log_end_offsets", "Log end offsets"),
    ):
        page.gauge(f"kafka_log_log_{name}", f"{described}, added up over the topic's partitions here.")
        for topic, sums in topics:
            page.sample(getattr(sums, column), topic=topic)


def controller_names(
    page: MetricsText, figures: ClusterFigures, *, is_active: bool, unclean: int, errors: int
) -> None:
    """Add the figures of the controller. Those of the cluster are 0 except on the active one, as in Kafka."""
    subject = "controller_kafkacontroller_"
    _gauges(
        page,
        (
            (f"{subject}activecontrollercount", int(is_active), "1 on the active controller, else 0."),
            (f"{subject}activebrokercount", figures.active_brokers, "Brokers that are not fenced."),
            (f"{subject}fencedbrokercount", figures.fenced_brokers, "Brokers that are fenced."),
            (f"{subject}globaltopiccount", figures.topics, "Topics of the cluster."),
            (f"{subject}globalpartitioncount", figures.partitions, "Partitions of the cluster."),
            (f"{subject}offlinepartitionscount", figures.offline_partitions, "Partitions without a leader."),
            (f"{subject}preferredreplicaimbalancecount", figures.imbalanced_partitions, "Partitions not led by their preferred replica."),
            (f"{subject}metadataerrorcount", errors, "Values in the metadata log that cannot be read."),
        ),
    )  # fmt: skip
    page.counter("kafka_controller_controllerstats_uncleanleaderelections_total", "Unclean elections.")
    page.one(unclean)


def request_names(
    page: MetricsText,
    apis: Mapping[str, RequestSums],
    memory: KafkaMemory,
    connections: Mapping[str, int],
    *,
    waiting: int,
    parked: int,
) -> None:
    """Add the figures of requests and connections. `waiting` is the number of requests that are not answered, `parked`
    that of fetches among them that wait for records.
    """
    page.counter("kafka_network_requestmetrics_requests_total", "Requests answered.")
    for name, sums in apis.items():
        for version, count in sums.versions.items():
            page.sample(count, request=name, version=version)
    page.counter("kafka_network_requestmetrics_errors_total", "Error codes in responses.")
    for name, sums in apis.items():
        for error, count in sums.errors.items():
            page.sample(count, request=name, error=error)
    page.gauge(
        "kafka_network_requestmetrics_totaltimems", "Milliseconds until the answer, since the page before."
    )
    for name, sums in apis.items():
        before = memory.latencies.get(name, [0] * len(sums.latencies))
        grown = [now - then for now, then in zip(sums.latencies, before, strict=True)]
        for quantile, seconds in zip(QUANTILES, quantiles(grown), strict=True):
            page.sample(round(1000 * seconds, 3), request=name, quantile=quantile)
    memory.latencies = {name: list(sums.latencies) for name, sums in apis.items()}
    page.counter("kafka_network_requestmetrics_totaltimems_count", "Requests whose time is known.")
    for name, sums in apis.items():
        page.sample(sum(sums.latencies), request=name)
    for name, api, column, described in (
        ("bytesin", "Produce", "request_bytes", "Bytes of Produce requests."),
        ("bytesout", "Fetch", "response_bytes", "Bytes of answers to Fetch, those to followers included."),
        ("totalproducerequests", "Produce", "answered", "Produce requests answered."),
        ("totalfetchrequests", "Fetch", "answered", "Fetch requests answered."),
        ("failedproducerequests", "Produce", "failed", "Error codes in answers to Produce."),
        ("failedfetchrequests", "Fetch", "failed", "Error codes in answers to Fetch."),
    ):
        page.counter(f"kafka_server_brokertopicmetrics_{name}_total", described)
        page.one(getattr(apis[api], column) if api in apis else 0)
    page.gauge("kafka_network_requestchannel_requestqueuesize", "Requests that are not answered yet.")
    page.one(waiting)
    page.gauge("kafka_server_delayedoperationpurgatory_purgatorysize", "Fetches that wait for records.")
    page.sample(parked, delayedOperation="Fetch")
    page.gauge("kafka_server_socket_server_metrics_connection_count", "Connections that are open.")
    for listener, count in connections.items():
        page.sample(count, listener=listener, networkProcessor=0)


def lag_names(page: MetricsText, lag: LagFigures, *, has_names: bool) -> None:
    """Add the lag of groups under the name of kafka_exporter, by group and topic."""
    page.gauge("kafka_consumergroup_lag", "Records that the group has not committed yet.")
    for (group, topic), each in lag.pairs.items() if has_names else ():
        page.sample(each.records, consumergroup=group, topic=topic)


def quantiles(counts: Sequence[int]) -> list[float]:
    """Estimate `QUANTILES` of a histogram over `LATENCY_BOUNDS_SECONDS`. Within a bucket, values are taken to lie evenly. The
    last bucket counts as its lower bound.
    """
    total = sum(counts)
    found: list[float] = []
    for quantile in QUANTILES.values():
        rank, below = quantile * total, 0
        value, lower = 0.0, 0.0
        for count, upper in zip(counts, (*LATENCY_BOUNDS_SECONDS, LATENCY_BOUNDS_SECONDS[-1]), strict=True):
            if count and below + count >= rank:
                value = lower + (upper - lower) * (rank - below) / count
                break
            below += count
            lower = upper
        found.append(value)
    return found


def _gauges(page: MetricsText, gauges: _Gauges) -> None:
    for name, value, described in gauges:
        page.gauge(f"kafka_{name}", described)
        page.one(value)
