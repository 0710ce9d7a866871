"""Planted secrets must stay hidden on the hosts and on the control machine. Changed releases are refused.

Backups are encrypted, and a timer makes them.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import subprocess
import tarfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs

from tests.deploy.life import Life, is_whole, refused
from tests.deploy.needs import ROOT
from tests.deploy.releases import NEW, OLD, changed_release, signed_again

KEY = "delegation.token.secret.key"
PLANTED = {
    KEY: "plantedTokenKey0001",
    "ssl.key.password": "plantedKeyPassword02",
    "user": "plantedUserPassword3",
}
_FILE_BYTES_MAX = 1 << 20
_TIMER_SECONDS_MAX = 60
_LOOKS_MAX = 10
_PLACES = "/etc /root /run /tmp /var/tmp /var/lib /var/backups /usr/local /opt/odradek/versions"
# A program that prints the small files of a host that contain a planted secret, with their modes.
_FILES = f"""
import base64, json, os, stat, sys
for place in {_PLACES.split()!r}:
    for directory, _, names in os.walk(place):
        for name in names:
            path = os.path.join(directory, name)
            try:
                found = os.lstat(path)
                if not stat.S_ISREG(found.st_mode) or found.st_size > {_FILE_BYTES_MAX} or path.endswith((".py", ".pyc", ".so")):
                    continue
                with open(path, "rb") as file:
                    content = file.read()
            except OSError:
                continue
            if b"planted" in content:
                print(json.dumps([path, stat.S_IMODE(found.st_mode), base64.b64encode(content).decode()]))
