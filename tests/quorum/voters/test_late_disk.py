"""The disk of the quorum's leader is late. Decisions go on, and another voter takes over, but not too often."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import trio

from odradek.metadata_quorum.raft.election import LATE_SYNC_RESIGNATION_SECONDS
from odradek.metadata_quorum.raft.log_state import Batch
from odradek.metadata_quorum.raft.roles import Leader
from odradek.metadata_quorum.replica.log_tail import LogTail
from odradek.metadata_quorum.replica.quorum_leader import SYNC_SECONDS_MAX, QuorumLeader
from sim.alone.raft_cluster import Cluster
from sim.machine.weather import Weather
from sim.machine.world import World
from tests.quorum.voters.controllers import Controllers, Member, calm_world, host_of, play, register
from tests.quorum.voters.test_controllers import logs_agree
from tests.schedule import seeds


def quiet(cluster: Cluster, seconds: float, late: tuple[int, ...]) -> None:
    """Let all messages arrive for some time, while these nodes sync nothing."""
    until = cluster.now + seconds
    while cluster.now < until:
        for _ in range(20):
            for node_id in cluster.nodes:
                if node_id not in late:
                    cluster.flush(node_id)
            if not cluster.letters:
                break
            cluster.deliver(0)
        for node_id in cluster.nodes:
            cluster.tick(node_id, 0.02)


def leader_of(cluster: Cluster) -> int:
    leader = cluster.leader()
    assert leader is not None
    return leader.key.node_id


def led(voters: tuple[int, ...] = (1, 2, 3)) -> Cluster:
    """Make a quorum whose leader has committed records of its epoch."""
    cluster = Cluster.of(voters)
    cluster.settle(5.0)
    return cluster


def test_a_leader_that_never_syncs_is_replaced() -> None:
    """A leader's disk never syncs. The leader resigns, since followers hold no election while it answers them."""
    cluster = led()
    late = leader_of(cluster)
    cluster.append(late)
    quiet(cluster, 1.5, (late,))
    core = cluster.nodes[late].core
    assert core is not None
    assert core.high_watermark == core.log.end_offset, (
        "the followers have not committed the record that the leader has not synced"
    )
    assert leader_of(cluster) == late
    quiet(cluster, 3.0, (late,))
    assert leader_of(cluster) != late
    cluster.settle(5.0)
    cluster.check_log_matching()


@pytest.mark.parametrize("late_followers", [1, 2])
def test_a_leader_stays_while_no_majority_has_synced_more(late_followers: int) -> None:
    """The leader and others, a majority, have late disks. The leader stays, since no other majority could commit."""
    cluster = led()
    first = leader_of(cluster)
    late = (first, *[each for each in cluster.nodes if each != first][:late_followers])
    core = cluster.nodes[first].core
    assert core is not None
    cluster.append(first)
    quiet(cluster, 2.5, late)
    assert core.resigned_late_at == float("-inf")
    assert isinstance(core.role, Leader)
    assert core.high_watermark < core.log.end_offset, "a record was committed that only a minority has synced"


def test_voters_with_late_disks_do_not_take_turns() -> None:
    """All voters have late disks. Each resigns at most once a minute for its disk, so leaders do not alternate."""
    cluster = led()
    resigned: dict[int, list[float]] = {1: [], 2: [], 3: []}
    until = cluster.now + 4 * LATE_SYNC_RESIGNATION_SECONDS
    while cluster.now < until:
        cluster.settle(1.0)
        leader = cluster.leader()
        if leader is None:
            continue
        node_id = leader.key.node_id
        before = leader.core.resigned_late_at if leader.core else 0.0
        cluster.append(node_id)
        quiet(cluster, 2.5, (node_id,))
        assert leader.core is not None
        if leader.core.resigned_late_at != before:
            resigned[node_id].append(leader.core.resigned_late_at)
    assert sum(map(bool, resigned.values())) > 1, (
        f"fewer than two leaders have resigned for late disks: {resigned}"
    )
    for times in resigned.values():
        for first, second in pairwise(times):
            assert second - first >= LATE_SYNC_RESIGNATION_SECONDS


def test_two_voters_wait_for_both_disks() -> None:
    """With two voters, a commit needs both disks. So a leader with a late disk stays."""
    cluster = led((1, 2))
    first = leader_of(cluster)
    cluster.append(first)
    quiet(cluster, 10.0, (first,))
    core = cluster.nodes[first].core
    assert core is not None
    assert leader_of(cluster) == first
    assert core.high_watermark < core.log.end_offset
    cluster.flush(first)
    quiet(cluster, 1.0, ())
    assert core.high_watermark == core.log.end_offset


# -- the driver of the quorum
# ------------------------------------------------------------------------------------------------


def has(member: Member, broker_id: int) -> bool:
    return broker_id in member.service.committed_image.brokers


def submit(leader: Member, broker_id: int) -> list[Any]:
    answers: list[Any] = []
    leader.service.submit(register(broker_id)).on_release(answers.append)
    return answers


