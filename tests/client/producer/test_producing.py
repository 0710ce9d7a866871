"""The producer's core against a fake broker: batches, retries and sequence numbers."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odradek.client.core.client_keys import ProducerSettings
from odradek.client.core.known_cluster import Broker
from odradek.client.core.operation import Operation, Wait
from odradek.client.core.requests import topics_with_metadata
from odradek.client.errors import RecordsNotEncoded
from odradek.client.producer.accumulator import Accumulator
from odradek.client.producer.partitioner import partition_for_key
from odradek.client.producer.sender import Sender
from odradek.wire.api import ApiKey
from odradek.wire.batches.batch_header import parse_header
from odradek.wire.errors import ErrorCode, KafkaError
from odradek.wire.messages.metadata import MetadataRequest
from odradek.wire.messages.produce import (
    BatchIndexAndErrorMessage,
    LeaderIdAndEpoch,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from sim.load.producing import Delivery, ProduceConfig, Producing, RecordToSend
from tests.client.core.test_core import make
from tests.client.fake_broker import HANG_UP, SILENCE, FakeBroker
from tests.schedule import examples

_REFUSALS = (
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.MESSAGE_TOO_LARGE,
    ErrorCode.INVALID_TIMESTAMP,
    ErrorCode.INVALID_PRODUCER_EPOCH,
)


def values(count: int, start: int = 0) -> list[RecordToSend]:
    return [RecordToSend("t", b"%d" % number, timestamp_ms=5) for number in range(start, start + count)]


def produced(broker: FakeBroker) -> list[ProduceRequest]:
    return [message for message in broker.requests if isinstance(message, ProduceRequest)]


def setup(partitions: int = 1, **config: Any) -> tuple[Any, FakeBroker, Producing]:
    core, wire, broker = make(request_timeout=3.0)
    broker.add_topic("t", partitions)
    return wire, broker, Producing(core, ProduceConfig(**config))


def errors(deliveries: list[Delivery]) -> list[ErrorCode | None]:
    return [d.error.code if isinstance(d.error, KafkaError) else None for d in deliveries]


def test_records_arrive_in_order_with_their_offsets() -> None:
    """Records arrive in order. Each delivery reports its batch's first offset and which records it contains."""
    wire, broker, producing = setup(batch_bytes_max=100)
    deliveries = wire.run(producing.produce(values(10), timeout=5))
    assert broker.values("t") == [[b"%d" % number for number in range(10)]]
    assert [d.base_offset for d in deliveries] == [d.indexes[0] for d in deliveries]
    assert [index for d in deliveries for index in d.indexes] == list(range(10))


def test_a_key_chooses_its_partition_and_a_partition_its_own() -> None:
    """A record goes to the partition that it names.

    If it names none, its key chooses the partition. Without a key it goes to the sticky partition.
    """
    wire, broker, producing = setup(partitions=5)
    keyed = [RecordToSend("t", b"v%d" % n, key=b"k%d" % n) for n in range(20)]
    wire.run(producing.produce([*keyed, RecordToSend("t", b"mine", partition=4, key=b"k0")], timeout=5))
    found = broker.values("t")
    for number in range(20):
        assert b"v%d" % number in found[partition_for_key(b"k%d" % number, 5)]
    assert b"mine" in found[4]


def test_headers_null_values_and_times_travel() -> None:
    """Null values, timestamps, and headers with or without a value arrive unchanged."""
    wire, broker, producing = setup()
    record = RecordToSend("t", None, b"k", (("a", b"1"), ("b", None)), 0, 123)
    wire.run(producing.produce([record], timeout=5))
    from odradek.wire.batches.records import records

    (stored,) = records(broker.topics["t"].partitions[0].batches[0][1], decompressed_bytes_max=1000)
    assert (stored.key, stored.value, stored.timestamp) == (b"k", None, 123)
    assert stored.headers == (("a", b"1"), ("b", None))


@pytest.mark.parametrize("compression_type", range(5))
def test_every_codec(compression_type: int) -> None:
    """Every codec is named in the batch's attributes, and the broker can read the records."""
    wire, broker, producing = setup(compression_type=compression_type)
    wire.run(producing.produce(values(100), timeout=5))
    assert len(broker.values("t")[0]) == 100
    assert parse_header(broker.topics["t"].partitions[0].batches[0][1]).compression_type == compression_type


