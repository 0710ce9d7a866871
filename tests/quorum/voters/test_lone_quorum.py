"""A quorum of one voter in the simulator: answers survive crashes, and damaged or foreign logs are refused."""

from __future__ import annotations

import errno
import functools
from typing import Any

import attrs
import pytest

from odradek.data_plane.metadata_log import SYNCED_OFFSET_FILE, SYNCED_OFFSET_PERIOD_SECONDS
from odradek.env.ports import DiskError, Env
from odradek.metadata_quorum.controller.controller import Controller
from odradek.metadata_quorum.image.metadata_image import InvalidMetadata
from odradek.metadata_quorum.replica.checkpoint_files import encode_snapshot
from odradek.metadata_quorum.replica.metadata_batches import read_batches
from odradek.metadata_quorum.replica.quorum_state import FileQuorumStateStore
from odradek.metadata_quorum.replica.storage_format import bootstrap_records
from odradek.metadata_quorum.state_machine import Decision
from odradek.wire.errors import ErrorCode, KafkaError
from odradek.wire.messages.broker_heartbeat import BrokerHeartbeatRequest
from odradek.wire.messages.control_records import LeaderChangeMessage, VotersRecord
from odradek.wire.messages.metadata_records import RemoveTopicRecord
from sim.machine.weather import Weather
from sim.machine.world import World
from testkit.by_hand import KeptLog
from tests.quorum.voters.node_parts import (
    NODE,
    PATH,
    again,
    ask,
    create,
    delete,
    heartbeat,
    join,
    make_world,
    producer_ids,
    registration,
    run,
    running_controller,
)
from tests.schedule import seeds

LOG = f"{PATH}/__cluster_metadata-0/00000000000000000000.log"


@attrs.define
class Told:
    """The answers that a client has received, which must remain valid."""

    topics: dict[str, bytes] = attrs.Factory(dict)
    deleted: list[bytes] = attrs.Factory(list)
    producer_ids: list[int] = attrs.Factory(list)
    epochs: list[int] = attrs.Factory(list)
    finished: bool = False


async def workload(env: Env, told: Told) -> None:
    """Make the decisions of two starts, and note each answer when it arrives."""
    for life in ("a", "b"):
        async with running_controller(env) as service:
            epoch = await join(service, env)
            assert all(epoch > other for other in told.epochs)
            told.epochs.append(epoch)
            assert_holds(service.committed_image, told)
            for number in range(3):
                name = f"{life}{number}"
                if name not in service.committed_image.topics:
                    response = await ask(service, env, create(name, 2))
                    assert response.topics[0].error_code == 0
                told.topics[name] = service.committed_image.topics[name].topic_id
            gone = service.committed_image.topics.get(f"{life}1")
            if gone is not None:
                del told.topics[f"{life}1"]
                await ask(service, env, delete(f"{life}1"))
                told.deleted.append(gone.topic_id)
            block = await ask(service, env, producer_ids(epoch))
            assert block.producer_id_start not in told.producer_ids
            told.producer_ids.append(block.producer_id_start)
    told.finished = True


def assert_holds(image: Any, told: Told) -> None:
    for name, topic_id in told.topics.items():
        assert image.topics[name].topic_id == topic_id
        assert len(image.topics[name].partitions) == 2
    for topic_id in told.deleted:
        assert topic_id not in image.topics_by_id
    assert image.next_producer_id >= max(told.producer_ids, default=-1000) + 1000
    for epoch in told.epochs:
        assert image.brokers[1].epoch >= epoch


@functools.cache
def operation_count() -> int:
    """Count the disk operations of the workload without trouble."""
    world = make_world()
    disk = world.machine(NODE).disk
    before = disk.operation_count
    told = Told()
    world.run(run, world, lambda env: workload(env, told))
    assert told.finished
    return disk.operation_count - before


@pytest.mark.parametrize("part", seeds(4, quick=1))
def test_a_power_cut_at_every_operation_keeps_every_answer(part: int) -> None:
    """The power is cut at each disk operation of two starts. After the next start every answer is still valid.

    Ids and epochs are never used again.
    """
    for number in range(1 + part, operation_count() + 1, 4):
        world = make_world(number)
        disk = world.machine(NODE).disk
        told = Told()

        async def main(world: World = world, told: Told = told) -> None:
            await run(world, lambda env: workload(env, told))
            assert not told.finished
            await run(world, lambda env: workload(env, told))

        disk.crash_at(disk.operation_count + number)
        world.run(main)
        assert told.finished


