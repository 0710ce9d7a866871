"""Consoles and metrics pages: the inventory's words, the properties that they become, and what nodes would refuse."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from deploy import build_release
from odradek.metadata_quorum.config.java_properties import parse_properties
from odradek.node.configuration.node_config import NodeConfig
from tests.deploy.judging.test_judgement import inventory, judged, problems
from tests.deploy.needs import ANSIBLE, ROOT
from tests.deploy.plugins import COLLECTIONS, plugin

layout = plugin("filter", "layout").layout
releases = plugin("filter", "releases")
ROLE = COLLECTIONS / "ansible_collections/odradek/cluster/roles/node"
STAGES = ("plaintext", "beside", "within", "only")


def told(**values: Any) -> dict[str, dict[str, Any]]:
    """Return an inventory of three hosts with the same additional variables."""
    return {name: each | values for name, each in inventory().items()}


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (
            {"odradek_console": "network"},
            "stork, heron, crane: a console would show the cluster to other machines without logins: set",
        ),
        (
            {"odradek_settings": {"odradek.console.listener": ":9644"}, "odradek_security": "only"},
            "other machines without encryption: set odradek_console to network",
        ),
        (
            {"odradek_host_settings": {"odradek.console.listener": "192.0.2.1:9644"}},
            "to other machines without logins",
        ),
        (
            {
                "odradek_console": "network",
                "odradek_security": "only",
                "odradek_console_client": {"sasl.password": "hunter2"},
            },
            "takes no credentials (sasl.password): remove them from odradek_console_client",
        ),
        (
            {"odradek_console": "loopback", "odradek_console_client": {"ssl.keystore.location": "/k.pem"}},
            "takes no credentials (ssl.keystore.location)",
        ),
        (
            {
                "odradek_console": "network",
                "odradek_security": "only",
                "odradek_console_client": {"security.protocol": "SSL"},
            },
            "without logins",
        ),
        ({"odradek_metrics_access": "login"}, "hosts have certificates only if odradek_security is beside"),
        ({"odradek_console": "public"}, "write one of none, loopback, network"),
        ({"odradek_console": False}, "write one of none, loopback, network"),
        ({"odradek_console_port": 9094, "odradek_console": "loopback"}, "give each a port"),
    ],
)
def test_a_face_that_is_refused(values: dict[str, Any], words: str) -> None:
    """Before any change, one sentence names a console or a page that its node would refuse."""
    found = judged(told(**values))["problems"]
    assert found, values
    assert all(words in each for each in found), found
    assert "hunter2" not in " ".join(found)
    assert len(found) in (1, 3)


@pytest.mark.parametrize(
    "values",
    [
        {"odradek_console": "loopback"},
        {"odradek_settings": {"odradek.console.listener": "[::1]:9644"}},
        *({"odradek_console": "network", "odradek_security": stage} for stage in STAGES[1:]),
        {
            "odradek_console": "network",
            "odradek_security": "only",
            "odradek_metrics_access": "login",
            "odradek_console_client": {"schema.registry.url": "http://registry:8081"},
        },
    ],
)
def test_a_face_that_is_accepted(values: dict[str, Any]) -> None:
    """A console on loopback, or with TLS and logins, is accepted, and its port counts among those of the node."""
    found = told(**values)
    assert problems(found) == []
    ports = plugin("filter", "judgement").listening_ports(layout(found)["nodes"][0], "only")
    assert ports["console"] in (9098, 9644)


def test_a_certificate_that_is_missing() -> None:
    """A roll-out is refused if a file for the console is missing on the control machine."""
    found = told()
    found["heron"]["node_console_judged"] = ["odradek_console_certificate is x, and there is no such file."]
    found["crane"]["node_extra_judged"] = ["the console needs a package from the archive y"]
    assert judged(found)["problems"] == [
        "heron: odradek_console_certificate is x, and there is no such file.",
        "crane: the console needs a package from the archive y",
    ]
    assert judged(found, converges=False)["problems"] == []


def rendered(tmp_path: Path, cases: dict[str, dict[str, Any]]) -> dict[str, dict[str, str]]:
    """Write the properties of the first host of each inventory with the role's template. Return them by case."""
    plans = {name: layout(told(**values)) for name, values in cases.items()}
    items = [
        {
            "name": name,
            "odradek_layout": plan,
            "node": plan["nodes"][0],
            "told": {
                "odradek_names": ["stork", "192.0.2.1"],
                "odradek_console_names": [],
                "odradek_console_client": {},
                "odradek_console_certificate": "",
                **cases[name],
            },
        }
        for name, plan in plans.items()
    ]
    names = sorted({key for each in items for key in each["told"]})  # type: ignore[attr-defined]
    task = {
        "ansible.builtin.template": {
            "src": str(ROLE / "templates/node.properties.j2"),
            "dest": str(tmp_path / "{{ item.name }}.properties"),
        },
        "loop": "{{ items }}",
        "vars": {
            "node": "{{ item.node }}",
            "odradek_layout": "{{ item.odradek_layout }}",
            "node_settings": {},
            "node_scram_secret": "secret",
            "node_console_keys": "/etc/odradek/console.properties",
            **{key: f"{{{{ item.told.{key} }}}}" for key in names},
        },
    }
    play = {
        "hosts": "localhost",
        "gather_facts": False,
        "vars_files": [str(ROLE / "defaults/main.yml")],
        "tasks": [task],
    }
    (tmp_path / "play.yml").write_text(json.dumps([play]))
    (tmp_path / "items.yml").write_text(json.dumps({"items": items}))
    done = subprocess.run(
        [ANSIBLE / "bin" / "ansible-playbook", "-e", "@items.yml", "play.yml"],
        cwd=tmp_path,
        env={
            **os.environ,
            "ANSIBLE_CONFIG": str(ROOT / "deploy/ansible/ansible.cfg"),
            "ANSIBLE_HOME": str(tmp_path / "home"),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return {name: parse_properties((tmp_path / f"{name}.properties").read_text()) for name in cases}


@pytest.mark.long
@pytest.mark.skipif(
    not (ANSIBLE / "bin" / "ansible").exists(), reason="Ansible is not installed (make deploy-tools)"
)
def test_a_node_takes_what_the_role_writes(tmp_path: Path) -> None:
    """A node accepts the console that the role writes at each stage, and asks for logins from `beside` on."""
    cases: dict[str, dict[str, Any]] = {
        f"{place}-{stage}": {
            "odradek_console": place,
            "odradek_security": stage,
            "odradek_metrics_access": access,
        }
        for stage in STAGES
        for place, access in (("none", "open"), ("loopback", "tls"), ("network", "login"))
        if stage != "plaintext" or place == "none"
    }
    cases["more"] = {
        "odradek_console": "network",
        "odradek_security": "only",
        "odradek_console_names": ["console.example.net"],
        "odradek_console_client": {"schema.registry.url": "http://registry:8081"},
        "odradek_console_certificate": "/secrets/console.pem",
    }
    for name, properties in rendered(tmp_path, cases).items():
        config = NodeConfig.judged(properties, lambda path: "")
        assert config.unknown == (), name
        place = name.partition("-")[0]
        if place == "none":
            assert config.console is None
            continue
        assert config.console is not None
        assert config.console.client["security.protocol"] == "SASL_SSL", name
        assert config.console.listener == "SASL_SSL"
        assert (config.console.tls is not None) is (place != "loopback")
        assert ("odradek.metrics.security.protocol" in properties) is (place != "more")
        if place == "network":
            assert config.console.host == "192.0.2.1"
            assert config.console.hosts == ("stork", "192.0.2.1")
        if name == "more":
            assert config.console.hosts == ("stork", "192.0.2.1", "console.example.net")
            assert config.console.tls is not None
            key = "listener.name.console.ssl.keystore.location"
            assert config.console.tls[key] == "/etc/odradek/tls/console.pem"
            assert config.console.client_config == "/etc/odradek/console.properties"
            assert "schema.registry.url" not in properties


def test_a_host_that_lacks_the_package_of_the_console() -> None:
    """A host needs its release again if a console is new in the inventory and the release was installed without it."""
    identity = {"digest": "a" * 64, "commit": "b" * 40}
    bare = {"identities": {"1": identity}, "extras": {"1": []}}
    whole = {"identities": {"1": identity}, "extras": {"1": ["console"]}}
    nodes = [{"host": "stork", "console": {"port": 9098}}, {"host": "heron", "console": None}]
    states = {"stork": bare, "heron": bare}
    assert releases.release_needing("1", states, ["stork", "heron"], nodes) == ["stork"]
    assert releases.release_needing("1", states, ["stork", "heron"]) == []
    assert releases.release_needing("1", states | {"stork": whole}, ["stork"], nodes) == []
    assert releases.release_needing("2", states, ["heron"], nodes) == ["heron"]
    values = {"odradek_host_state": bare, "odradek_release": "1", "odradek_mine": nodes[:1]}
    assert releases.hosts_lacking_extras({"stork": values}) == ["stork"]
    assert releases.hosts_lacking_extras({"stork": values | {"odradek_going_back": True}}) == []
    assert releases.hosts_lacking_extras({"stork": values | {"odradek_release": "2"}}) == []
    assert releases.hosts_lacking_extras({"stork": {"odradek_host_state": {"unreachable": True}}}) == []
    found = plugin("filter", "foreseen").foreseen(
        {
            **values,
            "odradek_host_state": {**bare, "releases": ["1"], "current": "1", "founded": True, "nodes": []},
        },
        {"voters": [], "nodes": []},
    )
    assert found["differences"] == ["the packages of the console would be added to release 1"]


class Refused(Exception):
    """The module has failed with a sentence."""


def _installing(tmp_path: Path, offered: str) -> Any:
    """Return a stand-in for `subprocess.run` that makes environments and installs packages as pip does."""
    commands: list[list[str]] = []

    def run(command: list[str], **_: object) -> object:
        commands.append(command)
        packages = tmp_path / "versions/1.0/lib/python3.11/site-packages"
        if "venv" in command:
            packages.mkdir(parents=True)
        elif "install" in command and offered in command[-1]:
            (packages / "h11-0.16.0.dist-info").mkdir()
            (packages / "h11-0.16.0.dist-info/INSTALLER").write_text("pip\n")
        return SimpleNamespace(returncode=0, stdout="", stderr="")

    return run, commands


def _release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, offered: str) -> tuple[Any, ModuleType, Any]:
    release = plugin("modules", "release", monkeypatch)
    run, commands = _installing(tmp_path, offered)
    monkeypatch.setattr(release.subprocess, "run", run)

    def fail(msg: str) -> None:
        raise Refused(msg)

    params = {"root": str(tmp_path), "signers": [], "identity": None, "extras": []}
    return SimpleNamespace(params=params, fail_json=fail), release, commands


def _archive(tmp_path: Path, name: str = "archive") -> str:
    directory = tmp_path / name
    directory.mkdir()
    wheels = [directory / f"{each}-1.0-py3-none-any.whl" for each in ("odradek", "pip", name)]
    for wheel in wheels:
        wheel.write_text("a wheel")
    return str(build_release.pack(directory / "odradek-1.0.tar", wheels, "1.0"))


def test_the_package_of_the_console_is_added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The extra comes with the release, or is added later to the release from which nodes run, which stays as it is."""
    archive = _archive(tmp_path)
    module, release, commands = _release(tmp_path, monkeypatch, "[console]")
    directory = tmp_path / "versions/1.0"
    release._install(module, "1.0", archive, str(directory))
    assert "odradek==1.0" in commands[1]
    assert release.extras_of(str(tmp_path), "1.0") == []
    (directory / "kept").write_text("of a running node")
    module.params["extras"] = ["console"]
    release._add_extras(module, "1.0", archive, str(directory))
    assert "odradek[console]==1.0" in commands[-2]
    assert commands[-2][0] == str(directory / "bin/python")
    assert release.extras_of(str(tmp_path), "1.0") == ["console"]
    assert (directory / "kept").exists()
    assert [each.name for each in directory.parent.iterdir()] == ["1.0"]
    another = _archive(tmp_path, "another")
    with pytest.raises(Refused, match="the archive is another release"):
        release._add_extras(module, "1.0", another, str(directory))


def test_a_release_without_a_console(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a release does not offer the extra, the installation fails with a sentence, and counts as incomplete."""
    archive = _archive(tmp_path)
    module, release, _ = _release(tmp_path, monkeypatch, "nothing")
    module.params["extras"] = ["console"]
    with pytest.raises(Refused, match=r"Release 1\.0 has no console: set odradek_console to none"):
        release._install(module, "1.0", archive, str(tmp_path / "versions/1.0"))
    assert not release.is_installed(str(tmp_path), "1.0")
