"""The faults of a run are drawn from its seed and end within its time. Each kind of partition cuts the right links."""

from __future__ import annotations

from itertools import pairwise

import pytest

from jepsen_tests.schedule import KINDS, TARGETS, links, plan, plan_kills

NODES = (1, 2, 3)


@pytest.mark.parametrize("seed", range(20))
def test_faults_of_a_kind_follow_each_other_and_end_in_time(seed: int) -> None:
    """Each fault ends before the next one of its kind begins, and all end before the run does."""
    faults = plan(seed, 60, KINDS)
    assert faults == plan(seed, 60, KINDS)
    for kind in KINDS:
        mine = [fault for fault in faults if fault.kind == kind]
        assert mine
        assert all(one.end < other.at for one, other in pairwise(mine))
        assert all(fault.at > 0 and fault.end <= 60 and fault.target in TARGETS[kind] for fault in mine)


def test_every_target_is_drawn() -> None:
    """Over many seeds, each listed fault is drawn at least once."""
    drawn = {(fault.kind, fault.target) for seed in range(100) for fault in plan(seed, 60, KINDS)}
    assert drawn == {(kind, target) for kind, targets in TARGETS.items() for target in targets}


@pytest.mark.parametrize("seed", range(20))
def test_kills_are_counted_and_befall_one_node_at_a_time(seed: int) -> None:
    """A plan of twenty kills has twenty faults, and a node is back before the next one is killed."""
    faults = plan_kills(seed, 20)
    assert faults == plan_kills(seed, 20)
    assert len(faults) == 20
    assert all(one.end < other.at for one, other in pairwise(faults))
    assert {fault.kind for fault in faults} == {"kill"}
    assert {fault.target for fault in faults} <= {"one", "leader", "controller"}


def test_unknown_kinds_are_refused() -> None:
    """An unknown kind of fault is refused, since the run would have no faults."""
    with pytest.raises(ValueError, match="unknown kind of fault 'kil'"):
        plan(0, 60, ["kil"])
    with pytest.raises(ValueError, match="the fault kill has none of the targets bridge"):
        plan(0, 60, ["kill"], targets=["bridge"])


def test_targets_can_be_named() -> None:
    """If targets are named, faults hit only these."""
    assert {fault.target for fault in plan(0, 60, ["kill"], targets=["one", "leader"])} == {"one", "leader"}


@pytest.mark.parametrize(
    ("target", "choice", "cut"),
    [
        ("isolate", 0.0, {(1, 2), (2, 1), (2, 3), (3, 2)}),
        ("one-way", 0.0, {(1, 2), (3, 2)}),
        ("one-way", 0.9, {(2, 1), (2, 3)}),
        ("bridge", 0.0, {(1, 2), (2, 1)}),
        ("bridge", 0.9, {(3, 2), (2, 3)}),
        ("all", 0.0, {(1, 2), (2, 1), (1, 3), (3, 1), (2, 3), (3, 2)}),
    ],
)
def test_links_that_are_cut(target: str, choice: float, cut: set[tuple[int, int]]) -> None:
    """With node 2 as the victim, each kind of partition cuts exactly the listed links."""
    assert set(links(target, 2, NODES, choice)) == cut
