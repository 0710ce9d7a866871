"""DescribeProducers of a replicated partition (KIP-664)."""

from __future__ import annotations

from odradek.wire.errors import ErrorCode
from odradek.wire.messages.describe_producers import DescribeProducersRequest, TopicRequest
from tests.log.support import batch
from tests.replication.brokers import NODES, TOPIC, ReplicatedTopic

PRODUCER_ID, EPOCH = 71, 3


def test_any_replica_tells_of_its_producers() -> None:
    """As in Kafka, leader and followers list the same producer. A disk that hangs is not read."""

    async def script(cluster: ReplicatedTopic) -> None:
        sent = batch(producer_id=PRODUCER_ID, producer_epoch=EPOCH, base_sequence=0)
        assert await cluster.send(1, sent) == (ErrorCode.NONE, 0)
        request = DescribeProducersRequest([TopicRequest(TOPIC, [0])])
        told = []
        for node_id in NODES:
            answer = (await cluster.ask(node_id, request, version=0)).topics[0].partitions[0]
            assert answer.error_code == ErrorCode.NONE
            told.append([(each.producer_id, each.producer_epoch) for each in answer.active_producers])
        assert told == [[(PRODUCER_ID, EPOCH)]] * len(NODES)
        cluster.members[2].broker.log_dirs[0].set_stalled(True)
        answer = (await cluster.ask(2, request, version=0)).topics[0].partitions[0]
        assert answer.error_code == ErrorCode.KAFKA_STORAGE_ERROR

    ReplicatedTopic().play(script)