def test_a_batch_whose_answer_was_lost_is_appended_once() -> None:
    """A batch is appended and its answer lost.

    The repeated batch has the same sequence number, and gets the original offset (KIP-98).
    """
    wire, broker, producing = setup()
    broker.append_before_trouble = True
    broker.trouble[ApiKey.PRODUCE].append(HANG_UP)
    (delivery,) = wire.run(producing.produce(values(3), timeout=5))
    assert delivery.error is None
    assert delivery.base_offset == 0
    assert broker.values("t") == [[b"0", b"1", b"2"]]
    wire.run(producing.produce(values(1, start=3), timeout=5))
    assert broker.values("t") == [[b"0", b"1", b"2", b"3"]]
    assert broker.producer_ids == 1


def test_without_a_sequence_number_a_lost_answer_doubles() -> None:
    """With acks=1 there are no sequence numbers, so a batch is appended twice if its answer is lost."""
    wire, broker, producing = setup(acks=1)
    broker.append_before_trouble = True
    broker.trouble[ApiKey.PRODUCE].append(HANG_UP)
    (delivery,) = wire.run(producing.produce(values(3), timeout=5))
    assert (delivery.error, delivery.base_offset) == (None, 3)
    assert broker.values("t") == [[b"0", b"1", b"2"] * 2]


def test_retriable_errors_are_retried_on_fresh_metadata() -> None:
    """After NOT_LEADER_OR_FOLLOWER metadata is refreshed, and the batch is sent again."""
    wire, broker, producing = setup()
    broker.trouble[ApiKey.PRODUCE].extend(
        [int(ErrorCode.NOT_LEADER_OR_FOLLOWER), int(ErrorCode.NOT_ENOUGH_REPLICAS)]
    )
    (delivery,) = wire.run(producing.produce(values(2), timeout=5))
    assert delivery.error is None
    assert len(produced(broker)) == 3
    assert broker.values("t") == [[b"0", b"1"]]


def test_the_last_error_is_given_when_the_time_is_over() -> None:
    """A partition is refused until the timeout. Its outcome is the last refusal and not a timeout."""
    wire, broker, producing = setup()
    broker.trouble[ApiKey.PRODUCE].extend([int(ErrorCode.NOT_ENOUGH_REPLICAS)] * 100)
    deliveries = wire.run(producing.produce(values(1), timeout=3))
    assert errors(deliveries) == [ErrorCode.NOT_ENOUGH_REPLICAS]
    assert 2 < wire.now <= 3


def test_a_refused_batch_fails_alone_and_leaves_no_gap() -> None:
    """A refused batch fails alone. Its sequence number is used by the next batch."""
    wire, broker, producing = setup(batch_bytes_max=1)
    broker.trouble[ApiKey.PRODUCE].append(int(ErrorCode.INVALID_TIMESTAMP))
    deliveries = wire.run(producing.produce(values(3), timeout=5))
    assert errors(deliveries) == [ErrorCode.INVALID_TIMESTAMP, None, None]
    assert broker.values("t") == [[b"1", b"2"]]


def test_a_batch_that_cannot_be_encoded_fails_alone_and_leaves_no_gap() -> None:
    """A record passes every check but cannot be encoded. Its batch fails alone, before it gets a sequence number."""
    wire, broker, producing = setup(2, batch_bytes_max=1)
    bad = RecordToSend("t", b"bad", headers=(("a", "text"),), partition=0, timestamp_ms=5)  # type: ignore[arg-type]
    good = [RecordToSend("t", b"%d" % n, partition=n % 2, timestamp_ms=5) for n in range(8)]
    deliveries = wire.run(producing.produce([*good[:3], bad, *good[3:]], timeout=5))
    failed = [d for d in deliveries if d.error is not None]
    assert [d.indexes for d in failed] == [(3,)]
    assert isinstance(failed[0].error, RecordsNotEncoded)
    assert isinstance(failed[0].error.__cause__, TypeError)
    assert broker.values("t") == [[b"0", b"2", b"4", b"6"], [b"1", b"3", b"5", b"7"]]
    assert {producer_epoch(message) for message in produced(broker)} == {0}


def producer_epoch(message: ProduceRequest) -> int:
    """Return the producer epoch of a request's first batch."""
    records = message.topic_data[0].partition_data[0].records
    assert records is not None
    return parse_header(records).producer_epoch


