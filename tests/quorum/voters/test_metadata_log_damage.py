"""The files of a single voter's metadata log. Damage stops the node with an error; torn ends and power cuts do not."""

from __future__ import annotations

import pytest

from odradek.data_plane.metadata_log import SYNCED_OFFSET_FILE, MetadataLog
from odradek.env.ports import DiskFull, Env
from odradek.metadata_quorum.ports import MetadataLogCorrupt, OffsetAndEpoch
from odradek.metadata_quorum.replica.checkpoint_files import encode_snapshot
from odradek.metadata_quorum.replica.metadata_batches import batch_of_values
from odradek.wire.batches.batch_header import iter_batches
from odradek.wire.errors import ErrorCode, KafkaError
from sim.machine.disk_files import PowerCut
from sim.machine.world import World
from testkit.by_hand import KeptLog
from tests.quorum.voters.node_parts import (
    NODE,
    PATH,
    again,
    ask,
    create,
    join,
    make_world,
    run,
    running_controller,
)

SEGMENT = "00000000000000000000.log"
LOG = f"{PATH}/__cluster_metadata-0/{SEGMENT}"


async def write_some(env: Env) -> None:
    async with running_controller(env) as service:
        await join(service, env)
        for number in range(5):
            await ask(service, env, create(f"t{number}"))


def refused(world: World) -> str:
    async def main(env: Env) -> None:
        async with running_controller(env):
            raise AssertionError("the node started on a damaged log")

    with pytest.raises(MetadataLogCorrupt) as caught:
        world.run(run, world, main)
    return str(caught.value)


def test_rot_below_the_synced_point_stops_the_node() -> None:
    """A synced batch of the metadata log is damaged. The node does not start, and the error names file and position.

    This holds even for the last batch. The file is not truncated.
    """
    probe = make_world()
    probe.run(run, probe, write_some)
    data = probe.machine(NODE).disk.open_dir(PATH).read_bytes(LOG.removeprefix(PATH + "/"))
    positions = [position for position, _ in iter_batches(data)]
    for position in positions:
        world = make_world()
        world.run(run, world, write_some)
        disk = world.machine(NODE).disk
        disk.corrupt(LOG, position + 70, 0x10)
        message = refused(again(world))
        assert "__cluster_metadata-0" in message
        size = len(disk.open_dir(PATH).read_bytes(LOG.removeprefix(PATH + "/")))
        if position != positions[-1]:
            assert f"position {position} " in message
            assert size == len(data)


def test_a_log_that_was_cut_stops_the_node() -> None:
    """The end of the file is missing, although it was synced.

    This is no effect of a crash, and the node refuses to start.
    """
    world = make_world()
    world.run(run, world, write_some)
    disk = world.machine(NODE).disk
    file = disk.open_dir(PATH).open(LOG.removeprefix(PATH + "/"))
    file.truncate(file.size - 200)
    file.sync()
    assert "has synced" in refused(again(world))


def test_a_torn_tail_is_cut_off_silently() -> None:
    """Part of a batch follows the synced log. The batch was never answered, so the part is cut off."""
    world = make_world()
    world.run(run, world, write_some)
    file = world.machine(NODE).disk.open_dir(PATH).open(LOG.removeprefix(PATH + "/"))
    file.append(file.pread(90, 0))
    journal = KeptLog()
    world = again(world)

    async def main(env: Env) -> None:
        async with running_controller(env, journal) as service:
            assert set(service.committed_image.topics) == {f"t{number}" for number in range(5)}

    world.run(run, world, main)
    assert "log.truncated" in journal.events


@pytest.mark.parametrize("text", [b'{"leaderId":1', b"[" * 100_000])
def test_a_damaged_quorum_state_stops_the_node(text: bytes) -> None:
    """The file `quorum-state` is damaged.

    The node does not start, since a voter that forgot its epoch might vote twice.
    """
    world = make_world()
    world.run(run, world, write_some)
    directory = world.machine(NODE).disk.open_dir(PATH).subdir("__cluster_metadata-0")
    directory.write_atomic("quorum-state", text)
    assert "quorum-state cannot be read" in refused(again(world))


def test_the_quorum_state_of_static_voters_is_read() -> None:
    """Version 0 of `quorum-state`, as Kafka writes it with `controller.quorum.voters`, is read.

    The node's next epoch is above the epoch in the file.
    """
    world = make_world()
    directory = world.machine(NODE).disk.open_dir(PATH).subdir("__cluster_metadata-0")
    directory.write_atomic(
        "quorum-state",
        b'{"clusterId":"","leaderId":1,"leaderEpoch":7,"votedId":-1,"appliedOffset":0,'
        b'"currentVoters":[{"voterId":1}],"data_version":0}',
    )

    async def main(env: Env) -> None:
        async with running_controller(env) as service:
            assert service.quorum.decisions.epoch == 8

    world.run(run, world, main)


def test_the_synced_offset_is_a_lower_bound() -> None:
    """The synced offset is written when the node stops cleanly, so that a later loss of records is noticed."""
    world = make_world()

    async def main(env: Env) -> None:
        async with running_controller(env) as service:
            await join(service, env)
            end_offset = service.quorum.decisions.log_end_offset
        text = env.open_dir(PATH).subdir("__cluster_metadata-0").read_bytes(SYNCED_OFFSET_FILE)
        assert text == f"0\n1\n__cluster_metadata 0 {end_offset}\n".encode()

    world.run(run, world, main)


