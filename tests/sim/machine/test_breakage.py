"""Faults beyond the fault model: damage must be reported or harmless, and silent harm is a violation."""

from __future__ import annotations

from random import Random

import attrs
import pytest

from odradek.wire.batches.batch_header import iter_batches
from sim.history import SafetyViolation
from sim.machine.world import Liveness
from sim.options import RunOptions
from sim.scenarios.cluster_scenario import ClusterScenario
from sim.storm.breakage import BREAKAGES, lose_end, misdirect
from tests.log.support import batch


def test_what_a_lying_disk_leaves() -> None:
    """A lying disk either loses whole batches at the end, or writes the last batch elsewhere and zeros in its place."""
    data = bytearray(batch(1) + batch(2) + batch(3))
    for seed in range(10):
        lost = lose_end(data, Random(seed))
        assert data.startswith(lost)
        assert len(lost) < len(data)
        assert sum(1 for _ in iter_batches(lost)) < 3
        moved = misdirect(data, Random(seed))
        assert len(moved) == len(data)
        assert moved != bytes(data)
    assert lose_end(bytearray(), Random(1)) == misdirect(bytearray(), Random(1)) == b""


def test_each_way_of_breaking_is_drawn() -> None:
    """A run of the profile `broken` draws exactly one kind of breakage, and each kind is drawn."""
    kinds = [RunOptions.draw(seed, "broken").storm.kinds for seed in range(40)]
    assert {kind for (kind,) in kinds} == set(BREAKAGES)


@pytest.mark.parametrize("failure", [SafetyViolation("lost"), Liveness("stuck")])
def test_harm_that_nobody_has_told_is_a_violation(
    failure: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a run with breakage fails and no node has reported damage, the verdict is silent damage."""
    scenario = ClusterScenario.of(1, RunOptions.draw(1, "broken"))

    def fail(*_: object, **__: object) -> None:
        raise failure

    monkeypatch.setattr(scenario.world, "run", fail)
    with pytest.raises(SafetyViolation, match="silent damage"):
        scenario.run()
    member = scenario.cluster.members[0]
    member.may_be_damaged = True
    member.log.error("metadata.disk_failed")
    assert scenario.run() == {"harmed": 1, "told": 1}
    other = ClusterScenario.of(1, attrs.evolve(RunOptions.draw(1, "broken"), profile="default"))
    monkeypatch.setattr(other.world, "run", fail)
    with pytest.raises(type(failure), match=str(failure)):
        other.run()
