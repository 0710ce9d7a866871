"""`flush.messages` on every replica and with any acks: like Kafka, leader and followers flush as they append."""

from __future__ import annotations

import errno
from functools import partial

import pytest
import trio

from odradek.data_plane.log.partition_log import PartitionLog
from odradek.wire.errors import ErrorCode, KafkaError
from sim.machine.sim_env import SimEnv
from tests.replication.brokers import NODES, TOPIC, ReplicatedTopic, host


def _recovery_point(cluster: ReplicatedTopic, node_id: int) -> int:
    return cluster.members[node_id].partition().log.recovery_point


def _configured(cluster: ReplicatedTopic, flush_messages: int) -> None:
    cluster.controller.topic_configs = {"flush.messages": str(flush_messages)}


def test_an_acknowledged_record_is_on_every_device() -> None:
    """With flush.messages=1, a record that is acknowledged with acks=all is synced on every in-sync replica."""

    async def script(cluster: ReplicatedTopic) -> None:
        for serial in range(20):
            assert await cluster.produce(1, b"%d" % serial) == (0, serial)
            assert all(_recovery_point(cluster, node) > serial for node in NODES)

    cluster = ReplicatedTopic()
    _configured(cluster, 1)
    cluster.play(script)


def test_a_follower_promises_as_much_unsynced_as_it_may() -> None:
    """With flush.messages=10, a follower syncs after ten messages, and not after each one."""

    async def script(cluster: ReplicatedTopic) -> None:
        for serial in range(35):
            await cluster.produce(1, b"%d" % serial)
            assert all(serial + 1 - _recovery_point(cluster, node) < 10 for node in NODES)
        for node in NODES:
            assert _recovery_point(cluster, node) < 35

    cluster = ReplicatedTopic()
    _configured(cluster, 10)
    cluster.play(script)


def test_acks_0_is_flushed_too() -> None:
    """With acks=0 and flush.messages=1, records are flushed, too, although the producer gets no answer."""

    async def script(cluster: ReplicatedTopic) -> None:
        await cluster.produce(1, b"a", acks=1)
        # The regular flush of all logs must not help here.
        cluster.members[1].partition().log.durability.note_flush(1 << 60)
        with pytest.raises(KafkaError, match="REQUEST_TIMED_OUT"):
            await cluster.produce(1, b"b", acks=0)
        await cluster.until(lambda: _recovery_point(cluster, 1) == 2)

    cluster = ReplicatedTopic()
    _configured(cluster, 1)
    cluster.play(script)


def test_a_follower_without_descriptors_promises_nothing_until_it_has_synced() -> None:
    """A follower whose sync fails for lack of descriptors fetches nothing more until the sync succeeds."""

    async def script(cluster: ReplicatedTopic) -> None:
        assert (await cluster.produce(1, b"a"))[0] == 0
        disk = cluster.world.machine(host(2)).disk
        # The sync must open the directory. Syncing an open file would need no descriptor.
        disk.fail_next(errno.EMFILE, operation="create", path_part=f"{TOPIC}-0/leader-epoch", times=3)
        cluster.controller.elect(0, 3)
        await cluster.until(lambda: cluster.members[3].partition().is_leader)
        assert (await cluster.produce(3, b"b"))[0] == 0
        assert all(_recovery_point(cluster, node) == 2 for node in NODES)

    cluster = ReplicatedTopic()
    _configured(cluster, 1)
    cluster.play(script)


def test_a_flush_that_hangs_is_waited_for() -> None:
    """While a follower's device hangs, its records do not count as replicated. The follower goes on once the device
    answers."""

    async def script(cluster: ReplicatedTopic) -> None:
        assert (await cluster.produce(1, b"a"))[0] == 0
        env = cluster.members[2].env
        assert isinstance(env, SimEnv)
        began = env.agenda.now
        env.hangs_until = began + 1.5
        assert (await cluster.produce(1, b"b", timeout_ms=4000))[0] == 0
        assert env.agenda.now >= began + 1.5
        assert all(_recovery_point(cluster, node) == 2 for node in NODES)

    cluster = ReplicatedTopic()
    _configured(cluster, 1)
    cluster.play(script)


