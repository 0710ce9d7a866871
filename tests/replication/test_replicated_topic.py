"""Three brokers replicate a topic: acknowledgements, the ISR, truncation, and reads from followers."""

from __future__ import annotations

import pytest

from odradek.data_plane.replication.throttle import FOLLOWER, LEADER, rate_key, replicas_key
from odradek.wire.errors import ErrorCode
from sim.machine.weather import Weather
from tests.log.support import batch
from tests.replication.brokers import NODES, TOPIC, ReplicatedTopic, host


def test_an_acknowledged_record_is_on_every_replica() -> None:
    """With acks=all, all in-sync replicas have an acknowledged record. The logs are equal, and followers soon know it
    is committed."""

    async def script(cluster: ReplicatedTopic) -> None:
        for serial in range(5):
            code, offset = await cluster.produce(1, b"%d" % serial)
            assert (code, offset) == (0, serial)
            assert all(cluster.contents(node)[serial] == b"%d" % serial for node in NODES)
        await cluster.until(
            lambda: all(member.partition().log.high_watermark == 5 for member in cluster.members.values())
        )

    ReplicatedTopic(min_isr=2).play(script)


def test_the_isr_shrinks_and_grows() -> None:
    """A replica that lags for replica.lag.time.max.ms leaves the ISR. After its return it first catches up,
    then joins."""

    async def script(cluster: ReplicatedTopic) -> None:
        await cluster.produce(1, b"a")
        cluster.crash(3)
        code, _ = await cluster.produce(1, b"b", timeout_ms=500)
        assert code == ErrorCode.REQUEST_TIMED_OUT
        await cluster.in_sync(1, 2)
        await cluster.until(lambda: cluster.members[1].partition().log.high_watermark == 2)
        assert (await cluster.produce(1, b"c"))[0] == 0
        await cluster.start(3)
        await cluster.in_sync(1, 2, 3)
        assert cluster.contents(3) == {0: b"a", 1: b"b", 2: b"c"}

    ReplicatedTopic().play(script)


def test_the_gate() -> None:
    """KIP-966: below min.insync.replicas acks=all is refused, and records with other acks stay invisible."""

    async def script(cluster: ReplicatedTopic) -> None:
        cluster.crash(3)
        cluster.controller.fence(3)
        cluster.crash(2)
        cluster.controller.fence(2)
        await cluster.until(lambda: not cluster.members[1].partition().has_min_isr)
        assert (await cluster.produce(1, b"a"))[0] == ErrorCode.NOT_ENOUGH_REPLICAS
        assert (await cluster.produce(1, b"b", acks=1)) == (0, 0)
        assert (await cluster.fetch(1, 0)).high_watermark == 0
        await cluster.start(2)
        await cluster.in_sync(1, 2)
        await cluster.until(lambda: cluster.members[1].partition().log.high_watermark == 1)

    ReplicatedTopic(min_isr=2).play(script)


@pytest.mark.parametrize("socket_bytes", [5000, 1 << 20])
def test_large_batches_pass_through_any_buffer(socket_bytes: int) -> None:
    """A large answer reaches a follower whatever the size of its socket buffer is."""

    async def script(cluster: ReplicatedTopic) -> None:
        for size in (200_000, 10, 300_000):
            assert (await cluster.produce(1, b"v" * size))[0] == 0
        assert [len(value) for value in cluster.contents(2).values()] == [200_000, 10, 300_000]

    weather = Weather(socket_buffer_bytes=socket_bytes, split_probability=0.5, short_recv_probability=0.2)
    ReplicatedTopic(weather=weather).play(script)


def test_a_follower_gives_up_a_leader_that_does_not_answer() -> None:
    """After `replica.socket.timeout.ms` without an answer, as behind a cut network, a follower closes the
    connection."""

    async def script(cluster: ReplicatedTopic) -> None:
        await cluster.produce(1, b"a")
        fetcher = cluster.members[2].broker.replication
        for _ in range(2):
            cluster.world.cut("node-1", "node-2")
            cut_at = cluster.world.now
            await cluster.until(lambda: not fetcher.statistics()["fetchers"][0]["is_connected"])
            # The unanswered request was sent at most one fetch wait before the cut.
            assert 2.9 <= cluster.world.now - cut_at <= 3.6
            cluster.world.heal("node-1", "node-2")
            await cluster.produce(1, b"b")
            await cluster.in_sync(1, 2, 3)
        # A connection in use stays open however long it lives.
        rounds = fetcher.statistics()["fetchers"][0]["rounds"]
        await cluster.until(lambda: fetcher.statistics()["fetchers"][0]["rounds"] > rounds + 20)
        assert len(cluster.contents(2)) == 3

    ReplicatedTopic(replica_socket_timeout_ms="3000").play(script)


