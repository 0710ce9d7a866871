"""Transactions on one partition of a node: verified appends, markers and read_committed fetches (KIP-98, KIP-890).

The coordinator is a stub whose answers the test sets.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import pytest
import trio

from odradek.data_plane.ports import VerifiedPartition
from odradek.env.ports import ConnectionLost
from odradek.node.node import Node
from odradek.wire.batches.batch_header import iter_batches
from odradek.wire.errors import ErrorCode
from odradek.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from odradek.wire.messages.fetch import FetchRequest
from odradek.wire.messages.find_coordinator import FindCoordinatorRequest
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
from sim.machine.world import World
from testkit.lone_node import answer_to, fetch_request, play, request
from testkit.raw_requests import frame
from testkit.virtual import Client
from tests.log.support import batch

PRODUCER, EPOCH = 7, 3
SINCE_ADDING, SINCE_ABORTABLE, OLD = 12, 11, 9
SINCE_ADDING_OFFSETS = 5
ATTEMPTS = 50
"""How often a request is sent again, after a pause, while its coordinator loads."""
COMMIT, ABORT = True, False


class Coordinator:
    """A `TransactionVerifier` that gives its answers in turn, and repeats the last one."""

    def __init__(self, *codes: ErrorCode) -> None:
        self.codes = list(codes)
        self.asked: list[tuple[str, int, int, list[VerifiedPartition], bool]] = []
        self.may_answer = trio.Event()
        self.may_answer.set()
        self.was_asked = trio.Event()

    async def verify(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Sequence[VerifiedPartition],
        *,
        adds: bool,
    ) -> Mapping[VerifiedPartition, ErrorCode]:
        self.asked.append((transactional_id, producer_id, producer_epoch, list(partitions), adds))
        self.was_asked.set()
        await self.may_answer.wait()
        return dict.fromkeys(partitions, self.codes.pop(0) if len(self.codes) > 1 else self.codes[0])


Connect = Callable[[], Awaitable[Client]]
Script = Callable[[Connect, Client], Awaitable[None]]


def run(script: Script, coordinator: Coordinator | None, **settings: str) -> None:
    """Run the script against a node with a topic `t` of two partitions."""
    nodes: list[Node] = []

    async def prepared(world: World, connect: Connect) -> None:
        client = await connect()
        created = CreateTopicsRequest([CreatableTopic("t", 2, 1, [], [])], 10_000, False)
        assert (await request(client, created, 5)).topics[0].error_code == 0
        broker = nodes[0].broker
        assert broker is not None
        if coordinator is not None:
            broker.transaction_verifier = coordinator
        await script(connect, client)

    play(prepared, made=nodes.append, **settings)


def produced(
    sequence: int,
    *,
    version: int = OLD,
    partitions: Sequence[int] = (0,),
    acks: int = -1,
    name: str = "an id",
) -> Any:
    """Make a Produce request with a transactional batch of two records for each partition."""
    data = [
        PartitionProduceData(
            index,
            batch(
                2,
                producer_id=PRODUCER,
                producer_epoch=EPOCH,
                base_sequence=sequence,
                is_transactional=True,
            ),
        )
        for index in partitions
    ]
    assert version < 13, "newer versions name topics by id"
    return ProduceRequest(name, acks, 5000, [TopicProduceData("t", bytes(16), data)])


async def produce(client: Client, sequence: int, *, version: int = OLD, **more: Any) -> list[Any]:
    """Send a transactional batch to each partition; return (error code, base offset) of each."""
    answer = await request(client, produced(sequence, version=version, **more), version)
    return [(each.error_code, each.base_offset) for each in answer.responses[0].partition_responses]


async def end(client: Client, is_commit: bool, *, epoch: int = EPOCH, topic: str = "t") -> int:
    """Send the marker for partition 0; return its error code."""
    marker = WritableTxnMarker(PRODUCER, epoch, is_commit, [WritableTxnMarkerTopic(topic, [0])], 0)
    answer = await request(client, WriteTxnMarkersRequest([marker]), 1)
    code: int = answer.markers[0].topics[0].partitions[0].error_code
    return code


def committed_fetch(offset: int, **limits: int) -> FetchRequest:
    fetch = fetch_request(offset, **limits)
    fetch.isolation_level = 1
    return fetch


def test_the_coordinator_is_asked_before_the_first_append_of_a_transaction_only() -> None:
    """Only a transaction's first append to a partition is verified with the coordinator (KIP-890). After a marker the
    next append is verified again."""
    coordinator = Coordinator(ErrorCode.NONE)

    async def script(connect: Connect, client: Client) -> None:
        assert await produce(client, 0) == [(0, 0)]
        assert await produce(client, 2, partitions=(0, 1)) == [(0, 2), (0, 0)]
        assert await produce(client, 4) == [(0, 4)]
        assert [asked[3] for asked in coordinator.asked] == [[("t", 0)], [("t", 1)]]
        assert await end(client, COMMIT) == 0
        assert await produce(client, 6, version=SINCE_ADDING) == [(0, 7)]
        assert coordinator.asked[-1] == ("an id", PRODUCER, EPOCH, [("t", 0)], True)

    run(script, coordinator)


TRANSLATED = [
    (ErrorCode.INVALID_TXN_STATE, OLD, ErrorCode.INVALID_TXN_STATE),
    (ErrorCode.PRODUCER_FENCED, OLD, ErrorCode.INVALID_PRODUCER_EPOCH),
    (ErrorCode.NOT_COORDINATOR, OLD, ErrorCode.NOT_ENOUGH_REPLICAS),
    (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, SINCE_ADDING, ErrorCode.NOT_ENOUGH_REPLICAS),
    (ErrorCode.CONCURRENT_TRANSACTIONS, SINCE_ABORTABLE, ErrorCode.NOT_ENOUGH_REPLICAS),
    (ErrorCode.CONCURRENT_TRANSACTIONS, SINCE_ADDING, ErrorCode.CONCURRENT_TRANSACTIONS),
    (ErrorCode.TRANSACTION_ABORTABLE, OLD, ErrorCode.INVALID_TXN_STATE),
    (ErrorCode.TRANSACTION_ABORTABLE, SINCE_ABORTABLE, ErrorCode.TRANSACTION_ABORTABLE),
    (ErrorCode.INVALID_PRODUCER_ID_MAPPING, OLD, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
]


@pytest.mark.parametrize(("code", "version", "told"), TRANSLATED)
def test_producers_hear_errors_that_they_know(code: ErrorCode, version: int, told: ErrorCode) -> None:
    """A coordinator's error is translated for old producers, which do not know each code, as in Kafka. Nothing is
    appended."""

    async def script(connect: Connect, client: Client) -> None:
        assert await produce(client, 0, version=version) == [(told, -1)]
        answer = await request(client, fetch_request(0), 12)
        assert answer.responses[0].partitions[0].high_watermark == 0

    run(script, Coordinator(code))


def test_a_leader_that_adds_partitions_asks_again_while_the_last_transaction_ends() -> None:
    """While the previous transaction still ends, the leader asks the coordinator repeatedly to add the partition."""
    coordinator = Coordinator(*[ErrorCode.CONCURRENT_TRANSACTIONS] * 3, ErrorCode.NONE)

    async def script(connect: Connect, client: Client) -> None:
        assert await produce(client, 0, version=SINCE_ADDING) == [(0, 0)]
        assert len(coordinator.asked) == 4

    run(script, coordinator)


def test_a_marker_in_between_voids_the_verification() -> None:
    """If the marker arrives before the coordinator's answer, the batch is refused, since its transaction has already
    ended."""
    coordinator = Coordinator(ErrorCode.NONE)

    async def script(connect: Connect, client: Client) -> None:
        other = await connect()
        coordinator.may_answer = trio.Event()
        await client.send(bytes(frame(produced(0), OLD)))
        await coordinator.was_asked.wait()
        assert await end(other, ABORT) == 0
        coordinator.may_answer.set()
        answer = await answer_to(client, produced(0), OLD)
        assert answer.responses[0].partition_responses[0].error_code == ErrorCode.INVALID_TXN_STATE
        assert await produce(client, 0) == [(0, 1)]

    run(script, coordinator)


def test_a_leader_that_adds_partitions_asks_again_after_the_marker_of_the_last_transaction() -> None:
    """A producer may begin its next transaction before the last marker is written. If the marker arrives while the
    leader waits for the coordinator's answer, the leader asks again (KIP-890)."""
    coordinator = Coordinator(ErrorCode.NONE)

    async def script(connect: Connect, client: Client) -> None:
        coordinator.may_answer = trio.Event()
        async with trio.open_nursery() as nursery:

            async def write() -> None:
                assert await produce(client, 0, version=SINCE_ADDING) == [(0, 1)]

            nursery.start_soon(write)
            await coordinator.was_asked.wait()
            assert await end(await connect(), COMMIT) == 0
            coordinator.may_answer.set()
        assert len(coordinator.asked) == 2

    run(script, coordinator)