@pytest.mark.reaches("quorum.wrote_ahead_of_disk", "quorum.tail_came_to_disk")
def test_decisions_do_not_wait_for_the_leaders_disk() -> None:
    """The leader's disk is late.

    Decisions are answered once its followers have synced, and in the end its own log has them all.
    """

    async def script(world: World, controllers: Controllers) -> None:
        await controllers.ask(register(100))
        await controllers.agree()
        leader = await controllers.leader()
        ends_at = world.now + 1.8
        world.hang(host_of(leader.node_id), 1.8)
        for number in range(10):
            answers = submit(leader, 200 + number)
            await controllers.until(lambda answers=answers: answers)
            assert answers[0].error_code == 0
            assert world.now < ends_at
        assert leader.is_active
        on_disk = [each.base_offset for each in controllers.log_of(leader.node_id)]
        await controllers.until(lambda: world.now > ends_at + 0.5)
        await controllers.agree()
        later = [each.base_offset for each in controllers.log_of(leader.node_id)]
        assert len(later) > len(on_disk), "the file has no further batches after the sync has ended"
        core = leader.service.quorum.core
        assert core.log.flushed_offset == core.log.end_offset == leader.log.log_end_offset
        assert "metadata.disk_late" in leader.journal.events
        assert "metadata.disk_answers" in leader.journal.events
        for node_id in controllers.node_ids:
            await controllers.until(
                lambda node_id=node_id: [each.base_offset for each in controllers.log_of(node_id)] == later
            )

    play(script)


def test_another_leads_when_the_disk_is_late_by_the_fetch_timeout() -> None:
    """The leader's disk is late by the fetch timeout.

    Another voter leads, and the old leader follows when its disk works again.
    """

    async def script(world: World, controllers: Controllers) -> None:
        await controllers.ask(register(100))
        await controllers.agree()
        old = await controllers.leader()
        hung_at = world.now
        world.hang(host_of(old.node_id), 20.0)
        first, second = submit(old, 200), submit(old, 201)
        await controllers.until(lambda: first and second)
        await controllers.until(lambda: controllers.active() not in (old, None))
        assert world.now - hung_at < 6.0
        await controllers.ask(register(202))
        await controllers.until(lambda: world.now - hung_at > 21.0)
        await controllers.agree()
        assert all(has(old, broker_id) for broker_id in (100, 200, 201, 202))

    play(script)


@pytest.mark.parametrize("keep", ["all", "synced", "random"])
def test_a_leader_that_dies_with_a_late_disk_takes_nothing_along(keep: str) -> None:
    """A leader dies, and its disk lacks committed records.

    Later leaders have these records, and the old leader gets them back.
    """

    async def script(world: World, controllers: Controllers) -> None:
        await controllers.ask(register(100))
        leader = await controllers.leader()
        world.hang(host_of(leader.node_id), 1.8)
        for number in range(5):
            answers = submit(leader, 200 + number)
            await controllers.until(lambda answers=answers: answers)
        controllers.crash(leader.node_id, keep)
        await controllers.ask(register(300))
        controllers.start(leader.node_id)
        await controllers.until(lambda: leader.node_id in controllers.members)
        await controllers.agree()
        back = controllers.members[leader.node_id]
        await controllers.until(lambda: all(has(back, 200 + number) for number in range(5)))

    play(script)


def test_a_snapshot_that_waits_for_the_disk_silences_no_leader() -> None:
    """The removal of old snapshots waits for a late disk. The leader still answers its followers."""

    async def script(world: World, controllers: Controllers) -> None:
        await controllers.ask(register(100))
        await controllers.agree()
        leader = await controllers.leader()
        epoch = leader.service.quorum.leader_epoch
        world.hang(host_of(leader.node_id), 1.8)
        answers = submit(leader, 200)
        await controllers.until(lambda: answers)
        leader.service.quorum.snapshots.written(leader.service.quorum.core.log.end)
        answers = submit(leader, 201)
        await controllers.until(lambda: answers, 1.5)
        await world.sleep(3.0)
        assert leader.service.quorum.leader_epoch == epoch

    play(script)


@pytest.mark.parametrize("voters", [(1, 2, 3), (1, 2), (1,)])
def test_a_disk_that_hangs_for_a_minute_ends_the_node_where_others_can_go_on(voters: tuple[int, ...]) -> None:
    """A leader's disk hangs for a minute.

    The node ends as after a failed sync, if the other voters can commit alone.
    """

    async def script(world: World, controllers: Controllers) -> None:
        await controllers.ask(register(100))
        leader = await controllers.leader()
        ended: list[float] = []
        leader.service.quorum.on_hung_disk = lambda: ended.append(world.now)
        hung_at = world.now
        world.hang(host_of(leader.node_id), 3 * SYNC_SECONDS_MAX)
        submit(leader, 200)
        await world.sleep(SYNC_SECONDS_MAX - 1.0)
        assert ended == []
        await world.sleep(SYNC_SECONDS_MAX)
        assert len(ended) == (len(voters) == 3)
        assert all(SYNC_SECONDS_MAX <= at - hung_at < SYNC_SECONDS_MAX + 5.0 for at in ended)

    play(script, calm_world(), voters=voters)


