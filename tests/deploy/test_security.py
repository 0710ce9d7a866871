"""Decisions of the modules for certificates, rights, secrets and backups. Certificates are made by openssl itself."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import ssl
import stat
import subprocess
import tarfile
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from odradek.metadata_quorum.config.config_defs import broker_defs
from tests.deploy.needs import ANSIBLE, ROOT
from tests.deploy.plugins import PLUGINS, loaded, plugin

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
    """A sound certificate is kept. Other names, another authority or a near end are reasons for a new certificate."""
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
    """Keys have mode 0600, and no copies remain. Python can load a node's file, and its subject is that of all
    nodes."""
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
    """Each key of a rule in the inventory becomes an option of the command."""
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
    """A mistake in a rule is reported before anything is changed."""
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
    """A secret is hidden in every form of a property, such as continued lines, escapes or comments. Other lines are
    shown."""
    files = plugin("modules", "files", monkeypatch)
    masked = files.masked(f"node.rack=r1\n{text}\nlog.dirs=/a,\\\n  /b\n")
    assert SECRET not in masked
    assert masked.startswith("node.rack=r1\n")
    if not text.endswith("\\"):
        assert masked.endswith("\nlog.dirs=/a,\\\n  /b\n")


def test_places_of_secrets_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """A text without secrets is shown unchanged, even if a key names the file of a secret."""
    files = plugin("modules", "files", monkeypatch)
    text = "[Service]\nExecStart=/usr/bin/odradek \\\n  server /etc/x\n\n# a comment \\\nssl.keystore.location=/k.pem\n"
    text += "odradek.sasl.password.file=/etc/p\ndelegation.token.max.lifetime.ms=5\nssl.key.password=\nlast=1"
    assert files.masked(text) == text


@pytest.mark.long
@pytest.mark.skipif(
    not (ANSIBLE / "bin" / "ansible").exists(), reason="Ansible is not installed (make deploy-tools)"
)
@pytest.mark.parametrize(
    "fault", [None, "no_such", "path"], ids=["a run", "a refusal", "a file without a path"]
)
def test_ansible_prints_no_contents(tmp_path: Path, fault: str | None) -> None:
    """At the highest verbosity, Ansible prints the contents of files only as lines of a diff, and never a secret."""
    path = tmp_path / "a.properties"
    file = {"path": str(path), "content": f"node.id=1\nssl.key.password={SECRET}\n"}
    key = {"path": f"{path}.pem", "content": f"{SECRET}\n", "hidden": True}
    arguments: dict[str, Any] = {"files": [file, key]}
    if fault == "path":
        del file["path"]
    elif fault is not None:
        arguments[fault] = 1
    task = {"odradek.cluster.files": "{{ arguments }}"}
    play = {"hosts": "localhost", "gather_facts": False, "tasks": [task]}
    (tmp_path / "play.yml").write_text(json.dumps([play]))
    (tmp_path / "arguments.yml").write_text(json.dumps({"arguments": arguments}))
    done = subprocess.run(
        [ANSIBLE / "bin" / "ansible-playbook", "-vvvvv", "--diff", "-e", "@arguments.yml", "play.yml"],
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
    assert SECRET not in done.stdout + done.stderr
    assert ("+node.id=1\n+ssl.key.password=[hidden]\n" in done.stdout) is (fault is None), (
        done.stdout + done.stderr
    )
    assert path.exists() is (fault is None)
    left = [
        each
        for each in (tmp_path / "home").rglob("*")
        if each.is_file() and SECRET in each.read_text(errors="replace")
    ]
    assert left == []


def test_all_keys_of_passwords_are_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the node itself hides the value of a key, a diff hides it, too, also with the prefix of a listener."""
    files = plugin("modules", "files", monkeypatch)
    keys = [key for key, definition in broker_defs().items() if definition.sensitive]
    assert len(keys) > 5
    for key in (*keys, *(f"listener.name.inside.{key}" for key in keys)):
        assert files.masked(f"{key}={SECRET}\n") == f"{key}=[hidden]\n"


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


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_git_takes_no_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a work tree, git must ignore the directory of secrets and track none of its files. Elsewhere all is well."""
    private = plugin("modules", "private", monkeypatch)
    tree = tmp_path / "tree"
    secrets = tree / "deploy" / "secrets"

    def git(*words: str) -> None:
        identity = ["-c", "user.name=a", "-c", "user.email=a@example.invalid"]
        subprocess.run(["git", "-C", tree, *identity, *words], check=True, capture_output=True)

    assert private.exposed(str(secrets), "odradek_secrets") is None
    tree.mkdir()
    git("init", "--quiet")
    sentence = private.exposed(str(secrets), "odradek_secrets")
    assert f"write /deploy/secrets/ into {tree.resolve()}/.gitignore, or set odradek_secrets" in sentence
    secrets.mkdir(parents=True)
    (secrets / "authority.key").write_text(SECRET)
    git("add", "--all")
    (tree / ".gitignore").write_text("/deploy/secrets/\n")
    assert "Git has taken secrets in" in private.exposed(str(secrets), "odradek_secrets")
    git("rm", "--quiet", "--cached", "-r", "deploy")
    assert private.exposed(str(secrets), "odradek_secrets") is None
    (tree / ".git" / "HEAD").write_text("torn")
    assert "Git does not say" in private.exposed(str(secrets), "odradek_secrets")


def test_the_places_beside_the_inventory_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    """The directories for secrets and backups beside the inventory are ignored by git."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("this is no git work tree")
    private = plugin("modules", "private", monkeypatch)
    for name in ("secrets", "backups"):
        assert private.exposed(str(ROOT / "deploy" / "ansible" / name), name) is None