def test_offsets_are_verified_again_after_the_marker_of_the_last_transaction() -> None:
    """The marker of the last transaction arrives during a TxnOffsetCommit of the next one. The group's coordinator asks
    the transaction coordinator again (KIP-890)."""
    coordinator = Coordinator(ErrorCode.NONE)
    offsets = TxnOffsetCommitRequest(
        "an id",
        "g",
        PRODUCER,
        EPOCH,
        topics=[TxnOffsetCommitRequestTopic("t", [TxnOffsetCommitRequestPartition(0, 5)])],
    )

    async def script(connect: Connect, client: Client) -> None:
        for _ in range(ATTEMPTS):
            if (await request(client, FindCoordinatorRequest("g"), 3)).error_code == ErrorCode.NONE:
                break
            await trio.sleep(0.1)
        other = await connect()
        coordinator.may_answer = trio.Event()
        code = ErrorCode.NOT_COORDINATOR
        async with trio.open_nursery() as nursery:

            async def commit() -> None:
                nonlocal code
                for _ in range(ATTEMPTS):
                    answer = await request(client, offsets, SINCE_ADDING_OFFSETS)
                    code = ErrorCode(answer.topics[0].partitions[0].error_code)
                    if code not in (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS):
                        break
                    await trio.sleep(0.1)
                coordinator.was_asked.set()

            nursery.start_soon(commit)
            await coordinator.was_asked.wait()
            assert await end(other, COMMIT, topic="__consumer_offsets") == 0
            coordinator.may_answer.set()
        assert code is ErrorCode.NONE
        assert len(coordinator.asked) == 2

    run(script, coordinator, offsets_topic_num_partitions="1", offsets_topic_replication_factor="1")


