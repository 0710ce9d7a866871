"""The files for Prometheus and Grafana: targets of all nodes, and the role that writes them where they are wanted."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.judging.test_judgement import inventory
from tests.deploy.needs import ANSIBLE, ROOT
from tests.deploy.plugins import plugin

layout = plugin("filter", "layout").layout
monitoring = plugin("filter", "monitoring")
DASHBOARDS = ("client", "cluster", "disks", "group", "topic")


def plan(**values: Any) -> dict[str, Any]:
    """Return the plan of three hosts with these variables."""
    found: dict[str, Any] = layout({name: each | values for name, each in inventory().items()})
    return found


def files(told: dict[str, Any], user: str = "") -> dict[str, str]:
    return {each["name"]: each["content"] for each in monitoring.monitoring_files(told, "odradek", user)}


def test_each_node_is_a_target() -> None:
    """The targets are the metrics pages of all nodes, with the names of cluster and host, in the form of file_sd."""
    targets = json.loads(files(plan())["targets.json"])
    assert [each["targets"] for each in targets] == [[f"192.0.2.{number}:9094"] for number in (1, 2, 3)]
    assert targets[1]["labels"] == {
        "cluster": "4L6g3nShT-eMCtK--X86sw",
        "host": "heron",
        "__scheme__": "http",
    }
    assert "tls_config" not in files(plan())["scrape.yml"]


@pytest.mark.parametrize(
    ("listener", "target"),
    [
        (":9700", "192.0.2.1:9700"),
        ("0.0.0.0:9700", "192.0.2.1:9700"),
        ("[::]:9700", "192.0.2.1:9700"),
        ("[fd00::1]:9700", "[fd00::1]:9700"),
        ("stork.example.net:9700", "stork.example.net:9700"),
    ],
)
def test_a_listener_of_the_settings(listener: str, target: str) -> None:
    """If settings place the page elsewhere, the target is where Prometheus reaches it."""
    told = plan(odradek_host_settings={"odradek.metrics.listener": listener})
    assert json.loads(files(told)["targets.json"])[0]["targets"] == [target]


def test_pages_with_logins() -> None:
    """Pages with TLS and logins need a user. A password is only sent by TLS."""
    told = plan(odradek_security="only", odradek_metrics_access="login")
    assert "stork" in monitoring.scrape_problem(told)
    assert "name a user of odradek_users" in monitoring.scrape_problem(told)
    assert monitoring.scrape_problem(told, "scraper") == ""
    found = files(told, "scraper")
    assert json.loads(found["targets.json"])[0]["labels"]["__scheme__"] == "https"
    assert 'basic_auth: {username: "scraper", password_file: scraper.password}' in found["scrape.yml"]
    assert "tls_config: {ca_file: authority.pem}" in found["scrape.yml"]
    assert "are not encrypted, so no password may go there" in monitoring.scrape_problem(plan(), "scraper")


class Role:
    """The role on this machine, beside a release that is this tree."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.out = directory / "prometheus"
        (directory / "current/bin").mkdir(parents=True)
        program = directory / "current/bin/odradek"
        program.write_text(f'#!/bin/sh\nexec {sys.executable} -m odradek "$@"\n')
        program.chmod(0o755)
        (directory / "programs").mkdir()
        (directory / "inventory").write_text("localhost ansible_connection=local\n")
        (directory / "authority.pem").write_text("an authority\n")
        (directory / "scraper.password").write_text("hunter2")

    def promtool(self, status: int) -> None:
        """Put a stand-in for promtool on the path, which accepts everything or nothing."""
        path = self.directory / "programs/promtool"
        path.write_text(f'#!/bin/sh\necho "$@" >>{self.directory}/asked\necho no good >&2\nexit {status}\n')
        path.chmod(0o755)

    def run(self, told: dict[str, Any], *words: str, **values: Any) -> subprocess.CompletedProcess[str]:
        variables = {
            "odradek_layout": told,
            "odradek_operator": "localhost",
            "node_root": str(self.directory),
            "odradek_secrets": str(self.directory),
            "odradek_monitoring_directory": str(self.out),
            "ansible_python_interpreter": sys.executable,
            **values,
        }
        include = {"ansible.builtin.include_role": {"name": "odradek.cluster.monitoring"}, "run_once": True}
        play = {"hosts": "localhost", "gather_facts": False, "tasks": [include]}
        (self.directory / "play.yml").write_text(json.dumps([play]))
        (self.directory / "variables.yml").write_text(json.dumps(variables))
        return subprocess.run(
            [
                ANSIBLE / "bin" / "ansible-playbook",
                "-i",
                "inventory",
                "-e",
                "@variables.yml",
                *words,
                "play.yml",
            ],
            cwd=self.directory,
            env={
                **os.environ,
                "ANSIBLE_CONFIG": str(ROOT / "deploy/ansible/ansible.cfg"),
                "ANSIBLE_HOME": str(self.directory / "home"),
                "PATH": f"{self.directory}/programs:{os.environ['PATH']}",
                "PYTHONPATH": str(ROOT),
            },
            capture_output=True,
            text=True,
            check=False,
        )


