"""Several recoveries: one after another, or side by side, and a backup that is older than the present voters."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import attrs

from odradek.metadata_quorum.recovery.choice import Named, choose, rebuild
from odradek.metadata_quorum.recovery.found import CopyFiles, FoundNode
from odradek.metadata_quorum.recovery.plan import RecoveryPlan, make_plan
from odradek.metadata_quorum.recovery.recovered_image import LEADER_EPOCHS_AHEAD, recoveries_of
from odradek.metadata_quorum.recovery.recovery_files import decode_plan, encode_plan
from tests.quorum.recovery.copies_world import (
    beginning,
    copy_of,
    found,
    key_of,
    replica,
    topic,
    voters_of,
    write,
)
from tests.quorum.recovery.test_choice import images_of, plan_of

VOTERS = voters_of(1, 2, 3)
LOST = (key_of(1), key_of(2))


def ids(begin: int) -> Callable[[], bytes]:
    """Make a source of directory ids and plan ids."""
    numbers = count(begin)
    return lambda: b"random id %06d" % next(numbers)


def planned(nodes: list[FoundNode], begin: int, named: Named | None = None) -> RecoveryPlan:
    choice = choose(nodes, Named(lost=LOST) if named is None else named)
    assert choice.refusals == ()
    assert choice.chosen is not None
    return make_plan(
        choice.chosen,
        choice.copies,
        nodes,
        absent=(),
        topics=choice.topics,
        new_uuid=ids(begin),
        timestamp_ms=1,
    )


def stopped_nodes() -> list[FoundNode]:
    log = beginning(VOTERS)
    log.append(write(log, 1, *topic(1)))
    return [found(1, None), found(2, None), found(3, copy_of(log), replica(1, 3))]


def after(node: FoundNode, plan: RecoveryPlan) -> FoundNode:
    """Describe a node on which the plan was carried out, and which has not run since."""
    mine = next(each for each in plan.nodes if each.node_id == node.node_id)
    return attrs.evolve(
        node,
        copy=CopyFiles(plan.end, plan.snapshot, b""),
        copy_problem="",
        quorum_epoch=plan.end.epoch,
        directories=tuple(
            attrs.evolve(each, directory_id=mine.new_ids.get(each.path, each.directory_id))
            for each in node.directories
        ),
    )


def test_two_plans_from_the_same_reports_differ() -> None:
    """Two plans from equal reports differ in their ids, and their logs begin at different offsets and epochs."""
    nodes = stopped_nodes()
    one, other = planned(nodes, 1), planned(nodes, 100)
    assert one.voters != other.voters
    assert one.recovery_id != other.recovery_id
    assert one.end.epoch != other.end.epoch
    assert one.end.offset != other.end.offset
    assert decode_plan(encode_plan(one)).recovery_id == one.recovery_id


def test_logs_that_were_recovered_side_by_side_are_refused_together() -> None:
    """Nodes have logs of two recoveries that were made side by side.

    A further recovery is refused, since an operator has to choose.
    """
    nodes = stopped_nodes()
    one, other = planned(nodes, 1), planned(nodes, 100)
    mixed = [after(nodes[0], one), after(nodes[1], other), after(nodes[2], other)]
    lost = tuple(each.key for plan in (one, other) if plan.voters is not None for each in plan.voters.voters)
    refusals = choose(mixed, Named(lost=lost)).refusals
    assert [each for each in refusals if "recoveries that were made side by side" in each]


def test_recoveries_in_a_row_are_one_history() -> None:
    """A second recovery follows the first. Its log has the ids of both, and its numbers exceed those of the first."""
    nodes = stopped_nodes()
    first = planned(nodes, 1)
    again = [after(each, first) for each in nodes]
    assert first.voters is not None
    keys = {each.key.node_id: each.key for each in first.voters.voters}
    broken = [attrs.evolve(each, copy=None, copy_problem="has no metadata log") for each in again[:2]]
    second = planned([*broken, again[2]], 100, Named(lost=(keys[1], keys[2])))
    assert recoveries_of(images_of(second)) == (first.recovery_id, second.recovery_id)
    assert second.end.epoch >= first.end.epoch + 1_000_000
    assert second.end.offset >= first.end.offset + 1_000_000
    before, now = (images_of(each).topics["t1"].partitions[0] for each in (first, second))
    assert now.leader_epoch == before.leader_epoch + LEADER_EPOCHS_AHEAD
    assert now.partition_epoch == before.partition_epoch + LEADER_EPOCHS_AHEAD
    old_and_new = [after(nodes[0], second), nodes[1], after(nodes[2], second)]
    refusals = choose(old_and_new, Named(lost=(key_of(1),))).refusals
    assert not [each for each in refusals if "side by side" in each]


def test_a_partition_without_records_is_raised_by_a_second_rebuild_too() -> None:
    """A partition's directory has no leader epoch.

    A second rebuild still raises this partition's epoch as high as the epochs of the others.
    """
    written = replica(1, 3, leader_epoch=LEADER_EPOCHS_AHEAD + 5)
    nodes = [found(1, None), found(2, None), found(3, None, written, replica(2, 3, leader_epoch=-1))]
    image = images_of(plan_of(rebuild(nodes, Named()), nodes))
    for name in ("t1", "t2"):
        partition = image.topics[name].partitions[0]
        assert partition.leader_epoch >= 2 * LEADER_EPOCHS_AHEAD, name
        assert partition.partition_epoch >= 2 * LEADER_EPOCHS_AHEAD, name


def test_what_any_copy_knows_is_raised_too() -> None:
    """A recovery uses an older backup. Leader epochs are raised as far as the newest copy requires."""
    log = beginning(VOTERS)
    log.append(write(log, 1, *topic(1)))
    later = [*log, write(log, 2, *topic(2, leader_epoch=LEADER_EPOCHS_AHEAD + 1))]
    nodes = [found(3, copy_of(later), replica(1, 3))]
    named = Named(lost=LOST, gone=(1, 2), backup_may_be_older=True)
    image = images_of(plan_of(choose(nodes, named, ("b.tar.gz", copy_of(log))), nodes))
    assert image.topics["t1"].partitions[0].leader_epoch >= 2 * LEADER_EPOCHS_AHEAD


def test_another_copy_may_know_a_later_epoch_of_a_partition() -> None:
    """A copy that is not chosen has a higher leader epoch of a partition, in an uncommitted record.

    The recovered log raises the leader epoch above it.
    """
    log = beginning(VOTERS)
    log.append(write(log, 1, *topic(1, leader_epoch=3)))
    abandoned = [*log, write(log, 1, *topic(2, leader_epoch=9))]
    elected = [*log, write(log, 2, *topic(2, leader_epoch=4))]
    nodes = [found(3, copy_of(elected)), found(4, copy_of(abandoned))]
    choice = choose(nodes, Named(lost=LOST, gone=(1, 2)))
    assert choice.chosen is not None
    assert choice.chosen.node_id == 3
    assert images_of(plan_of(choice, nodes)).topics["t2"].partitions[0].leader_epoch > 9


def test_a_recovery_that_reached_only_some_nodes_is_continued() -> None:
    """A recovery has reached only some nodes.

    The refusal of another one names `--from`, the file of the plan, and the nodes that lack it.
    """
    nodes = stopped_nodes()
    plan = planned(nodes, 1)
    partly = [after(nodes[0], plan), *nodes[1:]]
    (hint,) = (each for each in choose(partly, Named()).refusals if "--from" in each)
    assert "nodes 2, 3 lack that recovery" in hint
    assert f"*.recovery-{plan.end.epoch}.json" in hint


def test_a_backup_is_judged_by_the_voters_that_came_after_it_too() -> None:
    """A backup's voters are lost, but a majority of the later voters is left.

    The recovery is refused, since they can elect a leader.
    """
    log = beginning(VOTERS)
    backup = ("b.tar.gz", copy_of(log))
    later = [*log, write(log, 2, voters_of(3, 4, 5).to_record(), is_control=True)]
    later.append(write(later, 2, *topic(1)))
    nodes = [found(each, copy_of(later)) for each in (3, 4, 5)]
    named = Named(lost=LOST, gone=(1, 2), backup_may_be_older=True)
    choice = choose(nodes, named, backup)
    assert choice.chosen is not None
    assert choice.chosen.node_id is None
    assert [each for each in choice.refusals if each.startswith("3 of 3 voters are left")]
    alone = [found(3, copy_of(later))]
    lost = (*LOST, key_of(4), key_of(5))
    named = Named(lost=lost, gone=(1, 2, 4, 5), backup_may_be_older=True)
    plan = plan_of(choose(alone, named, backup), alone)
    assert plan.voters is not None
    assert plan.voters.node_ids == (3,)