def test_a_disk_that_is_full_behind_a_late_sync_does_not_hang() -> None:
    """The leader's disk is late and then full. Batches in memory wait for room, and the node does not end."""

    async def script(world: World, controllers: Controllers) -> None:
        await controllers.ask(register(100))
        await controllers.agree()
        leader = await controllers.leader()
        ended: list[float] = []
        leader.service.quorum.on_hung_disk = lambda: ended.append(world.now)
        disk = world.machine(host_of(leader.node_id)).disk
        world.hang(host_of(leader.node_id), 1.8)
        for number in range(3):
            answers = submit(leader, 200 + number)
            await controllers.until(lambda answers=answers: answers)
        disk.capacity_bytes = disk.used_bytes
        await world.sleep(SYNC_SECONDS_MAX + 20.0)
        assert "metadata.disk_full" in leader.journal.events
        assert ended == []
        disk.capacity_bytes = None
        await controllers.agree()
        assert all(has(leader, 200 + number) for number in range(3))

    play(script, calm_world())


def test_the_tail_reads_as_the_log_does() -> None:
    """A read from the log's tail in memory returns whole batches, at least one, below the bound.

    If the offset is in an earlier batch, the read returns None, since this batch has to be read from the file.
    """
    tail = LogTail()
    assert tail.read(5, 100, None) is None
    for base, last, data in ((5, 6, b"56"), (7, 7, b"7"), (8, 10, b"8-10")):
        tail.add(Batch(base, last, 3, data))
    assert tail.read(4, 100, None) is None
    assert tail.read(5, 100, None) == b"5678-10"
    assert tail.read(6, 3, None) == b"567"
    assert tail.read(7, 0, None) == b"7"
    assert tail.read(5, 100, 8) == b"567"
    assert tail.read(5, 100, 6) == b""
    assert tail.read(11, 100, None) == b""
    assert tail.size_bytes == 7
    tail.drop(tail.batches[:2])
    assert (tail.size_bytes, tail.read(7, 100, None)) == (4, None)
    assert tail.read(8, 100, None) == b"8-10"


@pytest.mark.reaches("quorum.disk_seen_hanging")
def test_a_process_that_was_paused_does_not_blame_its_disk() -> None:
    """A process is paused for longer than the limit of a sync.

    The node does not end, since the sync may have ended during the pause.
    """

    async def script(world: World, controllers: Controllers) -> None:
        await controllers.ask(register(100))
        leader = await controllers.leader()
        ended: list[float] = []
        leader.service.quorum.on_hung_disk = lambda: ended.append(world.now)
        decisions = leader.service.quorum.decisions
        world.hang(host_of(leader.node_id), 1.0)
        submit(leader, 200)
        await controllers.until(lambda: decisions.next_deadline() < float("inf"))
        # The clock jumps by the limit, as after a pause.
        clock = leader.env.clock
        monotonic = clock.monotonic
        clock.monotonic = lambda: monotonic() + SYNC_SECONDS_MAX  # type: ignore[method-assign]
        try:
            assert not decisions.look_at_disk()
        finally:
            clock.monotonic = monotonic  # type: ignore[method-assign]
        await world.sleep(5.0)
        assert ended == []

    play(script)


@pytest.mark.parametrize("seed", seeds(6))
def test_hangs_and_crashes_lose_no_answer(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The active controller's disk hangs again and again, and its node often dies then. Every answer remains valid."""
    world = World(seed, Weather())
    random = world.random
    ahead: list[int] = []
    write_ahead = QuorumLeader._write_ahead
    monkeypatch.setattr(
        QuorumLeader, "_write_ahead", lambda leader: (ahead.append(leader.epoch), write_ahead(leader))[1]
    )

    async def trouble(controllers: Controllers) -> None:
        while True:
            await world.sleep(random.expovariate(2.0))
            controllers.start_all()
            leader = controllers.active()
            victim = random.choice((1, 2, 3)) if leader is None or random.random() < 0.3 else leader.node_id
            world.hang(host_of(victim), random.choice((0.6, 1.2, 1.9, 4.0)))
            if random.random() < 0.4:
                await world.sleep(random.random() * 1.9)
                controllers.crash(victim, random.choice(("all", "synced", "random")))
                await world.sleep(random.random())

    async def script(world: World, controllers: Controllers) -> None:
        scope = trio.CancelScope()

        async def run_trouble() -> None:
            with scope:
                await trouble(controllers)

        over = world.spawn(run_trouble)
        told = []
        for number in range(100, 160):
            answer = await controllers.ask(register(number), 120.0)
            if answer.error_code == 0:
                told.append(number)
            await world.sleep(random.random() * 0.2)
        scope.cancel()
        await over.wait()
        controllers.start_all()
        await controllers.until(lambda: len(controllers.members) == 3, 60.0)
        await controllers.agree(60.0)
        assert len(told) > 50
        assert ahead, "no batches were sent to followers before the leader had written them"
        for member in controllers.members.values():
            assert all(has(member, number) for number in told)
        logs_agree(controllers)

    play(script, world)
