"""Replication metrics of a simulated cluster."""

from __future__ import annotations

import errno
import re
from types import SimpleNamespace
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from odradek.node.metrics.hosted_figures import at_once, count_hosted
from odradek.node.metrics.kafka_names import KafkaMemory, broker_names
from odradek.node.metrics.metrics_text import MetricsText
from odradek.node.metrics.replication_metrics import replication_metrics
from odradek.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from tests.cluster.disks.test_troubled_disks import Troubled


def figures(case: Troubled, node_id: int) -> dict[str, float]:
    """Read a node's metrics by name. A metric with the label `leader` gets the key `name/leader`."""
    page = MetricsText()
    broker = case.broker(node_id)
    replication_metrics(page, broker, at_once(count_hosted(broker)))
    return {
        "/".join((sample.name.removeprefix("odradek_"), *sample.labels.values())): sample.value
        for family in text_string_to_metric_families(page.render().decode())
        for sample in family.samples
    }


def kafka_figures(case: Troubled, node_id: int) -> float:
    """Read the bytes fetched from leaders, under Kafka's name."""
    page, broker = MetricsText(), case.broker(node_id)
    placed: Any = SimpleNamespace(placed=0)
    broker_names(page, broker, at_once(count_hosted(broker)), placed, KafkaMemory(), has_names=False)
    (value,) = re.findall(r"(?m)^\w+_replicationbytesin_total (\d+)", page.render().decode())
    return int(value)


def test_who_leaves_and_who_lags() -> None:
    """A follower has no room for a while. Its lag and the leader's shrunken ISR are shown, and then disappear."""

    async def script(case: Troubled) -> None:
        disk = case.world.machine("node-3").disk
        path = f"{case.disk(3).path}/t-0"
        assert figures(case, 1)["at_min_isr_partitions"] == 0
        disk.fail_next(errno.ENOSPC, operation="append", path_part=path, times=10**9)
        await case.until(lambda: figures(case, 1)["isr_shrinks_total"] == 1)
        await case.until(lambda: figures(case, 1)["at_min_isr_partitions"] == 1)
        await case.until(lambda: figures(case, 3)["follower_lag_max_records/1"] > 0)
        assert figures(case, 1)["isr_expands_total"] == 0
        disk.forget_faults()
        await case.until(lambda: figures(case, 1)["isr_expands_total"] == 1)
        await case.until(lambda: figures(case, 3)["follower_lag_max_records/1"] == 0)
        assert figures(case, 1)["at_min_isr_partitions"] == 0
        assert figures(case, 3)["replication_in_bytes_total/1"] > 0
        assert figures(case, 3)["reassignment_in_bytes_total"] == 0
        # The broker follows this leader no longer. Its counters stay, under Kafka's names, too.
        broker = case.broker(3)
        before, kafka = figures(case, 3), kafka_figures(case, 3)
        for replica in list(broker.replication.fetchers[1].followed):
            broker.replication.forget(replica.topic_id, replica.partition)
        assert 1 not in broker.replication.fetchers
        assert figures(case, 3)["replication_in_bytes_total/1"] == before["replication_in_bytes_total/1"]
        assert kafka_figures(case, 3) == kafka > 0

    Troubled().play(script)


def test_a_proposal_that_is_refused() -> None:
    """Each refused ISR proposal is counted, also a repeated one."""

    async def script(case: Troubled) -> None:
        assert figures(case, 1)["isr_update_failures_total"] == 0
        replication = case.broker(1).replication
        epoch, replication.broker_epoch = replication.broker_epoch, 0
        partition = case.broker(1).partition("t", 0)
        partition.append_as_leader(memoryview(case.batch()), case.broker(1).clock.wall_ms())
        assert partition.shrink_isr(replication.now_ms() + 10**6) == (2, 3)
        await case.until(lambda: figures(case, 1)["isr_update_failures_total"] > 1, writing=False)
        replication.broker_epoch = epoch

    Troubled().play(script)


def test_a_move_counts_its_bytes() -> None:
    """A partition counts as moving until its new replica is in sync. Sender and receiver both count the bytes of the
    move."""

    async def script(case: Troubled) -> None:
        assert await case.write() == 0
        await case.member(3).kill("all")
        partition = ReassignablePartition(0, [1, 2, 3])
        request = AlterPartitionReassignmentsRequest(10_000, True, [ReassignableTopic("t", [partition])])
        await case.cluster.observer.request(request)
        await case.until(lambda: figures(case, 1)["reassigning_partitions"] == 1)
        await case.member(3).start()
        await case.until(lambda: figures(case, 1)["reassigning_partitions"] == 0)
        assert figures(case, 1)["reassignment_out_bytes_total"] > 0
        assert figures(case, 3)["reassignment_in_bytes_total"] > 0
        assert figures(case, 2)["reassignment_in_bytes_total"] == 0

    Troubled(settings={"min.insync.replicas": "1"}).play(script, (1, 2))