@pytest.mark.parametrize("seed", seeds(6))
def test_rough_weather_and_crashes_at_any_time(seed: int) -> None:
    """Disks are slow, and nodes crash between operations.

    A killed process keeps all written data, a power cut keeps all synced data. Every answer remains valid.
    """
    world = make_world(seed, Weather.draw(World(seed)._stream("weather")))
    told = Told()

    async def main() -> None:
        for _ in range(4):
            running = world.start(NODE, lambda env: workload(env, told))
            await world.sleep(world.random.random() * 0.2)
            if running.env.alive:
                world.crash(NODE, world.random.choice(["all", "synced", "random"]))
            await running.ended.wait()
        told.finished = False
        await run(world, lambda env: workload(env, told))
        assert told.finished

    world.run(main)


def test_what_is_committed_stays_so_and_no_epoch_is_led_twice() -> None:
    """A high watermark that falls, or a second election in one epoch, is a bug that ends the node."""
    world = make_world()

    async def main(env: Env) -> None:
        async with running_controller(env) as service:
            decisions = service.quorum.decisions
            committed = decisions.high_watermark
            for offset in (0, committed - 1, committed):
                with pytest.raises(AssertionError, match="the committed offset falls from"):
                    decisions.advance(offset)
            for epoch in (0, decisions.epoch):
                with pytest.raises(AssertionError, match="elected in epoch"):
                    decisions.took(epoch)
            assert decisions.high_watermark == committed

    world.run(run, world, main)


def test_each_start_is_a_new_epoch_with_its_leader_in_the_log() -> None:
    """Each start begins an epoch. `quorum-state` has it before a LeaderChangeMessage is written.

    At the first start, the voters of the formatted snapshot are also written to the log.
    """
    world = make_world()

    async def main(env: Env) -> None:
        for epoch in (1, 2, 3):
            async with running_controller(env) as service:
                assert service.quorum.decisions.epoch == epoch
                state = FileQuorumStateStore(env.open_dir(PATH).subdir("__cluster_metadata-0")).load()
                assert state is not None
                assert (state.leader_id, state.leader_epoch) == (1, epoch)
        batches = list(
            read_batches(env.open_dir(PATH).read_bytes(LOG.removeprefix(PATH + "/")), source="log")
        )
        control = [(batch.epoch, batch.records) for batch in batches if batch.is_control]
        assert [epoch for epoch, _ in control] == [1, 2, 3]
        assert all(isinstance(records[0], LeaderChangeMessage) for _, records in control)
        assert [len(records) for _, records in control] == [3, 1, 1]
        assert isinstance(control[0][1][2], VotersRecord)
        # A new leader decides only the bootstrap of an empty log.
        assert len(batches) == 4

    world.run(run, world, main)


def test_a_cluster_without_bootstrap_records_begins_with_our_levels() -> None:
    """`bootstrap.checkpoint` is missing, as Kafka's older tools did not write it.

    The cluster begins with our feature levels.
    """
    world = make_world()
    world.machine(NODE).disk.open_dir(PATH).remove("bootstrap.checkpoint")

    async def main(env: Env) -> None:
        for _ in range(2):
            async with running_controller(env) as service:
                assert service.committed_image.features == {
                    "transaction.version": 2,
                    "group.version": 1,
                    "metadata.version": 30,
                    "eligible.leader.replicas.version": 1,
                }

    world.run(run, world, main)


def test_decisions_that_wait_for_one_sync_share_a_batch() -> None:
    """Decisions that are made during a sync share the next batch and the next sync (group commit)."""
    world = make_world()

    async def main(env: Env) -> None:
        async with running_controller(env) as service:
            await join(service, env)
            before = service.quorum.statistics()
            answers: list[Any] = []
            for number in range(100):
                service.submit(create(f"t{number}")).on_release(answers.append)
            assert not answers
            await ask(service, env, create("last"))
            after = service.quorum.statistics()
            assert len(answers) == 100
            assert after["decisions"] - before["decisions"] == 101
            assert after["batches"] - before["batches"] <= 2

    world.run(run, world, main)


@pytest.mark.parametrize("commit_seconds", [0.1, 2.6, 3.5])
def test_a_dead_broker_is_fenced_however_slow_commits_are(commit_seconds: float) -> None:
    """Commits are slow.

    A dead broker is fenced `broker.session.timeout.ms` after its last heartbeat, and a living one is not.
    """
    world = make_world(weather=Weather(worker_seconds=(commit_seconds, commit_seconds)))

    async def main(env: Env) -> None:
        async with running_controller(env) as service:
            alive = await join(service, env)
            other = attrs.evolve(registration(env.new_uuid()), broker_id=2, log_dirs=[b"of another one.."])
            dead = (await ask(service, env, other)).broker_epoch
            answers: list[Any] = []
            offset = service.committed_image.offset
            service.submit(BrokerHeartbeatRequest(2, dead, offset)).on_release(answers.append)
            heard_at = env.clock.monotonic()
            while not service.committed_image.brokers[2].is_active:
                await world.sleep(0.1)
            while service.committed_image.brokers[2].is_active:
                assert env.clock.monotonic() < heard_at + 9.0 + 2 * commit_seconds + 1.0
                # At any time, some decision has yet to be committed.
                service.submit(heartbeat(service, alive)).on_release(answers.append)
                service.submit(producer_ids(alive)).on_release(answers.append)
                await world.sleep(0.5)
            assert service.committed_image.brokers[1].is_active

    world.run(run, world, main)