def test_a_broker_that_takes_nothing_for_too_long_is_blocked_until_it_answers() -> None:
    """A broker is blocked when a request has had no answer for `partitioner.availability.timeout.ms`.

    Its next answer unblocks it.
    """
    core, wire, broker = make(request_timeout=3.0)
    broker.add_topic("t", 1)
    settings = ProducerSettings.from_properties(
        {"bootstrap.servers": "fake:9092", "partitioner.availability.timeout.ms": 2000, "linger.ms": 0}
    )
    accumulator = Accumulator(settings, core.cluster, core.rng)
    sender = Sender(core, settings, accumulator)
    wire.run(topics_with_metadata(core, ["t"], deadline=5.0, auto_create=False))
    broker.trouble[ApiKey.PRODUCE].extend([SILENCE] * 3)
    seen: set[frozenset[int]] = set()

    def produce() -> Operation[None]:
        accumulator.open_batch("t", None, 5, None, b"v", (), core.now)
        (batch,) = accumulator.incomplete
        while not batch.done:
            sender._step()
            seen.add(accumulator.blocked)
            yield Wait(until=core.now + 0.25)
        sender._step()
        seen.add(accumulator.blocked)

    wire.run(produce())
    assert frozenset({1}) in seen
    assert accumulator.blocked == frozenset()
    assert broker.values("t") == [[b"v"]]


def test_a_batch_that_is_too_large_is_halved_until_it_fits() -> None:
    """A batch is refused with MESSAGE_TOO_LARGE and halved until its parts fit. A single record fails."""
    wire, broker, producing = setup()
    broker.max_batch_bytes = 300
    small = [RecordToSend("t", b"%03d" % n * 10) for n in range(20)]
    deliveries = wire.run(
        producing.produce([*small[:7], RecordToSend("t", b"x" * 400), *small[7:]], timeout=5)
    )
    failed = [d for d in deliveries if d.error is not None]
    assert [(d.indexes, d.error.code) for d in failed if isinstance(d.error, KafkaError)] == [
        ((7,), ErrorCode.MESSAGE_TOO_LARGE)
    ]
    assert broker.values("t") == [[record.value for record in small]]


def test_an_unknown_fate_stops_the_partition_and_the_next_call_has_a_new_epoch() -> None:
    """A batch may be in the log, but its answer is lost.

    The call sends nothing more to this partition, and the next call begins a new epoch.
    """
    wire, broker, producing = setup(batch_bytes_max=1)
    broker.append_before_trouble = True
    broker.trouble[ApiKey.PRODUCE].extend([SILENCE] * 10)
    deliveries = wire.run(producing.produce(values(3), timeout=6))
    assert all(d.error is not None for d in deliveries)
    assert broker.values("t") == [[b"0"]]
    broker.trouble.clear()
    deliveries = wire.run(producing.produce(values(2, start=7), timeout=5))
    assert errors(deliveries) == [None, None]
    assert broker.producer_ids == 1
    assert [parse_header(data).producer_epoch for _, data in broker.topics["t"].partitions[0].batches] == [
        0,
        1,
        1,
    ]
    assert broker.values("t") == [[b"0", b"7", b"8"]]


def test_acks_0_expects_no_answer() -> None:
    """With acks=0 the records are sent, and their offsets are unknown."""
    wire, broker, producing = setup(acks=0, batch_bytes_max=1)
    deliveries = wire.run(producing.produce(values(3), timeout=5))
    assert [(d.base_offset, d.error) for d in deliveries] == [(-1, None)] * 3
    assert broker.values("t") == [[b"0", b"1", b"2"]]


def test_an_unknown_topic_is_created_by_asking_for_it() -> None:
    """With `auto.create.topics.enable` the first Metadata request creates an unknown topic. A later one finds it."""
    wire, broker, producing = setup()
    wire.run(producing.produce([RecordToSend("fresh", b"v")], timeout=5))
    assert broker.values("fresh") == [[b"v"]]


def test_an_unknown_topic_that_must_not_be_created_is_an_error() -> None:
    """Without `auto_create`, an unknown topic fails at once with UNKNOWN_TOPIC_OR_PARTITION."""
    wire, broker, producing = setup(auto_create=False)
    with pytest.raises(KafkaError, match="topic fresh") as caught:
        wire.run(producing.produce([RecordToSend("fresh", b"v")], timeout=5))
    assert caught.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert "fresh" not in broker.topics


