"""Faults that the product's own code provokes in a simulated world: the list of points, and that they fire."""

from __future__ import annotations

import re
from pathlib import Path

from odradek.env.ports import never
from odradek.env.real import RealEnv
from sim.machine.cluster_members import QUICK_SETTINGS, SETTINGS, Shape
from sim.machine.sim_env import RARITY
from sim.machine.weather import Weather
from sim.scenarios.cluster_scenario import ClusterScenario
from sim.storm.storm_plan import StormPlan

ROOT = Path(__file__).resolve().parents[3]
POINTS = {
    "client.drop_connection",
    "connection.close_after_answer",
    "controller.small_parts",
    "fetch.short_read",
    "isr.look_ahead",
    "log.early_roll",
    "log.late_flush",
    "metadata.early_snapshot",
    "metadata.small_replay",
    "peers.drop_connection",
    "quorum.resign",
    "quorum.short_read",
    "quorum.small_batch",
    "replication.drop_connection",
    "replication.tiny_fetch",
    "snapshot.tiny_chunk",
}


def test_every_point_is_listed_and_has_one_place() -> None:
    """Each point is listed and is named at exactly one place, because a name is active or not for a whole run."""
    found: list[str] = []
    for package in ("data_plane", "metadata_quorum", "odradek"):
        for path in sorted((ROOT / package).rglob("*.py")):
            found += re.findall(r'buggify\(\s*"([^"]+)"', path.read_text())
    assert sorted(found) == sorted(POINTS)
    assert RARITY.keys() <= POINTS


def test_nothing_is_provoked_in_production() -> None:
    """In production all points are off, and hot loops do not even call the function."""
    assert not RealEnv.provokes
    assert not any(never(point) for point in sorted(POINTS))


def test_a_cluster_lives_with_everything_that_it_provokes() -> None:
    """With all points active and no other faults, a cluster keeps every promise, and most points fire."""
    fired: set[str] = set()

    def note(word: str, line: str) -> None:
        if word == "buggify":
            fired.add(line.split()[3])

    settings = SETTINGS | QUICK_SETTINGS | {"metadata.log.max.record.bytes.between.snapshots": "500"}
    scenario = ClusterScenario(
        3,
        shape=Shape(settings=settings),
        plan=StormPlan(8.0, ("deaths",)),
        weather=Weather(buggify_active_probability=1.0),
    )
    scenario.world.trace.on_line = note
    summary = scenario.run()
    assert summary["acknowledged"] > 0
    assert len(fired) >= 10
    assert fired <= POINTS