def test_a_controller_that_was_paused_fences_nobody_for_it() -> None:
    """A controller is paused. Living brokers are not fenced for the pause, and get a session's time to send
    heartbeats.

    Silent brokers are fenced after this time.
    """
    world = make_world()
    active: list[Any] = []

    async def main(env: Env) -> None:
        async with running_controller(env) as service:
            await join(service, env)
            service.subscribe(lambda image, _: active.append(image.brokers[1].is_active))
            active.append(True)
            await env.clock.sleep_until(env.clock.monotonic() + 200.0)

    async def watch() -> None:
        world.start(NODE, main)
        while not active:
            await world.sleep(0.1)
        world.pause(NODE)
        await world.sleep(60.0)
        world.resume(NODE)
        await world.sleep(8.0)
        assert active[-1]
        await world.sleep(2.0)
        assert not active[-1]

    world.run(watch)


def test_a_failed_sync_ends_the_node() -> None:
    """A sync of the metadata log fails. The node ends, and does not repeat the sync."""
    world = make_world()
    answers: list[Any] = []

    async def main(env: Env) -> None:
        async with running_controller(env) as service:
            await join(service, env)
            world.machine(NODE).disk.fail_next(errno.EIO, operation="sync", path_part="__cluster_metadata-0")
            service.submit(create("never")).on_release(answers.append)
            await ask(service, env, create("neither"))

    with pytest.raises(DiskError, match="Input/output error"):
        world.run(run, world, main)
    assert answers == []