def test_an_answer_that_arrives_slowly_is_awaited() -> None:
    """A large answer takes longer than `replica.socket.timeout.ms` on a slow network. The follower waits for it as long
    as parts of it arrive, because another attempt would take as long."""

    async def script(cluster: ReplicatedTopic) -> None:
        await cluster.produce(1, b"a")
        await cluster.in_sync(1, 2, 3)
        leader = cluster.members[1].partition()
        began = cluster.world.now
        leader.append_as_leader(
            memoryview(batch(value=b"b" * 900_000)), cluster.members[1].env.clock.wall_ms()
        )
        await cluster.until(lambda: len(cluster.contents(2)) == 2)
        assert cluster.world.now - began > 6.0, "the network was too fast for this test"

    slow = Weather(latency_seconds=(0.02, 0.02), socket_buffer_bytes=4096)
    ReplicatedTopic(weather=slow, replica_socket_timeout_ms="3000").play(script)


def test_a_new_leader_cuts_what_was_not_acknowledged() -> None:
    """KIP-101: an old leader's unacknowledged records are cut by epoch, and acknowledged ones stay."""

    async def script(cluster: ReplicatedTopic) -> None:
        await cluster.produce(1, b"kept")
        for other in (2, 3):
            cluster.world.partition("node-1", f"node-{other}")
        assert (await cluster.produce(1, b"lost", timeout_ms=100))[0] == ErrorCode.REQUEST_TIMED_OUT
        cluster.controller.elect(0, 2, isr=(2, 3))
        await cluster.until(lambda: cluster.members[2].partition().is_leader)
        assert (await cluster.produce(2, b"new"))[:2] == (0, 1)
        for other in (2, 3):
            cluster.world.heal("node-1", f"node-{other}")
        await cluster.in_sync(1, 2, 3)
        assert cluster.contents(1) == cluster.contents(2) == {0: b"kept", 1: b"new"}
        assert (
            cluster.members[1].partition().log.epochs.entries
            == cluster.members[2].partition().log.epochs.entries
        )

    ReplicatedTopic().play(script)


def test_waiting_produces_fail_with_the_leadership() -> None:
    """If another leader is announced, waiting produce requests get NOT_LEADER_OR_FOLLOWER at once, before their
    deadline."""

    async def script(cluster: ReplicatedTopic) -> None:
        cluster.world.pause("node-2")
        waiting = []

        async def produce() -> None:
            waiting.append((await cluster.produce(1, b"a", timeout_ms=60_000))[0])

        done = cluster.world.spawn(produce)
        await cluster.world.sleep(0.5)
        cluster.controller.elect(0, 3)
        await cluster.world.wait(done, 2.0)
        assert waiting == [ErrorCode.NOT_LEADER_OR_FOLLOWER]

    ReplicatedTopic().play(script)


def test_a_lost_answer_of_the_controller() -> None:
    """If the controller's answer is lost, the leader repeats the outdated proposal until the metadata show the
    decision."""

    async def script(cluster: ReplicatedTopic) -> None:
        cluster.answers_lost = 1.0
        cluster.crash(3)
        await cluster.in_sync(1, 2)
        await cluster.until(lambda: not cluster.members[1].partition().isr_state.is_pending)
        assert cluster.members[1].partition().isr_state.isr == (1, 2)
        cluster.answers_lost = 0.0
        await cluster.start(3)
        await cluster.in_sync(1, 2, 3)

    ReplicatedTopic().play(script)


def test_a_follower_that_lost_its_disk() -> None:
    """A follower with an empty disk fetches everything before it joins the ISR again."""

    async def script(cluster: ReplicatedTopic) -> None:
        for serial in range(3):
            await cluster.produce(1, b"%d" % serial)
        cluster.crash(3, "synced")
        await cluster.start(3)
        await cluster.in_sync(1, 2, 3)
        assert cluster.contents(3) == {serial: b"%d" % serial for serial in range(3)}

    ReplicatedTopic().play(script)


