"""Recovery plans on simulated disks: crashes and errors at any operation, and directories of other nodes."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from random import Random

import attrs
import pytest

from odradek.data_plane.metadata_log import MetadataLog
from odradek.env.ports import DiskError
from odradek.metadata_quorum.ports import RecoveryBrokenOff
from odradek.metadata_quorum.raft.voters import VoterSet
from odradek.metadata_quorum.recovery.choice import Choice, Named, choose, rebuild
from odradek.metadata_quorum.recovery.evidence import evidence
from odradek.metadata_quorum.recovery.found import BROKEN_OFF, CopyFiles, FoundNode
from odradek.metadata_quorum.recovery.plan import RecoveryPlan, check_node, make_plan
from odradek.metadata_quorum.recovery.recovery_files import decode_report, encode_report
from odradek.metadata_quorum.replica.meta_properties import META_PROPERTIES
from odradek.metadata_quorum.replica.storage_format import (
    DRAFT_DIRECTORY,
    METADATA_LOG_DIRECTORY,
    StorageFormat,
    adopt_directory,
    format_storage,
)
from odradek.operations.recovery.applying import apply_plan, begin_anew
from odradek.operations.recovery.node_reading import NodeFacts, NotReadable, read_node
from sim.machine.disk import Keep, SimDisk
from sim.machine.disk_files import PowerCut
from sim.machine.world import World
from testkit.by_hand import KeptLog
from tests.quorum.recovery.copies_world import beginning, directory_of, key_of, voters_of

CLUSTER_ID = "H5nlA7uKR0-zDRxvMJS5iw"
VOTERS = voters_of(1, 2, 3)
RECORDS, METADATA, SECOND = "/records", "/metadata", "/second"


def facts_of(node_id: int) -> NodeFacts:
    return NodeFacts(
        node_id=node_id,
        is_broker=True,
        is_controller=True,
        endpoints=(("CONTROLLER", "127.0.0.1", 1),),
        static_voters=(),
        log_dirs=(RECORDS,),
        metadata_path=METADATA,
    )


def formatted(node_id: int, voters: VoterSet = VOTERS) -> SimDisk:
    """Make the disk of a node with a short, durable metadata log."""
    disk = SimDisk(Random(0))
    directories = [disk.open_dir(path, create=True) for path in (RECORDS, METADATA)]
    format_storage(
        directories[:1],
        directories[1],
        StorageFormat(
            cluster_id=CLUSTER_ID,
            node_id=node_id,
            directory_ids=[b"records  %07d" % node_id, directory_of(node_id)],
            voters=voters,
            timestamp_ms=1,
        ),
    )
    log = directories[1].subdir(METADATA_LOG_DIRECTORY)
    log.write_atomic(f"{0:020}.log", b"".join(each.data for each in beginning(voters)))
    disk.crash("synced")
    return disk


def without_metadata(node_id: int) -> SimDisk:
    """Make the disk of a node whose metadata disk was replaced by an empty one."""
    disk = formatted(node_id)
    disk.replace(METADATA)
    return disk


def planned(*disks: SimDisk) -> RecoveryPlan:
    """Plan the recovery of nodes 1, 2 and so on with these disks. Nodes 1 and 2 have lost their metadata."""
    nodes = [read_node(facts_of(node_id), disk) for node_id, disk in enumerate(disks, 1)]
    choice = choose(nodes, Named(lost=(key_of(1), key_of(2))))
    assert choice.refusals == ()
    return plan_for(nodes, choice)


def plan_for(nodes: Sequence[FoundNode], choice: Choice) -> RecoveryPlan:
    assert choice.chosen is not None
    numbers = iter(range(1, 100))
    return make_plan(
        choice.chosen,
        choice.copies,
        nodes,
        absent=(),
        topics=choice.topics,
        new_uuid=lambda: b"new id %09d" % next(numbers),
        timestamp_ms=1,
    )


@cache
def stopped() -> tuple[list[SimDisk], RecoveryPlan]:
    """Return the disks of three stopped nodes, and the plan for them."""
    disks = [without_metadata(1), without_metadata(2), formatted(3)]
    plan = planned(*disks)
    for disk in disks:
        disk.crash("synced")
    return disks, plan


def world(node_id: int, seed: int = 0) -> tuple[SimDisk, RecoveryPlan]:
    """Return a copy of the disk of one of the three nodes, and the plan."""
    disks, plan = stopped()
    disk = SimDisk(Random(seed))
    disk.copy_files(disks[node_id - 1])
    return disk, plan


def check_done(disk: SimDisk, node_id: int, plan: RecoveryPlan) -> None:
    found = read_node(facts_of(node_id), disk)
    assert found.copy is not None
    assert found.copy.snapshot == plan.snapshot
    assert found.copy.snapshot_end == plan.end
    assert found.quorum_epoch == plan.end.epoch
    assert plan.voters is not None
    voter = plan.voters.get(node_id)
    assert voter is not None
    assert found.metadata_directory_id == voter.key.directory_id
    assert not apply_plan(plan, facts_of(node_id), disk)


def operations(node_id: int) -> int:
    disk, plan = world(node_id)
    disk.operation_count = 0
    assert apply_plan(plan, facts_of(node_id), disk)
    check_done(disk, node_id, plan)
    return disk.operation_count


@pytest.mark.parametrize("keep", ["all", "synced", "random"])
@pytest.mark.parametrize("node_id", [1, 3])
def test_a_death_at_any_operation_is_gone_on_from(node_id: int, keep: Keep) -> None:
    """The recovery crashes at any disk operation.

    A node then has the old log, the new log, or a refusal that names `--from`. Repeating the plan completes it.
    """
    for number in range(1, operations(node_id) + 1):
        disk, plan = world(node_id, number)
        before = read_node(facts_of(node_id), disk)
        disk.operation_count = 0
        disk.crash_at(number)
        try:
            apply_plan(plan, facts_of(node_id), disk)
        except PowerCut:
            pass
        else:
            disk.crash_at(0)  # this run took fewer operations, as a draft of an earlier run was there
        disk.crash(keep)
        left = read_node(facts_of(node_id), disk)
        if left.copy is None and before.copy is not None:
            assert left.copy_problem == BROKEN_OFF, f"wrong state after a crash at operation {number}"
            for refusals in (choose([left], Named()).refusals, rebuild([left], Named()).refusals):
                assert any(each.startswith(f"node {node_id} {BROKEN_OFF}") for each in refusals)
        elif left.copy != before.copy:
            assert left.copy is not None
            assert left.copy.snapshot == plan.snapshot, f"wrong state after a crash at operation {number}"
        apply_plan(plan, facts_of(node_id), disk)
        check_done(disk, node_id, plan)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_an_error_of_the_disk_at_any_operation_is_gone_on_from(number: int) -> None:
    """A disk operation fails during a recovery. Repeating the plan completes it when the disk works again."""
    for at in range(1, operations(3) + 1):
        disk, plan = world(3)
        disk.operation_count = 0
        disk.fail_at(at, number)
        with suppress(DiskError, NotReadable):
            apply_plan(plan, facts_of(3), disk)
        disk.forget_faults()
        apply_plan(plan, facts_of(3), disk)
        check_done(disk, 3, plan)


def test_a_disk_without_room_keeps_the_old_log() -> None:
    """The disk is full. The old log remains, since the new log is written completely before the old one is moved."""
    disk, plan = world(3)
    before = read_node(facts_of(3), disk)
    disk.capacity_bytes = disk.used_bytes + len(plan.snapshot) // 2
    with pytest.raises(DiskError):
        apply_plan(plan, facts_of(3), disk)
    assert read_node(facts_of(3), disk).copy == before.copy
    disk.capacity_bytes = None
    assert apply_plan(plan, facts_of(3), disk)
    check_done(disk, 3, plan)


def test_numbers_are_checked_again_where_the_plan_is_carried_out() -> None:
    """A node's epochs or ids exceed those of the plan.

    The last check before the plan is carried out raises AssertionError.
    """
    disks, plan = stopped()
    node = read_node(facts_of(3), disks[2])
    check_node(plan, node)
    for wrong in (
        attrs.evolve(node, quorum_epoch=plan.end.epoch),
        attrs.evolve(node, producer_id=plan.next_producer_id),
        attrs.evolve(node, copy=CopyFiles(plan.end, b"", b"")),
    ):
        with pytest.raises(AssertionError):
            check_node(plan, wrong)


def test_a_directory_with_a_draft_starts_no_node() -> None:
    """A node whose recovery was interrupted does not start.

    The error names the command, after which the node starts with the new log.
    """
    disk, plan = world(3)
    disk.open_dir(METADATA).subdir(DRAFT_DIRECTORY, create=True)
    with pytest.raises(RecoveryBrokenOff, match="odradek quorum recover --from PLAN"):
        open_log(disk)
    assert apply_plan(plan, facts_of(3), disk)
    assert open_log(disk).snapshot_end() == plan.end.offset
    disk, _ = world(3)
    disk.open_dir(METADATA).subdir(DRAFT_DIRECTORY, create=True)
    begin_anew(facts_of(3), disk, has_no_vote=True)
    assert open_log(disk).log_end_offset == 0


def open_log(disk: SimDisk) -> MetadataLog:
    """Open the metadata log as a starting controller does."""
    clock = World(0).node_env("node").clock
    return MetadataLog.open(disk.open_dir(METADATA), clock=clock, logger=KeptLog(), may_vote=True)


def test_the_old_log_is_kept_as_it_was() -> None:
    """The old log is renamed as a whole. Its new name contains the epoch of the recovery."""
    disk, plan = world(3)
    before = disk.peek(f"{METADATA}/{METADATA_LOG_DIRECTORY}")
    apply_plan(plan, facts_of(3), disk)
    assert disk.peek(f"{METADATA}/{METADATA_LOG_DIRECTORY}.{plan.end.epoch}-stray") == before


def test_the_directories_of_another_node_are_refused() -> None:
    """A plan is applied with the properties of another node, or to exchanged disks.

    It is refused, and nothing changes.
    """
    disk, plan = world(3)
    wrong = attrs.evolve(facts_of(3), node_id=1)
    with pytest.raises(NotReadable, match=r"belongs to node 3, and node\.id is 1"):
        apply_plan(plan, wrong, disk)
    with pytest.raises(NotReadable, match="the plan does not know node 4"):
        apply_plan(plan, attrs.evolve(facts_of(3), node_id=4), formatted(4))
    assert apply_plan(plan, facts_of(3), disk)


def test_a_node_that_runs_is_refused() -> None:
    """A recovery is refused while the node runs, since each of its directories is locked."""
    for path in (RECORDS, METADATA):
        disk, plan = world(3)
        running = disk.open_dir(path)
        running.lock()
        with pytest.raises(DiskError, match="another process has locked"):
            apply_plan(plan, facts_of(3), disk)
        running.unlock()
        assert apply_plan(plan, facts_of(3), disk)


def test_a_second_plan_is_refused_where_the_first_was_carried_out() -> None:
    """A second plan is refused where the first was carried out, since only one of them may be in force."""
    disks = [without_metadata(1), without_metadata(2), formatted(3)]
    one, other = planned(*disks), planned(*disks)
    other = attrs.evolve(other, recovery_id="A" * 22)
    assert apply_plan(one, facts_of(3), disks[2])
    with pytest.raises(NotReadable, match="has run since the plan was made"):
        apply_plan(other, facts_of(3), disks[2])
    check_done(disks[2], 3, one)


def test_a_node_that_was_set_aside_begins_without_a_log() -> None:
    """`begin-anew` keeps the old log under another name, even if it is run twice."""
    disk = formatted(9)
    for names in (1, 2):
        begin_anew(facts_of(9), disk, has_no_vote=names == 2)
        kept = [name for name in disk.in_cache(METADATA) if name.endswith("-stray")]
        assert len(kept) == names
        assert read_node(facts_of(9), disk).copy is None
        if names == 1:
            disk.open_dir(METADATA).subdir(METADATA_LOG_DIRECTORY, create=True)


def second_disk(node_id: int) -> tuple[SimDisk, NodeFacts]:
    """Make the disk of a node with a second directory for records."""
    disk = formatted(node_id)
    adopt_directory(disk.open_dir(SECOND, create=True), CLUSTER_ID, node_id, b"second   %07d" % node_id)
    disk.crash("synced")
    return disk, attrs.evolve(facts_of(node_id), log_dirs=(RECORDS, SECOND))


@pytest.mark.parametrize("operation", ["lock", "read", "list", None])
@pytest.mark.parametrize("number", [errno.EIO, errno.EROFS])
def test_a_dead_disk_of_records_is_left_out(operation: str | None, number: int) -> None:
    """Its partitions may be any, so all wait for the node. Nothing is written there, and the plan is carried out beside it."""
    disk, facts = second_disk(3)
    disk.fail_next(number, operation=operation, path_part=SECOND, times=1000)
    node = read_node(facts, disk)
    assert [each.path for each in node.dead_directories] == [SECOND]
    assert node.blank_directories == []
    assert node.may_hold("any", 0)
    assert decode_report(encode_report([node])) == [node]
    others = [read_node(facts_of(each), without_metadata(each)) for each in (1, 2)]
    choice = choose([*others, node], Named(lost=(key_of(1), key_of(2))))
    assert choice.refusals == ()
    said = [each for each in evidence(choice, [*others, node]) if "cannot be read" in each]
    assert len(said) == 1
    assert f"node 3: the log directory {SECOND} cannot be read" in said[0]
    plan = plan_for([*others, node], choice)
    assert SECOND not in next(each.new_ids for each in plan.nodes if each.node_id == 3)
    assert apply_plan(plan, facts, disk)
    disk.forget_faults()
    assert {*disk.open_dir(SECOND).list()} - {".lock"} == {META_PROPERTIES}
    assert read_node(facts, disk).copy is not None
    assert not apply_plan(plan, facts, disk)


@pytest.mark.parametrize(
    ("number", "operation", "path"),
    [
        (errno.EWOULDBLOCK, "lock", SECOND),
        (errno.EACCES, "lock", SECOND),
        (errno.EMFILE, "lock", SECOND),
        (errno.EIO, "lock", METADATA),
    ],
)
def test_other_errors_end_the_command(number: int, operation: str, path: str) -> None:
    """A lock, missing rights and a shortage say nothing about a disk. The metadata's disk is needed."""
    disk, facts = second_disk(3)
    disk.fail_next(number, operation=operation, path_part=path, times=1000)
    with pytest.raises(DiskError):
        read_node(facts, disk)