def test_a_decision_that_cannot_be_replayed_ends_the_node_and_is_never_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A decision cannot be replayed. The node ends without writing it, as every other node and each restart would fail.

    The caller may catch the error, as a connection does. So the node ends through a task of its own, and a restart has
    the earlier state.
    """
    world = make_world()

    async def main(env: Env) -> None:
        async with running_controller(env) as service:
            await join(service, env)
            await ask(service, env, create("before"))
            monkeypatch.setattr(
                Controller, "decide", lambda *_: Decision([RemoveTopicRecord(bytes(range(16)))], None)
            )
            with pytest.raises(AssertionError, match="no topic has the topic id"):
                service.submit(create("never"))
            monkeypatch.undo()
            await world.sleep(60.0)
            raise AssertionError("the node is still running 60 s after the failed decision")

    with pytest.raises(AssertionError, match="no topic has the topic id"):
        world.run(run, world, main)

    async def look(env: Env) -> None:
        async with running_controller(env) as service:
            assert list(service.committed_image.topics) == ["before"]

    restarted = again(world)
    restarted.run(run, restarted, look)


def test_a_full_disk_is_waited_out() -> None:
    """The disk is full. Decisions wait, and are written and answered when there is room."""
    world = make_world()
    journal = KeptLog()

    async def main(env: Env) -> None:
        disk = world.machine(NODE).disk
        async with running_controller(env, journal) as service:
            await join(service, env)
            disk.capacity_bytes = disk.used_bytes + 10
            deferred = service.submit(create("patient"))
            with pytest.raises(KafkaError) as refusal:
                await service.channel().request(create("impatient"), env.clock.monotonic() + 5)
            assert refusal.value.code is ErrorCode.REQUEST_TIMED_OUT
            assert not deferred.is_released
            assert "patient" not in service.committed_image.topics
            disk.capacity_bytes = None
            response = await ask(service, env, create("later"))
            assert response.topics[0].error_code == 0
            assert deferred.is_released
        async with running_controller(env) as service:
            assert {"patient", "impatient", "later"} <= set(service.committed_image.topics)

    world.run(run, world, main)
    assert journal.events.count("metadata.disk_full") == 1
    assert journal.events.count("metadata.disk_has_room") == 1


def test_a_want_of_descriptors_is_waited_out() -> None:
    """Writes, syncs and snapshots of the metadata log fail with EMFILE. They are repeated, and nothing is lost."""
    for operation in ("open", "create", "append", "list", "read"):
        world = make_world()
        names = ["one", "two", "three"]

        async def main(
            env: Env, world: World = world, operation: str = operation, names: list[str] = names
        ) -> None:
            disk = world.machine(NODE).disk
            async with running_controller(env) as service:
                await join(service, env)
                for name in names:
                    disk.fail_next(
                        errno.EMFILE, operation=operation, path_part="__cluster_metadata-0", times=2
                    )
                    assert (await ask(service, env, create(name))).topics[0].error_code == 0
                    disk.forget_faults()
            async with running_controller(env) as service:
                assert set(names) <= set(service.committed_image.topics)

        world.run(run, world, main)


def test_a_node_stops_though_its_disk_is_full() -> None:
    """A node with a full disk is stopped. It ends soon, and clients whose decisions were not written get
    NOT_CONTROLLER."""
    world = make_world()
    answers: list[Any] = []

    async def main(env: Env) -> None:
        disk = world.machine(NODE).disk
        async with running_controller(env) as service:
            await join(service, env)
            disk.capacity_bytes = disk.used_bytes + 10
            service.submit(create("after")).on_release(answers.append)
            await env.clock.sleep_until(env.clock.monotonic() + 3.0)
            stopped_at = world.now
        assert world.now - stopped_at < 15.0
        disk.capacity_bytes = None

    world.run(run, world, main)
    assert [each.topics[0].error_code for each in answers] == [ErrorCode.NOT_CONTROLLER]


def test_no_room_for_the_synced_offset_is_no_failure() -> None:
    """The file of the synced offset cannot be written.

    The node goes on, since the older offset is still a valid lower bound.
    """
    world = make_world()
    journal = KeptLog()

    async def main(env: Env) -> None:
        async with running_controller(env, journal) as service:
            await join(service, env)
            await world.sleep(2 * SYNCED_OFFSET_PERIOD_SECONDS)
            world.machine(NODE).disk.fail_next(errno.ENOSPC, path_part=SYNCED_OFFSET_FILE)
            await ask(service, env, registration(env.new_uuid()))
            assert "metadata.synced_offset_not_written" in journal.events

    world.run(run, world, main)


def test_a_broker_that_falls_silent_is_fenced_by_the_timer() -> None:
    """A broker sends no heartbeat for `broker.session.timeout.ms` on the node's monotonic clock.

    It is fenced, and its next heartbeat unfences it.
    """
    world = make_world()
    journal = KeptLog()

    async def main(env: Env) -> None:
        async with running_controller(env, journal) as service:
            epoch = await join(service, env)
            await ask(service, env, create("t"))
            await world.sleep(8.5)
            assert not service.committed_image.brokers[1].fenced
            await world.sleep(2)
            assert service.committed_image.brokers[1].fenced
            assert service.committed_image.topics["t"].partitions[0].leader == -1
            await ask(service, env, heartbeat(service, epoch))
            assert service.committed_image.topics["t"].partitions[0].leader == 1

    world.run(run, world, main)
    assert "broker.fenced" in journal.events


def test_after_stop_requests_are_refused() -> None:
    """A clean stop commits what was decided. Later requests get NOT_CONTROLLER."""
    world = make_world()

    async def main(env: Env) -> None:
        async with running_controller(env) as service:
            deferred = service.submit(registration(env.new_uuid()))
            await service.stop()
            assert deferred.response.error_code == 0
            assert service.submit(create("t")).response.topics[0].error_code == ErrorCode.NOT_CONTROLLER

    world.run(run, world, main)


def test_a_cluster_with_features_that_we_lack_is_refused() -> None:
    """A log requires a feature level that this version does not support. The node refuses to start."""
    world = make_world()
    root = world.machine(NODE).disk.open_dir(PATH)
    records = bootstrap_records({"metadata.version": 30, "share.version": 1})
    root.write_atomic("bootstrap.checkpoint", encode_snapshot(records, epoch=0, timestamp_ms=1))

    async def first_start(env: Env) -> None:
        async with running_controller(env):
            raise AssertionError(
                "the node started, although its bootstrap records have an unsupported feature"
            )

    with pytest.raises(
        InvalidMetadata,
        match=r"share\.version is finalized at level 1, and this version supports the levels 0 to 0",
    ):
        world.run(run, world, first_start)


def test_a_failed_quorum_waits_quietly_for_a_call_to_its_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """The quorum fails while a disk call hangs.

    The node ends when the call returns. Until then it sleeps, instead of setting timers again and again.
    """
    world = make_world()
    timeouts: list[float] = []

    async def main(env: Env) -> None:
        async with running_controller(env) as service:
            await join(service, env)
            world.hang(NODE, 20.0)
            service.submit(create("t"))
            await env.clock.sleep_until(env.clock.monotonic() + 0.1)
            service.quorum.fail(AssertionError("broken"))
            timeout_at = env.clock.timeout_at

            def counted(deadline: float) -> Any:
                timeouts.append(deadline)
                assert len(timeouts) < 100
                return timeout_at(deadline)

            monkeypatch.setattr(env.clock, "timeout_at", counted)
            await env.clock.sleep_until(env.clock.monotonic() + 60.0)

    with pytest.raises(AssertionError, match="broken"):
        world.run(run, world, main)
    assert len(timeouts) < 5
    assert 20.0 <= world.now < 21.0
