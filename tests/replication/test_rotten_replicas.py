"""Bit rot on one disk: it is found when a reader cannot use the bytes. The damaged log is set aside, and the replica is
replaced.

A replica whose log fails its CRC check gives up its leadership and fetches everything again. While it is empty, it is
not in the ISR. The last replica in sync stays in service instead.
"""

from __future__ import annotations

import os
from random import Random

import pytest

from odradek.env.ports import ConnectionLost
from odradek.wire.batches.batch_header import HEADER_SIZE
from odradek.wire.errors import ErrorCode, KafkaError
from sim.machine.weather import Weather
from tests.replication.brokers import NODES, TOPIC, ReplicatedTopic

VALUES = {serial: b"%d" % serial for serial in range(10)}
SEEDS = [int(seed) for seed in os.environ.get("SEEDS", "1 2 3 4").split()]
INSIDE = HEADER_SIZE + 3
"""A position in the records of the first batch. Its header stays valid."""
SECOND_MAGIC = 16
"""The position of the magic byte in a header. If this byte is damaged, readers do not recognize a batch."""


async def write(cluster: ReplicatedTopic, first: int, end: int) -> None:
    for serial in range(first, end):
        assert await cluster.produce(1, VALUES[serial]) == (0, serial)


async def without(cluster: ReplicatedTopic, *node_ids: int) -> None:
    """Stop these brokers for the rest of the test."""
    for node_id in node_ids:
        cluster.crash(node_id)
        cluster.controller.fence(node_id)
    await cluster.until(lambda: not set(node_ids) & set(cluster.members[1].partition().isr_state.isr))


def size_of(cluster: ReplicatedTopic, node_id: int = 1) -> int:
    return cluster.members[node_id].partition().log.size_bytes


@pytest.mark.parametrize("byte", [INSIDE, SECOND_MAGIC])
def test_a_rotten_leader_is_replaced_and_refetches(byte: int) -> None:
    """If a follower cannot use a leader's batch, another replica leads, and the damaged log is kept. In the end all
    three logs are equal."""

    async def script(cluster: ReplicatedTopic) -> None:
        await write(cluster, 0, 3)
        await without(cluster, 3)
        rotten_at = size_of(cluster)
        await write(cluster, 3, 8)
        epoch = cluster.controller.partitions[0].leader_epoch
        cluster.flip(1, rotten_at + byte)
        await cluster.start(3)
        await cluster.in_sync(1, 2, 3)
        now = cluster.controller.partitions[0]
        assert (now.leader, now.leader_epoch) == (2, epoch + 1)
        assert [cluster.contents(node) for node in (1, 2, 3)] == [dict(list(VALUES.items())[:8])] * 3
        (kept,) = (name for name in cluster.directories(1) if name.endswith("-stray"))
        assert kept.startswith(f"{TOPIC}-0.")
        assert cluster.members[1].broker.rotten.statistics() == {"rotten": 0, "checks": 1, "set_aside": 1}

    ReplicatedTopic(min_isr=2).play(script)