def test_a_partition_that_does_not_exist_is_an_error_before_anything_is_sent() -> None:
    """One record names a partition that does not exist. The call fails, and none of its records is sent."""
    wire, broker, producing = setup()
    with pytest.raises(KafkaError, match="no partition 9"):
        wire.run(producing.produce([*values(1), RecordToSend("t", b"v", partition=9)], timeout=5))
    assert produced(broker) == []


def test_a_topic_that_was_made_anew_is_found_under_its_new_id() -> None:
    """A topic is deleted and created again.

    After UNKNOWN_TOPIC_ID the new id is used, and sequence numbers begin at 0.
    """
    wire, broker, producing = setup()
    wire.run(producing.produce(values(1), timeout=5))
    broker.add_topic("t")
    deliveries = wire.run(producing.produce(values(1), timeout=5))
    assert errors(deliveries) == [None]
    assert broker.values("t") == [[b"0"]]


def test_an_answer_about_the_old_topic_finds_its_records_after_the_new_ones_metadata() -> None:
    """A topic is created anew while Produce is in flight, and metadata names the new id first.

    The answer is matched by the old id, and the records are sent again.
    """
    wire, broker, producing = setup()
    wire.run(producing.produce(values(1), timeout=5))
    answer = broker.answers[ApiKey.PRODUCE]

    def made_anew(broker: FakeBroker, request: ProduceRequest, code: int) -> Any:
        broker.answers[ApiKey.PRODUCE] = answer
        broker.add_topic("t")
        wire.core.cluster.update(broker._metadata(MetadataRequest(topics=None), 0))
        return answer(broker, request, code)

    broker.answers[ApiKey.PRODUCE] = made_anew
    deliveries = wire.run(producing.produce(values(2), timeout=5))
    assert errors(deliveries) == [None]
    assert broker.values("t") == [[b"0", b"1"]]


def test_requests_keep_to_their_size() -> None:
    """Batches of several partitions share a request of at most `request_bytes_max`."""
    wire, broker, producing = setup(partitions=6, request_bytes_max=2500)
    records = [RecordToSend("t", b"x" * 1000, partition=n) for n in range(6)]
    wire.run(producing.produce(records, timeout=5))
    sizes = [len(topic.partition_data) for message in produced(broker) for topic in message.topic_data]
    assert sizes == [2, 2, 2]


@settings(max_examples=examples(80), deadline=None)
@given(data=st.data())
def test_whatever_happens_every_record_is_there_at_most_once_and_in_order(data: st.DataObject) -> None:
    """Requests and answers are lost or refused.

    An idempotent producer writes every record at most once, and in order (KIP-98).
    """
    wire, broker, producing = setup(partitions=2, batch_bytes_max=data.draw(st.sampled_from([1, 60, 1000])))
    broker.append_before_trouble = data.draw(st.booleans())
    trouble = st.sampled_from([HANG_UP, SILENCE, 0, *map(int, _REFUSALS)])
    broker.trouble[ApiKey.PRODUCE].extend(data.draw(st.lists(trouble, max_size=8)))
    acknowledged: list[bytes] = []
    number = 0
    for _ in range(3):
        count = data.draw(st.integers(1, 8))
        records = [RecordToSend("t", b"%d" % n, partition=n % 2) for n in range(number, number + count)]
        number += count
        deliveries = wire.run(producing.produce(records, timeout=8))
        assert sorted(index for d in deliveries for index in d.indexes) == list(range(count))
        for delivery in deliveries:
            if delivery.error is None:
                acknowledged += [records[index].value or b"" for index in delivery.indexes]
    stored = broker.values("t")
    assert all(partition == sorted(partition, key=lambda value: int(value or b"")) for partition in stored)
    counts = Counter(value for partition in stored for value in partition)
    assert all(count == 1 for count in counts.values())
    assert set(acknowledged) <= set(counts)


def test_the_last_epoch_is_followed_by_a_new_producer_id() -> None:
    """Epochs have 16 bits. After the last one the producer asks for a new producer id (KIP-360)."""
    wire, broker, producing = setup(batch_bytes_max=1)
    wire.run(producing.produce(values(1), timeout=5))
    (lane,) = producing._accumulator.lanes.values()
    lane.producer_epoch = 32767
    broker.trouble[ApiKey.PRODUCE].append(int(ErrorCode.INVALID_TIMESTAMP))
    wire.run(producing.produce(values(1, start=1), timeout=5))
    deliveries = wire.run(producing.produce(values(2, start=2), timeout=5))
    assert errors(deliveries) == [None, None]
    assert broker.producer_ids == 2
    assert broker.values("t") == [[b"0", b"2", b"3"]]


