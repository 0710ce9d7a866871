"""The leader's disk hangs: fetches of followers still count, and no follower leaves the ISR because of it."""

from __future__ import annotations

from odradek.data_plane.log.directory.log_dir import LogDir
from tests.log.support import batch
from tests.replication.brokers import LAG_MS_MAX, ReplicatedTopic

LAG_SECONDS = LAG_MS_MAX / 1000


def disk_of_leader(cluster: ReplicatedTopic) -> LogDir:
    return cluster.members[1].broker.log_dirs[0]


async def append(cluster: ReplicatedTopic) -> None:
    """Append a record to the leader. Return once both followers have it."""
    leader = cluster.members[1]
    leader.partition().append_as_leader(memoryview(batch()), leader.env.clock.wall_ms())
    end_offset = leader.partition().log.log_end_offset
    while any(cluster.members[each].partition().log.log_end_offset < end_offset for each in (2, 3)):
        await cluster.world.sleep(0.0001)


def test_what_followers_promise_counts_while_the_leaders_disk_hangs() -> None:
    """While the leader's disk hangs, records that all in-sync replicas have are committed, and no replica leaves the
    ISR."""

    async def script(cluster: ReplicatedTopic) -> None:
        await cluster.world.sleep(1.0)
        partition = cluster.members[1].partition()
        await append(cluster)
        assert partition.log.high_watermark < partition.log.log_end_offset, "the promises are under way"
        disk_of_leader(cluster).set_stalled(True)
        await cluster.world.sleep(5 * LAG_SECONDS)
        assert partition.log.high_watermark == partition.log.log_end_offset == 1
        assert cluster.controller.alterations == []
        assert cluster.controller.partitions[0].isr == (1, 2, 3)

    ReplicatedTopic().play(script)


def test_nobody_lags_because_the_leaders_disk_hangs() -> None:
    """Followers that cannot read the last record during a hang stay in sync, and get time to catch up after it."""

    async def script(cluster: ReplicatedTopic) -> None:
        await cluster.world.sleep(1.0)
        leader = cluster.members[1]
        log_dir = disk_of_leader(cluster)
        leader.partition().append_as_leader(memoryview(batch()), leader.env.clock.wall_ms())
        log_dir.set_stalled(True)
        await cluster.world.sleep(5 * LAG_SECONDS)
        assert leader.partition().log.high_watermark == 0
        log_dir.set_stalled(False)
        leader.broker.troubles.changed(log_dir)
        leader.broker.replication._look_for_lag()
        await cluster.world.sleep(5 * LAG_SECONDS)
        assert leader.partition().log.high_watermark == 1
        assert cluster.controller.alterations == []

    ReplicatedTopic().play(script)
