"""What an event hits: a leader, and requests by hand that only this leader serves until then."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count, islice
from typing import TYPE_CHECKING, TypeVar

import attrs
from confluent_kafka import ElectionType, TopicPartition

from bench.failover.silence import ManyWriter, OffsetReader, Prober, TransactionReader, Writer
from odradek.wire.coordinator_partition import coordinator_partition
from odradek.wire.error_codes import ErrorCode
from odradek.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from odradek.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from odradek.wire.structure import Message
from testkit.raw_requests import RawConnection

if TYPE_CHECKING:
    from bench.failover.bench import Bench

__all__ = [
    "IDS_TOPIC",
    "OFFSETS_TOPIC",
    "SHARDS",
    "Subject",
    "key_of_shard",
    "offsets_shard",
    "one_partition",
    "thousand_partitions",
    "transactions_shard",
]

OFFSETS_TOPIC, IDS_TOPIC = "__consumer_offsets", "__transaction_state"
SHARDS = 3
"""The partitions of each coordinators' topic in these clusters."""
LED = 1_000
COMMITS_GROUPS, COMMITS_PARTITIONS = 100, 100
IDS = 10_000
COMMIT_VERSION, INIT_VERSION = 8, 4
Answer = TypeVar("Answer", bound=Message)
TRANSACTION_TIMEOUT_MS = 60_000
AT_ONCE = 16
ELECTED_SECONDS_MAX = 60.0


@attrs.frozen
class Subject:
    """The partition (topic, index) of the leader that is hit, and what measures its silence."""

    place: tuple[str, int]
    prober: Prober


def one_partition(*, leads: str = "other", replicas: int = 3) -> Callable[[Bench], Subject]:
    """Return a function that makes a topic with one partition, whose leader is the active controller's node
    (`controller`) or another one (`other`).
    """

    def make(bench: Bench) -> Subject:
        active = bench.active_controller()
        while True:
            topic = bench.new_topic(1, replicas)
            if (bench.leader((topic, 0)) == active) == (leads == "controller"):
                return Subject((topic, 0), Writer(topic, bench.addresses))

    return make


def thousand_partitions(bench: Bench) -> Subject:
    """Make a topic of which each node leads some `LED` partitions."""
    topic = bench.new_topic(LED * len(bench.addresses), 3)
    victim = bench.leader((topic, 0))
    led = [index for index, leader in bench.leaders(topic).items() if leader == victim]
    return Subject((topic, 0), ManyWriter(topic, led, bench.addresses))


def offsets_shard(bench: Bench) -> Subject:
    """Commit 10,000 offsets to groups of one partition of `__consumer_offsets`."""
    shard = _other_shard(bench, OFFSETS_TOPIC)
    topic = bench.new_topic(COMMITS_PARTITIONS, 1)
    groups = list(islice(keys_of_shard(f"shard-{bench.serial}", shard), COMMITS_GROUPS))
    partitions = [OffsetCommitRequestPartition(index, 1, 0, "") for index in range(COMMITS_PARTITIONS)]
    rows = [OffsetCommitRequestTopic(topic, partitions=partitions)]
    requests = [OffsetCommitRequest(group, topics=rows) for group in groups]
    place = OFFSETS_TOPIC, shard
    _send(
        bench.addresses[bench.leader(place)],
        requests,
        COMMIT_VERSION,
        OffsetCommitResponse,
        lambda answer: [each.error_code for rows in answer.topics for each in rows.partitions],
    )
    return Subject(place, OffsetReader(groups[-1], topic, bench.addresses))


def transactions_shard(bench: Bench) -> Subject:
    """Make 10,000 transactional ids in one partition of `__transaction_state`."""
    shard = _other_shard(bench, IDS_TOPIC)
    bench.serial += 1
    ids = list(islice(keys_of_shard(f"id-{bench.serial}", shard), IDS))
    requests = [InitProducerIdRequest(each, TRANSACTION_TIMEOUT_MS) for each in ids]
    place = IDS_TOPIC, shard
    _send(
        bench.addresses[bench.leader(place)],
        requests,
        INIT_VERSION,
        InitProducerIdResponse,
        lambda answer: (answer.error_code,),
    )
    return Subject(place, TransactionReader(ids[-1], bench.addresses))


def _other_shard(bench: Bench, topic: str) -> int:
    """Return a partition of a coordinators' topic that the active controller's node does not lead."""
    bench.create_coordinators()
    places = [TopicPartition(topic, index) for index in range(SHARDS)]
    until = time.monotonic() + ELECTED_SECONDS_MAX
    while time.monotonic() < until:
        active = bench.active_controller()
        others = [index for index, leader in bench.leaders(topic).items() if leader != active]
        if others:
            return others[0]
        # After kills, one node may lead everything.
        bench.admin().elect_leaders(ElectionType.PREFERRED, places).result(ELECTED_SECONDS_MAX)
        time.sleep(0.1)
    raise TimeoutError(f"the active controller's node leads all of {topic}")


def keys_of_shard(prefix: str, shard: int) -> Iterator[str]:
    """Yield group or transactional ids that this partition of their coordinators' topic keeps."""
    return (key for number in count() if coordinator_partition(key := f"{prefix}-{number}", SHARDS) == shard)


def key_of_shard(prefix: str, shard: int) -> str:
    """Return the first of `keys_of_shard`."""
    return next(keys_of_shard(prefix, shard))


def _send(
    address: str,
    requests: Sequence[Message],
    version: int,
    kind: type[Answer],
    codes: Callable[[Answer], Iterable[int]],
) -> None:
    """Send all requests, a few at once. The first one is repeated while the coordinator loads its shard.

    Raises `RuntimeError` if `codes` of an answer has another error code, or the shard is not loaded in time.
    """
    wire = RawConnection(address)
    waiting: deque[type[Message]] = deque()

    def send(request: Message) -> None:
        wire.send(request, version)
        waiting.append(type(request))

    def errors() -> set[ErrorCode]:
        answer = wire.receive(waiting.popleft(), version)
        assert isinstance(answer, kind)
        return {ErrorCode(each) for each in codes(answer) if each}

    def settle(failed: set[ErrorCode]) -> None:
        if failed:
            raise RuntimeError(
                f"the shard could not be filled: {', '.join(sorted(each.name for each in failed))}"
            )

    until = time.monotonic() + ELECTED_SECONDS_MAX
    send(requests[0])
    while ErrorCode.COORDINATOR_LOAD_IN_PROGRESS in (failed := errors()) and time.monotonic() < until:
        time.sleep(0.1)
        send(requests[0])
    settle(failed)
    for request in requests[1:]:
        if len(waiting) == AT_ONCE:
            settle(errors())
        send(request)
    while waiting:
        settle(errors())
    wire.socket.close()
