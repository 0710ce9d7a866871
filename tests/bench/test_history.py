"""Benchmarks over time: the record of a run, the runs that are refused, and the page with all runs."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import attrs
import pytest

from bench.history.__main__ import DOCS
from bench.history.page import markdown, svg
from bench.history.recorded import (
    Machine,
    Measured,
    Method,
    NotRecordable,
    RecordedRun,
    figures_of,
    record,
    recorded_runs,
)

MACHINE = Machine(2, "6.1", "3.11.2")
METHOD = Method(quick=False, pinning="none", topic_partitions=1)


def summary(server: str, rate: float, cpu: float) -> dict[str, Any]:
    return {
        "workload": "batches16k",
        "action": "produce",
        "server": server,
        "messages_per_second": rate,
        "cpu_seconds_per_gb": cpu,
    }


def found() -> dict[str, Any]:
    return {
        "machine": {"cpus": 2, "kernel": "6.1", "python": "3.11.2"},
        "method": {"quick": False, "pinning": "none", "topic_partitions": 1},
        "throughput": [
            summary("odradek", 300.0, 1.5),
            summary("kafka", 100.0, 6.0),
            summary("mock", 900.0, 0.1),
        ],
        "footprint": [
            {"server": "odradek", "name": "ready after", "value": 0.5, "unit": "s"},
            {"server": "kafka", "name": "ready after", "value": 2.0, "unit": "s"},
            {"server": "odradek", "name": "idle connections", "value": 9.0, "unit": "KiB"},
        ],
    }


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Make a repository with one commit."""
    place = tmp_path / "checkout"
    place.mkdir()
    (place / "file").write_text("a")
    who = ["-c", "user.name=a", "-c", "user.email=a@example.com"]
    for words in (["init", "-q"], ["add", "file"], [*who, "commit", "-q", "-m", "one"]):
        subprocess.run(["git", "-C", place, *words], check=True)
    return place


def test_a_figure_is_ours_over_the_reference_of_the_same_run() -> None:
    assert [(each.name, each.ratio) for each in figures_of(found())] == [
        ("produce batches16k: rate", 3.0),
        ("produce batches16k: CPU", 0.25),
        ("ready after", 0.25),
    ]


def test_a_recorded_run_is_read_back(checkout: Path, tmp_path: Path) -> None:
    path = record(found(), checkout, tmp_path / "runs")
    (run,) = recorded_runs(tmp_path / "runs")
    assert (run.file_name, run.figures) == (path.name, figures_of(found()))
    assert record(found(), checkout, tmp_path / "runs") == path, "one file for each commit"


def test_what_cannot_be_compared_is_refused(checkout: Path, tmp_path: Path) -> None:
    alone = {**found(), "throughput": [summary("odradek", 300.0, 1.5)], "footprint": []}
    for refused, reason in (
        ({**found(), "method": {**found()["method"], "quick": True}}, "quick"),
        (alone, "Apache Kafka"),
    ):
        with pytest.raises(NotRecordable, match=reason):
            record(refused, checkout, tmp_path / "runs")
    (checkout / "file").write_text("b")
    with pytest.raises(NotRecordable, match="commit them first"):
        record(found(), checkout, tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


def test_the_drawing_has_a_dot_for_each_run_and_figure() -> None:
    older = RecordedRun("2026-01-01", "00000001", MACHINE, METHOD, figures_of(found()))
    newer = attrs.evolve(older, date="2026-02-01", commit="00000002", figures=older.figures[:2])
    drawing = ElementTree.fromstring(svg([older, newer]))
    dots = drawing.findall("{http://www.w3.org/2000/svg}circle")
    assert len(dots) == 5
    assert markdown([older, newer], "x.svg").count("(2)") == 2, (
        "each figure of the newest run, with its range"
    )


def test_ratios_beyond_the_scale_stay_in_their_row() -> None:
    steep = (Measured("a", "s", 1.0, 1e6), Measured("b", "s", 1e6, 1.0))
    drawing = ElementTree.fromstring(svg([RecordedRun("2026-01-01", "1", MACHINE, METHOD, steep)]))
    heights = [float(each.attrib["cy"]) for each in drawing.findall("{http://www.w3.org/2000/svg}circle")]
    assert 40 < heights[1] < 40 + 2 * 56
    assert 40 < heights[0] < 40 + 56


def test_the_page_is_drawn_from_the_recorded_runs() -> None:
    """The page and the drawing exist as soon as a run is recorded, and show all runs."""
    runs, page, drawing = recorded_runs(), DOCS / "benchmarks.md", DOCS / "benchmarks.svg"
    assert page.exists() == drawing.exists() == bool(runs)
    if runs:
        assert (page.read_text(), drawing.read_text()) == (markdown(runs, drawing.name), svg(runs))
