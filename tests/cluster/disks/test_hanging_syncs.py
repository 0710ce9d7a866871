"""With `log.flush.interval.messages=1`, no record is acknowledged while the sync of its log hangs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import attrs
import pytest

from odradek import Client, Consumer, Producer
from odradek.client.admin.admin_topics import NewTopic
from odradek.env.real_descriptors import readable
from odradek.wire.errors import ErrorCode
from odradek.wire.messages.describe_transactions import DescribeTransactionsRequest
from odradek.wire.messages.find_coordinator import FindCoordinatorRequest
from odradek.wire.messages.init_producer_id import InitProducerIdRequest
from odradek.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from odradek.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from testkit.odradek_server import start_odradek
from testkit.processes import ServerProcess
from testkit.raw_requests import RawClient, frame
from tests.cluster.disks.hanging_syncs import HangingSyncs
from tests.cluster.test_real_nodes import PATIENCE_SECONDS, until
from tests.log.support import batch

pytestmark = [pytest.mark.xdist_group("cluster"), pytest.mark.long]

SETTINGS = {
    "log.flush.interval.messages": "1",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "offsets.commit.timeout.ms": "60000",
    "odradek.disk.hung.ms": "600000",
}
REFUSALS = {
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.CONCURRENT_TRANSACTIONS,
}


def produce_request(topic: str, acks: int = -1) -> ProduceRequest:
    data = PartitionProduceData(0, bytes(batch(value=b"x")))
    return ProduceRequest(None, acks, 60_000, [TopicProduceData(topic, bytes(16), [data])])


def commit_request(offset: int) -> OffsetCommitRequest:
    partition = OffsetCommitRequestPartition(0, offset, -1, "")
    return OffsetCommitRequest(
        "g", -1, "", None, -1, [OffsetCommitRequestTopic(name="t", partitions=[partition])]
    )


@attrs.frozen
class Place:
    """A node with its data below `data`. Syncs of topic `t` may hang, those of topic `sound` do not."""

    server: ServerProcess
    syncs: HangingSyncs
    data: Path

    @property
    def at(self) -> str:
        return self.server.bootstrap

    def prepare(self) -> None:
        with Client(self.at) as client:
            for name in ("t", "sound"):
                (created,) = client.admin.create_topics([NewTopic(name, 1, 1)])
                assert created.error is None, created.error
        for topic in ("t", "sound"):
            self.produce(topic)
        for kind in (0, 1):
            until("a coordinator", lambda kind=kind: self.finds(kind) or None)
        until("a commit", lambda: self.commit(1) == 0 or None)
        until("a producer id", lambda: self.init_producer_id("warm") == 0 or None)

    def hanging(self, directory: str) -> Any:
        return self.syncs.hanging(self.data / directory)

    def produce(self, topic: str) -> None:
        """Write a record to another partition, synced and acknowledged.

        So the node works, and has had time to answer any request that does not wait for the hanging sync.
        """
        with RawClient(self.at) as client:
            answer = client.request(produce_request(topic), 9)
        assert answer.responses[0].partition_responses[0].error_code == 0

    def finds(self, kind: int) -> bool:
        with RawClient(self.at) as client:
            code: int = client.request(FindCoordinatorRequest("any", kind), 3).error_code
        return code == 0

    def commit(self, offset: int) -> int:
        with RawClient(self.at) as client:
            code: int = client.request(commit_request(offset), 8).topics[0].partitions[0].error_code
        return code

    def init_producer_id(self, name: str) -> int:
        with RawClient(self.at) as client:
            code: int = client.request(InitProducerIdRequest(name, 60_000), 4).error_code
        return code

    def state(self, name: str) -> str:
        """Ask the coordinator for the state of a transaction."""
        with RawClient(self.at) as client:
            answer = client.request(DescribeTransactionsRequest([name]), 0)
        state: str = answer.transaction_states[0].transaction_state
        return state

    def values(self) -> list[bytes]:
        """Read the committed records of `t`."""
        with Consumer(bootstrap_servers=self.at, isolation_level="read_committed") as consumer:
            keys = [("t", 0)]
            consumer.assign(keys)
            consumer.seek_to_beginning(*keys)
            (end,) = consumer.end_offsets(keys).values()
            found: list[bytes] = []
            while consumer.position(keys[0]) < end:
                found += [each.value or b"" for each in consumer.poll(1.0)]
            return found


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    syncs = HangingSyncs.prepare(tmp_path / "syncs")
    with ExitStack() as stack:
        server = start_odradek(tmp_path / "node", settings=SETTINGS, environment=syncs.environment)
        stack.callback(server.kill)
        stack.callback(syncs.answer)
        (data,) = {each.parent for each in (tmp_path / "node").rglob("__cluster_metadata-0")}
        made = Place(server, syncs, data)
        made.prepare()
        yield made


def has_answer(client: RawClient) -> bool:
    return bool(readable([client.socket.fileno()], 0))


@pytest.mark.parametrize("acks", [-1, 1])
def test_produce(place: Place, acks: int) -> None:
    """A produce waits for the flush, with acks=all and with acks=1, because Kafka flushes during the append."""
    with RawClient(place.at) as client:
        with place.hanging("t-0/"):
            client.send(frame(produce_request("t", acks), 9))
            place.produce("sound")
            assert not has_answer(client)
        answer = client.receive(0, 9)
    assert answer.responses[0].partition_responses[0].error_code == 0


def test_an_offset_commit(place: Place) -> None:
    """An offset commit waits for the sync: `__consumer_offsets` uses the broker's flush setting, as in Kafka."""
    request = commit_request(5)
    with RawClient(place.at) as client:
        with place.hanging("__consumer_offsets-"):
            client.send(frame(request, 8))
            place.produce("sound")
            assert not has_answer(client)
        answer = client.receive(request.API_KEY, 8)
    assert answer.topics[0].partitions[0].error_code == 0


def test_a_producer_id(place: Place) -> None:
    """InitProducerId waits until its decision in `__transaction_state` is synced."""
    request = InitProducerIdRequest("tx", 60_000)
    with RawClient(place.at) as client, place.hanging("__transaction_state-"):
        client.send(frame(request, 4))
        place.produce("sound")
        if has_answer(client):
            assert client.receive(request.API_KEY, 4).error_code in REFUSALS, (
                "only a timeout may be answered while the sync hangs"
            )
    until("a producer id", lambda: place.init_producer_id("tx") == 0 or None)


def test_the_end_of_a_transaction_and_its_marker(place: Place) -> None:
    """EndTxn waits for the coordinator's sync. The transaction then stays prepared until its marker is synced."""
    with Producer(bootstrap_servers=place.at, transactional_id="tx") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        sent = producer.send("t", value=b"of the transaction", partition=0)
        producer.flush()
        sent.result(PATIENCE_SECONDS)
        ended = threading.Event()

        def commit() -> None:
            producer.commit_transaction()
            ended.set()

        committing = threading.Thread(target=commit)
        place.syncs.hang(place.data / "__transaction_state-")
        committing.start()
        place.produce("sound")
        assert not ended.is_set()
        # Now the decision is durable, but the marker is not.
        place.syncs.hang(place.data / "t-0/")
        until("the decision", lambda: place.state("tx") == "PrepareCommit" or None)
        place.produce("sound")
        assert place.state("tx") == "PrepareCommit"
        assert b"of the transaction" not in place.values()
        place.syncs.answer()
        until("the end", lambda: place.state("tx") == "CompleteCommit" or None)
        committing.join(PATIENCE_SECONDS)
        assert ended.is_set()
    assert b"of the transaction" in place.values()
