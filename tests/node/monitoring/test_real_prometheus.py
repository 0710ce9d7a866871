"""A real Prometheus scrapes three real nodes: each panel has data, and a killed node fires the right alerts alone."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer

from odradek.operations.monitoring.dashboards import DASHBOARDS
from odradek.operations.monitoring.rules_file import rules_file
from testkit.processes import base_port, free_ports, spawn
from tests.cli.nodes.test_dev import line, running
from tests.cli.running import odradek_here
from tests.node.monitoring.prometheus_tools import promtool, tool

pytestmark = [pytest.mark.xdist_group("cluster"), pytest.mark.long]
PATIENCE_SECONDS = 120.0
SHORTER = 60
"""The times of the alerts are divided by this number."""
MACHINE = {"OdradekLoopLate", "OdradekCoreUsedUp"}
"""Alerts that say something about the machine of the tests."""
KILLED = {"OdradekNodeDown", "OdradekBrokerFenced", "OdradekUnderReplicated", "OdradekOfflinePartitions"}
"""The alerts for a killed node, while a topic has replicas on that node alone. The alert about a silent voter comes after a minute."""
LATER = {"OdradekVoterSilent"}
QUICK = "broker.session.timeout.ms=2000\nbroker.heartbeat.interval.ms=200\n"


class Prometheus:
    """A running Prometheus."""

    def __init__(self, port: int) -> None:
        self._address = f"http://127.0.0.1:{port}"

    def get(self, path: str) -> bytes:
        with urllib.request.urlopen(f"{self._address}{path}", timeout=30) as answer:
            data: bytes = answer.read()
            return data

    def query(self, expr: str) -> list[dict[str, Any]]:
        """Run a query at the present moment; return its series."""
        answer = json.loads(self.get(f"/api/v1/query?{urllib.parse.urlencode({'query': expr})}"))
        assert answer["status"] == "success", answer
        found: list[dict[str, Any]] = answer["data"]["result"]
        return found

    def firing(self) -> set[str]:
        found = self.query('ALERTS{alertstate="firing"}')
        return {each["metric"]["alertname"] for each in found} - MACHINE


def until(what: str, look: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not look():
        assert time.monotonic() < deadline, what
        time.sleep(0.2)


@contextmanager
def prometheus(directory: Path, targets: list[str]) -> Iterator[Prometheus]:
    """Run a Prometheus that scrapes these pages each second, with our rules in a shorter time."""
    (port,) = free_ports(1)
    rules = re.sub(r"for: (\d+)s", lambda each: f"for: {max(1, int(each[1]) // SHORTER)}s", rules_file())
    (directory / "rules.yml").write_text(rules)
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(directory / "rules.yml")],
        "scrape_configs": [{"job_name": "odradek", "static_configs": [{"targets": targets}]}],
    }
    path = directory / "prometheus.yml"
    path.write_text(json.dumps(config))
    code, said = promtool(("check", "config", str(path)))
    assert code == 0, said
    server = spawn(
        "Prometheus",
        [
            tool("prometheus"),
            f"--config.file={path}",
            f"--storage.tsdb.path={directory / 'tsdb'}",
            f"--web.listen-address=127.0.0.1:{port}",
        ],
        bootstrap="",
        log_path=directory / "prometheus.log",
    )
    try:
        found = Prometheus(port)
        until("Prometheus answers", lambda: _answers(found))
        yield found
    finally:
        server.stop()


def _answers(server: Prometheus) -> bool:
    try:
        return b"Ready" in server.get("/-/ready")
    except OSError:
        return False


class Traffic:
    """A producer and a consumer of librdkafka that push metrics, have a quota, and commit offsets."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        common = {"bootstrap.servers": self._bootstrap, "client.id": "cook"}
        producer = Producer(common)
        consumer = Consumer({**common, "group.id": "kitchen", "auto.offset.reset": "earliest"})
        consumer.subscribe(["orders", "far"])
        while not self._ended.wait(0.02):
            producer.produce("orders", b"x" * 100)
            producer.produce("far", b"x" * 100)
            producer.poll(0)
            consumer.poll(0.01)
        consumer.close()

    def close(self) -> None:
        self._ended.set()
        self._thread.join()


