"""Three combined nodes as processes: the metadata disks of two are destroyed under load, and the quorum is recovered."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from odradek import Client, Producer
from odradek.client.admin.admin_topics import NewTopic
from odradek.wire.messages.init_producer_id import InitProducerIdRequest
from testkit.raw_requests import RawClient
from tests.cluster.recovery.stopped_cluster import Cluster
from tests.cluster.test_real_nodes import in_sync, until, values

pytestmark = pytest.mark.xdist_group("cluster")

PARTITIONS = 3
PATIENCE_SECONDS = 60.0


def new_producer_id(bootstrap: str) -> int:
    """Have a broker give out a producer id."""
    with RawClient(bootstrap.split(",")[0]) as client:
        return int(client.request(InitProducerIdRequest(None, 1000, -1, -1), 4).producer_id)


@contextmanager
def ending(producer: Producer) -> Iterator[Producer]:
    """Close a producer; after a failure it waits for nothing."""
    try:
        yield producer
    except BaseException:
        producer.close(0.0)
        raise
    producer.close(PATIENCE_SECONDS)


def test_two_of_three_metadata_disks_are_destroyed(tmp_path: Path) -> None:
    """An idempotent producer goes on over the recovery: all that was acknowledged is there once, and no id is given twice."""
    cluster = Cluster.make(tmp_path)
    with cluster.ended():
        cluster.start(1, 2, 3)
        with Client(cluster.bootstrap) as client:
            (created,) = client.admin.create_topics([NewTopic("t", PARTITIONS, 3)])
            assert created.error is None, created.error
        until("all in sync", lambda: in_sync(cluster.bootstrap, "t", 3))
        before = new_producer_id(cluster.bootstrap)
        with ending(
            Producer(bootstrap_servers=cluster.bootstrap, acks="all", delivery_timeout_ms=600_000)
        ) as producer:
            for value in range(100):
                producer.send("t", value=str(value).encode(), partition=value % PARTITIONS).result(
                    PATIENCE_SECONDS
                )
            under_way = [
                producer.send("t", value=str(value).encode(), partition=value % PARTITIONS)
                for value in range(100, 200)
            ]
            cluster.kill(1, 2)
            cluster.destroy_metadata(1, 2)
            cluster.kill(3)
            refusal = cluster.recover(lost=())
            assert refusal.code == 1
            assert f"--lost {cluster.key(1)}" in refusal.out
            dry = cluster.recover()
            assert dry.json()["plan"]["voters"].keys() == {"1", "2", "3"}
            assert not cluster.metadata(1).exists()
            done = cluster.recovered()
            assert done["done"] == [1, 2, 3]
            again = cluster.recover("--execute", lost=())
            assert "start them" in again.out, "the new quorum needs no recovery"
            cluster.start(1, 2, 3)
            until("all in sync", lambda: in_sync(cluster.bootstrap, "t", 3))
            for each in under_way:
                each.result(PATIENCE_SECONDS)
            for value in range(200, 300):
                producer.send("t", value=str(value).encode(), partition=value % PARTITIONS).result(
                    PATIENCE_SECONDS
                )
        assert values(cluster.bootstrap, "t") == list(range(300))
        assert new_producer_id(cluster.bootstrap) >= before + 1_000_000_000
        with Client(cluster.bootstrap) as client:
            quorum = client.admin.describe_quorum()
        assert quorum.leader_epoch > done["plan"]["epoch"]
        assert quorum.high_watermark > done["plan"]["offset"]
        assert [each.node_id for each in quorum.voters] == [1, 2, 3]