def changed(done: subprocess.CompletedProcess[str]) -> int:
    """Return how many tasks have changed something. The run must have succeeded."""
    assert done.returncode == 0, done.stdout + done.stderr
    (count,) = re.findall(r"changed=(\d+)", done.stdout)
    return int(count)


@pytest.mark.long
@pytest.mark.skipif(
    not (ANSIBLE / "bin" / "ansible").exists(), reason="Ansible is not installed (make deploy-tools)"
)
def test_the_role_writes_the_files_once(tmp_path: Path) -> None:
    """A run writes all files, and a second run changes nothing. A check and a refusal only report."""
    role, told = Role(tmp_path), plan()
    role.promtool(1)
    refused = role.run(told)
    assert refused.returncode != 0
    assert "no good" in refused.stdout
    assert not role.out.exists()
    role.promtool(0)
    shown = role.run(told, "--check", "--diff")
    assert changed(shown) == 1
    assert "192.0.2.3:9094" in shown.stdout
    assert not role.out.exists()
    assert changed(role.run(told)) == 1
    assert changed(role.run(told)) == 0
    written = {str(path.relative_to(role.out)) for path in role.out.rglob("*") if path.is_file()}
    boards = {f"dashboards/odradek-{name}.json" for name in DASHBOARDS}
    assert written == {"targets.json", "scrape.yml", "odradek-rules.yml", *boards}
    assert "alert: OdradekGroupLags" in (role.out / "odradek-rules.yml").read_text()
    assert json.loads((role.out / "dashboards/odradek-topic.json").read_text())["panels"]
    asked = (tmp_path / "asked").read_text()
    assert "check rules" in asked
    assert "check config" in asked


@pytest.mark.long
@pytest.mark.skipif(
    not (ANSIBLE / "bin" / "ansible").exists(), reason="Ansible is not installed (make deploy-tools)"
)
def test_the_role_writes_keys_for_pages_with_logins(tmp_path: Path) -> None:
    """With logins, authority and password are written, too. The password stays hidden, and only the group may read it."""
    role, told = Role(tmp_path), plan(odradek_security="only", odradek_metrics_access="login")
    role.promtool(0)
    assert "name a user of odradek_users" in role.run(told).stdout
    unknown = role.run(told, odradek_monitoring_user="nobody")
    assert unknown.returncode != 0
    assert not role.out.exists()
    done = role.run(told, "-vvvv", "--diff", odradek_monitoring_user="scraper")
    assert changed(done) == 1
    assert "hunter2" not in done.stdout + done.stderr
    assert (role.out / "scraper.password").read_text() == "hunter2\n"
    assert (role.out / "scraper.password").stat().st_mode & 0o777 == 0o640
    assert (role.out / "authority.pem").read_text() == "an authority\n"
    elsewhere = role.run(told, odradek_monitoring_user="scraper", odradek_monitoring_host="nowhere")
    assert "odradek_monitoring_host is nowhere, which the inventory lacks" in elsewhere.stdout
