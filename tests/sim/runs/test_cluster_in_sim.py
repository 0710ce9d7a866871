"""Whole simulated clusters of every shape elect and replicate. `test_seeds.py` has the storms."""

from __future__ import annotations

import pytest

from odradek.data_plane.replication.partition import Partition
from sim import __main__ as command
from sim.history import SafetyViolation
from sim.machine.cluster_members import QUICK_SETTINGS, SETTINGS, Shape
from sim.machine.weather import Weather
from sim.options import RunOptions
from sim.scenarios.cluster_scenario import ClusterScenario
from sim.storm.storm_plan import StormPlan

CALM = Weather()
NO_STORM = StormPlan(3.0, ())


@pytest.mark.parametrize(
    "shape",
    [
        Shape(settings=SETTINGS),
        Shape(dynamic_voters=True, log_dirs=2, settings=SETTINGS),
        Shape(controllers=3, settings=SETTINGS),
        Shape(controllers=3, dynamic_voters=True, settings=SETTINGS),
        Shape(nodes=5, controllers=1, settings=SETTINGS),
    ],
    ids=["combined", "voters-in-the-log", "separate", "separate-in-the-log", "five-and-one"],
)
def test_a_cluster_in_fair_weather(shape: Shape) -> None:
    """In calm weather a cluster of any shape starts, replicates, serves groups, and stops cleanly."""
    options = RunOptions("calm", shape, NO_STORM, CALM, ("produce", "consume", "follow", "group"))
    summary = ClusterScenario.of(1, options).run()
    assert summary["acknowledged"] == summary["sent"] > 0
    assert summary["committed"] > 0
    assert summary["starts"] == 2 * (shape.nodes + shape.controllers)


def test_weather_too_hard_for_the_loads_ends_with_the_storm() -> None:
    """Weather that is too slow for the load ends with the storm. Otherwise the cluster would be blamed for slow
    followers."""
    weather = Weather(spike_probability=0.02, spike_seconds=1.0, socket_buffer_bytes=4096)
    scenario = ClusterScenario.of(
        1, RunOptions("calm", Shape(settings=SETTINGS), NO_STORM, weather, ("produce",))
    )
    scenario.run()
    assert scenario.world.fabric.weather == weather.settled() != weather


def test_a_leader_that_does_not_wait_for_the_others_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted bug raises the high watermark to the leader's own log end. Some seed then loses a record."""
    monkeypatch.setattr(Partition, "_raise_high_watermark", _raise_alone)
    shape = Shape(settings=SETTINGS | QUICK_SETTINGS)
    plan = StormPlan(20.0, ("deaths", "links"), power=False)
    for seed in (5, 2, 7, 8, 9, 10):
        try:
            ClusterScenario(seed, shape=shape, plan=plan, weather=CALM).run()
        except SafetyViolation:
            return
    pytest.fail("no seed lost a record, although the leader does not wait for followers")


def _raise_alone(partition: Partition) -> bool:
    log = partition.log
    if not partition.is_leader or log.high_watermark >= log.log_end_offset:
        return False
    log.advance_high_watermark(log.log_end_offset)
    return True


def test_the_command_runs_clusters(capsys: pytest.CaptureFixture[str]) -> None:
    """`python -m sim --seed N --nodes 3` prints the shape first and the verdict and digest last. The digest is
    reproducible."""
    digests = []
    for _ in range(2):
        assert command.main(["--seed", "6", "--nodes", "3", "--seconds", "2"]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert lines[1].startswith("shape: ")
        assert lines[-4] == "verdict: ok"
        digests.append(lines[-3])
    assert digests[0] == digests[1]
