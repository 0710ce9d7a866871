"""Configuration changes take effect at once on a running node, and survive a restart."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

from odradek.wire.errors import ErrorCode
from odradek.wire.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from odradek.wire.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from odradek.wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from odradek.wire.messages.describe_log_dirs import DescribeLogDirsRequest
from odradek.wire.messages.describe_topic_partitions import DescribeTopicPartitionsRequest, TopicRequest
from odradek.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from odradek.wire.record_batch import RecordBatchBuilder
from testkit.odradek_server import launch_odradek, prepare_odradek
from testkit.processes import ServerProcess
from testkit.raw_requests import RawClient

TOPIC, BROKER, LOGGER = 2, 4, 8
SET, DELETE = 0, 1


@attrs.define
class Node:
    """A running node and a connection to it."""

    process: ServerProcess
    client: RawClient

    def create(self, name: str, **configs: str) -> Any:
        settings = [CreatableTopicConfig(key.replace("_", "."), value) for key, value in configs.items()]
        request = CreateTopicsRequest([CreatableTopic(name, 1, 1, [], settings)], 10_000)
        return self.client.request(request, 7).topics[0]

    def alter(self, kind: int, name: str, **changes: str | None) -> ErrorCode:
        """Set keys (with '_' for '.'), or delete them (None); return the error code."""
        configs = [
            AlterableConfig(key.replace("_", "."), DELETE if value is None else SET, value)
            for key, value in changes.items()
        ]
        request = IncrementalAlterConfigsRequest([AlterConfigsResource(kind, name, configs)])
        return ErrorCode(self.client.request(request, 1).responses[0].error_code)

    def described(self, kind: int, name: str, key: str) -> tuple[str | None, int]:
        """Return the value and the source of a key."""
        request = DescribeConfigsRequest([DescribeConfigsResource(kind, name, [key])])
        entry = self.client.request(request, 4).results[0].configs[0]
        return entry.value, entry.config_source

    def produce(self, topic: str, value_bytes: int) -> ErrorCode:
        builder = RecordBatchBuilder()
        builder.append(time.time_ns() // 1_000_000, None, bytes(value_bytes))
        return ErrorCode(self.client.produce(topic, builder.build()).error_code)


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server whose configuration the tests change. Each test undoes its changes."""
    process = launch_odradek(prepare_odradek(tmp_path_factory.mktemp("dynamic")))
    try:
        yield process
    finally:
        process.stop()


@pytest.fixture
def node(process: ServerProcess) -> Iterator[Node]:
    """The server, with a new connection for each test."""
    with RawClient(process.bootstrap) as client:
        yield Node(process, client)


def test_limits_of_messages_follow_topic_broker_and_all_brokers(node: Node) -> None:
    """A topic's message limit takes precedence over the broker's limit. The broker's limit takes precedence over the
    cluster-wide default (KIP-226)."""
    assert not node.create("t").error_code
    assert node.produce("t", 5_000) == ErrorCode.NONE
    assert node.alter(BROKER, "", message_max_bytes="4000") == ErrorCode.NONE
    assert node.produce("t", 5_000) == ErrorCode.MESSAGE_TOO_LARGE
    assert node.alter(BROKER, "1", message_max_bytes="6000") == ErrorCode.NONE
    assert node.produce("t", 5_000) == ErrorCode.NONE
    assert node.alter(TOPIC, "t", max_message_bytes="3000") == ErrorCode.NONE
    assert node.produce("t", 5_000) == ErrorCode.MESSAGE_TOO_LARGE
    assert node.described(TOPIC, "t", "max.message.bytes") == ("3000", 1)
    assert node.alter(TOPIC, "t", max_message_bytes=None) == ErrorCode.NONE
    assert node.described(TOPIC, "t", "max.message.bytes") == ("6000", 2)
    assert node.alter(BROKER, "1", message_max_bytes=None) == ErrorCode.NONE
    assert node.described(TOPIC, "t", "max.message.bytes") == ("4000", 3)
    assert node.create("u", max_message_bytes="9000").error_code == ErrorCode.NONE
    assert node.produce("u", 5_000) == ErrorCode.NONE
    assert node.alter(BROKER, "", message_max_bytes=None) == ErrorCode.NONE