def test_later_requests_of_a_connection_wait_for_the_verification() -> None:
    """A batch that waits for its verification delays later requests of its connection, so the order of appends is
    kept."""
    coordinator = Coordinator(ErrorCode.NONE)

    async def script(connect: Connect, client: Client) -> None:
        coordinator.may_answer = trio.Event()
        for sequence in (0, 2, 4):
            await client.send(bytes(frame(produced(sequence), OLD)))
        await coordinator.was_asked.wait()
        coordinator.may_answer.set()
        offsets = []
        for _ in range(3):
            answer = await answer_to(client, produced(0), OLD)
            offsets.append(answer.responses[0].partition_responses[0].base_offset)
        assert offsets == [0, 2, 4]
        assert len(coordinator.asked) == 1

    run(script, coordinator)


@pytest.mark.parametrize("is_commit", [COMMIT, ABORT])
def test_a_committed_reader_waits_for_the_marker(is_commit: bool) -> None:
    """A read_committed fetch waits at the last stable offset. A marker completes the fetch, and aborted transactions
    are listed."""

    async def script(connect: Connect, client: Client) -> None:
        reader = await connect()
        await produce(client, 0)
        waiting = committed_fetch(0, wait_ms=60_000)
        await reader.send(bytes(frame(waiting, 12)))
        await produce(client, 2)
        told = (await request(client, fetch_request(0), 12)).responses[0].partitions[0]
        assert (told.high_watermark, told.last_stable_offset, told.aborted_transactions) == (4, 0, None)
        assert await end(client, is_commit) == 0
        found = (await answer_to(reader, waiting, 12)).responses[0].partitions[0]
        assert (found.high_watermark, found.last_stable_offset) == (5, 5)
        batches = [header.base_offset for _, header in iter_batches(bytes(found.records))]
        # The marker has a much later time, so it is in a new segment and not in this response.
        assert batches == [0, 2]
        aborted = [(each.producer_id, each.first_offset) for each in found.aborted_transactions]
        assert aborted == ([] if is_commit else [(PRODUCER, 0)])

    run(script, Coordinator(ErrorCode.NONE))


