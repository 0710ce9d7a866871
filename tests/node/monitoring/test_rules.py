"""The alert rules: promtool takes them, each fires for its trouble and leads to its runbook, and a sound cluster is silent."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from odradek.operations.monitoring.alerts import ALERTS, JOB, Alert
from odradek.operations.monitoring.rules_file import RUNBOOKS, rules_file
from tests.docs.markdown import ROOT
from tests.node.monitoring.prometheus_tools import promtool
from tests.node.test_metrics import DOCUMENT

MINUTES = 90
WHOLE = f"x{MINUTES}"
"""The repetition of a value for the whole time."""
NODE = 'job="odradek",instance="node1:9592"'
DIRECTORY = f'{NODE},directory="/d"'
SOUND = {
    f"up{{{NODE}}}": "1x90",
    f"odradek_active_controller{{{NODE}}}": "1x90",
    f"odradek_cluster_offline_partitions{{{NODE}}}": "0x90",
    f"odradek_under_min_isr_partitions{{{NODE}}}": "0x90",
    f"odradek_active_controller_unclean_elections_total{{{NODE}}}": "3x90",
    f"odradek_rotten_partitions{{{NODE}}}": "0x90",
    f"odradek_directory_offline{{{DIRECTORY}}}": "0x90",
    f"odradek_directory_hung{{{DIRECTORY}}}": "0x90",
    f"odradek_directory_full{{{DIRECTORY}}}": "0x90",
    f"odradek_directory_short{{{DIRECTORY}}}": "0x90",
    f"odradek_directory_time_left_seconds{{{DIRECTORY}}}": "-1x90",
    f"odradek_under_replicated_partitions{{{NODE}}}": "0x90",
    f"odradek_reassigning_partitions{{{NODE}}}": "0x90",
    f"odradek_cluster_fenced_brokers{{{NODE}}}": "0x90",
    f'odradek_quorum_voter_silent_seconds{{{NODE},voter="2"}}': "0.3x90",
    f'odradek_group_lag_seconds{{{NODE},group="g",topic="t"}}': "12x90",
    f"odradek_group_lag_seconds_max{{{NODE}}}": "12x90",
    f'odradek_transaction_age_seconds{{{NODE},partition="1"}}': "3x90",
    f'odradek_loop_late_seconds_bucket{{{NODE},le="0.001"}}': "0+240x90",
    f'odradek_loop_late_seconds_bucket{{{NODE},le="1.0"}}': "0+240x90",
    f'odradek_loop_late_seconds_bucket{{{NODE},le="+Inf"}}': "0+240x90",
    f"odradek_cpu_seconds_total{{{NODE}}}": "0+20x90",
    f"odradek_receive_buffer_bytes{{{NODE}}}": "5x90",
    f"odradek_receive_buffer_limit_bytes{{{NODE}}}": "100x90",
    f'odradek_certificate_time_left_seconds{{{NODE},listener="SSL"}}': "8000000x90",
    f'odradek_certificate_reload_failures_total{{{NODE},listener="SSL"}}': "1x90",
    f"odradek_directory_is_slow{{{DIRECTORY}}}": "0x90",
    f"odradek_directory_scrub_rotten_total{{{DIRECTORY}}}": "0x90",
    f"odradek_directory_scrub_ended_timestamp_seconds{{{DIRECTORY}}}": "-1x90",
    f"odradek_cleaner_uncleanable_partitions{{{NODE}}}": "0x90",
    f"odradek_directory_given_up_moves_total{{{NODE}}}": "2x90",
    f"odradek_metadata_errors_total{{{NODE}}}": "0x90",
    f"odradek_audit_lines_missing_total{{{NODE}}}": "0x90",
}
"""The series of a sound node, one value a minute for an hour and a half."""
DAY = 86_400
TROUBLES: dict[str, list[tuple[str, str]]] = {
    "OdradekNodeDown": [("up", "0x90")],
    "OdradekNoActiveController": [("odradek_active_controller", "0x90")],
    "OdradekOfflinePartitions": [("odradek_cluster_offline_partitions", "2x90")],
    "OdradekUnderMinIsr": [("odradek_under_min_isr_partitions", "1x90")],
    "OdradekUncleanElection": [("odradek_active_controller_unclean_elections_total", "3x85 4x5")],
    "OdradekRottenPartitions": [("odradek_rotten_partitions", "1x90")],
    "OdradekDirectoryFailed": [("odradek_directory_hung", "1x90")],
    "OdradekDirectoryFull": [("odradek_directory_short", "1x90")],
    "OdradekDirectoryFills": [("odradek_directory_time_left_seconds", "7200x90")],
    "OdradekUnderReplicated": [("odradek_under_replicated_partitions", "4x90")],
    "OdradekBrokerFenced": [("odradek_cluster_fenced_brokers", "1x90")],
    "OdradekVoterSilent": [("odradek_quorum_voter_silent_seconds", "61+60x90")],
    "OdradekGroupLags": [("odradek_group_lag_seconds", "601x90")],
    "OdradekUnnamedGroupLags": [("odradek_group_lag_seconds_max", "601x90")],
    "OdradekTransactionHangs": [("odradek_transaction_age_seconds", "901+60x90")],
    "OdradekLoopLate": [("odradek_loop_late_seconds_bucket", "0+1x90")],
    "OdradekCoreUsedUp": [("odradek_cpu_seconds_total", "0+60x90")],
    "OdradekReceiveBuffersFull": [("odradek_receive_buffer_bytes", "95x90")],
    "OdradekCertificateEndsSoon": [("odradek_certificate_time_left_seconds", f"{2 * DAY}x90")],
    "OdradekCertificateEnds": [("odradek_certificate_time_left_seconds", f"{10 * DAY}x90")],
    "OdradekCertificateNotReloaded": [("odradek_certificate_reload_failures_total", "1x80 2x10")],
    "OdradekDirectorySlow": [("odradek_directory_is_slow", "1x90")],
    "OdradekScrubFoundRot": [("odradek_directory_scrub_rotten_total", "0x80 1x10")],
    "OdradekScrubStandsStill": [("odradek_directory_scrub_ended_timestamp_seconds", "1x90")],
    "OdradekUncleanablePartitions": [("odradek_cleaner_uncleanable_partitions", "1x90")],
    "OdradekMoveGivenUp": [("odradek_directory_given_up_moves_total", "2x80 3x10")],
    "OdradekMetadataUnreadable": [("odradek_metadata_errors_total", "1x90")],
    "OdradekAuditLinesMissing": [("odradek_audit_lines_missing_total", "0x80 5x10")],
}
"""For each alert the series that differ from a sound node."""
WITH = {"OdradekCertificateEndsSoon": {"OdradekCertificateEnds"}}
"""Alerts that others come with."""


def series_in(trouble: str) -> dict[str, str]:
    """Return the series of a node with this trouble."""
    found = dict(SOUND)
    for metric, values in TROUBLES[trouble]:
        (*_, name) = [each for each in found if each.partition("{")[0] == metric]
        if metric == "odradek_loop_late_seconds_bucket":
            # Most turns are late by more than the bound of the first bucket.
            name = next(each for each in found if 'le="0.001"' in each)
        found[name] = values
    return found


def test_promtool_takes_the_rules(tmp_path: Path) -> None:
    """`promtool check rules` with all lints takes the file, also with another job and address."""
    for number, text in enumerate((rules_file(), rules_file('a "b"', "https://wiki/odradek"))):
        path = tmp_path / f"{number}.yml"
        path.write_text(text)
        code, said = promtool(("check", "rules", "--lint=all", "--lint-fatal", str(path)))
        assert code == 0, said
        assert f"{len(ALERTS)} rules found" in said


@pytest.mark.long
def test_each_alert_fires_for_its_trouble(tmp_path: Path) -> None:
    """promtool's tests of rules: each alert fires for its trouble, after its time, with no other. A sound node is silent."""
    (tmp_path / "rules.yml").write_text(rules_file())
    names = [alert.name for alert in ALERTS]
    assert sorted(TROUBLES) == sorted(names), "each alert has a trouble here, and no other has"
    tests = [_test("sound", SOUND, dict.fromkeys(names, False))]
    for alert in ALERTS:
        if alert.name == "OdradekScrubStandsStill":
            # The clock of promtool begins in 1970, and has to be two weeks later.
            continue
        fires = {alert.name} | WITH.get(alert.name, set())
        tests.append(_test(alert.name, series_in(alert.name), {name: name in fires for name in names}))
    document = {"rule_files": ["rules.yml"], "evaluation_interval": "1m", "tests": tests}
    (tmp_path / "test.yml").write_text(json.dumps(document))
    code, said = promtool(("test", "rules", str(tmp_path / "test.yml")))
    assert code == 0, said


