"""A transactional client with excessive requests gets Kafka's errors. Memory stays bounded and others are served."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import Any

import pytest

from odradek.wire.config_resources import RESOURCE_TOPIC
from odradek.wire.coordinator_partition import coordinator_partition
from odradek.wire.errors import ErrorCode
from odradek.wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from odradek.wire.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from odradek.wire.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from odradek.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from odradek.wire.messages.describe_transactions import DescribeTransactionsRequest
from odradek.wire.messages.end_txn import EndTxnRequest
from odradek.wire.messages.find_coordinator import FindCoordinatorRequest
from odradek.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from odradek.wire.messages.init_producer_id import InitProducerIdRequest
from odradek.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from odradek.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from odradek.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from odradek.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from odradek.wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from testkit.raw_requests import RawClient, frame
from tests.log.support import batch
from tests.node_process import RunningNode

PARTITIONS = 3
SECONDS_MAX = 60.0
MORE_THAN_ANY = 40_001
"""More array elements than a frame may have (docs/compatibility.md)."""
MANY = 10_000
IDS = 2_000
WIDE = 100
OFFSETS = MetadataRequestTopic(name="__consumer_offsets")
INTERNAL = ("__consumer_offsets", "__transaction_state")
GROWTH_KIB_MAX = 64 * 1024
NOT_YET = (
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.CONCURRENT_TRANSACTIONS,
)


class Hostile:
    """A raw client with an initialised transactional producer and a separate topic."""

    def __init__(self, client: RawClient, topic: str) -> None:
        self.client = client
        self.topic = topic
        created = client.request(CreateTopicsRequest([CreatableTopic(topic, PARTITIONS, 1)], 10_000), 5)
        assert not created.topics[0].error_code
        for kind in (0, 1):
            self.settled(FindCoordinatorRequest(topic, kind), 2)
        begun = self.settled(InitProducerIdRequest(topic, 60_000), 4)
        self.producer: tuple[str, int, int] = (topic, begun.producer_id, begun.producer_epoch)

    def settled(self, message: Any, version: int) -> Any:
        """Repeat a request until the coordinator exists and is loaded; return its response."""
        deadline = time.monotonic() + SECONDS_MAX
        while (answer := self.client.request(message, version)).error_code in NOT_YET:
            assert time.monotonic() < deadline, answer
            time.sleep(0.05)
        assert not answer.error_code
        return answer

    def add(self, partitions: list[int], *, version: int = 3) -> Counter[int]:
        """Add partitions to the transaction; return how many got each error code."""
        topics = [AddPartitionsToTxnTopic(self.topic, partitions)]
        answer = self.client.request(AddPartitionsToTxnRequest([], *self.producer, topics), version)
        return Counter(
            each.partition_error_code
            for topic in answer.results_by_topic_v3_and_below
            for each in topic.results_by_partition
        )


@pytest.fixture
def hostile(node: RunningNode, fresh_topic: Callable[[str], str]) -> Iterator[Hostile]:
    with RawClient(node.bootstrap, SECONDS_MAX) as client:
        asking = Hostile(client, fresh_topic("hostile"))
        before = node.process.rss_kib() if node.process else 0
        yield asking
        assert not node.process or node.process.rss_kib() - before < GROWTH_KIB_MAX
    # After any test, the node must still serve others.
    with RawClient(node.bootstrap, SECONDS_MAX) as client:
        assert client.request(MetadataRequest([]), 5).brokers


def test_more_partitions_than_there_are(hostile: Hostile) -> None:
    """If one partition is unknown, none is added (KIP-98). A partition that is named often is added once."""
    assert hostile.add(list(range(MANY))) == {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: MANY - PARTITIONS,
        ErrorCode.OPERATION_NOT_ATTEMPTED: PARTITIONS,
    }
    assert set(hostile.add([0] * MANY)) == {ErrorCode.NONE}
    with pytest.raises(ConnectionError):
        hostile.add(list(range(MORE_THAN_ANY)))


def test_offsets_that_fit_into_no_record_batch(hostile: Hostile) -> None:
    """If the offsets of a TxnOffsetCommit exceed one append, all are refused. The transaction stays usable."""
    group = hostile.topic
    assert not hostile.client.request(AddOffsetsToTxnRequest(*hostile.producer, group), 3).error_code

    def commit(count: int, more: Sequence[TxnOffsetCommitRequestPartition] = ()) -> set[int]:
        places = [TxnOffsetCommitRequestPartition(at % PARTITIONS, 5, -1, "m" * 4_000) for at in range(count)]
        places += more
        topics = [TxnOffsetCommitRequestTopic(hostile.topic, places)]
        name, producer_id, epoch = hostile.producer
        answer = hostile.client.request(
            TxnOffsetCommitRequest(name, group, producer_id, epoch, topics=topics), 3
        )
        return {each.error_code for topic in answer.topics for each in topic.partitions}

    assert commit(2_000) == {ErrorCode.INVALID_COMMIT_OFFSET_SIZE}
    assert commit(PARTITIONS) == {ErrorCode.NONE}
    # Offsets that are refused for their metadata do not count for the size limit.
    longer = [TxnOffsetCommitRequestPartition(0, 5, -1, "m" * 30_000)] * 200
    assert commit(PARTITIONS, longer) == {ErrorCode.NONE, ErrorCode.OFFSET_METADATA_TOO_LARGE}
    assert not hostile.client.request(EndTxnRequest(*hostile.producer, True), 3).error_code


def test_a_transaction_too_large_for_its_record(hostile: Hostile) -> None:
    """When the transaction's record reaches the size limit, more partitions get UNKNOWN_SERVER_ERROR, as in Kafka. The
    transaction can still be ended, even under a lowered limit."""
    client = hostile.client
    more = CreatePartitionsTopic(hostile.topic, WIDE, None)
    assert not client.request(CreatePartitionsRequest([more], 10_000), 3).results[0].error_code

    def limit(key: str, size: int | None) -> None:
        change = AlterableConfig(key, 0 if size else 1, str(size) if size else None)
        resource = AlterConfigsResource(RESOURCE_TOPIC, "__transaction_state", [change])
        assert not client.request(IncrementalAlterConfigsRequest([resource]), 1).responses[0].error_code

    def grown() -> bool:
        state = client.request(DescribeTransactionsRequest([hostile.topic]), 0).transaction_states[0]
        return sum(len(topic.partitions) for topic in state.topics) == WIDE // 2

    deadline = time.monotonic() + SECONDS_MAX
    while set(hostile.add(list(range(WIDE // 2)))) != {ErrorCode.NONE}:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    try:
        for key in ("max.message.bytes", "internal.segment.bytes"):
            limit(key, 300)
            assert set(hostile.add(list(range(WIDE)))) == {ErrorCode.UNKNOWN_SERVER_ERROR}
            assert grown()
            if key == "max.message.bytes":
                limit(key, None)
        assert not client.request(EndTxnRequest(*hostile.producer, False), 3).error_code
        hostile.settled(InitProducerIdRequest(hostile.topic, 60_000), 4)
    finally:
        limit("internal.segment.bytes", None)


def test_clients_write_no_records_of_coordinators(hostile: Hostile) -> None:
    """Writes of clients to internal topics are refused, even with the client id that Kafka trusts. Transactions cannot
    include these topics."""
    told = hostile.client.request(MetadataRequest([MetadataRequestTopic(name=name) for name in INTERNAL]), 12)
    for topic in told.topics:
        for version, client_id in product((9, 13), (b"raw", b"__admin_client", b"")):
            data = [TopicProduceData(topic.name, topic.topic_id, [PartitionProduceData(0, bytes(batch()))])]
            hostile.client.send(frame(ProduceRequest(None, -1, 5_000, data), version, client_id=client_id))
            answer = hostile.client.receive(ProduceRequest.API_KEY, version)
            (refused,) = answer.responses[0].partition_responses
            assert refused.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
        topics = [AddPartitionsToTxnTopic(topic.name, [0])]
        answer = hostile.client.request(AddPartitionsToTxnRequest([], *hostile.producer, topics), 3)
        (refused,) = answer.results_by_topic_v3_and_below[0].results_by_partition
        assert refused.partition_error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED


def test_markers_of_producers_that_nobody_knows(hostile: Hostile) -> None:
    """Markers of unknown producers are written (KIP-664). Markers with producer id -1 are refused without affecting
    the others."""
    topics = [WritableTxnMarkerTopic(hostile.topic, [0, 0, PARTITIONS])]
    producers = [-1, *range(1_000_000, 1_000_500)]
    markers = [WritableTxnMarker(producer, 0, False, topics, 0) for producer in producers]
    answer = hostile.client.request(WriteTxnMarkersRequest(markers), 1)
    codes = {
        (marker.producer_id == -1, each.partition_index, each.error_code)
        for marker in answer.markers
        for topic in marker.topics
        for each in topic.partitions
    }
    assert codes == {
        (True, 0, ErrorCode.UNKNOWN_SERVER_ERROR),
        (True, PARTITIONS, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (False, 0, ErrorCode.NONE),
        (False, PARTITIONS, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    }


def test_a_marker_settles_offsets_before_it_is_answered(hostile: Hostile) -> None:
    """After a marker is answered, the committed offsets are visible to the next request and no longer pending
    (KAFKA-17507)."""
    client, group = hostile.client, hostile.topic
    index = coordinator_partition(
        group, len(client.request(MetadataRequest([OFFSETS]), 12).topics[0].partitions)
    )
    asked = OffsetFetchRequestTopics(name=hostile.topic, partition_indexes=[0])
    fetched = OffsetFetchRequestGroup(group, topics=[asked])
    for offset in range(1, 11):
        begun = hostile.settled(InitProducerIdRequest(group, 60_000), 4)
        hostile.producer = name, producer_id, epoch = group, begun.producer_id, begun.producer_epoch
        hostile.settled(AddOffsetsToTxnRequest(*hostile.producer, group), 3)
        place = TxnOffsetCommitRequestPartition(0, offset, -1, "")
        topics = [TxnOffsetCommitRequestTopic(hostile.topic, [place])]
        commit = TxnOffsetCommitRequest(name, group, producer_id, epoch, topics=topics)
        assert not client.request(commit, 3).topics[0].partitions[0].error_code
        marked = [WritableTxnMarkerTopic("__consumer_offsets", [index])]
        client.request(WriteTxnMarkersRequest([WritableTxnMarker(producer_id, epoch, True, marked, 0)]), 1)
        answer = client.request(OffsetFetchRequest(groups=[fetched], require_stable=True), 8)
        told = answer.groups[0].topics[0].partitions[0]
        assert (told.error_code, told.committed_offset) == (ErrorCode.NONE, offset)


def test_a_flood_of_new_transactional_ids(hostile: Hostile) -> None:
    """Thousands of pipelined InitProducerId requests with new ids are answered in order, each with a different producer
    id."""
    found: dict[int, int] = {}
    deadline = time.monotonic() + SECONDS_MAX
    while asked := [number for number in range(IDS) if number not in found][:500]:
        for number in asked:
            name = f"{hostile.topic}-{number}"
            hostile.client.send(frame(InitProducerIdRequest(name, 60_000), 4))
        for number in asked:
            answer = hostile.client.receive(InitProducerIdRequest.API_KEY, 4)
            if not answer.error_code:
                found[number] = answer.producer_id
            assert answer.error_code in (ErrorCode.NONE, *NOT_YET)
        assert time.monotonic() < deadline
    assert len(set(found.values())) == IDS
