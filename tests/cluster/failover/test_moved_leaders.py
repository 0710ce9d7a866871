"""A leadership moves on purpose: nobody serves for a few milliseconds only, although followers' fetches wait elsewhere."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from itertools import pairwise

import pytest

from odradek.data_plane.replication.first_fetches import AWAITED_SECONDS, WAIT_MS, FirstFetches
from odradek.serving.disk_troubles import demoted_text
from odradek.wire.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreateTopicsRequest,
)
from odradek.wire.topic_partition import TopicIdPartition
from tests.cluster.disks.test_troubled_disks import Troubled

SILENCE_SECONDS_MAX = 0.05
"""The simulated processors take no time, so only waits count. A follower's idle fetch waits for ten times as long."""
MOVED = TopicIdPartition(b"t" * 16, 0)


async def _busy_elsewhere(case: Troubled) -> None:
    """Make a topic in which each broker leads a partition. So each broker has a fetch that waits at each other one."""
    assignment = [
        CreatableReplicaAssignment(number, [1 + (number + place) % 3 for place in range(3)])
        for number in range(3)
    ]
    topic = CreatableTopic("elsewhere", -1, -1, assignment, [])
    await case.cluster.observer.request(CreateTopicsRequest([topic], 10_000, False))
    await case.world.sleep(2.0)


async def _silence(case: Troubled, move: Callable[[], Awaitable[None]]) -> float:
    """Write all the time while a leadership moves. Return the longest time between two acknowledgements."""
    world, acknowledged_at, leader = case.world, [case.world.now], case.seen_by(2).leader
    ends_at = world.now + 3.0

    async def write() -> None:
        while world.now < ends_at:
            count = len(case.acknowledged)
            await case.write()
            if len(case.acknowledged) > count:
                acknowledged_at.append(world.now)
            else:
                await world.sleep(0.001)

    world.tasks.start_soon(write)
    await world.sleep(0.5)
    await move()
    await world.sleep(3.0)
    assert case.seen_by(2).leader != leader
    return max(after - before for before, after in pairwise(acknowledged_at))


@pytest.mark.parametrize("how", ["demoted", "preferred", "stopped"])
def test_a_move_is_no_gap(how: str) -> None:
    """A leader's disk is demoted, a preferred leader is elected, or the leader's node stops in order."""

    async def script(case: Troubled) -> None:
        await _busy_elsewhere(case)

        async def demote() -> None:
            await case.demote(1, demoted_text([case.disk(1).path]))

        async def stop() -> None:
            case.member(1).ask_to_stop()

        if how == "preferred":
            await demote()
            await case.world.sleep(2.0)
            await case.demote(1, None)
            await case.world.sleep(1.0)
        move = {"demoted": demote, "preferred": case.prefer, "stopped": stop}[how]
        assert await _silence(case, move) < SILENCE_SECONDS_MAX

    Troubled().play(script)


def test_a_waiting_fetch_is_answered_when_its_leader_leads_more() -> None:
    """A fetch waits that does not name the new partition. It is answered, and later ones wait only briefly until one
    names the partition."""
    first, answered = FirstFetches(), [0]

    def answer() -> None:
        answered[0] += 1

    first.parks(2, answer)
    assert first.wait_ms(2, 500, 1.0) == 500
    (found,) = first.awaits(MOVED, [2, 3], 1.0)
    found()
    assert answered == [1]
    assert first.wait_ms(2, 500, 1.0) == first.wait_ms(3, 500, 1.0) == WAIT_MS
    assert first.wait_ms(2, 5, 1.0) == 5
    first.fetched(2, MOVED)
    assert first.wait_ms(2, 500, 1.0) == 500
    assert first.wait_ms(3, 500, 1.0) == WAIT_MS
    assert first.wait_ms(3, 500, 1.0 + AWAITED_SECONDS) == 500


def test_a_fetch_that_was_answered_is_left_alone() -> None:
    """A fetch ends before its leader leads more. The follower's next fetch has taken its place."""
    first = FirstFetches()
    ended, waiting = (lambda: None), (lambda: None)
    first.parks(2, ended)
    first.parks(2, waiting)
    first.leaves(2, ended)
    assert first.awaits(MOVED, [2], 1.0) == [waiting]
    assert first.awaits(MOVED, [2], 1.0) == []