def test_an_empty_replica_is_never_in_sync() -> None:
    """A replica that begins again stays outside the ISR and the eligible leaders until it has everything."""

    async def script(cluster: ReplicatedTopic) -> None:
        await write(cluster, 0, 3)
        await without(cluster, 3)
        await write(cluster, 3, 8)
        cluster.flip(1, INSIDE)
        cluster.flip(1, size_of(cluster) // 8 * 3 + INSIDE)
        await cluster.start(3)

        def is_anew() -> bool:
            now = cluster.controller.partitions[0]
            log = cluster.members[1].partition().log
            if log.log_end_offset < 8:
                assert 1 not in (now.leader, *now.isr, *now.elr, *now.last_known_elr)
            return log.log_end_offset == 8 and cluster.members[1].broker.rotten.set_aside == 1

        await cluster.until(is_anew)
        await cluster.in_sync(1, 2, 3)

    ReplicatedTopic(min_isr=2).play(script)


def test_the_last_in_sync_keeps_what_it_has() -> None:
    """The last in-sync replica goes on leading with its damaged log. Once another replica is in sync, the log is
    replaced."""

    async def script(cluster: ReplicatedTopic) -> None:
        await write(cluster, 0, 3)
        await without(cluster, 2, 3)
        rotten_at = size_of(cluster)
        await write(cluster, 3, 8)
        cluster.flip(1, rotten_at + INSIDE)
        await cluster.start(2)
        await cluster.until(lambda: cluster.members[1].broker.rotten.statistics()["rotten"] == 1)
        await cluster.world.sleep(5.0)
        now = cluster.controller.partitions[0]
        assert (now.leader, now.isr) == (1, (1,))
        assert cluster.directories(1) == [f"{TOPIC}-0"]
        assert (await cluster.fetch(1, 0)).error_code == ErrorCode.NONE
        assert await cluster.produce(1, VALUES[8]) == (0, 8)
        # The same bit flips back. The follower reads past it and joins the ISR.
        cluster.flip(1, rotten_at + INSIDE)
        await cluster.in_sync(1, 2)
        await cluster.until(lambda: cluster.controller.partitions[0].leader == 2)
        await cluster.start(3)
        await cluster.in_sync(1, 2, 3)
        assert [cluster.contents(node) for node in (1, 2, 3)] == [dict(list(VALUES.items())[:9])] * 3

    ReplicatedTopic().play(script)


@pytest.mark.reaches("rot.promising_replica_returns")
def test_a_replica_that_gave_up_just_when_it_became_the_last_leads_again() -> None:
    """A replica reports its log as lost just when it becomes the last in-sync replica. It withdraws the report and
    leads again."""

    async def script(cluster: ReplicatedTopic) -> None:
        await write(cluster, 0, 3)
        await without(cluster, 2, 3)
        assignments = cluster.members[1].broker.assignments
        log = cluster.members[1].partition().log
        assignments.note(log.topic_id, 0, bytes(15) + b"\x01")
        await cluster.until(lambda: cluster.controller.partitions[0].leader == -1)
        await cluster.until(lambda: cluster.controller.partitions[0].leader == 1)
        await cluster.until(lambda: cluster.members[1].partition().is_leader)
        assert await cluster.produce(1, VALUES[3]) == (0, 3)
        assert cluster.members[1].partition().log is log

    ReplicatedTopic().play(script)


def test_a_crash_before_the_log_is_set_aside() -> None:
    """If a broker dies after it reported a log as LOST, it sets the old log aside at its next start."""

    async def script(cluster: ReplicatedTopic) -> None:
        await write(cluster, 0, 5)
        cluster.metadata_seconds = 0.5
        log = cluster.members[1].partition().log
        cluster.members[1].broker.assignments.note(log.topic_id, 0, bytes(15) + b"\x01")
        await cluster.until(lambda: cluster.controller.partitions[0].leader == 2)
        cluster.crash(1)
        assert 1 not in cluster.controller.partitions[0].isr
        await cluster.start(1)
        await cluster.in_sync(1, 2, 3)
        assert cluster.contents(1) == dict(list(VALUES.items())[:5])
        assert sum(name.endswith("-stray") for name in cluster.directories(1)) == 1

    ReplicatedTopic(min_isr=2).play(script)


def test_a_followers_own_rot() -> None:
    """If a consumer reads damaged bytes from a follower, the follower leaves the ISR and begins again."""

    async def script(cluster: ReplicatedTopic) -> None:
        await write(cluster, 0, 5)
        await cluster.until(lambda: cluster.members[2].partition().log.high_watermark == 5)
        cluster.flip(2, SECOND_MAGIC)
        assert (await cluster.fetch(2, 1)).error_code == ErrorCode.CORRUPT_MESSAGE
        await cluster.until(lambda: cluster.members[2].broker.rotten.set_aside == 1)
        await cluster.in_sync(1, 2, 3)
        assert cluster.controller.partitions[0].leader == 1
        assert cluster.contents(2) == dict(list(VALUES.items())[:5])

    ReplicatedTopic(min_isr=2).play(script)


class Deaths:
    """Processes that die and restart while a damaged leader is replaced. Their page caches survive."""

    def __init__(self, seed: int) -> None:
        self.random = Random(f"{seed}/deaths")
        weather = Weather.draw(Random(f"{seed}/weather"))
        self.cluster = ReplicatedTopic(seed, weather, min_isr=self.random.choice((1, 2)))
        self.cluster.metadata_seconds = self.random.choice((0.01, 0.3, 1.0))
        self.cluster.answers_lost = self.random.choice((0.0, 0.2))
        self.acknowledged: dict[int, bytes] = {}
        self.rotten: int | None = None
        self.is_over = False

    async def run(self, cluster: ReplicatedTopic) -> None:
        while len(self.acknowledged) < 3:
            await self._produce(cluster)
        await without(cluster, 3)
        rot_at = size_of(cluster) + INSIDE
        while len(self.acknowledged) < 8:
            await self._produce(cluster)
        cluster.flip(1, rot_at)
        self.rotten = cluster.byte(1, rot_at)
        tasks = [cluster.world.spawn(self._watch, cluster), cluster.world.spawn(self._produce_on, cluster)]
        await cluster.start(3)
        for _ in range(self.random.randrange(5)):
            await cluster.world.sleep(self.random.random())
            victim = self.random.choice(NODES)
            if victim == 1 and cluster.controller.partitions[0].isr == (1,):
                # Only this damaged replica is in sync. If it crashed as well, its recovery would cut the only copy of
                # some records.
                victim = 2
            cluster.crash(victim)
            if self.random.random() < 0.5:
                cluster.controller.fence(victim)
            await cluster.world.sleep(self.random.random() * self.random.choice((0.05, 3.0)))
            await cluster.start(victim)
        cluster.answers_lost = 0.0
        await self._settle(cluster, rot_at)
        self.is_over = True
        for task in tasks:
            await task.wait()
        await cluster.in_sync(*NODES)
        for node_id in NODES:
            held = cluster.contents(node_id)
            assert {offset: held.get(offset) for offset in self.acknowledged} == self.acknowledged

    async def _settle(self, cluster: ReplicatedTopic, rot_at: int) -> None:
        """Wait until all replicas are in sync, or for 20 s. If no reader has met the damage until then, restore the
        damaged bit.

        Recovery may have cut the damaged byte off. Then its place has another byte, or none, and is left as it is.
        """
        end = cluster.world.now + 20.0
        while cluster.world.now < end:
            await cluster.world.sleep(0.1)
            if sorted(cluster.controller.partitions[0].isr) == list(NODES):
                break
        if cluster.byte(1, rot_at) == self.rotten:
            cluster.flip(1, rot_at)

    async def _produce(self, cluster: ReplicatedTopic) -> None:
        value = b"%d" % self.random.getrandbits(64)
        try:
            code, offset = await cluster.produce(max(cluster.controller.partitions[0].leader, 1), value)
        except (ConnectionLost, KafkaError):
            code, offset = ErrorCode.REQUEST_TIMED_OUT, -1
        if not code:
            assert offset not in self.acknowledged
            self.acknowledged[offset] = value
        else:
            await cluster.world.sleep(0.1)

    async def _produce_on(self, cluster: ReplicatedTopic) -> None:
        while not self.is_over:
            await self._produce(cluster)
            await cluster.world.sleep(0.05)

    async def _watch(self, cluster: ReplicatedTopic) -> None:
        """Check all the time that each in-sync replica has all acknowledged records."""
        while not self.is_over:
            await cluster.world.sleep(0.005)
            end = max(self.acknowledged) + 1
            for node_id in cluster.controller.partitions[0].isr:
                member = cluster.members.get(node_id)
                if member is not None and TOPIC in member.broker.topics:
                    log = member.broker.log_dirs[0].get(TOPIC, 0)
                    assert log is None or log.log_end_offset >= end


@pytest.mark.parametrize("seed", SEEDS)
def test_deaths_while_a_rotten_leader_is_replaced(seed: int) -> None:
    """Whichever process dies at whatever time, acknowledged records stay, and in the end all three replicas are
    equal."""
    deaths = Deaths(seed)
    deaths.cluster.play(deaths.run)