@contextmanager
def cluster(directory: Path) -> Iterator[tuple[str, dict[int, int], list[str]]]:
    """Run three nodes. Yield the address, the process ids by node, and the addresses of the pages."""
    port = base_port(3)
    for node in (1, 2, 3):
        (directory / f"node-{node}.properties").write_text(QUICK)
    words = ("dev", "--nodes", "3", "--port", str(port), "--data", directory)
    with running(*words, stop=signal.SIGINT) as dev:
        pids, pages = {}, []
        for _ in range(3):
            told = dict(word.split("=", 1) for word in line(dev.stdout).split())
            pids[int(told["node"])] = int(told["pid"])
            pages.append(told["metrics"].removeprefix("http://").removesuffix("/metrics"))
        assert line(dev.stdout) == "ready"
        yield ",".join(f"127.0.0.1:{port + each}" for each in range(3)), pids, pages


def expressions() -> dict[str, str]:
    """Return the query of each panel with values for its variables, by dashboard, title and number."""
    found = {}
    for dashboard in DASHBOARDS.values():
        for panel in dashboard.panels:
            for number, query in enumerate(panel.queries):
                expr = query.expr.replace("$__rate_interval", "10s")
                name = f"{dashboard.name}: {panel.title} {number}"
                found[name] = re.sub(r"\$(job|topic|group|client_id)\b", ".*", expr)
    return found


def test_panels_have_data_and_a_killed_node_fires_its_alerts(tmp_path: Path) -> None:
    """Three nodes under traffic: each query of each panel has data, and no alert fires. After `kill -9` of a node exactly the
    alerts for it fire."""
    tool("prometheus")
    with ExitStack() as stack:
        bootstrap, pids, pages = stack.enter_context(cluster(tmp_path))

        def run(*words: str) -> str:
            done = odradek_here(*words, bootstrap=bootstrap)
            assert done.code == 0, done.err
            return done.out

        run("topic", "create", "orders", "--partitions", "6", "--replication-factor", "3")
        run("topic", "create", "far", "--partitions", "6", "--replication-factor", "1")
        run("config", "set", "client-metrics", "all", "interval.ms=1000", "metrics=*")
        run("quota", "set", "--client-id", "cook", "--produce-rate", "10M", "--fetch-rate", "10M")
        traffic = Traffic(bootstrap)
        stack.callback(traffic.close)
        for page in pages:
            with urllib.request.urlopen(f"http://{page}/ready", timeout=30) as answer:
                assert answer.read() == b"ready\n"
        server = stack.enter_context(prometheus(tmp_path, pages))
        queries = expressions()
        odradek_here("topic", "describe", "unknown", bootstrap=bootstrap)

        def without_data() -> list[str]:
            return [name for name, expr in queries.items() if not server.query(expr)]

        left = list(queries)

        def have_all() -> bool:
            left[:] = without_data()
            return not left

        try:
            until("each panel has data", have_all)
        except AssertionError as error:
            raise AssertionError(f"panels without data: {left}") from error
        assert server.firing() == set()
        lags = server.query('odradek_group_lag_records{group="kitchen"}')
        assert {each["metric"]["topic"] for each in lags} == {"orders", "far"}
        assert all(each["value"][1] == "0" for each in server.query("odradek_group_lag_unknown_partitions"))
        (active,) = server.query("odradek_active_controller == 1")
        killed = next(node for node in pids if pages[node - 1] != active["metric"]["instance"])
        os.kill(pids[killed], signal.SIGKILL)
        until(
            f"the alerts of a killed node fire: {server.firing()}", lambda: server.firing() - LATER >= KILLED
        )
        assert server.firing() - LATER == KILLED
