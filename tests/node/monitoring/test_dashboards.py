"""`odradek generate`: the form of the dashboards, their metrics, and the files that the command writes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from odradek.operations.monitoring.dashboards import DASHBOARDS
from odradek.operations.monitoring.grafana import COLUMNS, dashboard_json
from odradek.operations.monitoring.rules_file import rules_file
from tests.cli.running import odradek_here
from tests.node.test_metrics import DOCUMENT

UNITS = {"short", "bytes", "Bps", "s", "ops", "percentunit"}
VARIABLES = {"job", "topic", "group", "client_id", "__rate_interval", "datasource", "__all"}


@pytest.mark.parametrize("name", DASHBOARDS)
def test_the_form_of_a_dashboard(name: str) -> None:
    """A dashboard has what Grafana needs: an own uid, variables, and panels with queries that do not overlap."""
    document: dict[str, Any] = json.loads(dashboard_json(DASHBOARDS[name]))
    assert document["uid"] == f"odradek-{name}"
    assert document["schemaVersion"] == 39
    variables = [each["name"] for each in document["templating"]["list"]]
    assert variables[:2] == ["datasource", "job"]
    assert set(re.findall(r"\$\{?(\w+)", json.dumps(document))) <= VARIABLES
    for variable in variables[2:]:
        assert f'{variable}=~"${variable}"' in json.dumps(document).replace('\\"', '"')
    panels = document["panels"]
    assert len({each["id"] for each in panels}) == len({each["title"] for each in panels}) == len(panels)
    cells: set[tuple[int, int]] = set()
    for panel in panels:
        assert panel["type"] in ("stat", "timeseries")
        assert panel["fieldConfig"]["defaults"]["unit"] in UNITS
        assert panel["targets"]
        for target in panel["targets"]:
            assert 'job=~"$job"' in target["expr"]
            assert (
                target["datasource"] == panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
            )
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= COLUMNS
        covered = {
            (x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])
        }
        assert not covered & cells
        cells |= covered


def test_each_metric_of_a_panel_is_documented() -> None:
    """Each metric in a query is in the table of docs/metrics.md, and none has a former name."""
    rows = dict(re.findall(r"(?m)^\| `(odradek_\w+)` \| \w+ \| [\w, ]* \| (.*) \|$", DOCUMENT.read_text()))
    for dashboard in DASHBOARDS.values():
        for panel in dashboard.panels:
            for query in panel.queries:
                for name in re.findall(r"odradek_\w+", query.expr):
                    described = rows[name.removesuffix("_bucket")]
                    assert not described.startswith("Former name"), name


def test_the_command_writes_files(tmp_path: Path) -> None:
    """The command lists dashboards, prints one, or writes files into a directory that it makes."""
    listed = odradek_here("generate", "grafana-dashboard").out
    assert listed.split() == list(DASHBOARDS)
    shown = odradek_here("generate", "grafana-dashboard", "disks").out
    assert shown == dashboard_json(DASHBOARDS["disks"])
    directory = tmp_path / "new" / "grafana"
    wrote = odradek_here("generate", "grafana-dashboard", "--to", str(directory)).out
    assert sorted(path.name for path in directory.iterdir()) == sorted(
        f"odradek-{name}.json" for name in DASHBOARDS
    )
    assert len(wrote.splitlines()) == len(DASHBOARDS)
    one = odradek_here("generate", "grafana-dashboard", "topic", "--to", str(tmp_path), "--json").json()
    assert one == {"written": [str(tmp_path / "odradek-topic.json")]}
    asked = ("generate", "prometheus-rules", "--job", "kafka nodes", "--runbooks", "https://wiki/x")
    assert odradek_here(*asked).out == rules_file("kafka nodes", "https://wiki/x")
    odradek_here("generate", "prometheus-rules", "--to", str(tmp_path))
    assert (tmp_path / "odradek-rules.yml").read_text() == rules_file()


def test_refusals(tmp_path: Path) -> None:
    """An unknown dashboard is refused with the names of all, and so is a directory that cannot be written."""
    assert (
        "cluster, topic, group, client, disks" in odradek_here("generate", "grafana-dashboard", "x").refusal()
    )
    (tmp_path / "file").write_text("")
    words = ("generate", "prometheus-rules", "--to", str(tmp_path / "file"))
    assert f"cannot write into {tmp_path / 'file'}" in odradek_here(*words).refusal()
