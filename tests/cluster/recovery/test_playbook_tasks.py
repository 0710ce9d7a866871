"""The tasks of the playbook `recover`, run on stopped nodes of this machine over a local connection."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from odradek import Client
from odradek.security.acls.acl_requests import AclFilter
from tests.cluster.recovery.stopped_cluster import Cluster
from tests.cluster.test_real_nodes import create, in_sync, produce, until, values
from tests.deploy.needs import ANSIBLE as ANSIBLE_HOME
from tests.deploy.needs import ROOT

ANSIBLE = ANSIBLE_HOME / "bin"
COLLECTION = ROOT / "deploy" / "ansible"
TASKS = """
- hosts: odradek
  gather_facts: false
  tasks:
    - include_role: {name: odradek.cluster.node, tasks_from: recovering/inspect}
- hosts: odradek[0]
  gather_facts: false
  tasks:
    - include_role: {name: odradek.cluster.node, tasks_from: recovering/plan}
    - assert: {that: node_planned.rc == expected_status | int}
- hosts: odradek
  gather_facts: false
  tasks:
    - include_role: {name: odradek.cluster.node, tasks_from: recovering/carry_out}
      when: odradek_execute | default(false) | bool
"""
PASSWORDS = f"""
- hosts: odradek[0]
  gather_facts: false
  tasks:
    - include_tasks: {ROOT}/deploy/ansible/collections/ansible_collections/odradek/cluster/playbooks/tasks/passwords.yml
"""
CARRY_OUT = """
- hosts: odradek
  gather_facts: false
  tasks:
    - include_role: {name: odradek.cluster.node, tasks_from: recovering/carry_out}
"""

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not (ANSIBLE / "ansible-playbook").exists(), reason="Ansible is not installed"),
    pytest.mark.skipif(os.geteuid() != 0, reason="the tasks give files to a user"),
]


def inventory(cluster: Cluster) -> dict[str, Any]:
    """Make one host for each node, all of them this machine."""
    command = [str(Path(sys.executable).with_name("odradek"))]
    hosts = {
        f"host-{node_id}": {
            "node_recovery": str(cluster.directory / f"recovery-{node_id}"),
            "node_recovery_configs": [str(cluster.properties(node_id))],
        }
        for node_id in cluster.ids
    }
    here = cluster.directory / "here"
    here.mkdir()
    shared = {
        "ansible_connection": "local",
        "ansible_python_interpreter": str(ANSIBLE / "python"),
        "node_user": "root",
        "node_recovery_here": str(here),
        "node_recovery_command": command,
    }
    return {"odradek": {"hosts": hosts, "vars": shared}}


def play(directory: Path, *extra: str, status: int = 0, tasks: str = TASKS) -> str:
    """Run the tasks; return Ansible's output."""
    (directory / "tasks.yml").write_text(tasks)
    words = [word for each in (*extra, f"expected_status={status}") for word in ("-e", each)]
    done = subprocess.run(
        [ANSIBLE / "ansible-playbook", "-i", directory / "inventory.json", directory / "tasks.yml", *words],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "ANSIBLE_CONFIG": str(COLLECTION / "ansible.cfg")},
        cwd=COLLECTION,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_tasks_recover_a_quorum(tmp_path: Path, whole_matrix: bool) -> None:
    """The tasks collect reports, show refusals and the plan, and execute it on each host. No secret stays behind. The
    short form does this in one run."""
    cluster = Cluster.make(tmp_path)
    with cluster.ended():
        cluster.start(1, 2, 3)
        create(cluster.bootstrap, "t", 3)
        produce(cluster.bootstrap, "t", range(20))
        cluster.stop(1, 2, 3)
        cluster.destroy_metadata(1, 2)
        (tmp_path / "inventory.json").write_text(json.dumps(inventory(cluster)))
        lost = f"odradek_lost={cluster.key(1)},{cluster.key(2)}"
        if whole_matrix:
            refused = play(tmp_path, status=1)
            assert f"--lost {cluster.key(1)}" in refused
            planned = play(tmp_path, lost)
            assert "new log from offset" in planned
            assert "plan.new" not in planned.partition("Show what the command printed")[2], (
                "the temporary file must be removed"
            )
            assert not cluster.metadata(1).exists()
        done = play(tmp_path, lost, "odradek_execute=true")
        assert "new log from offset" in done
        left = [path.name for each in cluster.ids for path in (tmp_path / f"recovery-{each}").iterdir()]
        assert left == ["plan.json"] * 3
        cluster.start(1, 2, 3)
        until("all in sync", lambda: in_sync(cluster.bootstrap, "t", 3))
        assert values(cluster.bootstrap, "t") == list(range(20))