def _test(name: str, series: dict[str, str], fires: dict[str, bool]) -> dict[str, object]:
    """Make a test of promtool: which of the alerts fire at the end. The number of those that do is compared."""
    return {
        "name": name,
        "interval": "1m",
        "input_series": [{"series": each, "values": values} for each, values in series.items()],
        "promql_expr_test": [
            {
                "expr": f'count(count by (alertname) (ALERTS{{alertstate="firing",alertname="{alert}"}})) or vector(0)',
                "eval_time": f"{MINUTES}m",
                "exp_samples": [{"labels": "{}", "value": int(is_firing)}],
            }
            for alert, is_firing in fires.items()
        ],
    }


@pytest.mark.long
def test_a_scrub_that_stands_still(tmp_path: Path) -> None:
    """The alert about an old scrub fires after two weeks, by a clock that goes by days."""
    (tmp_path / "rules.yml").write_text(rules_file())
    (name,) = TROUBLES["OdradekScrubStandsStill"]
    tests = []
    for days, is_firing in ((13, False), (16, True)):
        test = _test(
            f"{days} days", {f"{name[0]}{{{DIRECTORY}}}": name[1]}, {"OdradekScrubStandsStill": is_firing}
        )
        text = (
            json.dumps(test)
            .replace(f'"{MINUTES}m"', f'"{days}d"')
            .replace('"interval": "1m"', '"interval": "1d"')
        )
        tests.append(json.loads(text))
    document = {"rule_files": ["rules.yml"], "evaluation_interval": "1d", "tests": tests}
    (tmp_path / "test.yml").write_text(json.dumps(document))
    code, said = promtool(("test", "rules", str(tmp_path / "test.yml")))
    assert code == 0, said


