"""A node's wall clock jumps by a week: which offsets, ids and transactions expire, and which must not."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import attrs
import pytest

from odradek.wire.errors import ErrorCode
from odradek.wire.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from odradek.wire.messages.describe_transactions import DescribeTransactionsRequest
from odradek.wire.messages.find_coordinator import FindCoordinatorRequest
from odradek.wire.messages.init_producer_id import InitProducerIdRequest
from odradek.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from odradek.wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestTopic
from sim.machine.world import World
from tests.node.life.test_clock_jumps import jump
from tests.node.life.test_node_in_a_world import create_topic, play, request
from tests.node.requests.test_connection_loop import Client

WEEK_MS = 7 * 86_400_000
BELIEVED_SECONDS = 300
TIMEOUT_SECONDS = 900
CHECKS = {
    "offsets_retention_check_interval_ms": "10000",
    "transaction_remove_expired_transaction_cleanup_interval_ms": "10000",
    "offsets_topic_num_partitions": "1",
    "offsets_topic_replication_factor": "1",
    "transaction_state_log_num_partitions": "1",
    "transaction_state_log_replication_factor": "1",
    "transaction_state_log_min_isr": "1",
}
"""Coordinators check often, and their topics have one partition. Offsets and ids are kept for seven days."""


@attrs.define
class Coordinated:
    """A transaction of the id `open`, an unused id `idle`, and a committed offset of group `g`."""

    world: World
    connect: Callable[[], Awaitable[Client]]
    client: Client

    async def ask(self, message: Any, version: int) -> Any:
        return await request(self.client, message, version)

    async def begin(self) -> None:
        """Create the offset, the idle id and the open transaction."""
        await create_topic(self.client)
        for key, kind in (("g", 0), ("open", 1)):
            while (await self.ask(FindCoordinatorRequest(key, kind), 3)).error_code:
                await self.world.sleep(0.1)
        await self.init("idle")
        begun = await self.init("open")
        topics = [AddPartitionsToTxnTopic("t", [0])]
        added = await self.ask(
            AddPartitionsToTxnRequest([], "open", begun.producer_id, begun.producer_epoch, topics), 3
        )
        assert not added.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code
        partitions = [OffsetCommitRequestPartition(0, 5)]
        commit = OffsetCommitRequest("g", topics=[OffsetCommitRequestTopic("t", partitions=partitions)])
        while (await self.ask(commit, 7)).topics[0].partitions[0].error_code:
            await self.world.sleep(0.1)

    async def init(self, transactional_id: str) -> Any:
        """Send InitProducerId until it succeeds; return the response with id and epoch."""
        asked = InitProducerIdRequest(transactional_id, TIMEOUT_SECONDS * 1000)
        while (begun := await self.ask(asked, 4)).error_code:
            assert ErrorCode(begun.error_code).retriable
            await self.world.sleep(0.1)
        return begun

    async def after(self, seconds: int) -> tuple[bool, bool, str]:
        """Let time pass.

        Return whether the offset exists, whether the idle id exists, and the state of the transaction.
        """
        await self.world.sleep(seconds)
        # The idle connection was closed meanwhile.
        self.client = await self.connect()
        asked = OffsetFetchRequest("g", [OffsetFetchRequestTopic("t", [0])])
        offset = (await self.ask(asked, 5)).topics[0].partitions[0].committed_offset
        described = await self.ask(DescribeTransactionsRequest(["idle", "open"]), 0)
        idle, opened = described.transaction_states
        return offset == 5, not idle.error_code, opened.transaction_state


def play_with(script: Callable[[World, Coordinated], Awaitable[None]]) -> None:
    """Run a script with a node that has the offset, the idle id and the open transaction."""

    async def begun(world: World, connect: Callable[[], Awaitable[Client]]) -> None:
        coordinated = Coordinated(world, connect, await connect())
        await coordinated.begin()
        await script(world, coordinated)

    play(begun, **CHECKS)


def test_a_jump_ahead_expires_nothing_until_it_is_believed() -> None:
    """After a jump ahead, offsets and ids expire only when the clock has shown the new time for long enough.
    Transactions keep their timeout."""

    async def script(world: World, coordinated: Coordinated) -> None:
        jump(world, WEEK_MS)
        assert await coordinated.after(BELIEVED_SECONDS - 30) == (True, True, "Ongoing")
        assert await coordinated.after(60) == (False, False, "Ongoing")
        assert (await coordinated.after(TIMEOUT_SECONDS - BELIEVED_SECONDS))[2] == "CompleteAbort"

    play_with(script)


@pytest.mark.parametrize("jump_ms", [WEEK_MS, -WEEK_MS], ids=["ahead", "back"])
def test_a_jump_that_is_taken_back_expires_nothing(jump_ms: int) -> None:
    """If a jump is reversed, nothing expires that was used meanwhile. An open transaction still times out in time."""

    async def script(world: World, coordinated: Coordinated) -> None:
        jump(world, jump_ms)
        await coordinated.after(20)
        await coordinated.init("idle")
        jump(world, -jump_ms)
        assert await coordinated.after(2 * BELIEVED_SECONDS) == (True, True, "Ongoing")
        assert (await coordinated.after(TIMEOUT_SECONDS - 2 * BELIEVED_SECONDS))[2] == "CompleteAbort"

    play_with(script)


def test_a_jump_back_holds_up_no_transaction() -> None:
    """A jump back does not extend a transaction's timeout, although its record has a later time."""

    async def script(world: World, coordinated: Coordinated) -> None:
        jump(world, -WEEK_MS)
        assert await coordinated.after(TIMEOUT_SECONDS - 30) == (True, True, "Ongoing")
        assert await coordinated.after(60) == (True, True, "CompleteAbort")

    play_with(script)
