"""The page with Kafka's names: it has what docs/metrics.md lists, and the figures of our own page."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from odradek.node.metrics.hosted_figures import at_once
from odradek.node.metrics.kafka_names import QUANTILES, KafkaMemory, _topics, quantiles
from odradek.node.metrics.metrics_text import MetricsText
from odradek.serving.api_table import LATENCY_BOUNDS_SECONDS
from odradek.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from sim.machine.world import World
from testkit.lone_node import create_topic, play, produce, request
from tests.node.monitoring.test_forms import fetched
from tests.node.monitoring.test_group_lag import SETTINGS, commit
from tests.node.requests.test_bad_batches import good_batch
from tests.node.test_metrics import DOCUMENT, Connect, Samples, parsed

SUBJECT = "kafka_server_brokertopicmetrics_"
PERHAPS = {"kafka_network_requestmetrics_errors_total": "request, error"}
"""Labels of metrics that have no samples on the page of a sound node."""


async def kafka_samples(world: World) -> Samples:
    status, headers, body = await fetched(
        world, "/metrics?names=kafka", Accept="application/openmetrics-text"
    )
    assert status == 200
    assert headers["content-type"].startswith("text/plain; version=0.0.4")
    return parsed(body.decode())


def test_the_table_has_each_name_that_is_served() -> None:
    """docs/metrics.md lists exactly the names of the page, with their labels."""

    async def script(world: World, connect: Connect) -> None:
        client = await connect()
        await create_topic(client)
        await produce(client, good_batch(1, timestamp_ms=1))
        await commit(world, client, 0)
        _, _, body = await fetched(world, "/metrics?names=kafka")
        rows = {}
        for family in text_string_to_metric_families(body.decode()):
            name = f"{family.name}_total" if family.type == "counter" else family.name
            named = re.search(rf"(?m)^# TYPE ({family.name}(?:_total)?) ", body.decode())
            assert named is not None
            name = named[1]
            labels: dict[str, None] = {}
            for sample in family.samples:
                labels |= dict.fromkeys(sample.labels)
            rows[name] = ", ".join(labels) or PERHAPS.get(name, "")
        text = DOCUMENT.read_text()
        table = text[text.index("## Names that Kafka's dashboards know") : text.index("## All metrics")]
        assert dict(re.findall(r"(?m)^\| `((?:kafka|process)_\w+)` \| ([\w, ]*?) ?\|", table)) == rows

    play(script, odradek_metrics_names="true", **SETTINGS)


def test_the_figures_are_those_of_our_page() -> None:
    """Counts of requests, errors, partitions and lag are the same under both names. Records are counted from page to page."""

    async def script(world: World, connect: Connect) -> None:
        client = await connect()
        await create_topic(client)
        await commit(world, client, 0)
        await kafka_samples(world)
        for _ in range(3):
            await produce(client, good_batch(1, timestamp_ms=1))
        unknown = MetadataRequest([MetadataRequestTopic(name="a")], allow_auto_topic_creation=False)
        await request(client, unknown, 9)
        found = await kafka_samples(world)
        assert found[f"{SUBJECT}messagesin_total{{topic=t}}"] == 3
        assert found[f"{SUBJECT}messagesin_total{{}}"] == 3, "the offsets topic has not grown"
        assert found[f"{SUBJECT}totalproducerequests_total{{}}"] == 3
        assert found[f"{SUBJECT}bytesin_total{{}}"] > 3 * 60
        error = "{request=Metadata,error=UNKNOWN_TOPIC_OR_PARTITION}"
        assert found[f"kafka_network_requestmetrics_errors_total{error}"] == 1
        # The parser adds _total to the names of all counters.
        assert found["kafka_network_requestmetrics_totaltimems_count_total{request=Produce}"] == 3
        assert found["kafka_controller_kafkacontroller_activecontrollercount{}"] == 1
        assert found["kafka_controller_kafkacontroller_activebrokercount{}"] == 1
        assert found["kafka_server_kafkaserver_brokerstate{}"] == 3
        assert found["kafka_server_replicamanager_leadercount{}"] == 3
        assert found["kafka_server_replicamanager_underreplicatedpartitions{}"] == 0
        assert found["kafka_consumergroup_lag{consumergroup=g,topic=t}"] == 3
        assert found["kafka_log_log_logendoffset{topic=t}"] == 3
        labels = [
            name
            for name in found
            if name.startswith("kafka_network_requestmetrics_totaltimems{request=Produce")
        ]
        assert "kafka_network_requestmetrics_totaltimems{request=Produce,quantile=0.50}" in labels, labels
        again = await kafka_samples(world)
        assert again["kafka_network_requestmetrics_totaltimems{request=Produce,quantile=0.99}"] == 0
        assert again[f"{SUBJECT}messagesin_total{{topic=t}}"] == 3

    play(script, odradek_metrics_names="true", **SETTINGS)


def test_the_total_of_records_never_falls() -> None:
    """A topic that is deleted takes its own count along. The total goes on, and grows with other topics."""

    def broker(**ends: int) -> Any:
        def topic(end: int) -> Any:
            partition = SimpleNamespace(is_leader=True, log=SimpleNamespace(log_end_offset=end))
            return SimpleNamespace(partitions={0: partition})

        return SimpleNamespace(topics={name: topic(end) for name, end in ends.items()})

    def total(hosted: Any) -> float:
        page = MetricsText()
        at_once(memory.count_records(hosted))
        _topics(page, SimpleNamespace(topics={}), memory, False)  # type: ignore[arg-type]
        return parsed(page.render().decode())[f"{SUBJECT}messagesin_total{{}}"]

    memory = KafkaMemory()
    assert total(broker(a=5, b=5)) == 0
    assert total(broker(a=15, b=7)) == 12
    assert total(broker(b=8)) == 13
    assert memory.records == {"b": 3}


def test_names_are_kept_from_a_public_page() -> None:
    """Where names are off, the page with Kafka's names has none either."""

    async def script(world: World, connect: Connect) -> None:
        client = await connect()
        await create_topic(client)
        await commit(world, client, 0)
        found = await kafka_samples(world)
        assert not [name for name in found if "topic=" in name or "group=" in name]

    play(script, **SETTINGS)


@pytest.mark.parametrize(
    ("buckets", "expected"),
    [
        ({}, [0.0] * len(QUANTILES)),
        ({0: 4}, [each * LATENCY_BOUNDS_SECONDS[0] for each in QUANTILES.values()]),
        ({len(LATENCY_BOUNDS_SECONDS): 1}, [LATENCY_BOUNDS_SECONDS[-1]] * len(QUANTILES)),
        ({1: 50, 16: 50}, [LATENCY_BOUNDS_SECONDS[1], 7.5, 9.5, 9.8, 9.9, 9.99]),
    ],
)
def test_quantiles_of_a_histogram(buckets: dict[int, int], expected: list[float]) -> None:
    """A quantile lies in its bucket, in proportion. Without requests all are 0."""
    counts = [buckets.get(index, 0) for index in range(len(LATENCY_BOUNDS_SECONDS) + 1)]
    assert quantiles(counts) == pytest.approx(expected)