@pytest.mark.parametrize("at", range(4))
def test_a_torn_write_of_several_batches_is_cut_where_it_is_torn(at: int) -> None:
    """A write of several batches is torn by a power loss, which may keep a later batch.

    The log is truncated at the first damaged batch.
    """
    world = make_world()
    directory = world.machine(NODE).disk.open_dir(PATH).subdir("__cluster_metadata-0")
    log = open_log(world)
    log.append(batches(0, 2), 1, count=2)
    log.flush()
    log.append(batches(2, 4), 1, count=4)
    positions = [position for position, _ in iter_batches(directory.read_bytes(SEGMENT))]
    world.machine(NODE).disk.corrupt(LOG, positions[2 + at] + 70, 0x10)
    assert open_log(world).log_end_offset == 2 + at


@pytest.mark.parametrize("at", range(5))
def test_rot_in_a_write_of_several_batches_is_found_when_it_was_synced(at: int) -> None:
    """A batch of a synced write is damaged. It is reported, since later records prove that the write was synced."""
    world = make_world()
    directory = world.machine(NODE).disk.open_dir(PATH).subdir("__cluster_metadata-0")
    log = open_log(world)
    log.append(batches(0, 1), 1)
    log.flush()
    log.append(batches(1, 4), 1, count=4)
    log.flush()
    log.append(batches(5, 1), 1)
    positions = [position for position, _ in iter_batches(directory.read_bytes(SEGMENT))]
    world.machine(NODE).disk.corrupt(LOG, positions[at] + 70, 0x10)
    with pytest.raises(MetadataLogCorrupt, match=f"position {positions[at]} "):
        open_log(world)


def test_a_truncation_survives_a_power_cut_at_any_operation() -> None:
    """A truncation is durable when `truncate_to` returns. After a crash before that, all records may be back."""
    for number in range(1, 40):
        world = make_world(number)
        disk = world.machine(NODE).disk
        log = open_log(world)
        for offset in range(6):
            log.append(batches(offset, 1), 1)
            log.flush()
        disk.crash_at(disk.operation_count + number)
        is_cut = False
        try:
            log.truncate_to(3)
            is_cut = True
            log.append(batches(3, 1, epoch=2), 2)
            log.flush()
        except PowerCut:
            assert open_log(world).log_end_offset in ((3, 4) if is_cut else (3, 6))
        else:
            disk.crash_at(0)
            assert open_log(world).log_end_offset == 4
            return
    raise AssertionError("the truncation was not complete after 39 operations")


@pytest.mark.parametrize("end_offset", [4, 9])
def test_installing_a_snapshot_survives_a_power_cut_at_any_operation(end_offset: int) -> None:
    """Installing a snapshot crashes at any operation. The next start finds the old log or the snapshot, and no damage.

    The snapshot is durable before the log is removed. The log may be longer than the snapshot, with records that were
    never committed.
    """
    snapshot = encode_snapshot((), epoch=2, timestamp_ms=1)
    for number in range(1, 60):
        world = make_world(number)
        disk = world.machine(NODE).disk
        log = open_log(world)
        for offset in range(6):
            log.append(batches(offset, 1), 1)
            log.flush()
        log.close()
        log = open_log(world)
        log.flush()
        draft = log.snapshots.begin(OffsetAndEpoch(end_offset, 2))
        draft.append(snapshot)
        draft.finish()
        disk.crash_at(disk.operation_count + number)
        is_installed = False
        try:
            log.install(end_offset)
            is_installed = True
            log.append(batches(end_offset, 1, epoch=2), 2)
            log.flush()
        except PowerCut:
            again = open_log(world)
            assert again.newest_snapshot() is not None
            assert again.log_end_offset <= max(6, end_offset + 1)
            if is_installed:
                assert again.log_start_offset == end_offset
        else:
            disk.crash_at(0)
            assert open_log(world).log_end_offset == end_offset + 1
            return
    raise AssertionError("the installation was not complete after 59 operations")


def test_a_full_disk_delays_the_installation_of_a_snapshot() -> None:
    """Installing a snapshot fails on a full disk. It succeeds when there is room, and the node goes on."""
    world = make_world()
    disk = world.machine(NODE).disk
    log = open_log(world)
    for offset in range(6):
        log.append(batches(offset, 1), 1)
        log.flush()
    disk.capacity_bytes = disk.used_bytes
    with pytest.raises(DiskFull):
        log.install(4)
    disk.capacity_bytes = None
    log.install(4)
    assert (log.log_start_offset, log.log_end_offset) == (4, 4)


def open_log(world: World) -> MetadataLog:
    env = world.node_env(NODE)
    return MetadataLog.open(env.open_dir(PATH), clock=env.clock, logger=KeptLog())


def batches(offset: int, count: int, epoch: int = 1) -> bytearray:
    """Make `count` batches of one record each."""
    values = [[b"value %d" % number] for number in range(offset, offset + count)]
    return bytearray().join(
        batch_of_values(each, number, epoch, 1) for number, each in enumerate(values, offset)
    )


def test_records_that_a_snapshot_has_replaced_are_out_of_range() -> None:
    """A read below the log's start raises OFFSET_OUT_OF_RANGE, and the reader continues with the snapshot.

    The error has no `__cause__`, since a cycle of causes once hung the reader.
    """

    async def main(env: Env) -> None:
        directory = env.open_dir(PATH, create=True)
        log = MetadataLog.open(directory, clock=env.clock, logger=KeptLog())
        log.install(1_000_000)
        log.append(batch_of_values([b"x"], 1_000_000, 1_000_001, 0), 1_000_001)
        with pytest.raises(KafkaError) as caught:
            log.read(0, 1)
        assert caught.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
        assert caught.value.__cause__ is None
        log.close()

    world = make_world()
    world.run(run, world, main)
