"""A client sends another producer's id with its own transactional id, and is refused.

KIP-890 verifies only the partition. The coordinator is a stub that knows one transactional id.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import trio

from odradek.data_plane.ports import VerifiedPartition
from odradek.wire.errors import ErrorCode
from odradek.wire.messages.find_coordinator import FindCoordinatorRequest
from odradek.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from odradek.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from testkit.lone_node import request
from testkit.virtual import Client
from tests.log.support import batch
from tests.node.transactions.test_transactions import (
    ATTEMPTS,
    COMMIT,
    EPOCH,
    OLD,
    PRODUCER,
    SINCE_ABORTABLE,
    SINCE_ADDING,
    SINCE_ADDING_OFFSETS,
    Connect,
    Coordinator,
    end,
    produce,
    run,
)

LONG = "an id".ljust(30_000, "-")
FOREIGN = ("mine", "", LONG)
"""Transactional ids that do not belong to the producer id."""
REFUSED = (ErrorCode.INVALID_PRODUCER_ID_MAPPING, -1)
VERSIONS = (OLD, SINCE_ABORTABLE, SINCE_ADDING)


class Owner(Coordinator):
    """A coordinator that accepts one transactional id. For others it gives the error that the test sets."""

    def __init__(self, owner: str = "an id", code: ErrorCode = ErrorCode.INVALID_PRODUCER_ID_MAPPING) -> None:
        super().__init__(code)
        self.owner = owner

    async def verify(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Sequence[VerifiedPartition],
        *,
        adds: bool,
    ) -> Mapping[VerifiedPartition, ErrorCode]:
        codes = await super().verify(transactional_id, producer_id, producer_epoch, partitions, adds=adds)
        return dict.fromkeys(partitions, ErrorCode.NONE) if transactional_id == self.owner else codes

    @property
    def names(self) -> list[str]:
        """The transactional ids that were verified, in order."""
        return [asked[0] for asked in self.asked]


async def write_as_idempotent(client: Client, sequence: int, count: int = 2) -> tuple[int, int]:
    """Write a non-transactional batch with the producer's id; return (error code, base offset)."""
    data = batch(count, producer_id=PRODUCER, producer_epoch=EPOCH, base_sequence=sequence)
    asked = ProduceRequest(
        None, -1, 5000, [TopicProduceData("t", bytes(16), [PartitionProduceData(0, data)])]
    )
    answer = (await request(client, asked, OLD)).responses[0].partition_responses[0]
    return answer.error_code, answer.base_offset


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", FOREIGN)
def test_an_open_transaction_takes_no_batch_under_another_transactional_id(name: str, version: int) -> None:
    """A batch with another transactional id gets INVALID_PRODUCER_ID_MAPPING. The owner continues with its next
    sequence number."""
    coordinator = Owner()

    async def script(connect: Connect, client: Client) -> None:
        intruder = await connect()
        assert await produce(client, 0, version=version) == [(0, 0)]
        assert await produce(intruder, 2, version=version, name=name) == [REFUSED]
        assert await produce(client, 2, version=version) == [(0, 2)]
        assert await produce(intruder, 2, version=version, name=name) == [REFUSED]
        assert await produce(client, 4, version=version) == [(0, 4)]
        assert coordinator.names == ["an id", name, name]

    run(script, coordinator)


def test_a_long_transactional_id_is_known_again() -> None:
    """Ids are stored in a bounded form. A long id is still recognised, and another id that differs only at its end is
    refused."""
    coordinator = Owner(LONG)

    async def script(connect: Connect, client: Client) -> None:
        assert await produce(client, 0, name=LONG) == [(0, 0)]
        assert await produce(client, 2, name=LONG) == [(0, 2)]
        assert await produce(client, 4, name=f"{LONG}+") == [REFUSED]
        assert coordinator.names == [LONG, f"{LONG}+"]

    run(script, coordinator)


@pytest.mark.parametrize("code", [ErrorCode.INVALID_PRODUCER_ID_MAPPING, ErrorCode.NOT_COORDINATOR])
def test_a_verification_under_another_id_leaves_the_owners_first_sequence_alone(code: ErrorCode) -> None:
    """The lowest sequence number of a pending verification is kept per transactional id, so a stranger's number does
    not affect the owner."""
    coordinator = Owner(code=code)

    async def script(connect: Connect, client: Client) -> None:
        intruder = await connect()
        ((told, _),) = await produce(intruder, 0, name="mine")
        assert told != ErrorCode.NONE
        assert await produce(client, 58) == [(0, 0)]

    run(script, coordinator)


