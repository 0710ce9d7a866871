"""The figures of clients: the pushed metrics that they come from, and how several numbers become one."""

from __future__ import annotations

import pytest

from odradek.data_plane.telemetry.figures import FIGURES, ROLES, SLOTS, VALUE_MAX, figure_of, gather, role_of
from odradek.data_plane.telemetry.otlp import read_points
from tests.telemetry.encoding import PushedMetric, metrics_data, pushed_by

OF_BOTH = {"request_latency_avg_seconds", "request_latency_max_seconds", "connections_created_total"}
OF_PRODUCERS = {
    f"{name}_{way}_seconds" for name in ("throttle_time", "record_queue_time") for way in ("avg", "max")
}
OF_CONSUMERS = {
    *(f"{name}_latency_{way}_seconds" for name in ("fetch", "commit", "rebalance") for way in ("avg", "max")),
    *("poll_idle_ratio", "assigned_partitions"),
}


def figures(data: bytes) -> dict[tuple[str, str], float]:
    """Return the numbers of one push, by role and figure."""
    pushed = gather(read_points(data, SLOTS))
    return {
        (role_of(slot), figure_of(slot).name): value
        for slot, value in {**pushed.gauges, **pushed.counts}.items()
    }


def of(role: str, *metrics: PushedMetric) -> dict[str, float]:
    """Return the figures of one role. The metrics' names are given without the role."""
    named = [
        PushedMetric(f"org.apache.kafka.{role}.{each.name}", each.points, each.is_sum, each.temporality)
        for each in metrics
    ]
    return {name: value for (_, name), value in figures(metrics_data(*named)).items()}


@pytest.mark.parametrize(
    ("client", "role", "names"),
    [
        ("librdkafka_producer", "producer", OF_BOTH | OF_PRODUCERS),
        ("librdkafka_consumer", "consumer", OF_BOTH | OF_CONSUMERS),
    ],
)
def test_what_librdkafka_pushes_is_read(client: str, role: str, names: set[str]) -> None:
    """All metrics that librdkafka pushes are read, except the rate of connections and the total time of rebalances."""
    found = figures(pushed_by(client))
    assert {name for _, name in found} == names
    assert {each for each, _ in found} == {role}


def test_what_java_pushes_is_read() -> None:
    """Java pushes a hundred metrics. Time, throughput, errors, retries and lag are read from them."""
    produced = figures(pushed_by("java_producer"))
    assert {name for _, name in produced} == OF_BOTH | OF_PRODUCERS | {
        *(f"record{name}_total" for name in ("s_sent", "_errors", "_retries")),
        *("outgoing_bytes_total", "incoming_bytes_total"),
    }
    consumed = figures(pushed_by("java_consumer"))
    commits = {"commit_latency_avg_seconds", "commit_latency_max_seconds"}
    assert {name for _, name in consumed} >= OF_BOTH | OF_CONSUMERS - commits | {
        *("records_lag_max", "records_consumed_total", "consumed_bytes_total", "failed_rebalances_total"),
    }
    assert consumed["consumer", "records_consumed_total"] == 806.0, "not twice, for the client and its topic"


def test_units_are_those_of_prometheus() -> None:
    """Milliseconds of clients become seconds, which are Prometheus' unit."""
    found = of("producer", PushedMetric("request.latency.avg", ((250.0, False),)))
    assert found == {"request_latency_avg_seconds": 0.25}


def test_numbers_of_nodes_become_one_where_clients_have_no_other() -> None:
    """An old client reports request times only by node. The average is then the mean of the nodes' averages, and the
    maximum is the largest of their maxima."""
    by_node = [
        PushedMetric(f"node.request.latency.{way}", ((10.0, True), (30.0, True))) for way in ("avg", "max")
    ]
    found = of("consumer", *by_node)
    assert found == {"request_latency_avg_seconds": 0.02, "request_latency_max_seconds": 0.03}
    whole = PushedMetric("request.latency.avg", ((5.0, False),))
    assert of("consumer", *by_node, whole)["request_latency_avg_seconds"] == 0.005


def test_labels_that_clients_choose_make_no_figures() -> None:
    """Sums and counts with labels that clients choose are ignored, since values without labels already include them."""
    found = of(
        "consumer",
        PushedMetric("fetch.manager.records.consumed.total", ((7, False), (7, True)), is_sum=True),
        PushedMetric("coordinator.assigned.partitions", ((3, True),)),
    )
    assert found == {"records_consumed_total": 7.0}


def test_only_deltas_count() -> None:
    """A counter is read only from deltas. Gauges, cumulative sums and negative numbers are ignored. So is a sum in
    place of a gauge."""
    for metric in (
        PushedMetric("record.send.total", ((7, False),)),
        PushedMetric("record.send.total", ((7, False),), is_sum=True, temporality=2),
        PushedMetric("record.send.total", ((-7, False),), is_sum=True),
        PushedMetric("record.queue.time.avg", ((7, False),), is_sum=True),
    ):
        assert of("producer", metric) == {}
    twice = PushedMetric("record.send.total", ((7, False), (8, False)), is_sum=True)
    assert of("producer", twice) == {"records_sent_total": 15.0}


def test_huge_numbers_are_cut() -> None:
    """Huge numbers are limited, so that sums of figures stay finite whatever a client pushes."""
    huge = PushedMetric("record.send.total", ((1e308, False),) * 9, is_sum=True)
    assert of("producer", huge) == {"records_sent_total": VALUE_MAX}


def test_each_metric_has_one_place() -> None:
    """All roles have the same figures, and each metric leads to one figure."""
    assert len(SLOTS) == len(ROLES) * sum(len(each.sources) for each in FIGURES)
    assert len({figure.name for figure in FIGURES}) == len(FIGURES)