def test_what_was_set_outlives_kill_9(tmp_path: Path) -> None:
    """A change that was acknowledged survives kill -9, and the restarted node applies it to its first request."""
    prepared = prepare_odradek(tmp_path)
    process = launch_odradek(prepared)
    with RawClient(process.bootstrap) as client:
        before = Node(process, client)
        assert not before.create("t").error_code
        assert before.alter(BROKER, "", message_max_bytes="4000") == ErrorCode.NONE
        assert before.alter(TOPIC, "t", retention_ms="777") == ErrorCode.NONE
        grown = client.request(CreatePartitionsRequest([CreatePartitionsTopic("t", 3, None)], 10_000), 3)
        assert not grown.results[0].error_code
    process.kill()
    process = launch_odradek(prepared)
    try:
        with RawClient(process.bootstrap) as client:
            after = Node(process, client)
            assert after.produce("t", 5_000) == ErrorCode.MESSAGE_TOO_LARGE
            assert after.described(TOPIC, "t", "retention.ms") == ("777", 1)
            assert after.described(BROKER, "1", "message.max.bytes") == ("4000", 3)
            pages = client.request(DescribeTopicPartitionsRequest([TopicRequest("t")]), 0)
            assert [each.error_code for each in pages.topics[0].partitions] == [0, 0, 0]
    finally:
        process.stop()


def test_a_thousand_resources_are_altered_and_described_at_once(node: Node) -> None:
    """Requests that alter or describe 1,200 resources get one result for each, in order."""
    names = [f"many{number}" for number in range(1_200)]
    assert not node.create("many7").error_code
    change = [AlterableConfig("retention.ms", SET, "1000")]
    asked = [AlterConfigsResource(TOPIC, name, change) for name in names]
    answered = node.client.request(IncrementalAlterConfigsRequest(asked), 1).responses
    assert [each.resource_name for each in answered] == names
    assert [each.resource_name for each in answered if not each.error_code] == ["many7"]
    described = node.client.request(
        DescribeConfigsRequest([DescribeConfigsResource(TOPIC, name, ["retention.ms"]) for name in names]), 4
    ).results
    assert [each.resource_name for each in described] == names
    assert [each.configs[0].value for each in described if not each.error_code] == ["1000"]


def test_connections_are_limited_from_the_next_one_on(node: Node) -> None:
    """When `max.connections.per.ip` is lowered, open connections stay, and the next one is closed without a
    response."""
    assert node.alter(BROKER, "1", max_connections_per_ip="1") == ErrorCode.NONE
    with RawClient(node.process.bootstrap) as second, pytest.raises(ConnectionError):
        second.read_exactly(1)
    assert node.alter(BROKER, "1", max_connections_per_ip=None) == ErrorCode.NONE
    with RawClient(node.process.bootstrap) as second:
        assert not second.request(DescribeLogDirsRequest([]), 4).error_code


def test_a_cordoned_directory_takes_no_new_replicas(node: Node) -> None:
    """A cordoned directory keeps its replicas and serves them. It gets no new replica until the cordon is removed
    (KIP-1066)."""
    assert not node.create("old").error_code
    assert node.alter(BROKER, "1", cordoned_log_dirs="*") == ErrorCode.NONE
    deadline = time.monotonic() + 10
    while not (refused := node.create(f"u{time.monotonic()}")).error_code:
        assert time.monotonic() < deadline, "the controller did not learn of the cordon"
    assert refused.error_code == ErrorCode.INVALID_REPLICATION_FACTOR
    assert node.client.request(DescribeLogDirsRequest([]), 5).results[0].is_cordoned
    grown = node.client.request(CreatePartitionsRequest([CreatePartitionsTopic("old", 2, None)], 10_000), 3)
    assert grown.results[0].error_code == ErrorCode.INVALID_REPLICATION_FACTOR
    assert node.produce("old", 10) == ErrorCode.NONE
    assert node.alter(BROKER, "1", cordoned_log_dirs=None) == ErrorCode.NONE
    while node.create("v").error_code:
        assert time.monotonic() < deadline, "the controller did not learn that the cordon was removed"


def test_the_log_level_can_be_raised(node: Node) -> None:
    """The log level of a broker can be changed at run time (KIP-412). Lines below the level are not written."""
    assert node.alter(LOGGER, "1", root="LOUD") == ErrorCode.INVALID_CONFIG
    assert node.alter(LOGGER, "1", root="ERROR") == ErrorCode.NONE
    assert node.described(LOGGER, "1", "root") == ("ERROR", 6)
    written = node.process.log_tail()
    node.client.send(b"\0\0\0\x04junk")
    with pytest.raises(ConnectionError):
        node.client.read_exactly(1)
    assert node.process.log_tail() == written
    with RawClient(node.process.bootstrap) as client:
        assert Node(node.process, client).alter(LOGGER, "1", root="INFO") == ErrorCode.NONE
