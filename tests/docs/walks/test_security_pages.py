"""docs/security.md and its neighbouring pages: their commands are valid, and each configuration key exists."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import attrs
import pytest

from odradek.cli.__main__ import build_parser
from odradek.client.core.client_keys import AdminSettings
from odradek.env.real_tls import open_tls
from odradek.env.tls_ports import TlsSettings
from odradek.metadata_quorum.config.config_defs import broker_defs
from odradek.node.configuration.node_config import NodeConfig
from odradek.node.configuration.own_keys import OWN_DEFS
from tests.docs.log_events import EVENT
from tests.docs.markdown import ROOT, blocks

PAGES = ("docs/security.md", "docs/acls.md", "docs/logins.md")
AUTHORIZER_KEYS = dict.fromkeys(("super.users", "allow.everyone.if.no.acl.found"))
"""Authorizer keys that Kafka defines outside its table of keys."""
PREFIX = re.compile(
    r"^(odradek\.controller\.|listener\.name\.\w+\.((plain|scram-sha-\d+|oauthbearer)\.)?)", re.I
)
FILES = ("audit.log", "audit-refusals.log")
STEPS = "docs/security.md"


def _lines(page: str) -> list[str]:
    """Return the lines of all blocks of a page, fenced or indented."""
    text = (ROOT / page).read_text()
    fenced = [
        line for block in re.findall(r"^```\w*\n(.*?)^```$", text, re.M | re.S) for line in block.splitlines()
    ]
    return fenced + [line.strip() for line in text.splitlines() if re.match(r" {4,}\S", line)]


@pytest.mark.parametrize("page", PAGES[:2])
def test_every_command_of_a_block_can_be_given(page: str) -> None:
    """The command line accepts each command exactly as the page shows it."""
    commands = [line for line in _lines(page) if line.startswith("odradek ")]
    assert len(commands) > 4
    for command in commands:
        words = shlex.split(re.split(r"\s{3,}", command)[0])[1:]
        build_parser().parse_args(words)


def test_every_key_of_a_block_is_one() -> None:
    """Each key that the pages set is a key of a node or a client."""
    known = set(broker_defs() | OWN_DEFS | AUTHORIZER_KEYS)
    client = {each.name.replace("_", ".") for each in attrs.fields(AdminSettings)}
    keys = {
        (page, match[1])
        for page in PAGES
        for line in _lines(page)
        if (match := re.match(r"([a-z][\w-]*(?:\.[\w-]+)+)=", line))
    }
    assert len(keys) > 20
    for page, key in sorted(keys):
        plain = PREFIX.sub("", key)
        assert plain in known or plain in client, f"{page}: {key}"


def test_the_steps_to_secured_listeners_are_files_of_a_node(tmp_path: Path) -> None:
    """A plaintext node's file stays valid after each of the page's steps towards secured listeners."""
    keys = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.bootstrap.servers": "host1:9093",
        "log.dirs": str(tmp_path),
    }
    steps = blocks(STEPS, "properties")
    assert len(steps) == 2
    for step in steps:
        keys |= dict(line.split("=", 1) for line in step.code.splitlines())
        path = tmp_path / "server.properties"
        path.write_text("".join(f"{key}={value}\n" for key, value in keys.items()))
        config = NodeConfig.load(str(path))
        assert not config.warnings
        assert config.security["SASL_SSL"].tls is not None


def test_the_recipe_makes_a_certificate_of_a_node(tmp_path: Path) -> None:
    """With the commands for a private authority, a node gets a certificate that a client accepts."""
    (recipe,) = blocks(STEPS, "sh")
    subprocess.run(["bash", "-ec", recipe.code], check=True, cwd=tmp_path, capture_output=True)
    own = TlsSettings(keystore_type="PEM", keystore_location=str(tmp_path / "node.pem"))
    others = TlsSettings(truststore_type="PEM", truststore_location=str(tmp_path / "authority.pem"))
    server, client = open_tls(own).server_session(), open_tls(others).client_session("192.0.2.1")
    for _ in range(4):
        for one, other in ((client, server), (server, client)):
            is_done = one.handshake()
            other.feed(one.take())
    assert is_done


def test_every_metric_and_event_that_they_name_is_there() -> None:
    """Each metric, event and key of ours on the pages is explained in docs/metrics.md, docs/logs.md or
    docs/configuration.md."""
    metrics, logs, keys = (
        (ROOT / f"docs/{page}.md").read_text() for page in ("metrics", "logs", "configuration")
    )
    named = {code for page in PAGES for code in re.findall(r"`([\w.]+)`", (ROOT / page).read_text())}
    shown = [code for code in named if code.startswith("odradek_")]
    said = [
        code for code in named if EVENT.fullmatch(code) and code.startswith(("tls.", "audit.", "secret."))
    ]
    own = [code for code in named if code.startswith("odradek.") and code in OWN_DEFS]
    assert min(len(shown), len(said), len(own)) > 3
    # Some names that begin like metrics are variables of the playbooks.
    deploy = (ROOT / "docs/deploy.md").read_text()
    assert [code for code in shown if code not in metrics and code not in deploy] == []
    assert [code for code in said if code not in FILES and f"`{code}`" not in logs] == []
    assert [code for code in own if f"`{code}`" not in keys] == []