def test_the_tasks_rebuild_a_log_with_users_and_rights(tmp_path: Path) -> None:
    """Users, rights and quotas of the inventory come back. Passwords stay out of output and files."""
    settings = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
    }
    cluster = Cluster.make(tmp_path, settings=settings)
    secret = "planted-alice"
    with cluster.ended():
        cluster.start(1, 2, 3)
        create(cluster.bootstrap, "t", 3)
        produce(cluster.bootstrap, "t", range(20))
        cluster.stop(1, 2, 3)
        cluster.destroy_metadata(1, 2, 3)
        hosts = inventory(cluster)
        hosts["odradek"]["vars"] |= {
            "odradek_rebuild": True,
            "odradek_secrets": str(tmp_path / "secrets"),
            "odradek_users": [
                {"name": "alice", "password": secret},
                {"name": "bob"},
                {"name": "eve", "state": "absent"},
            ],
            "odradek_acls": [{"user": "alice", "operation": "read", "topic": "t"}],
            "odradek_quotas": [{"user": "bob", "fetch_rate": "1M"}],
        }
        (tmp_path / "inventory.json").write_text(json.dumps(hosts))
        done = play(tmp_path, "odradek_execute=true", tasks=PASSWORDS + TASKS)
        said = done.partition("Show what the command printed")[2]
        assert "users: 2" in said
        assert "User:alice from host *: READ on TOPIC" in said
        made = (tmp_path / "secrets" / "bob.password").read_text().strip()
        assert len(made) == 32
        for password in (secret, made):
            assert password not in done
            written = [
                each
                for each in tmp_path.rglob("recovery-*/*")
                if password in each.read_text(errors="replace")
            ]
            assert written == []
        cluster.start(1, 2, 3)
        until("all in sync", lambda: in_sync(cluster.bootstrap, "t", 3))
        assert values(cluster.bootstrap, "t") == list(range(20))
        with Client(cluster.bootstrap) as client:
            assert client.admin.describe_user_scram_credentials() == {
                "alice": {"SCRAM-SHA-512": 4096},
                "bob": {"SCRAM-SHA-512": 4096},
            }
            (rule,) = client.admin.describe_acls(AclFilter(1, None, 1, None, None, 1, 1))
            assert str(rule) == "ALLOW User:alice from host *: READ on TOPIC 't'"


def test_blank_disks_get_directories(tmp_path: Path) -> None:
    """A mounted disk without a log directory gets one before the plan is executed. An unmounted disk does not."""
    mounted, away, here = (tmp_path / name for name in ("disks/blank", "disks/away", "here"))
    for each in (mounted, away, here):
        each.mkdir(parents=True)
    (here / "plan.json").write_text("{}")
    hosts = {"alone": {"odradek_mine": [{"id": 1, "disks": ["blank", "away"]}]}}
    shared = {
        "ansible_connection": "local",
        "ansible_python_interpreter": str(ANSIBLE / "python"),
        "node_user": "root",
        "node_disks_root": str(tmp_path / "disks"),
        "node_recovery_here": str(here),
        "node_recovery": str(here.parent),
        "node_recovery_command": ["sh", "-c", "echo '{\"done\": [1]}'"],
    }
    (tmp_path / "inventory.json").write_text(json.dumps({"odradek": {"hosts": hosts, "vars": shared}}))
    mount = ["mount", "--bind", mounted, mounted]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("this machine cannot mount the test disk")
    try:
        play(tmp_path, tasks=CARRY_OUT)
        assert (mounted / "node-1").stat().st_mode & 0o777 == 0o700
        assert not (away / "node-1").exists()
    finally:
        subprocess.run(["umount", mounted], check=True)
