"""Run the playbooks as an operator does, from the outside, over SSH, and read what they say."""

from __future__ import annotations

import os
import re
import subprocess
import time
from pathlib import Path
from typing import Any

import attrs

from tests.deploy.hosts import Hosts
from tests.deploy.needs import ANSIBLE, ROOT

_RECAP = re.compile(r"^(\S+) +: ok=(\d+) +changed=(\d+) +unreachable=(\d+) +failed=(\d+)", re.MULTILINE)


@attrs.frozen
class Outcome:
    """What a run of a playbook said."""

    output: str
    status: int
    seconds: float

    @property
    def changed(self) -> int:
        """How many tasks changed something, over all hosts."""
        return sum(int(found[3]) for found in _RECAP.finditer(self.output))

    @property
    def hosts(self) -> list[str]:
        return [found[1] for found in _RECAP.finditer(self.output)]


class PlaybookFailed(AssertionError):
    """A playbook ended otherwise than it should; the message has its last lines."""


@attrs.define
class Playbooks:
    """The control machine: an inventory, releases, and `ansible-playbook`."""

    hosts: Hosts
    inventory: dict[str, Any]
    releases: Path
    log: Path

    def run(self, name: str, *words: str, fails: bool = False, **extra: str) -> Outcome:
        """Run `odradek.cluster.NAME` with the inventory as it is now; raises unless it does (not) fail."""
        path = self.hosts.work / "inventory.yml"
        path.write_text(_yaml({"odradek": self.inventory}))
        variables = {"odradek_releases": str(self.releases), **extra}
        told = [word for key, value in variables.items() for word in ("-e", f"{key}={value}")]
        command = [
            str(ANSIBLE / "bin" / "ansible-playbook"),
            "-i",
            str(path),
            f"odradek.cluster.{name}",
            *told,
            *words,
        ]
        home = self.hosts.work / "home"
        home.mkdir(exist_ok=True)
        environment = {
            **os.environ,
            "ANSIBLE_CONFIG": str(ROOT / "deploy" / "ansible" / "ansible.cfg"),
            "ANSIBLE_SSH_ARGS": " ".join(
                [
                    *self.hosts.ssh_options(),
                    "-o ControlMaster=auto -o ControlPersist=30s",
                    f"-o ControlPath={home}/%h",
                ]
            ),
            "ANSIBLE_HOME": str(home),
            "ANSIBLE_NOCOLOR": "1",
        }
        begun = time.monotonic()
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=home)
        outcome = Outcome(done.stdout + done.stderr, done.returncode, time.monotonic() - begun)
        with self.log.open("a") as log:
            log.write(
                f"\n$ ansible-playbook odradek.cluster.{name} {' '.join(words)} {extra}\n{outcome.output}"
            )
        if (done.returncode != 0) != fails:
            what = "should have failed" if fails else f"failed with status {done.returncode}"
            raise PlaybookFailed(f"{name} {what}:\n{outcome.output[-6000:]}")
        return outcome


def _yaml(value: Any) -> str:
    """JSON is YAML."""
    import json

    return json.dumps(value, indent=1)