def test_a_verification_under_another_id_cannot_void_the_owners() -> None:
    """A stranger's failed verification does not invalidate the owner's verification, which is in progress."""
    coordinator = Owner()

    async def script(connect: Connect, client: Client) -> None:
        intruder = await connect()
        coordinator.may_answer = trio.Event()
        found: list[Any] = []
        async with trio.open_nursery() as nursery:

            async def write() -> None:
                found.extend(await produce(client, 0))

            nursery.start_soon(write)
            await coordinator.was_asked.wait()
            coordinator.may_answer.set()
            assert await produce(intruder, 0, name="mine") == [REFUSED]
        assert found == [(0, 0)]

    run(script, coordinator)


def test_a_transaction_that_has_ended_leaves_nothing_behind() -> None:
    """The end of a transaction also ends its verification, so the first batch of the next transaction is verified
    again."""
    coordinator = Owner()

    async def script(connect: Connect, client: Client) -> None:
        assert await produce(client, 0) == [(0, 0)]
        assert await end(client, COMMIT) == 0
        assert await produce(client, 2, name="mine") == [REFUSED]
        assert await produce(client, 2) == [(0, 3)]
        assert coordinator.names == ["an id", "mine", "an id"]

    run(script, coordinator)


def test_offsets_join_no_transaction_of_another_transactional_id() -> None:
    """TxnOffsetCommit also verifies the transactional id, since a client with rights to the group may not own the
    transaction."""
    coordinator = Owner()

    async def commit(client: Client, name: str) -> int:
        partition = TxnOffsetCommitRequestPartition(0, 5)
        offsets = TxnOffsetCommitRequest(
            name, "g", PRODUCER, EPOCH, topics=[TxnOffsetCommitRequestTopic("t", [partition])]
        )
        for _ in range(ATTEMPTS):
            answer = await request(client, offsets, SINCE_ADDING_OFFSETS)
            code: int = answer.topics[0].partitions[0].error_code
            if code not in (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS):
                break
            await trio.sleep(0.1)
        return code

    async def script(connect: Connect, client: Client) -> None:
        for _ in range(ATTEMPTS):
            if (await request(client, FindCoordinatorRequest("g"), 3)).error_code == ErrorCode.NONE:
                break
            await trio.sleep(0.1)
        assert await commit(client, "an id") == ErrorCode.NONE
        assert await commit(client, "mine") == ErrorCode.INVALID_PRODUCER_ID_MAPPING
        assert await commit(client, "an id") == ErrorCode.NONE
        assert coordinator.names == ["an id", "mine"]

    run(script, coordinator, offsets_topic_num_partitions="1", offsets_topic_replication_factor="1")


@pytest.mark.parametrize("version", VERSIONS)
def test_without_verification_any_transactional_id_will_do(version: int) -> None:
    """With `transaction.partition.verification.enable=false` any transactional id is accepted, as in Kafka."""
    coordinator = Owner()

    async def script(connect: Connect, client: Client) -> None:
        assert await produce(client, 0, version=version) == [(0, 0)]
        assert await produce(client, 2, version=version, name="mine") == [(0, 2)]
        assert coordinator.names == (["an id"] if version == SINCE_ADDING else [])

    run(script, coordinator, transaction_partition_verification_enable="false")


def test_a_batch_from_outside_is_not_taken_for_the_first_one_of_a_transaction() -> None:
    """A stranger's idempotent batch with the producer's next sequence number must not count as the producer's own."""

    async def script(connect: Connect, client: Client) -> None:
        assert await write_as_idempotent(await connect(), 0) == (0, 0)
        assert await produce(client, 0) == [(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1)]

    run(script, Owner())


def test_a_repetition_within_the_transaction_is_told_its_offset() -> None:
    """A producer that repeats an acknowledged batch gets the same offset again."""

    async def script(connect: Connect, client: Client) -> None:
        assert await produce(client, 0) == [(0, 0)]
        assert await produce(client, 2) == [(0, 2)]
        assert await produce(await connect(), 0) == [(0, 0)]
        assert await produce(client, 4) == [(0, 4)]

    run(script, Owner())