@pytest.mark.parametrize("code", [ErrorCode.UNKNOWN_PRODUCER_ID, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER])
def test_a_broker_that_forgot_the_producer_gets_a_new_epoch(code: ErrorCode) -> None:
    """A broker has lost the producer's state. The producer takes a new epoch and sends the batch again (KIP-360)."""
    wire, broker, producing = setup()
    wire.run(producing.produce(values(2), timeout=5))
    broker.trouble[ApiKey.PRODUCE].append(int(code))
    deliveries = wire.run(producing.produce(values(2, start=2), timeout=5))
    assert errors(deliveries) == [None]
    headers = [parse_header(data) for _, data in broker.topics["t"].partitions[0].batches]
    assert [(h.producer_epoch, h.base_sequence) for h in headers] == [(0, 0), (1, 0)]


def test_what_a_broker_may_have_and_calls_a_gap_is_not_sent_under_new_numbers() -> None:
    """A repeated batch is refused with OUT_OF_ORDER_SEQUENCE_NUMBER. It fails, and is not sent under new numbers.

    Apache Kafka remembers one batch of each producer over a restart. So it refuses an older repeated batch, although
    its log has that batch.
    """
    wire, broker, producing = setup()
    wire.run(producing.produce(values(1), timeout=5))
    broker.append_before_trouble = True
    broker.trouble[ApiKey.PRODUCE].extend([HANG_UP, int(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)])
    deliveries = wire.run(producing.produce(values(1, start=1), timeout=5))
    assert errors(deliveries) == [ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER]
    assert broker.values("t") == [[b"0", b"1"]]
    broker.append_before_trouble = False
    deliveries = wire.run(producing.produce(values(1, start=2), timeout=5))
    assert errors(deliveries) == [None]
    assert broker.values("t") == [[b"0", b"1", b"2"]]


@pytest.mark.parametrize(
    ("code", "outcome"),
    [
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.INVALID_TIMESTAMP),
        (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.INVALID_TIMESTAMP),
        (ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, ErrorCode.INVALID_TIMESTAMP),
        (ErrorCode.NOT_ENOUGH_REPLICAS, None),
    ],
)
def test_what_a_leader_may_have_appended_is_not_sent_under_new_numbers(
    code: ErrorCode, outcome: ErrorCode | None
) -> None:
    """A leader answers an error, but may have appended the batch. The batch is not sent under new numbers.

    It could be written twice. For example, a leader that is deposed while it waits for followers answers
    NOT_LEADER_OR_FOLLOWER, and the next leader may have the batch, too. Found by clusters whose producers give up early
    (seed 2017).
    """
    wire, broker, producing = setup(batch_bytes_max=1)
    wire.run(producing.produce(values(1), timeout=5))
    broker.trouble[ApiKey.PRODUCE].extend([int(ErrorCode.INVALID_TIMESTAMP), int(code)])
    deliveries = wire.run(producing.produce(values(2, start=1), timeout=5))
    assert errors(deliveries) == [ErrorCode.INVALID_TIMESTAMP, outcome]
    assert broker.values("t") == [[b"0", b"2"] if outcome is None else [b"0"]]


def test_a_producer_that_was_fenced_fails_the_batch_and_takes_another_id() -> None:
    """INVALID_PRODUCER_EPOCH: another producer has this id with a newer epoch.

    The batch fails, and the next one uses a new id.
    """
    wire, broker, producing = setup()
    broker.trouble[ApiKey.PRODUCE].append(int(ErrorCode.INVALID_PRODUCER_EPOCH))
    deliveries = wire.run(producing.produce(values(1), timeout=5))
    assert errors(deliveries) == [ErrorCode.INVALID_PRODUCER_EPOCH]
    deliveries = wire.run(producing.produce(values(1), timeout=5))
    assert errors(deliveries) == [None]
    assert broker.producer_ids == 2


