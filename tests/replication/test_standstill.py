"""A partition makes progress even if its followers fetch the same offsets again, so that no request waits for ever."""

from __future__ import annotations

import pytest

from odradek.data_plane.replication.isr_state import PendingExpandIsr
from odradek.wire.errors import ErrorCode
from tests.replication.brokers import ReplicatedTopic
from tests.replication.test_isr import LAG_MS_MAX, Leader, Waiter


@pytest.mark.parametrize("by_time", [False, True], ids=["fenced", "silent"])
def test_who_does_not_join_holds_up_nobody(by_time: bool) -> None:
    """A replica that is about to join the ISR counts as in sync until it is refused, fenced, or no longer caught up."""
    leader = Leader((1, 2))
    leader.fetch(2, 0)
    leader.fetch(3, 0)
    proposal = leader.partition.isr_state
    assert isinstance(proposal, PendingExpandIsr)
    leader.append()
    waiter = Waiter(0)
    leader.partition.waiting.wait_for_acks(waiter)
    assert leader.fetch(2, 1) == 0
    if not by_time:
        leader.cluster.ineligible.add(3)
    leader.partition.isr_refused(proposal, ErrorCode.INELIGIBLE_REPLICA)
    if by_time:
        assert waiter.outcome is None
        leader.cluster.time_ms += LAG_MS_MAX + 1
        leader.partition.look_again()
    assert waiter.outcome == ErrorCode.NONE


def test_records_are_deleted_from_a_partition_at_rest() -> None:
    """KIP-107: followers that wait at the end of the log still learn the new log start offset."""

    async def script(cluster: ReplicatedTopic) -> None:
        for serial in range(3):
            await cluster.produce(1, b"%d" % serial)
        await cluster.world.sleep(5)
        assert await cluster.delete_records(1, 2, timeout_ms=3000) == (0, 2)
        assert all(member.partition().log.log_start_offset == 2 for member in cluster.members.values())

    ReplicatedTopic().play(script)
