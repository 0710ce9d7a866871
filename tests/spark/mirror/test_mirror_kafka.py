"""`odradek mirror` from Apache Kafka to Odradek, and back."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from odradek import Admin, Consumer, OffsetAndMetadata
from odradek.client.admin import ConfigResource, ResourceType
from odradek.spark.pipelines.mirror import command
from testkit.processes import ServerProcess
from tests.node_process import RunningNode
from tests.spark.mirror.test_mirror import check_killed, check_map, fill, mirror, records_of, rows_of


@pytest.mark.java
def test_from_apache_kafka(
    node: RunningNode,
    apache_kafka: ServerProcess,
    fresh_topic: Callable[[str], str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A topic of Apache Kafka is copied with its settings and groups. LogAppendTime is reported, and its timestamps are
    kept."""
    topic, group = fresh_topic("moved"), fresh_topic("readers")
    fill(apache_kafka.bootstrap, topic, message_timestamp_type="LogAppendTime", retention_ms="-1")
    source = records_of(apache_kafka.bootstrap, topic)
    middle = [each for each in source if each.partition == 1][100]
    with Consumer(bootstrap_servers=apache_kafka.bootstrap, group_id=group) as consumer:
        ends = consumer.end_offsets([(topic, 0)])
        consumer.commit({(topic, 1): OffsetAndMetadata(middle.offset, metadata="halfway"), **ends})
    sides = ["--source", apache_kafka.bootstrap, "--target", node.bootstrap, "--no-acls"]
    words = [*sides, "--topic", topic, "--name", topic]
    assert command.main([*words, "--plan"]) == 0
    plan = capsys.readouterr().out
    assert f"create  {topic}: 3 partitions, 1 replicas" in plan
    assert "retention.ms=-1" in plan
    assert f"{topic}: message.timestamp.type=LogAppendTime: the copies keep these times" in plan
    assert mirror(*words[1:4:2], *words[4:], killed_at=("after-ship", 1)) == -9
    assert command.main([*words, "--group", group]) == 0
    assert rows_of(records_of(node.bootstrap, topic)) == rows_of(source)
    check_map(apache_kafka.bootstrap, node.bootstrap, topic, topic)
    copies = [each for each in records_of(node.bootstrap, topic) if each.partition == 1]
    with Admin(bootstrap_servers=node.bootstrap) as admin:
        [offsets] = admin.list_group_offsets({group: None})
        found = {key.partition: (each.offset, each.metadata) for key, each in offsets.offsets.items()}
        assert found[1] == (copies[100].offset, "halfway")
        last = max(each.offset for each in records_of(node.bootstrap, topic) if each.partition == 0)
        assert found[0] == (last + 1, "")
        [settings] = admin.describe_configs([ConfigResource(ResourceType.TOPIC, topic)])
        assert settings["retention.ms"].value == "-1"
        assert settings["message.timestamp.type"].value == "CreateTime"


@pytest.mark.java
def test_into_apache_kafka(
    node: RunningNode, apache_kafka: ServerProcess, fresh_topic: Callable[[str], str]
) -> None:
    """A mirror into Apache Kafka needs nothing but ordinary transactions."""
    topic = fresh_topic("back")
    fill(node.bootstrap, topic)
    check_killed(node.bootstrap, apache_kafka.bootstrap, topic, [("during-commit", 3)])