@pytest.mark.long
def test_a_brief_trouble_is_no_alarm(tmp_path: Path) -> None:
    """An alert with a time waits for it: a trouble of half the time fires nothing."""
    (tmp_path / "rules.yml").write_text(rules_file())
    waiting = [alert for alert in ALERTS if alert.for_seconds >= 120]
    assert len(waiting) > 8
    tests = []
    for alert in waiting:
        minutes = alert.for_seconds // 60 // 2
        series = dict(SOUND)
        for name, values in series_in(alert.name).items():
            if values != SOUND[name] and WHOLE in values and "+" not in values:
                series[name] = (
                    f"{SOUND[name].replace(WHOLE, f'x{MINUTES - minutes}')} {values.replace(WHOLE, f'x{minutes}')}"
                )
        tests.append(_test(alert.name, series, {alert.name: False}))
    document = {"rule_files": ["rules.yml"], "evaluation_interval": "1m", "tests": tests}
    (tmp_path / "test.yml").write_text(json.dumps(document))
    code, said = promtool(("test", "rules", str(tmp_path / "test.yml")))
    assert code == 0, said


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert.name)
def test_an_alert_leads_to_its_runbook(alert: Alert) -> None:
    """The link of each alert leads to a heading of docs/operations.md, and its metrics are in docs/metrics.md."""
    titles = re.findall(r"(?m)^## (.+)$", (ROOT / RUNBOOKS).read_text())
    assert alert.anchor in {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
    documented = set(re.findall(r"(?m)^\| `(odradek_\w+)` \|", DOCUMENT.read_text()))
    named = {name.removesuffix("_bucket") for name in re.findall(r"odradek_\w+", alert.expr.replace(JOB, ""))}
    assert named <= documented
    assert alert.severity in ("critical", "warning", "info")


def test_operations_lists_each_alert() -> None:
    """docs/operations.md has a row for each alert, with its urgency, in the order of the rules."""
    words = {"critical": "at once", "warning": "today", "info": "this week"}
    rows = re.findall(r"(?m)^\| `(Odradek\w+)` \| ([\w ]+) \|", (ROOT / RUNBOOKS).read_text())
    assert rows == [(alert.name, words[alert.severity]) for alert in ALERTS]
