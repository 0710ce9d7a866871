"""A broker that starts with a partition that Apache Kafka has compacted can serve it, and others can follow it."""

from __future__ import annotations

import tarfile
from typing import Any

import pytest

from odradek.data_plane.log.dump import verify_partition
from odradek.data_plane.log.loading import write_topic_id
from odradek.wire.batches.batch_header import iter_batches
from odradek.wire.batches.records import records
from odradek.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from tests.log.compacted.record import ARCHIVE, TOPICS
from tests.log.compacted.test_kafka_compacted import rows_of
from tests.log.support import content
from tests.replication.brokers import NODES, TOPIC, TOPIC_ID, ReplicatedTopic, host

NAME = f"{TOPIC}-0"


def kafkas_files(topic: str) -> dict[str, bytes]:
    """Return the files of Kafka's directory of this topic, without the file of its topic id."""
    files: dict[str, bytes] = {}
    with tarfile.open(ARCHIVE) as archive:
        for member in archive.getmembers():
            folder, _, name = member.name.rpartition("/")
            source = archive.extractfile(member)
            if folder == f"{topic}-0" and name != "partition.metadata" and source is not None:
                files[name] = source.read()
    return files


def give_to(cluster: ReplicatedTopic, node_id: int, files: dict[str, bytes] | None) -> None:
    """Put these files in place of a stopped broker's partition. None removes the partition."""
    root = cluster.world.node_env(host(node_id)).open_dir("/data")
    if NAME in root.list():
        root.remove_tree(NAME)
    if files is not None:
        directory = root.subdir(NAME, create=True)
        for name, data in files.items():
            file = directory.open(name, create=True)
            file.append(data)
            file.sync()
        write_topic_id(directory, TOPIC_ID)
        directory.sync()
    root.sync()


@pytest.mark.parametrize("policy", ["compact", "delete"])
@pytest.mark.parametrize("topic", TOPICS)
def test_a_follower_of_a_log_that_kafka_compacted(topic: str, policy: str) -> None:
    """Recovery keeps all segments behind gaps. A follower accepts gaps and batches without records."""
    files = kafkas_files(topic)
    size = sum(len(data) for name, data in files.items() if name.endswith(".log"))

    async def script(cluster: ReplicatedTopic) -> None:
        for node_id in NODES:
            cluster.crash(node_id)
        for node_id in (3, 2):
            cluster.controller.fence(node_id)
        give_to(cluster, 1, files)
        give_to(cluster, 2, None)
        await cluster.start(1)
        leader = cluster.members[1].partition
        await cluster.until(lambda: leader().is_leader)
        assert leader().log.size_bytes == size
        await cluster.start(2)
        follower = cluster.members[2].partition
        await cluster.in_sync(1, 2)
        assert content(follower().log) == content(leader().log)
        assert follower().log.log_end_offset == leader().log.log_end_offset
        assert not list(verify_partition(follower().log.directory))
        assert await cluster.produce(1, b"behind the gaps") == (0, leader().log.log_end_offset - 1)
        assert cluster.contents(2) == cluster.contents(1)

    # Each answer has one batch, so that some answers have only batches without records.
    cluster = ReplicatedTopic(replica_fetch_max_bytes="1", replica_fetch_response_max_bytes="1")
    cluster.controller.topic_configs = {"cleanup.policy": policy, "retention.ms": "-1"}
    cluster.play(script)


async def fetch_least(cluster: ReplicatedTopic, offset: int) -> Any:
    """Fetch as a consumer whose limit is smaller than any batch. Return the one batch that it gets, if any."""
    topic = FetchTopic("", TOPIC_ID, [FetchPartition(0, -1, offset, -1, -1, 1)])
    request = FetchRequest(max_wait_ms=0, min_bytes=1, max_bytes=1, session_epoch=-1, topics=[topic])
    response = await cluster.ask(1, request, version=17)
    return response.responses[0].partitions[0]


@pytest.mark.parametrize("topic", TOPICS)
def test_a_consumer_is_spared_answers_without_records(topic: str) -> None:
    """librdkafka fails after ten answers without records. So a consumer gets records wherever it begins in a compacted
    log."""
    files = kafkas_files(topic)

    async def script(cluster: ReplicatedTopic) -> None:
        for node_id in NODES:
            cluster.crash(node_id)
        for node_id in (3, 2):
            cluster.controller.fence(node_id)
        give_to(cluster, 1, files)
        await cluster.start(1)
        partition = cluster.members[1].partition
        await cluster.until(lambda: partition().is_leader)
        log = partition().log
        expected = [(offset, value) for offset, _, _, value in rows_of(log)]
        headers = [header for _, header in iter_batches(content(log))]
        last = max(header.last_offset for header in headers if header.record_count)
        for start in {0, *(header.base_offset for header in headers)}:
            found: list[tuple[int, bytes | None]] = []
            offset = start
            while offset < log.log_end_offset:
                answer = await fetch_least(cluster, offset)
                assert answer.error_code == 0
                batches = list(iter_batches(bytes(answer.records)))
                assert any(header.record_count for _, header in batches) == (offset <= last)
                for position, header in batches:
                    offset = header.next_offset
                    if not header.is_control:
                        found += [
                            (each.offset, each.value)
                            for each in records(answer.records, position, decompressed_bytes_max=1 << 20)
                        ]
                if not batches:
                    break
            assert [row for row in found if row[0] >= start] == [row for row in expected if row[0] >= start]

    cluster = ReplicatedTopic()
    cluster.controller.topic_configs = {"cleanup.policy": "compact"}
    cluster.play(script)
