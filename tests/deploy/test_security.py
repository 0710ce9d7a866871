"""Decisions of the modules for certificates, users and rights; certificates are made by openssl itself."""

from __future__ import annotations

import shutil
import ssl
import stat
import subprocess
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.deploy.plugins import plugin

NAMES = ["stork", "192.0.2.11"]
NODE = "odradek-node"


@pytest.fixture
def certificates(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    return plugin("modules", "certificates", monkeypatch)


@pytest.fixture
def access(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return plugin("modules", "access", monkeypatch)


def test_a_certificate_is_made_once(certificates: ModuleType, tmp_path: Path) -> None:
    """What is sound stays; other names, another authority and an end that is near are reasons for a new one."""
    directory = str(tmp_path)
    certificates.make_authority(directory, NODE)
    assert certificates.what_is_wrong(directory, "stork", NAMES, 30) == "it has none"
    certificates.make_certificate(directory, "stork", NAMES, NODE, 365)
    assert certificates.what_is_wrong(directory, "stork", NAMES, 30) is None
    assert certificates.what_is_wrong(directory, "stork", [*NAMES, "heron"], 30) == "it has other names"
    assert certificates.what_is_wrong(directory, "stork", NAMES, 400) == "it expires soon"
    certificates.make_authority(directory, NODE)
    assert "has not signed it" in certificates.what_is_wrong(directory, "stork", NAMES, 30)


def test_secrets_are_for_their_owner_and_usable(certificates: ModuleType, tmp_path: Path) -> None:
    """Keys have mode 0600 and leave no copies; Python takes the file as a node's, in the name that all nodes have."""
    directory = str(tmp_path)
    certificates.make_authority(directory, NODE)
    certificates.make_certificate(directory, "stork", NAMES, NODE, 365)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["authority.key", "authority.pem", "stork.pem"]
    for name in ("authority.key", "stork.pem"):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(tmp_path / "authority.pem"))
    context.load_cert_chain(str(tmp_path / "stork.pem"))
    subject = subprocess.run(
        ["openssl", "x509", "-in", tmp_path / "stork.pem", "-noout", "-subject", "-nameopt", "RFC2253"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    assert subject.strip() == f"subject=CN={NODE}"


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ({"user": "u", "operation": "write", "topic": "t"}, "--user u --operation write --topic t"),
        (
            {"user": "u", "operation": "read", "group": "g", "prefixed": True, "host": "192.0.2.1"},
            "--user u --operation read --group g --host 192.0.2.1 --prefixed",
        ),
        (
            {"user": "*", "operation": "alter", "cluster": True, "deny": True},
            "--user * --operation alter --cluster --deny",
        ),
    ],
)
def test_rules_as_the_command_takes_them(access: ModuleType, rule: dict[str, Any], words: str) -> None:
    """Each key of the inventory has its option."""
    assert access.rule_problem(rule) is None
    assert " ".join(access.rule_words(rule)) == words


@pytest.mark.parametrize(
    ("rule", "problem"),
    [
        ({"user": "u", "operation": "read"}, "needs one of topic, group, transactional_id, cluster"),
        ({"user": "u", "operation": "read", "topic": "t", "group": "g"}, "needs one of"),
        ({"operation": "read", "topic": "t"}, "needs a user and an operation"),
        ({"user": "u", "operation": "read", "topik": "t"}, "no key topik"),
        ({"user": "u", "operation": "read", "topic": "t", "state": "gone"}, "present or absent"),
    ],
)
def test_rules_that_are_none(access: ModuleType, rule: dict[str, Any], problem: str) -> None:
    """A slip in the inventory is told before anything is changed."""
    assert problem in access.rule_problem(rule)


SECRET = "open-sesame"
HIDING_PLACES = [
    f'sasl.jaas.config=a.PlainLoginModule required \\\n    username="node" password="{SECRET}";',
    f'sasl.jaas.config=a.PlainLoginModule required \\\r\n    username="node" \\\r\n  password="{SECRET}";',
    f"ssl.key.password: {SECRET}",
    f"ssl.key.password {SECRET}",
    f"  \tssl.key.password\t{SECRET}",
    f"ssl.key.p\\u0061ssword={SECRET}",
    f"ssl.key.pass\\\n   word={SECRET}",
    f"ssl.key.password=\\\n{SECRET}",
    f"ssl.key.password={SECRET}\\",
    f"#ssl.key.password={SECRET}",
    f'! sasl.jaas.config=a.PlainLoginModule required \\\n!   user_node="{SECRET}";',
    f"other.key=a.PlainLoginModule required user_node={SECRET};",
    f"SSL.KEY.PASSWORD={SECRET}",
    f"a.url=https://scraper:{SECRET}@host/x",
    f"node.id=1\\\nssl.key.password={SECRET}",
]


@pytest.mark.parametrize("text", HIDING_PLACES)
def test_no_form_of_a_property_shows_a_secret(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """Lines that go on, other separators, escapes, comments: what Java reads as a secret is hidden; the rest is shown."""
    files = plugin("modules", "files", monkeypatch)
    masked = files.masked(f"node.rack=r1\n{text}\nlog.dirs=/a,\\\n  /b\n")
    assert SECRET not in masked
    assert masked.startswith("node.rack=r1\n")
    if not text.endswith("\\"):
        assert masked.endswith("\nlog.dirs=/a,\\\n  /b\n")


def test_places_of_secrets_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files without secrets are shown as they are, whatever their form."""
    files = plugin("modules", "files", monkeypatch)
    text = "[Service]\nExecStart=/usr/bin/odradek \\\n  server /etc/x\n\n# a comment \\\nssl.keystore.location=/k.pem\n"
    text += "odradek.sasl.password.file=/etc/p\ndelegation.token.max.lifetime.ms=5\nssl.key.password=\nlast=1"
    assert files.masked(text) == text


def test_ansible_prints_no_content_with_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    """What -vvv and the host's journal get of a call has no content with a secret; other contents stay."""
    files = plugin("modules", "files", monkeypatch)
    module = files._Module()
    module.no_log_values = set()
    module._log_invocation()
    module.hide(["node.id=1\n", f"ssl.key.password={SECRET}\n"])
    assert module.no_log_values == {f"ssl.key.password={SECRET}\n"}


def test_a_diff_shows_no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Values of keys that hold secrets are hidden, all others are shown."""
    files = plugin("modules", "files", monkeypatch)
    text = 'node.id=1\nodradek.scram.secret=abc\nlistener.name.x.plain.sasl.jaas.config=m user_a="b";\nssl.key.password=p\n'
    masked = files.masked(text)
    assert masked.splitlines() == [
        "node.id=1",
        "odradek.scram.secret=[hidden]",
        "listener.name.x.plain.sasl.jaas.config=[hidden]",
        "ssl.key.password=[hidden]",
    ]