"""
_MAY_HAVE_THEM = ("/etc/odradek/node-", "/var/lib/odradek-before")


@attrs.define
class ProcessWatch:
    """A thread that reads the command lines of all young processes, including those of the hosts."""

    secrets: list[bytes]
    found: set[str] = attrs.field(factory=set)
    looked_at: int = 0
    _looks: dict[str, int] = attrs.field(factory=dict)
    """How often each process was looked at. Its command line may be there only after its first moments."""
    _stop: threading.Event = attrs.field(factory=threading.Event)

    def look(self) -> None:
        while not self._stop.wait(0.2):
            pids = [name for name in os.listdir("/proc") if name.isdigit()]
            self._looks = {pid: self._looks.get(pid, 0) + 1 for pid in pids}
            for pid in pids:
                if self._looks[pid] > _LOOKS_MAX:
                    continue
                with contextlib.suppress(OSError):
                    content = Path("/proc", pid, "cmdline").read_bytes()
                    self.looked_at += 1
                    if any(secret in content for secret in self.secrets):
                        self.found.add(content.replace(b"\0", b" ").decode(errors="replace")[:500])

    @contextlib.contextmanager
    def at_work(self) -> Iterator[None]:
        """Watch processes while the block runs. Raises `AssertionError` if a command line contained a secret."""
        thread = threading.Thread(target=self.look, daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._stop.set()
            thread.join()
        assert self.looked_at > 100
        assert not self.found, f"processes with secrets: {self.found}"


def changed_archives(life: Life) -> None:
    """Change archives, leave out a signature, and rebuild a release. Each is refused with a sentence that names the
    fault."""
    releases = life.hosts.work / "releases"
    with life.step("releases that were changed are refused"):
        old, new = releases / f"odradek-{OLD}.tar", releases / f"odradek-{NEW}.tar"
        for path in (old, new):
            shutil.copy(path, f"{path}.kept")
        changed_release(new, manifest=False)
        tampered = life.playbooks.run("upgrade", fails=True, odradek_release=NEW)
        refused(tampered, "was changed after it was built", "is not what its manifest says")
        changed_release(new, manifest=True)
        refused(
            life.playbooks.run("upgrade", fails=True, odradek_release=NEW), f"Release {NEW} is not signed"
        )
        changed_release(old, manifest=True)
        signed_again(old)
        hosts = ", ".join(life.told)
        other = life.playbooks.run("deploy", fails=True)
        refused(
            other,
            f"Release {OLD} is not the same everywhere: {hosts}: digest",
            "the archive: digest",
            "A release name must be used only once",
        )
        assert "(commit" in " ".join(other.output.split())
        for path in (old, new):
            Path(f"{path}.kept").rename(path)


def planted_secrets(life: Life) -> None:
    """Run playbooks at the highest verbosity with planted secrets. Then search for the secrets wherever they could
    be."""
    variables, play = life.playbooks.inventory["vars"], life.playbooks
    secrets = life.hosts.work / "secrets"
    with life.step("planted secrets stay hidden") as step:
        variables["odradek_settings"] = {KEY: PLANTED[KEY]}
        life.told["heron"]["odradek_nodes"] = [
            {"id": life.hosts["heron"].number, "settings": {"ssl.key.password": PLANTED["ssl.key.password"]}}
        ]
        variables["odradek_secrets"] = str(secrets)
        variables["odradek_users"] = [{"name": "planted", "password": PLANTED["user"]}, {"name": "made"}]
        watch = ProcessWatch([value.encode() for value in PLANTED.values()])
        play.secrets += PLANTED.values()
        with watch.at_work():
            for playbook, *words in (
                ("deploy", "--check", "--diff"),
                ("reconfigure", "--diff"),
                ("access", "--diff"),
                ("status",),
            ):
                shown = play.run(playbook, "-vvvv", *words).output
                assert "[hidden]" in shown or playbook not in ("deploy", "reconfigure")
        play.secrets.append((secrets / "made.password").read_text().strip())
        _look_at_hosts(life)
        _look_here(life)
        step.note = f"{watch.looked_at} looks at processes"
        # The next run of `access` removes these users.
        variables["odradek_users"] = [{"name": name, "state": "absent"} for name in ("planted", "made")]


def planted_secrets_at_the_end(life: Life) -> None:
    """Search again, now that nearly all playbooks have run with the secrets in the inventory."""
    with life.step("planted secrets are hidden at the end of the day") as step:
        assert life.playbooks.secrets, "this step needs planted_secrets"
        _look_at_hosts(life)
        _look_here(life)
        step.note = f"{len(life.playbooks.secrets)} secrets"


def _look_at_hosts(life: Life) -> None:
    """Search the hosts' journals and files. Only properties of nodes may contain secrets, and strangers cannot read
    them."""
    values = life.playbooks.secrets
    for name in life.told:
        journal = life.hosts.ssh(name, "journalctl --all --output=export --no-pager") or ""
        assert "ansible-odradek" in journal or "ansible" in journal
        for value in values:
            assert value not in journal, f"{value} is in the journal of {name}"
        script = base64.b64encode(_FILES.encode()).decode()
        listed = life.hosts.ssh(name, f"echo {script} | base64 -d | python3 -") or ""
        held = {
            path: (mode, base64.b64decode(text)) for path, mode, text in map(json.loads, listed.splitlines())
        }
        having = {
            path: mode
            for path, (mode, text) in held.items()
            if any(value.encode() in text for value in values)
        }
        assert any(path.startswith("/etc/odradek/") for path in having), f"the search on {name} finds nothing"
        for path, mode in having.items():
            assert path.startswith(_MAY_HAVE_THEM), f"{path} of {name} has a secret"
            assert mode & 0o007 == 0, f"everybody on {name} may read {path}"


def _look_here(life: Life) -> None:
    """Search Ansible's files and /tmp for secrets in files younger than the hosts, and all files that git would
    take."""
    work, values = life.hosts.work, life.playbooks.secrets
    since = (work / "key").stat().st_mtime
    log = life.playbooks.log.read_text()
    assert not any(value in log for value in values), "the output of a playbook has a secret"
    own = {work / "inventory.yml"}
    places = [
        work / "home",
        Path("/tmp"),
        *(each for each in work.iterdir() if each.is_file() and each not in own),
    ]
    # Other programs make and remove files in /tmp meanwhile.
    files = [place for place in places if place.is_file()]
    files += [Path(at, name) for place in places for at, _, names in os.walk(place) for name in names]
    for path in files:
        with contextlib.suppress(OSError):
            found = path.stat()
            # A copy of this module's source contains the secrets, too.
            own_source = path.name.split(".")[0] == Path(__file__).stem
            if (
                path.is_file()
                and found.st_size < _FILE_BYTES_MAX
                and found.st_mtime > since
                and not own_source
            ):
                content = path.read_bytes()
                assert not any(value.encode() in content for value in values), f"{path} has a secret"
    command = [
        "git",
        "-C",
        str(ROOT),
        "grep",
        "--untracked",
        "--files-with-matches",
        "-F",
        "-f",
        "-",
        "--",
        ".",
        ":(exclude)tests",
    ]
    done = subprocess.run(command, input="\n".join(values), capture_output=True, text=True, check=False)
    assert done.returncode == 1, f"the repository has secrets: {done.stdout}{done.stderr}"


def code_and_backups(life: Life) -> None:
    """Apply topics and quotas from the inventory. Make encrypted backups while a host is down, and by a timer."""
    variables, play = life.playbooks.inventory["vars"], life.playbooks
    most = len(life.told)
    topic: dict[str, Any] = {
        "name": "code",
        "partitions": 4,
        "replication_factor": most - 1,
        "configs": {"retention.ms": 90000},
    }
    with life.step("topics and quotas as code"):
        variables["odradek_topics"] = [topic]
        variables["odradek_quotas"] = [{"user": "code", "produce_rate": "10M"}]
        shown = play.run("topics", "--check")
        assert "topic code created: 4 partitions" in shown.output
        assert "retention.ms=90000" in shown.output
        assert play.run("topics").changed == 1
        topic |= {"partitions": 6, "replication_factor": most}
        assert f"replicas: {most - 1} -> {most}" in play.run("topics").output
        topic["state"] = "absent"
        refused(play.run("topics", fails=True), "add -e odradek_topics_loss=code")
        assert play.run("topics", odradek_topics_loss="code").changed == 1
        removed = variables.setdefault("odradek_users", [])
        outcome = play.run("access")
        assert "produce_rate: none -> 10485760" in outcome.output
        assert all(f"user {user['name']} removed" in outcome.output for user in removed), outcome.output[
            -3000:
        ]
        variables["odradek_quotas"] = [{"user": "code", "state": "absent"}]
        assert play.run("access").changed == 1
        del variables["odradek_topics"], variables["odradek_quotas"], variables["odradek_users"]
    with life.step("a backup with a host down, encrypted, by a timer"):
        key, certificate, kept = (life.hosts.work / name for name in ("backup.key", "backup.pem", "backups"))
        made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=backups"]
        subprocess.run([*made, "-keyout", key, "-out", certificate], check=True, capture_output=True)
        variables |= {
            "odradek_backup_keep": 1,
            "odradek_backup_recipient": str(certificate),
            "odradek_backups": str(kept),
        }
        play.run("reconfigure")
        for name in life.told:
            listed = (life.hosts.ssh(name, "ls /var/backups/odradek") or "").split()
            assert len(listed) == 1, listed
            assert listed[0].endswith(".tar.gz.cms"), listed
            assert "odradek-backup.timer" in (life.hosts.ssh(name, "systemctl list-timers --all") or "")
        _fires_by_itself(life, "heron")
        life.hosts.kill("stork")
        for _ in range(2):
            play.run("backup")
        life.hosts.boot("stork")
        life.wait_until(is_whole, "a whole cluster")
        archives = sorted(kept.iterdir())
        assert len(archives) == 1
        _read_backup(archives[-1], key, life.hosts.work / "opened.tar.gz")
        variables |= {"odradek_backup_keep": 0}
        play.run("reconfigure")
        asked = "systemctl is-active odradek-backup.timer; systemctl is-enabled odradek-backup.timer; true"
        assert life.hosts.ssh("stork", asked) == "inactive\ndisabled\n"
        del (
            variables["odradek_backup_keep"],
            variables["odradek_backup_recipient"],
            variables["odradek_backups"],
        )


def _fires_by_itself(life: Life, name: str) -> None:
    """Set the backup timer of a host to fire soon. systemd makes another backup, and only the newest is kept."""
    before = life.hosts.ssh(name, "ls /var/backups/odradek")
    soon = "[Timer]\\nOnCalendar=\\nOnCalendar=*:*:0/5\\nRandomizedDelaySec=0\\nAccuracySec=1s\\n"
    override = "/run/systemd/system/odradek-backup.timer.d"
    life.hosts.ssh(
        name,
        f"mkdir -p {override} && printf '{soon}' > {override}/soon.conf && systemctl daemon-reload "
        "&& systemctl restart odradek-backup.timer",
    )
    deadline = time.monotonic() + _TIMER_SECONDS_MAX
    while (listed := life.hosts.ssh(name, "ls /var/backups/odradek")) in (before, ""):
        assert time.monotonic() < deadline, f"the timer of {name} has made no backup: {listed}"
        time.sleep(0.5)
    life.hosts.ssh(
        name,
        f"rm -r {override} && systemctl daemon-reload && systemctl restart odradek-backup.timer",
    )
    assert len((listed or "").split()) == 1, listed


def _read_backup(archive: Path, key: Path, opened: Path) -> None:
    """Decrypt a backup with the recipient's key, and check that it contains the metadata log."""
    command = [
        "openssl",
        "cms",
        "-decrypt",
        "-binary",
        "-inform",
        "DER",
        "-in",
        archive,
        "-inkey",
        key,
        "-out",
        opened,
    ]
    subprocess.run(command, check=True, capture_output=True)
    with tarfile.open(opened) as tar:
        names = tar.getnames()
    assert any(name.endswith(".log") and "__cluster_metadata-0" in name for name in names), names
    assert any(name.endswith("meta.properties") for name in names), names
    opened.unlink()


STEPS: tuple[Callable[[Life], None], ...] = (changed_archives, code_and_backups)
