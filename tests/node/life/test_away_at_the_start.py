"""A real node whose second log directory is missing at the start. Later the directory returns or is replaced."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from odradek.metadata_quorum.replica.meta_properties import MetaProperties
from odradek.wire.errors import ErrorCode
from odradek.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from odradek.wire.messages.describe_log_dirs import DescribeLogDirsRequest
from odradek.wire.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from odradek.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from odradek.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from testkit.odradek_server import ODRADEK, launch_odradek, prepare_odradek
from testkit.processes import ServerFailed, ServerProcess
from testkit.raw_requests import RawClient
from tests.cli.running import odradek_in_nursery
from tests.node.requests.test_bad_batches import good_batch

PARTITIONS = 2


def produce(client: RawClient, partition: int) -> ErrorCode:
    data = PartitionProduceData(partition, good_batch())
    request = ProduceRequest(None, -1, 5000, [TopicProduceData("t", bytes(16), [data])])
    return ErrorCode(client.request(request, 9).responses[0].partition_responses[0].error_code)


def end_offsets(client: RawClient) -> list[int | str]:
    """Return the end offset of each partition, or the name of its error."""
    asked = [ListOffsetsPartition(partition, -1, -1) for partition in range(PARTITIONS)]
    answer = client.request(ListOffsetsRequest(-1, 0, [ListOffsetsTopic("t", asked)]), 5)
    return [
        ErrorCode(found.error_code).name if found.error_code else found.offset
        for found in answer.topics[0].partitions
    ]


def placement(client: RawClient) -> dict[str, list[int] | str]:
    """Return the partitions of each directory by its name; for an offline directory, the name of the error."""
    return {
        Path(result.log_dir).name: ErrorCode(result.error_code).name
        if result.error_code
        else [partition.partition_index for topic in result.topics for partition in topic.partitions]
        for result in client.request(DescribeLogDirsRequest(None), 4).results
    }


def elect_uncleanly(client: RawClient, partition: int) -> ErrorCode:
    """Ask for an unclean election, as an operator does who accepts the loss; return its error code."""
    request = ElectLeadersRequest(1, [TopicPartitions("t", [partition])], 5000)
    (topic,) = client.request(request, 2).replica_election_results
    return ErrorCode(topic.partition_result[0].error_code)


def wait_until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    """Poll until the condition holds. Raises `TimeoutError`."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError("the condition did not hold in time")


def end(server: ServerProcess, *, cleanly: bool) -> None:
    if cleanly:
        server.stop()
    else:
        server.kill()


def test_a_directory_that_cannot_be_locked_is_away(tmp_path: Path) -> None:
    """A directory that cannot be locked, as on a read-only disk, is only offline. A directory locked by another node
    prevents the start."""
    paths = [tmp_path / "first", tmp_path / "second"]
    properties = prepare_odradek(tmp_path / "node", settings={"log.dirs": ",".join(map(str, paths))})
    lock = paths[1] / ".lock"
    # Root can open a file without permissions, but cannot open a directory for writing.
    lock.unlink(missing_ok=True)
    lock.mkdir()
    server = launch_odradek(properties)
    try:
        with RawClient(server.bootstrap) as client:
            assert placement(client) == {"first": [], "second": "KAFKA_STORAGE_ERROR"}
        server.stop()
        lock.rmdir()
        server = launch_odradek(properties)
        twin = odradek_in_nursery("server", properties)
        assert twin.code == 1
        assert "another process has locked the directory" in twin.out + twin.err
    finally:
        server.kill()


@pytest.mark.parametrize("cleanly", [True, False])
def test_only_its_partitions_wait_for_a_directory(tmp_path: Path, cleanly: bool) -> None:
    """Partitions of a missing directory answer KAFKA_STORAGE_ERROR, and all their records return with it. A blank
    replacement begins empty, after an unclean election. The directory of the metadata log must be there."""
    first, second, aside = tmp_path / "first", tmp_path / "second", tmp_path / "aside"
    properties = prepare_odradek(tmp_path, settings={"log.dirs": f"{first},{second}"})
    cluster_id = MetaProperties.decode((first / "meta.properties").read_bytes()).cluster_id
    server = launch_odradek(properties)
    try:
        with RawClient(server.bootstrap) as client:
            client.request(CreateTopicsRequest([CreatableTopic("t", PARTITIONS, 1, [], [])], 5000, False), 5)
            assert [produce(client, partition) for partition in range(PARTITIONS)] == [0, 0]
            # A new replica goes where more room is measured. Both directories share one disk, so either may come first.
            placed = placement(client)
            one, other = placed["first"][0], placed["second"][0]
            assert isinstance(one, int)
            assert isinstance(other, int)
            assert {one, other} == {0, 1}
        end(server, cleanly=cleanly)

        second.rename(aside)
        server = launch_odradek(properties)
        with RawClient(server.bootstrap) as client:
            assert placement(client) == {"first": [one], "second": "KAFKA_STORAGE_ERROR"}
            assert [produce(client, partition) for partition in (one, other)] == [
                ErrorCode.NONE,
                ErrorCode.KAFKA_STORAGE_ERROR,
            ]
            assert [end_offsets(client)[each] for each in (one, other)] == [6, "KAFKA_STORAGE_ERROR"]
        assert (
            "mount its disk, or run `odradek storage adopt`" in properties.with_name("server.log").read_text()
        )
        end(server, cleanly=cleanly)

        aside.rename(second)
        server = launch_odradek(properties)
        with RawClient(server.bootstrap) as client:
            assert [end_offsets(client)[each] for each in (one, other)] == [6, 3]
            assert produce(client, other) is ErrorCode.NONE
        end(server, cleanly=cleanly)

        shutil.rmtree(second)
        again = [ODRADEK, "storage", "format", "--ignore-formatted", "--cluster-id", cluster_id, properties]
        subprocess.run(again, check=True, stdout=subprocess.DEVNULL)
        server = launch_odradek(properties)
        with RawClient(server.bootstrap) as client:
            wait_until(lambda: placement(client) == {"first": [one], "second": [other]})
            # Lost records are never hidden: the empty replica leads only after an unclean election by an operator.
            assert [end_offsets(client)[each] for each in (one, other)] == [6, "NOT_LEADER_OR_FOLLOWER"]
            wait_until(lambda: elect_uncleanly(client, other) is ErrorCode.NONE)
            wait_until(lambda: [end_offsets(client)[each] for each in (one, other)] == [6, 0])
        end(server, cleanly=cleanly)

        first.rename(aside)
        with pytest.raises(ServerFailed):
            launch_odradek(properties)
        assert "is missing or was never formatted" in properties.with_name("server.log").read_text()
    finally:
        server.kill()