def test_consumers_may_read_from_followers() -> None:
    """KIP-392: from version 11 on, consumers may read from a follower, up to the high watermark that it knows."""

    async def script(cluster: ReplicatedTopic) -> None:
        await cluster.produce(1, b"a")
        await cluster.until(lambda: cluster.members[2].partition().log.high_watermark == 1)
        answer = await cluster.fetch(2, 0)
        assert (answer.error_code, answer.high_watermark) == (0, 1)
        assert answer.records
        cluster.world.partition("node-2", "node-1")
        assert (await cluster.fetch(2, 1)).records == b""
        assert (await cluster.fetch(2, 2)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE

    ReplicatedTopic().play(script)


def test_consumers_are_sent_to_their_rack() -> None:
    """KIP-392: the leader sends a consumer to an in-sync replica in its rack, and serves consumers of other racks
    itself."""

    async def script(cluster: ReplicatedTopic) -> None:
        await cluster.produce(1, b"a")
        in_rack = await cluster.fetch(1, 0, rack="b")
        assert (in_rack.preferred_read_replica, in_rack.records) == (2, b"")
        for rack in ("a", "", "elsewhere"):
            answer = await cluster.fetch(1, 0, rack=rack)
            assert answer.preferred_read_replica == -1
            assert answer.records
        assert (await cluster.fetch(1, 9, rack="b")).error_code == ErrorCode.OFFSET_OUT_OF_RANGE

    cluster = ReplicatedTopic(
        replica_selector_class="org.apache.kafka.common.replica.RackAwareReplicaSelector"
    )
    cluster.racks = {1: "a", 2: "b", 3: "c"}
    cluster.play(script)


def test_a_reassignment() -> None:
    """In a reassignment a new replica catches up and joins, and a removed one deletes its log."""

    async def script(cluster: ReplicatedTopic) -> None:
        for serial in range(3):
            await cluster.produce(1, b"%d" % serial)
        cluster.controller.alter(0, replicas=(1, 2, 3), adding_replicas=(3,), directories=(bytes(16),) * 3)
        await cluster.in_sync(1, 2, 3)
        assert cluster.contents(3) == {serial: b"%d" % serial for serial in range(3)}
        cluster.controller.alter(
            0, replicas=(1, 3), isr=(1, 3), adding_replicas=(), directories=(bytes(16),) * 2
        )
        await cluster.until(lambda: not cluster.members[2].broker.topics[TOPIC].partitions)
        assert cluster.members[2].broker.log_dirs[0].get(TOPIC, 0) is None
        assert (await cluster.produce(1, b"3")) == (0, 3)
        assert cluster.contents(3)[3] == b"3"
        assert (await cluster.produce(2, b"x"))[0] == ErrorCode.NOT_LEADER_OR_FOLLOWER

    ReplicatedTopic(replicas=(1, 2)).play(script)


def test_deleted_records_go_everywhere() -> None:
    """KIP-107: DeleteRecords is answered when every live replica has raised its log start offset."""

    async def script(cluster: ReplicatedTopic) -> None:
        for serial in range(3):
            await cluster.produce(1, b"%d" % serial)
        assert await cluster.delete_records(1, 2) == (0, 2)
        assert all(member.partition().log.log_start_offset == 2 for member in cluster.members.values())
        cluster.world.pause("node-3")
        assert await cluster.delete_records(1, 3, timeout_ms=500) == (ErrorCode.REQUEST_TIMED_OUT, -1)

    ReplicatedTopic().play(script)


def test_deleted_records_stay_deleted_when_everybody_loses_power() -> None:
    """Records stay deleted if all nodes lose power, since all disks have the new log start before DeleteRecords is
    answered. (Kafka 4.3 answers earlier, and its earliest offset may fall back if the broker is killed.)"""

    async def script(cluster: ReplicatedTopic) -> None:
        for serial in range(3):
            await cluster.produce(1, b"%d" % serial)
        await cluster.world.sleep(70)
        assert await cluster.delete_records(1, 2) == (0, 2)
        for node_id in (1, 2, 3):
            cluster.crash(node_id, "synced")
        for node_id in (1, 2, 3):
            await cluster.start(node_id)
        assert [member.partition().log.log_start_offset for member in cluster.members.values()] == [2, 2, 2]

    ReplicatedTopic().play(script)


@pytest.mark.parametrize("full", [1, 3], ids=["leader", "follower"])
def test_a_replica_whose_disk_is_full_has_not_deleted_records(full: int) -> None:
    """A replica with a full disk serves from the new log start on. For DeleteRecords it counts only when its
    checkpoint is written."""

    async def script(cluster: ReplicatedTopic) -> None:
        for serial in range(3):
            await cluster.produce(1, b"%d" % serial)
        disk = cluster.world.machine(host(full)).disk
        disk.capacity_bytes = disk.used_bytes
        assert await cluster.delete_records(1, 2, timeout_ms=2000) == (ErrorCode.REQUEST_TIMED_OUT, -1)
        log = cluster.members[full].partition().log
        assert (log.log_start_offset, log.stored_start_offset) == (2, 0)
        disk.capacity_bytes = None
        assert await cluster.delete_records(1, 2, timeout_ms=2000) == (0, 2)
        assert log.stored_start_offset == 2

    ReplicatedTopic().play(script)


@pytest.mark.reaches("replication.end_out_of_range", "replication.log_begun_anew")
def test_a_follower_behind_the_leaders_first_record() -> None:
    """A follower behind the leader's first record gets OFFSET_OUT_OF_RANGE, and begins again where the leader's log
    begins."""

    async def script(cluster: ReplicatedTopic) -> None:
        await cluster.produce(1, b"0")
        cluster.crash(3)
        cluster.controller.fence(3)
        await cluster.until(lambda: cluster.members[1].partition().isr_state.isr == (1, 2))
        for serial in range(1, 4):
            await cluster.produce(1, b"%d" % serial)
        assert await cluster.delete_records(1, 3) == (0, 3)
        await cluster.start(3)
        await cluster.in_sync(1, 2, 3)
        assert cluster.contents(3) == {3: b"3"}
        assert cluster.members[3].partition().log.log_start_offset == 3

    ReplicatedTopic().play(script)


def test_a_follower_ahead_of_its_leader() -> None:
    """After an unclean election a follower cuts all records that its leader lacks, even below the high watermark."""

    async def script(cluster: ReplicatedTopic) -> None:
        await cluster.produce(1, b"0")
        cluster.crash(3)
        cluster.controller.fence(3)
        await cluster.until(lambda: cluster.members[1].partition().isr_state.isr == (1, 2))
        assert (await cluster.produce(1, b"1")) == (0, 1)
        cluster.crash(1)
        cluster.crash(2)
        await cluster.start(3)
        cluster.controller.elect(0, 3, isr=(3,))
        await cluster.until(lambda: cluster.members[3].partition().is_leader)
        assert (await cluster.produce(3, b"other")) == (0, 1)
        await cluster.start(1)
        await cluster.start(2)
        await cluster.in_sync(1, 2, 3)
        assert cluster.contents(1) == cluster.contents(2) == {0: b"0", 1: b"other"}

    ReplicatedTopic().play(script)


@pytest.mark.parametrize(("side", "slowed"), [(LEADER, "0:1"), (FOLLOWER, "0:2,0:3")])
def test_a_throttled_replica_catches_up_slowly(side: str, slowed: str) -> None:
    """KIP-73: a throttled replica gets what the rate allows, and the other replicas acknowledge as before."""

    async def script(cluster: ReplicatedTopic) -> None:
        for _ in range(20):
            await cluster.produce(1, b"v" * 10_000)
        cluster.controller.broker_configs = {rate_key(side): "10000"}
        cluster.controller.topic_configs = {replicas_key(side): slowed}
        began_at = cluster.world.now
        await cluster.produce(1, b"fast")
        assert cluster.world.now - began_at < 1.0
        cluster.controller.alter(0, replicas=(1, 2, 3), adding_replicas=(3,), directories=(bytes(16),) * 3)
        await cluster.in_sync(1, 2, 3)
        assert 15.0 < cluster.world.now - began_at < 30.0
        assert len(cluster.contents(3)) == 21

    ReplicatedTopic(replicas=(1, 2), replica_fetch_max_bytes="11000").play(script)