def test_errors_of_single_records_are_those_records_own() -> None:
    """A batch is refused because of one record (KIP-467).

    This record's error has the broker's message, and the other records fail as part of the batch.
    """
    wire, broker, producing = setup()
    topic = broker.topics["t"]
    refusal = PartitionProduceResponse(
        index=0,
        error_code=int(ErrorCode.INVALID_RECORD),
        base_offset=-1,
        record_errors=[BatchIndexAndErrorMessage(batch_index=1, batch_index_error_message="no key")],
    )
    answer = TopicProduceResponse(name="t", topic_id=topic.topic_id, partition_responses=[refusal])
    broker.trouble[ApiKey.PRODUCE].append(ProduceResponse(responses=[answer]))
    deliveries = wire.run(producing.produce(values(3), timeout=5))
    assert [delivery.indexes for delivery in deliveries] == [(0,), (1,), (2,)]
    assert ["no key" in str(delivery.error) for delivery in deliveries] == [False, True, False]
    assert errors(deliveries) == [ErrorCode.INVALID_RECORD] * 3


def test_a_leader_hint_is_followed_at_once() -> None:
    """A refusal names the new leader (KIP-951). The batch is sent to it without a backoff or new metadata."""
    wire, broker, producing = setup()
    wire.run(producing.produce(values(1), timeout=5))
    metadata_before = sum(isinstance(message, MetadataRequest) for message in broker.requests)
    now = wire.now
    refusal = PartitionProduceResponse(
        index=0,
        error_code=int(ErrorCode.NOT_LEADER_OR_FOLLOWER),
        current_leader=LeaderIdAndEpoch(leader_id=1, leader_epoch=7),
    )
    answer = TopicProduceResponse(
        name="t", topic_id=broker.topics["t"].topic_id, partition_responses=[refusal]
    )
    broker.trouble[ApiKey.PRODUCE].append(ProduceResponse(responses=[answer]))
    deliveries = wire.run(producing.produce(values(1, start=1), timeout=5))
    assert errors(deliveries) == [None]
    assert wire.now == now
    assert sum(isinstance(message, MetadataRequest) for message in broker.requests) == metadata_before


def test_a_new_leader_gets_no_more_than_it_remembers_behind_what_has_no_answer() -> None:
    """The leader changes while a batch has no answer. The new leader gets at most four later batches before an answer.

    A broker knows the last five batches of a producer. A sixth would make it forget the first batch, which may already
    be in the log.
    """
    core, wire, old = make(request_timeout=3.0)
    topic = old.add_topic("t", 1)
    new = FakeBroker("new")
    new.topics = old.topics
    wire.brokers["new", 9092] = new
    settings = ProducerSettings(bootstrap_servers=(), batch_size=100, linger_ms=0, request_timeout_ms=3000)
    accumulator = Accumulator(settings, core.cluster, core.rng)
    sender = Sender(core, settings, accumulator)
    sent: list[bytes] = []

    def send(count: int) -> None:
        for _ in range(count):
            sent.append(b"%d" % len(sent) * 50)
            accumulator.open_batch("t", 0, 5, None, sent[-1], (), core.now, deadline=100.0, any_size=True)
        sender.signal.notify()
        core.tick(wire.now)
        wire.settle()

    wire.run(topics_with_metadata(core, ["t"], deadline=5.0))
    sending = core.start(sender.run(), wire.now)
    send(1)
    old.append_before_trouble = True
    old.trouble[ApiKey.PRODUCE].append(SILENCE)
    send(1)
    assert topic.partitions[0].end_offset == 2
    core.cluster.add_brokers([Broker(2, "new", 9092, None)])
    assert core.cluster.set_leader("t", 0, 2, 1)
    send(8)
    assert len(produced(new)) == 4
    assert core.cluster.set_leader("t", 0, 1, 2)  # back to the leader that metadata names
    sender.closing = True
    wire.finish(sending)
    assert old.values("t") == [sent]
    assert sender.counts["epochs bumped"] == 0


def test_an_operation_that_is_abandoned_leaves_nothing_behind() -> None:
    """A call is abandoned. The next call neither sends its records nor continues its sequence numbers."""
    wire, broker, producing = setup()
    broker.trouble[ApiKey.PRODUCE].append(SILENCE)
    task = producing._core.start(producing.produce(values(2), timeout=60), wire.now)
    wire.settle()
    producing._core.abandon(task)
    deliveries = wire.run(producing.produce(values(2, start=7), timeout=20))
    assert errors(deliveries) == [None]
    assert broker.values("t") == [[b"7", b"8"]]
