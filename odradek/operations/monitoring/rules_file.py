"""The alerts as a file of rules for Prometheus, in YAML. PURE.

Texts are written as JSON writes them, which YAML reads, too. So no library is needed.
"""

from __future__ import annotations

import json

from odradek.operations.monitoring.alerts import ALERTS, JOB, Alert

__all__ = ["RUNBOOKS", "rules_file"]

RUNBOOKS = "docs/operations.md"
"""The page with the runbooks, unless the operator names the address of another copy."""
_HEAD = """\
# Alert rules for nodes of Odradek, written by `odradek generate prometheus-rules`.
groups:
  - name: odradek
    rules:
"""


def rules_file(job: str = "odradek", runbooks: str = RUNBOOKS) -> str:
    """Write the file. `job` is the scrape job of the nodes. `runbooks` is the address of docs/operations.md, without the
    heading.
    """
    return _HEAD + "".join(_rule(alert, job, runbooks) for alert in ALERTS)


def _rule(alert: Alert, job: str, runbooks: str) -> str:
    selector = f"{{job={json.dumps(job)}}}"
    lines = [
        f"- alert: {alert.name}",
        f"  expr: {json.dumps(alert.expr.replace(JOB, selector))}",
        *([f"  for: {alert.for_seconds}s"] if alert.for_seconds else []),
        f"  labels: {{severity: {alert.severity}}}",
        "  annotations:",
        f"    summary: {json.dumps(alert.summary)}",
        f"    runbook_url: {json.dumps(f'{runbooks}#{alert.anchor}')}",
    ]
    return "".join(f"      {line}\n" for line in lines)
