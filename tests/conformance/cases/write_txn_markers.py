"""WriteTxnMarkers, and how a partition shows transactions to read_committed clients and in its producer states.

The cases write to partitions without a coordinator. So they turn `transaction.partition.verification.enable` off.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from odradek.wire.batches.batch_header import iter_batches
from odradek.wire.messages.describe_cluster import DescribeClusterRequest
from odradek.wire.messages.describe_producers import DescribeProducersRequest, TopicRequest
from odradek.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from odradek.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from odradek.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from odradek.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from odradek.wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from tests.conformance.asking.batches import batch
from tests.conformance.asking.talk import Talk, case
from tests.conformance.asking.transactions import END, PRODUCE, V1, V2, in_state

VERIFICATION = "transaction.partition.verification.enable"
BROKER = 4
COMMIT, ABORT = True, False
MIB = 1 << 20
EPOCH_MAX = 2**15 - 1


@contextmanager
def _without_verification(talk: Talk, name: str) -> Iterator[None]:
    """Wait until partition 1 of the topic takes a transaction that no coordinator knows."""
    node_id = talk.ask_silently(DescribeClusterRequest(), 0).brokers[0].broker_id

    def set_to(value: str | None) -> None:
        config = AlterableConfig(VERIFICATION, 1 if value is None else 0, value)
        resource = AlterConfigsResource(BROKER, str(node_id), [config])
        talk.ask_silently(IncrementalAlterConfigsRequest([resource]), 1)

    set_to("false")
    try:
        for producer in range(1_000, 2_000):
            data = batch(1, producer_id=producer, producer_epoch=0, base_sequence=0, is_transactional=True)
            sent = [TopicProduceData(name, bytes(16), [PartitionProduceData(1, data)])]
            response = talk.ask_silently(ProduceRequest("an-id", -1, 5_000, sent), 9)
            if not response.responses[0].partition_responses[0].error_code:
                break
        yield
    finally:
        set_to(None)


def _transactional(name: str) -> Callable[[Callable[[Talk, str], None]], None]:
    """Make a case with a topic of its own, in which partitions take transactions without a coordinator."""

    def enter(conversation: Callable[[Talk, str], None]) -> None:
        def run(talk: Talk) -> None:
            topic, _ = talk.topic(f"wtm-{name.replace(' ', '-')}", 2)
            with _without_verification(talk, topic):
                conversation(talk, topic)

        case(f"write_txn_markers {name}")(run)

    return enter


def _produce(
    talk: Talk,
    topic: str,
    producer: int,
    sequence: int,
    *,
    epoch: int = 0,
    acks: int = -1,
    is_transactional: bool = True,
    version: int = 9,
    at: int = 0,
) -> None:
    data = batch(
        2,
        producer_id=producer,
        producer_epoch=epoch,
        base_sequence=sequence,
        is_transactional=is_transactional,
    )
    sent = [TopicProduceData(topic, bytes(16), [PartitionProduceData(at, data)])]
    request = ProduceRequest("an-id", acks, 5_000, sent)
    if acks == 0:
        talk.without_answer(request, version)
    else:
        talk.ask(request, version, _without_text)


def _without_text(response: Any) -> Any:
    for answered in response.responses:
        for answer in answered.partition_responses:
            answer.error_message = None
    return response


def _end(
    talk: Talk,
    topic: str,
    producer: int,
    is_commit: bool,
    *,
    epoch: int = 0,
    coordinator_epoch: int = 0,
    transaction_version: int = 0,
    partitions: tuple[int, ...] = (0,),
) -> None:
    topics = [WritableTxnMarkerTopic(topic, list(partitions))]
    marker = WritableTxnMarker(producer, epoch, is_commit, topics, coordinator_epoch, transaction_version)
    talk.ask(WriteTxnMarkersRequest([marker]), 2)


def _look(talk: Talk, topic: str, offset: int = 0, max_bytes: int = MIB) -> None:
    """Show the records under both isolation levels, and the known producers."""
    for isolation in (0, 1):
        wanted = FetchTopic(
            topic, partitions=[FetchPartition(0, fetch_offset=offset, partition_max_bytes=max_bytes)]
        )
        talk.ask(FetchRequest(topics=[wanted], isolation_level=isolation), 12, _with_batches_named)
        for timestamp in (-1, -2, 1_000):
            asked = ListOffsetsTopic(topic, [ListOffsetsPartition(0, timestamp=timestamp)])
            talk.ask(ListOffsetsRequest(-1, isolation, [asked]), 6)
    _describe(talk, topic)


def _describe(talk: Talk, topic: str) -> None:
    talk.ask(DescribeProducersRequest([TopicRequest(topic, [0])]), 0, _without_times)


def _without_times(response: Any) -> Any:
    """Remove timestamps, since markers contain the present time."""
    for topic in response.topics:
        for answer in topic.partitions:
            for producer in answer.active_producers:
                producer.last_timestamp = 0
    return response


def _with_batches_named(response: Any) -> Any:
    """Replace the records by the offsets of their batches, since markers contain the present time."""
    for topic in response.responses:
        for answer in topic.partitions:
            found = [
                f"{header.base_offset}{'!' if header.is_control else ''}"
                for _, header in iter_batches(bytes(answer.records or b""))
            ]
            answer.records = " ".join(found).encode()
    return response


def _versions(talk: Talk, *, version: int) -> None:
    topic, _ = talk.topic(f"wtm{version}", 2)
    talk.ask(WriteTxnMarkersRequest([]), version)
    for topics in (
        [],
        [WritableTxnMarkerTopic(topic, [])],
        [WritableTxnMarkerTopic(topic, [0])],
        [WritableTxnMarkerTopic(topic, [0, 1, 2])],
        [WritableTxnMarkerTopic(talk.name("unknown"), [0])],
    ):
        talk.ask(WriteTxnMarkersRequest([WritableTxnMarker(7, 0, COMMIT, topics, 3)]), version)
    _look(talk, topic)


for _version in (1, 2):
    case(f"write_txn_markers v{_version}")(partial(_versions, version=_version))


@_transactional("commit and abort")
def _(talk: Talk, topic: str) -> None:
    _produce(talk, topic, 1, 0)
    _look(talk, topic)
    _produce(talk, topic, 1, 2)
    _look(talk, topic)
    _end(talk, topic, 1, COMMIT)
    _look(talk, topic)
    _produce(talk, topic, 1, 4)
    _look(talk, topic)
    _end(talk, topic, 1, ABORT)
    _look(talk, topic)
    _look(talk, topic, 5)


@_transactional("of several producers at once")
def _(talk: Talk, topic: str) -> None:
    _produce(talk, topic, 1, 0)
    _produce(talk, topic, 2, 0)
    _produce(talk, topic, 3, 0)
    _end(talk, topic, 2, ABORT)
    _look(talk, topic)
    _end(talk, topic, 1, COMMIT)
    _look(talk, topic)
    _produce(talk, topic, 2, 2)
    _end(talk, topic, 3, ABORT)
    _look(talk, topic)
    _end(talk, topic, 2, ABORT)
    for offset in (0, 2, 4, 6, 7, 8, 10, 11):
        _look(talk, topic, offset)


@_transactional("with epochs")
def _(talk: Talk, topic: str) -> None:
    _produce(talk, topic, 1, 0, epoch=3)
    _end(talk, topic, 1, COMMIT, epoch=2)
    _end(talk, topic, 1, COMMIT, epoch=4, coordinator_epoch=5)
    _describe(talk, topic)
    _end(talk, topic, 1, COMMIT, epoch=4, coordinator_epoch=4)
    _end(talk, topic, 1, ABORT, epoch=4, coordinator_epoch=6)
    _produce(talk, topic, 1, 2, epoch=3)
    _produce(talk, topic, 1, 2, epoch=4)
    _produce(talk, topic, 1, 0, epoch=4)
    _produce(talk, topic, 1, 0, epoch=5)
    _look(talk, topic)
    _end(talk, topic, 1, ABORT, epoch=5, coordinator_epoch=6)
    _look(talk, topic)


@_transactional("of transaction version 2")
def _(talk: Talk, topic: str) -> None:
    _produce(talk, topic, 1, 0, epoch=3)
    for epoch in (2, 3, 4, 4, 3):
        _end(talk, topic, 1, COMMIT, epoch=epoch, transaction_version=2)
        _describe(talk, topic)
    _produce(talk, topic, 2, 0, epoch=EPOCH_MAX)
    for _ in range(2):
        _end(talk, topic, 2, ABORT, epoch=EPOCH_MAX, transaction_version=2)
    for transaction_version in (1, 3, -1):
        _produce(talk, topic, 5 + transaction_version, 0, epoch=3)
        _end(talk, topic, 5 + transaction_version, ABORT, epoch=3, transaction_version=transaction_version)
    _look(talk, topic)


@_transactional("of nobody")
def _(talk: Talk, topic: str) -> None:
    for producer, epoch in ((-1, -1), (-1, 0), (5, -1), (5, -3), (-5, 0)):
        _end(talk, topic, producer, COMMIT, epoch=epoch)
        _end(talk, "__consumer_offsets", producer, ABORT, epoch=epoch)
    _end(talk, topic, -1, COMMIT, partitions=(9,))
    _look(talk, topic)


@_transactional("while a producer leaves its transaction")
def _(talk: Talk, topic: str) -> None:
    _produce(talk, topic, 1, 0)
    _produce(talk, topic, 1, 2, is_transactional=False)
    _produce(talk, topic, 1, 0)
    _produce(talk, topic, 1, 0, is_transactional=False)
    _produce(talk, topic, 1, 0, epoch=1, is_transactional=False)
    _describe(talk, topic)


@_transactional("after appends with other acks")
def _(talk: Talk, topic: str) -> None:
    _produce(talk, topic, 1, 0, acks=1)
    _describe(talk, topic)
    _produce(talk, topic, 2, 0, acks=0)
    _describe(talk, topic)


@_transactional("after appends of several producers in one request")
def _(talk: Talk, topic: str) -> None:
    data = [
        PartitionProduceData(
            at, batch(1, producer_id=1 + at, producer_epoch=0, base_sequence=0, is_transactional=True)
        )
        for at in (0, 1)
    ]
    sent = [TopicProduceData(topic, bytes(16), data)]
    talk.ask(ProduceRequest("an-id", -1, 5_000, sent), 9, _without_text)
    data[1] = PartitionProduceData(1, batch(1))
    talk.ask(ProduceRequest("an-id", -1, 5_000, sent), 9, _without_text)
    data[0] = PartitionProduceData(0, batch(1, is_transactional=True))
    talk.ask(ProduceRequest("an-id", -1, 5_000, sent), 9, _without_text)
    _look(talk, topic)


@_transactional("twice in one request")
def _(talk: Talk, topic: str) -> None:
    _produce(talk, topic, 1, 0)
    _produce(talk, topic, 1, 0, at=1)
    topics = [WritableTxnMarkerTopic(topic, [0, 1])]
    markers = [
        WritableTxnMarker(1, 0, ABORT, topics, 0),
        WritableTxnMarker(1, 0, COMMIT, topics, 0),
        WritableTxnMarker(2, 0, COMMIT, topics, 0),
    ]
    talk.ask(WriteTxnMarkersRequest(markers), 2)
    _look(talk, topic)


def _of_an_open_transaction(talk: Talk, *, client: int) -> None:
    """End a coordinator's open transaction as an operator, behind the coordinator's back."""
    for number, (by, other, is_commit) in enumerate(
        ((0, 0, ABORT), (0, 0, COMMIT), (1, 0, ABORT), (-1, 0, ABORT), (0, 1, COMMIT))
    ):
        producer = in_state(talk, f"wtm-open-{client}-{number}", "ongoing", client)
        if producer.epoch + by < 0:
            producer.end(COMMIT)
            producer.init()
            producer.begin()
        for coordinator_epoch in (0, 0, 5):
            topics = [WritableTxnMarkerTopic(producer.topic, [0])]
            marker = WritableTxnMarker(
                producer.producer_id + other,
                producer.epoch + by,
                is_commit,
                topics,
                coordinator_epoch,
                0 if client == V1 else 2,
            )
            talk.ask(WriteTxnMarkersRequest([marker]), 2)
        _look(talk, producer.topic)
        producer.look()
        producer.ask(producer.produce_request(), PRODUCE[client])
        _look(talk, producer.topic)


for _client in (V1, V2):
    case(f"write_txn_markers of a coordinator's open transaction, client {_client}")(
        partial(_of_an_open_transaction, client=_client)
    )


def _with_the_highest_epoch(talk: Talk, *, client: int) -> None:
    """End an open transaction as an admin client, with an epoch above all epochs of the coordinator."""
    producer = in_state(talk, f"wtm-highest-{client}", "ongoing", client)
    topics = [WritableTxnMarkerTopic(producer.topic, [0])]
    marker = WritableTxnMarker(producer.producer_id, EPOCH_MAX, ABORT, topics, 0, 0)
    talk.ask(WriteTxnMarkersRequest([marker]), 1)
    _look(talk, producer.topic)
    talk.ask(producer.end_request(COMMIT), END[client])
    _look(talk, producer.topic)
    # Kafka's coordinator gives up the marker, and the transactional id cannot be used any more.
    talk.ask(producer.init_request(), 5)
    producer.look()


for _client in (V1, V2):
    case(f"write_txn_markers with the highest producer epoch, client {_client}")(
        partial(_with_the_highest_epoch, client=_client)
    )
