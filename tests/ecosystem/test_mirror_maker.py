"""MirrorMaker 2 mirrors between Apache Kafka and Odradek in both directions, exactly once, while a node is killed."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, ConfigResource

from jepsen_tests.real_cluster import Cluster
from testkit.kafka_server import KAFKA_VERSION
from testkit.processes import ServerProcess, free_ports
from tests.ecosystem.programs import counted, create_topics, jars, java, produce, until

pytestmark = [pytest.mark.ecosystem, pytest.mark.java]

MIRROR_MAKER = "org.apache.kafka.connect.mirror.MirrorMaker"
RECORDS = 1_000
RETENTION_MS = "123456789"


def properties(kafka: str, ours: str, port: int) -> str:
    """Write the properties file of a dedicated MirrorMaker for two clusters."""
    settings = {
        "clusters": "kafka, odradek",
        "kafka.bootstrap.servers": kafka,
        "odradek.bootstrap.servers": ours,
        "kafka->odradek.enabled": "true",
        "kafka->odradek.topics": "there",
        "odradek->kafka.enabled": "true",
        "odradek->kafka.topics": "here",
        "groups": "readers",
        "replication.factor": "-1",
        **{
            f"{kind}.topic.replication.factor": "-1" for kind in ("checkpoints", "heartbeats", "offset-syncs")
        },
        **{f"{kind}.storage.replication.factor": "-1" for kind in ("config", "offset", "status")},
        "sync.topic.configs.enabled": "true",
        "sync.topic.acls.enabled": "false",
        "sync.group.offsets.enabled": "true",
        "sync.group.offsets.interval.seconds": "2",
        "emit.checkpoints.interval.seconds": "2",
        "refresh.topics.interval.seconds": "5",
        "refresh.groups.interval.seconds": "5",
        "exactly.once.source.support": "enabled",
        "dedicated.mode.enable.internal.rest": "true",
        "listeners": f"http://127.0.0.1:{port}",
    }
    return "".join(f"{key}={value}\n" for key, value in settings.items())


@pytest.mark.usefixtures("kafka_jars")
def test_both_clusters_have_each_other_s_records_once(
    cluster: Cluster, apache_kafka: ServerProcess, tmp_path: Path
) -> None:
    """KIP-382, KIP-618: each record is mirrored once to a topic with the same configuration, and groups are copied.

    Meanwhile one of our nodes is killed and restarted.
    """
    folder = jars(f"kafka-{KAFKA_VERSION}")
    kafka, ours = apache_kafka.bootstrap, cluster.bootstrap
    create_topics(kafka, {"there": 2}, 1, {"retention.ms": RETENTION_MS})
    create_topics(ours, {"here": 2})
    path, log = tmp_path / "mirror.properties", tmp_path / "mirror.log"
    path.write_text(properties(kafka, ours, free_ports(1)[0]))

    def note() -> str:
        return log.read_text()[-6000:]

    def values(begin: int) -> list[str]:
        return [f"{number}" for number in range(begin, begin + RECORDS)]

    def have_arrived(count: int) -> bool:
        return len(counted(ours, "kafka.there")) == count == len(counted(kafka, "odradek.here"))

    for bootstrap, topic in ((kafka, "there"), (ours, "here")):
        assert produce(bootstrap, topic, values(0)) == RECORDS
    read_in_group(kafka)
    with java("MirrorMaker 2", folder, MIRROR_MAKER, path, log=log):
        until("the first records", lambda: have_arrived(RECORDS), note)
        cluster.kill(3)
        for bootstrap, topic in ((kafka, "there"), (ours, "here")):
            assert produce(bootstrap, topic, values(RECORDS)) == RECORDS
        until("those written while a node is dead", lambda: have_arrived(2 * RECORDS), note)
        cluster.start(3)
        until("the group", lambda: "readers" in groups(ours), note)
        until("the configuration", lambda: retention(ours) == RETENTION_MS, note)
    expected = Counter(values(0) + values(RECORDS))
    assert counted(ours, "kafka.there") == expected
    assert counted(kafka, "odradek.here") == expected


def read_in_group(bootstrap: str) -> None:
    """Read all records in the group `readers`, and commit their offsets."""
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "readers", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe(["there"])
    found = 0
    while found < RECORDS:
        message = consumer.poll(30.0)
        assert message is not None
        found += message.error() is None
    consumer.commit(asynchronous=False)
    consumer.close()


def groups(bootstrap: str) -> set[str]:
    """Return the groups of a cluster."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    return {group.group_id for group in admin.list_consumer_groups().result().valid}


def retention(bootstrap: str) -> str:
    """Return `retention.ms` of the mirrored topic."""
    topic = ConfigResource(ConfigResource.Type.TOPIC, "kafka.there")
    admin = AdminClient({"bootstrap.servers": bootstrap})
    found = admin.describe_configs([topic])[topic].result()
    return str(found["retention.ms"].value)
