"""A dashboard as Grafana's JSON. PURE.

The form is that of Grafana 10 (schema version 39), which later versions read. The data source and the scrape job are variables,
so that a dashboard fits any installation.
"""

from __future__ import annotations

import json

from odradek.operations.monitoring.dashboards import Dashboard, Panel

__all__ = ["dashboard_json"]

SCHEMA_VERSION = 39
COLUMNS = 24
"""The width of Grafana's grid."""
STAT_WIDTH, STAT_HEIGHT = 4, 4
GRAPH_WIDTH, GRAPH_HEIGHT = 12, 8
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_LETTERS = "ABCDEFGHIJ"


def dashboard_json(dashboard: Dashboard) -> str:
    """Write a dashboard as a file that Grafana imports or provisions."""
    document = {
        "uid": f"odradek-{dashboard.name}",
        "title": dashboard.title,
        "tags": ["odradek"],
        "schemaVersion": SCHEMA_VERSION,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": _variables(dashboard)},
        "panels": _panels(dashboard.panels),
    }
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def _variables(dashboard: Dashboard) -> list[dict[str, object]]:
    found: list[dict[str, object]] = [
        {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"},
        _variable("job", "odradek_info"),
    ]
    if dashboard.variable is not None:
        found.append(_variable(dashboard.variable, f'{dashboard.variable_of}{{job=~"$job"}}'))
    return found


def _variable(label: str, metric: str) -> dict[str, object]:
    """Make a variable with all values of a label. `All` also fits series without the label."""
    return {
        "name": label,
        "type": "query",
        "datasource": _SOURCE,
        "query": {"query": f"label_values({metric}, {label})", "refId": label},
        "definition": f"label_values({metric}, {label})",
        "refresh": 2,
        "includeAll": True,
        "allValue": ".*",
        "multi": True,
        "sort": 1,
        "current": {"text": "All", "value": "$__all"},
    }


def _panels(panels: tuple[Panel, ...]) -> list[dict[str, object]]:
    """Place the panels from left to right, in rows."""
    found: list[dict[str, object]] = []
    x = y = row_height = 0
    for number, panel in enumerate(panels, 1):
        width, height = (STAT_WIDTH, STAT_HEIGHT) if panel.is_stat else (GRAPH_WIDTH, GRAPH_HEIGHT)
        if x + width > COLUMNS or (row_height and height != row_height):
            x, y = 0, y + row_height
        row_height = height
        found.append(_panel(number, panel, {"x": x, "y": y, "w": width, "h": height}))
        x += width
    return found


def _panel(number: int, panel: Panel, position: dict[str, int]) -> dict[str, object]:
    return {
        "id": number,
        "type": "stat" if panel.is_stat else "timeseries",
        "title": panel.title,
        "datasource": _SOURCE,
        "gridPos": position,
        "fieldConfig": {"defaults": {"unit": panel.unit}, "overrides": []},
        "targets": [
            {"refId": letter, "datasource": _SOURCE, "expr": query.expr, "legendFormat": query.legend}
            for letter, query in zip(_LETTERS, panel.queries, strict=False)
        ],
    }
