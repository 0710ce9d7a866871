"""Targets that workers compute: what counts of them when the group has changed meanwhile."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from odradek.data_plane.groups.consumers import target_runs
from odradek.data_plane.groups.consumers.consumer_group import Owned
from odradek.data_plane.groups.consumers.target_runs import TargetPart, TargetRun
from odradek.named_states import counting
from tests.groups.consumers.consumer_script import topic_id
from tests.groups.consumers.test_consumer_properties import World


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let workers compute all targets, one member for each part."""
    monkeypatch.setattr(target_runs, "INLINE_UNITS_MAX", 0)
    monkeypatch.setattr(target_runs, "PART_UNITS", 1)


def _world() -> World:
    world = World()
    for name in "ABD":
        world.subscribe(name, ["t"], "")
        world.beat(name)
    # The run that the first member has begun knows no other.
    for work in world.machine.consumers.take_wanted():
        world.machine.consumers.work_ended(work)
    return world


def _begun(world: World) -> tuple[TargetRun, list[TargetPart]]:
    """Let a member ask for a target; return the worker's work and the parts that have come of it."""
    world.beat("A")
    (work,) = world.machine.consumers.take_wanted()
    assert isinstance(work, TargetRun)
    return work, list(work.requests())


def _write(world: World, parts: Sequence[TargetPart]) -> None:
    for part in parts:
        world.submit(part, 0, None)
        world.check()


def _targets(world: World) -> dict[str, list[Owned]]:
    return {
        member_id: [(topic, each) for topic in target for each in sorted(target[topic])]
        for member_id, target in world.group.targets.items()
    }


def test_no_member_goes_a_step_while_parts_are_missing() -> None:
    """A mixture of two targets is nobody's goal: members stay where they are until the last part is written."""
    world = _world()
    work, parts = _begun(world)
    assert len(parts) > 1
    _write(world, parts[:-1])
    for name in "ABD":
        world.beat(name)
        assert not world.clients[name].has
    assert world.group.target_epoch < work.group.epoch
    _write(world, parts[-1:])
    world.machine.consumers.work_ended(work)
    assert world.group.target_epoch == work.group.epoch


def test_a_member_that_joins_while_parts_are_missing_gets_an_epoch() -> None:
    """A member cannot go on without an epoch, so it gets that of the target before."""
    world = _world()
    work, parts = _begun(world)
    _write(world, parts[:-1])
    world.subscribe("C", ["t"], "")
    world.beat("C")
    assert world.clients["C"].epoch == world.group.target_epoch
    _write(world, parts[-1:])
    world.machine.consumers.work_ended(work)
    world.settle()
    world.check_settled()


def test_one_run_at_a_time() -> None:
    """Heartbeats during a run ask for no second one."""
    world = _world()
    _begun(world)
    for name in "BDAB":
        world.beat(name)
    assert not world.machine.consumers.take_wanted()


def test_target_of_an_earlier_epoch_passes_over_members_that_left() -> None:
    """A group that changes all the time gets targets all the same: for those members that are still there."""
    world = _world()
    work, parts = _begun(world)
    gone = world.clients["B"].member_id
    world.leave("B", -1)
    counts: dict[str, int] = {}
    with counting(counts):
        _write(world, parts)
    world.machine.consumers.work_ended(work)
    assert counts["consumer_groups.target_of_departed_member_dropped"]
    assert gone not in _targets(world)
    assert world.group.target_epoch < world.group.epoch
    world.settle()
    world.check_settled()


def test_successor_gets_the_target_of_its_static_member() -> None:
    """A static member that returns with another id while its target is computed keeps its place in that target."""
    world = _world()
    work, parts = _begun(world)
    wanted = {each.key.member_id: each for part in parts for each in part.records}
    former = world.clients["D"].member_id
    world.leave("D", -2)
    world.beat("D")
    successor = world.clients["D"].member_id
    assert successor != former
    counts: dict[str, int] = {}
    with counting(counts):
        _write(world, parts)
    world.machine.consumers.work_ended(work)
    assert counts["consumer_groups.target_given_to_successor"] == 1
    (topic,) = wanted[former].value.topic_partitions
    assert _targets(world)[successor] == [(topic_id("t"), each) for each in topic.partitions]
    assert former not in _targets(world)


def test_run_of_a_deleted_group_does_not_count_for_the_next_of_its_name() -> None:
    """Epochs of a group that is made again begin anew, so they may be equal to those of a run before."""
    world = World()
    world.subscribe("A", ["t"], "")
    _, parts = _begun(world)
    world.leave("A", -1)
    world.delete()
    world.beat("A")
    counts: dict[str, int] = {}
    with counting(counts):
        _write(world, parts)
    assert counts["consumer_groups.part_of_ended_run_dropped"] == len(parts)
    assert not _targets(world)
    world.settle()
    world.check_settled()


def test_refused_work_is_asked_for_again() -> None:
    """A worker's requests that were refused, or that never came, leave the group free for another run."""
    world = _world()
    work, _ = _begun(world)
    world.machine.consumers.work_ended(work)
    world.beat("B")
    assert len(world.machine.consumers.take_wanted()) == 1