def test_a_dead_disk_beside_blank_ones_is_refused() -> None:
    """Nobody knows whose records it has. Partitions would elect leaders without it."""
    disk, facts = second_disk(3)
    disk.replace(METADATA)
    disk.replace(RECORDS)
    disk.fail_next(errno.EIO, path_part=SECOND, times=1000)
    with pytest.raises(NotReadable, match=r"node 3 has no formatted directory that can be read.*--absent 3"):
        read_node(facts, disk)


@pytest.mark.parametrize("name", ["orders-0", "orders-0.0123456789abcdef0123456789abcdef-future"])
def test_a_directory_with_replicas_and_without_ids_is_refused(name: str) -> None:
    """Taken for blank, its replicas would count for nothing, and be cut after the recovery."""
    disk, facts = second_disk(3)
    second = disk.open_dir(SECOND)
    second.remove(META_PROPERTIES)
    read_node(facts, disk)
    second.subdir(name, create=True)
    with pytest.raises(
        NotReadable, match=rf"{SECOND} holds logs of partitions \({name}\).*meta.properties.*--absent 3"
    ):
        read_node(facts, disk)


def test_a_directory_that_gets_an_id_must_be_alive() -> None:
    """A disk that was blank when the plan was made, and is dead now, ends the command before anything is changed."""
    disk, plan = world(3)
    with_ids = attrs.evolve(
        plan,
        nodes=tuple(attrs.evolve(each, new_ids={**each.new_ids, RECORDS: bytes(16)}) for each in plan.nodes),
    )
    disk.fail_next(errno.EIO, operation="lock", path_part=RECORDS, times=1000)
    with pytest.raises(NotReadable, match=f"{RECORDS} cannot be formatted"):
        apply_plan(with_ids, facts_of(3), disk)