@pytest.fixture
def backup() -> ModuleType:
    return loaded(PLUGINS.parent / "roles" / "node" / "files" / "backup.py")


def metadata(tmp_path: Path) -> Path:
    """Write a properties file whose node has a metadata log of one segment."""
    log = tmp_path / "disk" / "__cluster_metadata-0"
    log.mkdir(parents=True)
    (log / "00000000000000000000.log").write_text(SECRET)
    (log.parent / "meta.properties").write_text("node.id=1\n")
    (log.parent / "bootstrap.checkpoint").write_text("")
    properties = tmp_path / "node.properties"
    properties.write_text(f"# log.dirs=/no\nnode.id=1\nlog.dirs={log.parent},/srv/b\n")
    return properties


def test_a_backup(tmp_path: Path, backup: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """A backup has the metadata log and the identity of its directory. Only the owner can read it. Old backups are
    removed."""
    monkeypatch.setattr(backup, "copy_log", partial(backup.copy_log, odradek="true"))
    kept = tmp_path / "kept"
    args = argparse.Namespace(
        properties=metadata(tmp_path), directory=kept, cluster="c-1", keep=2, recipient=None
    )
    kept.mkdir()
    strangers = ["c-2-20260101T000000Z.tar.gz", "c-1-notes.tar.gz", "c-1-20260101T000000Z.txt"]
    for name in (*strangers, *(f"c-1-2026010{day}T000000Z.tar.gz" for day in (1, 2, 3))):
        (kept / name).write_text("")
    before = os.umask(0o077)
    try:
        made = backup.back_up(args)
    finally:
        os.umask(before)
    ours = sorted(each.name for each in kept.iterdir() if each.name not in strangers)
    assert ours == ["c-1-20260103T000000Z.tar.gz", made.name]
    assert all((kept / name).exists() for name in strangers)
    assert stat.S_IMODE(made.stat().st_mode) == 0o600
    with tarfile.open(made) as tar:
        names = {name.removeprefix("./") for name in tar.getnames()} - {"."}
    assert names == {
        "meta.properties",
        "bootstrap.checkpoint",
        "__cluster_metadata-0",
        "__cluster_metadata-0/00000000000000000000.log",
    }


def test_a_backup_that_cannot_be_verified_leaves_nothing(
    tmp_path: Path, backup: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If every copy of the log is torn, the backup fails and leaves no file."""
    monkeypatch.setattr(backup.time, "sleep", lambda seconds: None)
    monkeypatch.setattr(backup, "copy_log", partial(backup.copy_log, odradek="false"))
    kept = tmp_path / "kept"
    args = argparse.Namespace(
        properties=metadata(tmp_path), directory=kept, cluster="c", keep=0, recipient=None
    )
    with pytest.raises(backup.CannotBackUp, match="is not whole after 5 tries"):
        backup.back_up(args)
    assert list(kept.iterdir()) == []


def test_the_log_that_a_backup_is_of(backup: ModuleType) -> None:
    """A backup takes the metadata log from `metadata.log.dir`, or else from the first directory of `log.dirs`."""
    assert backup.metadata_directory("log.dirs=/a/node-1, /b\n") == Path("/a/node-1")
    assert backup.metadata_directory("log.dirs=/a\nmetadata.log.dir=/m\n") == Path("/m")
    with pytest.raises(backup.CannotBackUp, match=r"has no log\.dirs"):
        backup.metadata_directory("#log.dirs=/a\nnode.id=1\n")


def test_an_encrypted_backup(tmp_path: Path, backup: ModuleType) -> None:
    """openssl decrypts a backup with the recipient's key. A recipient without an RSA certificate is refused."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    key, certificate, envelope = (tmp_path / name for name in ("key", "certificate", "envelope"))
    made = ["openssl", "req", "-x509", "-nodes", "-keyout", key, "-out", certificate, "-subj", "/CN=backups"]
    subprocess.run([*made, "-newkey", "rsa:2048"], check=True, capture_output=True)
    content = SECRET.encode() + bytes(range(256)) * 400 + b"\r\n\n"
    envelope.write_bytes(backup.encrypted(content, certificate.read_bytes()))
    assert SECRET.encode() not in envelope.read_bytes()
    command = ["openssl", "cms", "-decrypt", "-binary", "-inform", "DER", "-in", envelope, "-inkey", key]
    assert subprocess.run(command, check=True, capture_output=True).stdout == content
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    for bad in (b"no certificate", key.read_bytes()):
        with pytest.raises(backup.CannotBackUp, match="is no certificate with an RSA key"):
            backup.encrypted(content, bad)
    subprocess.run([*made, *curve], check=True, capture_output=True)
    with pytest.raises(backup.CannotBackUp, match="is no certificate with an RSA key"):
        backup.encrypted(content, certificate.read_bytes())
