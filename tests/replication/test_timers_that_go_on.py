"""A broker's periodic checks go on, even if one of the checked objects raises."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
import structlog
from structlog.testing import LogCapture

from odradek.data_plane.groups.coordinator import GroupCoordinator
from odradek.data_plane.groups.group_settings import GroupSettings
from odradek.data_plane.replication.partition import Partition
from odradek.env.agreed_clock import AgreedClock
from odradek.serving.timers import Timers
from testkit.by_hand import ManualClock
from tests.replication.brokers import ReplicatedTopic


@pytest.mark.reaches("replication.look_failed")
def test_one_partitions_bug_costs_no_other_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the check of one partition always raises, a lagging replica of another partition still leaves its ISR."""
    look_again = Partition.look_again

    def look(partition: Partition) -> None:
        if partition.log.partition == 0:
            raise RuntimeError("a watcher has a bug")
        look_again(partition)

    monkeypatch.setattr(Partition, "look_again", look)

    async def script(cluster: ReplicatedTopic) -> None:
        cluster.controller.elect(1, 1)
        await cluster.world.sleep(10.0)
        cluster.crash(3)
        await cluster.produce(1, b"record", index=1, acks=1)
        await cluster.in_sync(1, 2, index=1)

    ReplicatedTopic(partitions=2).play(script)


class _Shard:
    """A shard whose first `failures` decisions raise."""

    is_loading = False

    def __init__(self, failures: int) -> None:
        self.failures = failures
        self.asked = 0

    def submit(self, ask: object) -> None:
        self.asked += 1
        if self.asked <= self.failures:
            raise RuntimeError("a decision has a bug")


def test_offsets_expire_on_behind_a_bug() -> None:
    """If one shard raises, a bug is logged, the other shards have their turn, and all are asked again later."""
    clock = ManualClock()
    captured = LogCapture()
    log = structlog.wrap_logger(None, processors=[captured])
    event = SimpleNamespace(set=lambda: None)
    timers = Timers(clock, lambda: cast("Any", event), log)
    broker = SimpleNamespace(timers=timers, clock=clock, agreed_clock=AgreedClock(clock), log=log)
    settings = GroupSettings(offsets_retention_check_interval_ms=1000)
    coordinator = GroupCoordinator(cast("Any", broker), settings)
    shards = {0: _Shard(1), 1: _Shard(0)}
    coordinator.shards = cast("Any", shards)
    coordinator._set_expiry()
    for _ in range(3):
        clock.now_ms += 1000
        timers.fire_due(clock.monotonic())
    assert [shard.asked for shard in shards.values()] == [3, 3]
    assert [entry["event"] for entry in captured.entries] == ["groups.expiry_failed"]
