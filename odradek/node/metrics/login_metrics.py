"""The metrics of logins, refusals and the audit log. PURE."""

from __future__ import annotations

from odradek.node.auditing import Auditing
from odradek.node.metrics.metrics_text import MetricsText

__all__ = ["login_metrics"]


def login_metrics(page: MetricsText, auditing: Auditing) -> None:
    """Add logins by listener and mechanism, refusals by API, and lost lines of the audit log to the page."""
    auditor = auditing.auditor
    logins = sorted(auditor.logins.items())
    page.counter("odradek_logins_total", "Successful logins of clients, and renewals.")
    for (listener, mechanism, is_success), count in logins:
        if is_success:
            page.sample(count, listener=listener, mechanism=mechanism)
    page.counter("odradek_logins_failed_total", "Failed logins of clients, and renewals.")
    for (listener, mechanism, is_success), count in logins:
        if not is_success:
            page.sample(count, listener=listener, mechanism=mechanism)
    page.counter("odradek_denials_total", "Operations on resources that the authorizer has refused.")
    for api, count in sorted(auditor.denials.items()):
        page.sample(count, api=api)
    statistics = auditing.statistics()
    page.gauge("odradek_audit_lines_waiting", "Lines of the audit log that are not written yet.")
    page.one(statistics.get("lines_waiting", 0))
    page.counter("odradek_audit_lines_missing_total", "Lines of the audit log that could not be written.")
    page.one(statistics.get("lines_missing", 0))
    page.counter(
        "odradek_audit_lines_further_total",
        "Lines of the audit log that were left out because there were too many.",
    )
    page.one(statistics.get("lines_further", 0))
