"""Faults aimed at transactions occur at the moments that they name, and a sound product keeps its promises."""

from __future__ import annotations

import attrs
import pytest

from sim.machine.members import Member
from sim.options import TRANSACTION_KINDS, RunOptions
from sim.scenarios.cluster_scenario import ClusterScenario
from sim.storm import transaction_troubles
from sim.storm.storm import Storm
from sim.storm.storm_plan import StormPlan
from tests.sim.runs.copy_runs import SEED, quiet_options

AIMED = tuple(TRANSACTION_KINDS)


def test_strikes_come_while_transactions_are_open_or_being_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every target is hit in every state of a transaction within seconds, and all promises to copiers hold."""
    options = attrs.evolve(quiet_options(), storm=StormPlan(12.0, (*AIMED, *AIMED)))
    scenarios = [ClusterScenario.of(seed, options) for seed in (SEED, SEED + 1)]
    struck: list[tuple[str, str]] = []
    victims = transaction_troubles._victims

    def noted(storm: Storm, target: str, moment: str) -> list[Member]:
        found = victims(storm, target, moment)
        if found:
            struck.append((target, moment))
            assert all(member.is_up() for member in found)
        return found

    monkeypatch.setattr(transaction_troubles, "_victims", noted)
    for scenario in scenarios:
        scenario.run()
    assert {target for target, _ in struck} == {"coordinator", "offsets", "written"}
    assert {moment for _, moment in struck} == {"open", "deciding", "marking"}
    aimed = [count for each in scenarios for word, count in each._storm.counts.items() if "aimed at" in word]
    assert sum(aimed) >= 8


def test_runs_without_copiers_have_no_faults_aimed_at_transactions() -> None:
    """Seeds draw aimed faults only for runs with copiers, and only for a share of them."""
    drawn = [RunOptions.draw(seed) for seed in range(300)]
    aimed = [any(kind in options.storm.kinds for kind in AIMED) for options in drawn]
    copies = ["copy" in options.workloads for options in drawn]
    assert not any(one and not other for one, other in zip(aimed, copies, strict=True))
    assert 0.3 < sum(aimed) / sum(copies) < 0.8
