"""Targets that workers compute, while the group changes before the target is written."""

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
    """Let workers compute all targets, with one member in each part."""
    monkeypatch.setattr(target_runs, "INLINE_UNITS_MAX", 0)
    monkeypatch.setattr(target_runs, "PART_UNITS", 1)


def _world() -> World:
    world = World()
    for name in "ABD":
        world.subscribe(name, ["t"], "")
        world.beat(name)
    # The run that began with the first member contains no other member.
    for work in world.machine.consumers.take_wanted():
        world.machine.consumers.work_ended(work)
    return world


def _begun(world: World) -> tuple[TargetRun, list[TargetPart]]:
    """Let a member ask for a target. Return the worker's work and the parts that result from it."""
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
    """Until the last part of a target is written, no member gets any of its new partitions."""
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
    """A member that joins before the last part is written gets the epoch of the previous target."""
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
    """Heartbeats during a run do not start a second one."""
    world = _world()
    _begun(world)
    for name in "BDAB":
        world.beat(name)
    assert not world.machine.consumers.take_wanted()


def test_target_of_an_earlier_epoch_passes_over_members_that_left() -> None:
    """If members leave during a run, its target still counts for the members that remain."""
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
    """If a static member returns with another id during a run, it gets the target of its old id."""
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
    """If a group is deleted and made again during a run, the new group ignores its target, even at the same epoch."""
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
    """If a worker's requests are refused, or never come, the next heartbeat starts another run."""
    world = _world()
    work, _ = _begun(world)
    world.machine.consumers.work_ended(work)
    world.beat("B")
    assert len(world.machine.consumers.take_wanted()) == 1