@pytest.mark.parametrize("acks", [-1, 1])
def test_a_leader_whose_device_hangs_acknowledges_nothing(acks: int) -> None:
    """A leader whose device hangs acknowledges nothing, even with acks=1, since its own sync counts, too."""

    async def script(cluster: ReplicatedTopic) -> None:
        assert (await cluster.produce(1, b"a"))[0] == 0
        env = cluster.members[1].env
        assert isinstance(env, SimEnv)
        began = env.agenda.now
        env.hangs_until = began + 1.5
        log = cluster.members[1].partition().log
        seen: list[tuple[int, int]] = []
        cluster.members[1].partition().waiting.watch(
            lambda: seen.append((log.high_watermark, log.recovery_point))
        )
        assert (await cluster.produce(1, b"b", acks=acks, timeout_ms=4000))[0] == 0
        assert env.agenda.now >= began + 1.5
        await cluster.until(lambda: log.high_watermark == 2)
        assert all(high_watermark <= synced for high_watermark, synced in seen)

    cluster = ReplicatedTopic()
    _configured(cluster, 1)
    cluster.play(script)


def test_records_that_come_during_a_sync_share_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """Group commit: twenty records that arrive during a sync cost the leader one more sync."""
    flushed: list[object] = []
    flush = PartitionLog.flush
    monkeypatch.setattr(PartitionLog, "flush", lambda log: (flushed.append(log), flush(log))[1])

    async def script(cluster: ReplicatedTopic) -> None:
        assert (await cluster.produce(1, b"a"))[0] == 0
        env = cluster.members[1].env
        log = cluster.members[1].partition().log
        assert isinstance(env, SimEnv)
        env.hangs_until = env.agenda.now + 1.0
        flushed.clear()
        # The regular flush of all logs must not count here.
        log.durability.note_flush(1 << 60)
        async with trio.open_nursery() as producers:
            for serial in range(20):
                producers.start_soon(partial(cluster.produce, 1, b"%d" % serial, timeout_ms=4000))
        assert log.high_watermark == log.recovery_point == 21
        assert flushed.count(log) <= 2

    cluster = ReplicatedTopic()
    _configured(cluster, 1)
    cluster.play(script)


def test_a_leader_whose_sync_fails_acknowledges_nothing() -> None:
    """If a leader's sync fails, its directory goes offline, and the producer gets an error for its record."""

    async def script(cluster: ReplicatedTopic) -> None:
        assert (await cluster.produce(1, b"a"))[0] == 0
        disk = cluster.world.machine(host(1)).disk
        disk.fail_next(errno.EIO, operation="sync", path_part=f"{TOPIC}-0/")
        log = cluster.members[1].partition().log
        code, _ = await cluster.produce(1, b"b")
        assert code == ErrorCode.KAFKA_STORAGE_ERROR
        assert (log.high_watermark, log.offline) == (1, True)

    cluster = ReplicatedTopic()
    _configured(cluster, 1)
    cluster.play(script)


def test_a_leader_without_descriptors_goes_on_when_it_has_some() -> None:
    """A sync that fails for lack of descriptors is tried again. Then the record is acknowledged."""

    async def script(cluster: ReplicatedTopic) -> None:
        assert (await cluster.produce(1, b"a"))[0] == 0
        disk = cluster.world.machine(host(2)).disk
        cluster.controller.elect(0, 2)
        await cluster.until(lambda: cluster.members[2].partition().is_leader)
        disk.fail_next(errno.EMFILE, operation="create", path_part=f"{TOPIC}-0/leader-epoch")
        assert (await cluster.produce(2, b"b", timeout_ms=4000))[0] == 0
        assert all(_recovery_point(cluster, node) == 2 for node in NODES)

    cluster = ReplicatedTopic()
    _configured(cluster, 1)
    cluster.play(script)