def test_without_verification_a_leader_takes_transactions_that_it_does_not_know() -> None:
    """With `transaction.partition.verification.enable=false`, the coordinator is only asked to add partitions."""
    coordinator = Coordinator(ErrorCode.NONE)

    async def script(connect: Connect, client: Client) -> None:
        assert await produce(client, 0) == [(0, 0)]
        assert not coordinator.asked
        assert await produce(client, 0, version=SINCE_ADDING, partitions=(1,)) == [(0, 0)]
        assert coordinator.asked == [("an id", PRODUCER, EPOCH, [("t", 1)], True)]

    run(script, coordinator, transaction_partition_verification_enable="false")


def test_batches_of_a_transaction_that_no_coordinator_knows_are_refused() -> None:
    """Without a coordinator a batch gets NOT_ENOUGH_REPLICAS, which a client retries."""

    async def script(connect: Connect, client: Client) -> None:
        assert await produce(client, 0) == [(ErrorCode.NOT_ENOUGH_REPLICAS, -1)]

    run(script, None)


def test_transactional_batches_are_acknowledged_by_all_replicas() -> None:
    """Transactional batches need acks=all. With acks=1 they get INVALID_REQUIRED_ACKS."""

    async def script(connect: Connect, client: Client) -> None:
        assert await produce(client, 0, acks=1) == [(ErrorCode.INVALID_REQUIRED_ACKS, -1)]
        assert await produce(client, 0) == [(0, 0)]
        assert await produce(client, 2, acks=1) == [(ErrorCode.INVALID_REQUIRED_ACKS, -1)]

    run(script, Coordinator(ErrorCode.NONE))


def test_many_partitions_are_verified_with_one_question() -> None:
    """A request for 600 partitions is verified with a single request to the coordinator."""
    coordinator = Coordinator(ErrorCode.NONE)
    count = 600

    async def script(connect: Connect, client: Client) -> None:
        created = CreateTopicsRequest([CreatableTopic("wide", count, 1, [], [])], 60_000, False)
        assert (await request(client, created, 5)).topics[0].error_code == 0
        plain = [PartitionProduceData(index, batch()) for index in range(count)]
        codes = {-1}
        while codes != {0}:
            # The logs of a new topic are made step by step.
            sent = ProduceRequest(None, -1, 5000, [TopicProduceData("wide", bytes(16), plain)])
            answer = await request(client, sent, OLD)
            codes = {each.error_code for each in answer.responses[0].partition_responses}
        sent = produced(0, partitions=range(count))
        sent.topic_data[0].name = "wide"
        answer = await request(client, sent, OLD)
        codes = {each.error_code for each in answer.responses[0].partition_responses}
        assert codes == {0}
        assert [len(asked[3]) for asked in coordinator.asked] == [count]

    run(script, coordinator)


def test_a_marker_on_a_replaced_connection_ends_no_later_transaction() -> None:
    """A marker is sent again on a new connection, and the producer's next transaction begins. Then the first request
    arrives on the old connection: the node closes it, and the transaction stays open."""

    async def script(connect: Connect, client: Client) -> None:
        old, new = await connect(), await connect()
        assert await produce(client, 0) == [(0, 0)]
        assert await end(new, COMMIT) == 0
        assert await produce(client, 2) == [(0, 3)]
        with pytest.raises(ConnectionLost):
            await end(old, COMMIT)
        answer = await request(client, committed_fetch(0), 11)
        assert answer.responses[0].partitions[0].last_stable_offset == 3
        assert await end(new, ABORT) == 0

    run(script, Coordinator(ErrorCode.NONE))
