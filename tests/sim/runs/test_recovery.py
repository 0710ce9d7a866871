"""Voters lose their metadata disks twice, and an operator recovers the quorum: some seeds of this scenario."""

from __future__ import annotations

import pytest

from sim import __main__ as command
from sim.scenarios.recovery_scenario import RecoveryScenario
from tests.schedule import seeds


@pytest.mark.long
@pytest.mark.parametrize("seed", seeds(6))
def test_what_was_acknowledged_outlives_two_recoveries(seed: int) -> None:
    """While one in-sync replica is left, each acknowledged record is there once. No offset, epoch or id is used
    twice."""
    summary = RecoveryScenario(seed).run()
    assert summary["records"] >= summary["acknowledged"] > 0
    assert summary.get("recovered", 0) + summary.get("rebuilt", 0) == 2


@pytest.mark.long
def test_the_command_recovers_seeds_in_a_row(capsys: pytest.CaptureFixture[str]) -> None:
    """`python -m sim --recover` runs several seeds, and the same seed gives the same run."""
    digests = []
    for _ in range(2):
        assert command.main(["--recover", "--seed", "103"]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert lines[-4] == "verdict: ok"
        digests.append(lines[-3])
    assert digests[0] == digests[1]
