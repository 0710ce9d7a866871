"""Crashes, power cuts, partitions and elections from a seed: acknowledged records are not lost, reordered or
changed."""

from __future__ import annotations

import os
from random import Random

import pytest

from odradek.data_plane.log.parts.producer_recovery import rebuild_producers
from odradek.env.ports import ConnectionLost
from odradek.wire.errors import ErrorCode, KafkaError
from sim.machine.weather import Weather
from tests.log.support import batch
from tests.replication.brokers import NODES, ReplicatedTopic, host

SEEDS = [int(seed) for seed in os.environ.get("SEEDS", "1 2 3").split()]
STORM_SECONDS = 30.0


class _Batch:
    """One batch of the producer, and the last answer to it."""

    def __init__(self, sequence: int, count: int) -> None:
        self.sequence = sequence
        self.count = count
        self.value = b"%d" % sequence
        self.code = 0
        self.offset = -1


class Storm:
    """One producer, one reader, and faults at the same time."""

    def __init__(self, seed: int) -> None:
        self.random = Random(f"{seed}/storm")
        weather = Weather.draw(Random(f"{seed}/weather"))
        self.cluster = ReplicatedTopic(seed, weather, min_isr=self.random.choice((1, 2)))
        self.cluster.metadata_seconds = self.random.choice((0.01, 0.5, 2.0))
        self.cluster.answers_lost = self.random.choice((0.0, 0.1))
        self.acknowledged: dict[int, bytes] = {}
        self.seen: dict[int, bytes] = {}
        self.is_over = False

    async def run(self, cluster: ReplicatedTopic) -> None:
        done = [cluster.world.spawn(self._produce), cluster.world.spawn(self._watch_high_watermarks)]
        end = cluster.world.now + STORM_SECONDS
        while cluster.world.now < end:
            await cluster.world.sleep(self.random.random() * 2)
            await self._trouble()
        await self._calm_down()
        before = len(self.acknowledged)
        await cluster.until(lambda: len(self.acknowledged) > before + 5)
        self.is_over = True
        for each in done:
            await each.wait()
        await cluster.in_sync(*NODES)
        await cluster.until(self._is_settled)
        self._check()

    async def _produce(self) -> None:
        """Keep up to three batches under way, like an idempotent producer. Resend from the first unacknowledged batch
        on."""
        cluster = self.cluster
        window: list[_Batch] = []
        sequence = 0
        while not self.is_over:
            # A leader that does not know a producer accepts any sequence number. So the first batch is sent alone.
            while len(window) < (self.random.choice((1, 3)) if self.acknowledged else 1):
                window.append(_Batch(sequence, self.random.choice((1, 1, 3))))
                sequence += window[-1].count
            leader = max(cluster.controller.partitions[0].leader, 1)
            sent = []
            for each in window:
                sent.append(cluster.world.spawn(self._send, leader, each))
                await cluster.world.sleep(0.001)
            for done in sent:
                await done.wait()
            for each in window:
                if not each.code:
                    for offset in range(each.offset, each.offset + each.count):
                        assert self.acknowledged.setdefault(offset, each.value) == each.value
            while window and not window[0].code:
                window.pop(0)
            await cluster.world.sleep(0.1 if window else 0.02)

    async def _send(self, leader: int, each: _Batch) -> None:
        data = batch(
            each.count, value=each.value, producer_id=7, producer_epoch=0, base_sequence=each.sequence
        )
        try:
            each.code, each.offset = await self.cluster.send(leader, data, timeout_ms=1000)
        except (ConnectionLost, KafkaError):
            each.code = ErrorCode.REQUEST_TIMED_OUT

    async def _watch_high_watermarks(self) -> None:
        """Check that records below any replica's high watermark never change."""
        cluster = self.cluster
        while not self.is_over:
            await cluster.world.sleep(0.05)
            for node_id, member in list(cluster.members.items()):
                if 0 in member.broker.topics["t"].partitions:
                    log = member.partition().log
                    start = max(0, log.high_watermark - 5)
                    for offset, value in cluster.contents(node_id, first=start).items():
                        if offset < log.high_watermark:
                            assert self.seen.setdefault(offset, value) == value

    async def _trouble(self) -> None:
        cluster, random = self.cluster, self.random
        node_id = random.choice(NODES)
        lives = node_id in cluster.members
        what = random.choice(("crash", "crash", "power", "cut", "heal", "elect", "start", "start", "pause"))
        now = cluster.controller.partitions[0]
        if what in ("crash", "power") and lives:
            others = [each for each in now.isr if each != node_id and each in cluster.members]
            # The fault model: the page cache of one in-sync replica always survives.
            loses = what == "power" and bool(others)
            cluster.crash(node_id, "random" if loses else "all")
            if not loses and random.random() < 0.5:
                await cluster.world.sleep(random.random())
            if loses or random.random() < 0.5:
                cluster.controller.fence(node_id)
        elif what == "cut":
            other = random.choice([each for each in NODES if each != node_id])
            cluster.world.cut(host(node_id), host(other))
        elif what == "heal":
            self._heal()
        elif what == "elect":
            candidates = [each for each in now.isr if each in cluster.members]
            if candidates:
                cluster.controller.elect(0, random.choice(candidates))
        elif what == "start" and not lives:
            await cluster.start(node_id)
        elif what == "pause" and lives:
            cluster.world.pause(host(node_id))
            await cluster.world.sleep(random.random() * 3)
            cluster.world.resume(host(node_id))

    def _heal(self) -> None:
        for here in NODES:
            for there in NODES:
                if here < there:
                    self.cluster.world.heal(host(here), host(there))

    async def _calm_down(self) -> None:
        cluster = self.cluster
        self._heal()
        for node_id in NODES:
            if node_id not in cluster.members:
                await cluster.start(node_id)
        cluster.answers_lost = 0.0
        if cluster.controller.partitions[0].leader < 0:
            cluster.controller.elect(0, cluster.controller.partitions[0].isr[0])

    def _is_settled(self) -> bool:
        logs = [member.partition().log for member in self.cluster.members.values()]
        return len({log.log_end_offset for log in logs}) == 1 and all(
            log.high_watermark == log.log_end_offset for log in logs
        )

    def _check(self) -> None:
        contents = [self.cluster.contents(node_id) for node_id in NODES]
        assert contents[0] == contents[1] == contents[2]
        for member in self.cluster.members.values():
            log = member.partition().log
            interval = log.config.index_interval_bytes
            rebuilt = rebuild_producers(log.directory, log.segments, log.log_end_offset, interval)
            assert log.load_producers().encode() == rebuilt.encode()
        sent = list(contents[0].values())
        assert sent == sorted(sent, key=int), "something is out of order"
        for value in dict.fromkeys(sent):
            assert sent.count(value) in (1, 3), f"value {value!r} was appended twice"
        for known in (self.acknowledged, self.seen):
            for offset, value in known.items():
                assert contents[0].get(offset) == value, f"offset {offset}"


@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_acknowledged_is_lost(seed: int) -> None:
    """No acknowledged record is lost as long as one in-sync replica is alive at all times."""
    storm = Storm(seed)
    storm.cluster.play(storm.run)
