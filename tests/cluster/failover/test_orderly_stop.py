"""A broker that leads partitions stops as soon as the other brokers know their new leaders."""

from __future__ import annotations

from tests.cluster.disks.test_troubled_disks import Troubled

RARE_HEARTBEATS = {"broker.heartbeat.interval.ms": "20000", "broker.session.timeout.ms": "60000"}
STOP_SECONDS_MAX = 5.0
"""Far below the interval of the heartbeats, and below the time after which a stopping broker gives up waiting."""


def test_a_stop_waits_for_no_regular_heartbeat() -> None:
    """With heartbeats every 20 s, a leader hands its partition over, and its process ends within seconds."""

    async def script(case: Troubled) -> None:
        assert await case.write() == 0
        leader = case.member(1)
        running = leader.running
        assert running is not None
        assert case.seen_by(2).leader == 1
        before = case.world.now
        leader.ask_to_stop()
        await case.world.wait(running.ended, STOP_SECONDS_MAX)
        assert running.ended.is_set(), f"the leader still runs after {case.world.now - before} s"
        assert case.seen_by(2).leader in (2, 3)
        assert case.seen_by(3).leader == case.seen_by(2).leader

    Troubled(settings=RARE_HEARTBEATS).play(script)
