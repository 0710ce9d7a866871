"""Run the playbooks as an operator does, over SSH from outside of the hosts, and read their output."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import attrs

from odradek.env.real_descriptors import readable
from tests.deploy.hosts import Hosts, switches
from tests.deploy.needs import ANSIBLE, ROOT

_SILENCE_SECONDS = 0.5
_PROMPT_CHARACTERS_MAX = 300
_RUNS_AT_ONCE = 2
_MEANT = "[WARNING]: No replica that is left has all records of "
"""The beginning of a warning that the collection itself gives to the operator. All other warnings are Ansible's."""
_RECAP = re.compile(r"^(\S+) +: ok=(\d+) +changed=(\d+) +unreachable=(\d+) +failed=(\d+)", re.MULTILINE)


@attrs.frozen
class Outcome:
    """The output of a playbook's run, its exit status and its duration."""

    output: str
    status: int
    seconds: float

    @property
    def changed(self) -> int:
        """The number of tasks that changed something, over all hosts."""
        return sum(int(found[3]) for found in _RECAP.finditer(self.output))

    @property
    def hosts(self) -> list[str]:
        return [found[1] for found in _RECAP.finditer(self.output)]


class PlaybookFailed(AssertionError):
    """A playbook did not end as expected; the message has its last lines."""


@attrs.define
class Playbooks:
    """The control machine: an inventory and `ansible-playbook`."""

    hosts: Hosts
    inventory: dict[str, Any]
    log: Path
    secrets: list[str] = attrs.field(factory=list)
    """Texts that no run may print."""
    _beside: int = 0
    _pool: ThreadPoolExecutor = attrs.field(factory=lambda: ThreadPoolExecutor(_RUNS_AT_ONCE))

    def run(self, name: str, *words: str, fails: bool = False, **extra: str) -> Outcome:
        """Run `odradek.cluster.NAME` with the current inventory.

        Raises `PlaybookFailed` unless it succeeds, or fails if `fails` is set. A warning or a visible secret also
        raises.
        """
        return self._prepared(name, words, extra, fails=fails)()

    def run_beside(self, name: str, *words: str, fails: bool = False, **extra: str) -> Future[Outcome]:
        """Begin to run a playbook that changes nothing, beside another one. It uses the inventory of this moment."""
        self._beside += 1
        words = ("-i", str(self.written(f"inventory-{self._beside}.yml")), *words)
        return self._pool.submit(self._prepared(name, words, extra, fails=fails))

    def _prepared(
        self, name: str, words: tuple[str, ...], extra: dict[str, str], *, fails: bool
    ) -> Callable[[], Outcome]:
        """Return a function that runs a playbook with the inventory of this moment."""
        command, environment = self._command(name, *words, **extra), self.environment()

        def run() -> Outcome:
            begun = time.monotonic()
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                check=False,
                env=environment,
                cwd=self.hosts.work,
            )
            outcome = Outcome(done.stdout + done.stderr, done.returncode, time.monotonic() - begun)
            return self._judged(outcome, name, words, extra, fails=fails)

        return run

    def run_at_a_terminal(self, name: str, prompt: str, **extra: str) -> tuple[Outcome, int]:
        """Run a playbook at a terminal, and press Enter at each `prompt`. Return the outcome and the number of
        prompts."""
        command, environment = self._command(name, **extra), self.environment()
        begun = time.monotonic()
        pid, terminal = pty.fork()
        if pid == 0:
            os.chdir(self.hosts.work)
            os.execve(command[0], command, environment)
        output = ""
        # A read from a terminal whose other end is closed fails with EIO.
        with suppress(OSError):
            while True:
                # Ansible drops keys typed too early, so Enter comes when the output has stopped, and again if needed.
                if readable([terminal], _SILENCE_SECONDS):
                    output += os.read(terminal, 1 << 16).decode(errors="replace").replace("\r", "")
                elif prompt in output[-_PROMPT_CHARACTERS_MAX:]:
                    os.write(terminal, b"\r")
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        os.close(terminal)
        outcome = Outcome(output, status, time.monotonic() - begun)
        return self._judged(outcome, name, (), extra, fails=False), output.count(prompt)

    def _judged(
        self, outcome: Outcome, name: str, words: tuple[str, ...], extra: dict[str, str], *, fails: bool
    ) -> Outcome:
        """Log the output of a run. Raises `PlaybookFailed` if it has a secret or a warning, or did not end as
        expected."""
        with self.log.open("a") as log:
            log.write(
                f"\n$ ansible-playbook odradek.cluster.{name} {' '.join(words)} {extra}\n{outcome.output}"
            )
        if any(secret in outcome.output for secret in self.secrets):
            raise PlaybookFailed(f"{name} prints a secret")
        lines = [line for line in outcome.output.splitlines() if line.startswith("[WARNING]")]
        warnings = [line for line in lines if not line.startswith(_MEANT)]
        if warnings:
            raise PlaybookFailed(f"{name} warned: {warnings}")
        if (outcome.status != 0) != fails:
            what = "should have failed" if fails else f"failed with status {outcome.status}"
            raise PlaybookFailed(f"{name} {what}:\n{outcome.output[-6000:]}")
        return outcome

    def begin(self, name: str, **extra: str) -> subprocess.Popen[bytes]:
        """Start a playbook in a process group of its own, so that a test can kill it. Its output goes to the log."""
        with self.log.open("a") as log:
            log.write(f"\n$ ansible-playbook odradek.cluster.{name} {extra}, to be killed\n")
            log.flush()
            return subprocess.Popen(
                self._command(name, **extra),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self.environment(),
                cwd=self.hosts.work,
                process_group=0,
            )

    def _command(self, name: str, *words: str, **extra: str) -> list[str]:
        variables = [word for key, value in extra.items() for word in ("-e", f"{key}={value}")]
        program = str(ANSIBLE / "bin" / "ansible-playbook")
        inventory = [] if "-i" in words else ["-i", str(self.written())]
        return [program, *inventory, f"odradek.cluster.{name}", *variables, *words]

    def written(self, name: str = "inventory.yml") -> Path:
        """Write the current inventory into a file and return its path. The file is JSON, which is also YAML."""
        path = self.hosts.work / name
        path.write_text(json.dumps({"odradek": self.inventory}, indent=1))
        return path

    def environment(self) -> dict[str, str]:
        """Return the environment in which Ansible finds the collection and its own files, and reaches new hosts."""
        home = self.hosts.work / "home"
        home.mkdir(exist_ok=True)
        ssh = [
            *self.hosts.ssh_options(),
            "-o ControlMaster=auto -o ControlPersist=30s -o ServerAliveInterval=15",
        ]
        return {
            **os.environ,
            "ANSIBLE_CONFIG": str(ROOT / "deploy" / "ansible" / "ansible.cfg"),
            "ANSIBLE_SSH_ARGS": " ".join([*ssh, f"-o ControlPath={self.hosts.control_path}"]),
            "ANSIBLE_HOME": str(home),
            "ANSIBLE_NOCOLOR": "1",
        }

    def shell(self, disk_bytes: int) -> int:
        """Open a shell that reaches the hosts, and return its exit status.

        In the shell, `ansible-playbook odradek.cluster.NAME` finds the inventory and the releases.
        """
        inventory = self.written()
        names = ", ".join(f"{host.name} {host.address}" for host in self.hosts.hosts.values())
        with switches(self.hosts, disk_bytes) as commands:
            environment = self.environment() | {
                "ANSIBLE_INVENTORY": str(inventory),
                "PATH": f"{commands}:{ANSIBLE / 'bin'}:{os.environ['PATH']}",
            }
            print(
                f"hosts: {names}\ninventory: {inventory}\nhost kill|boot|blank NAME switches one off, on, or makes it a new "
                "machine\nthey end with this shell",
                flush=True,
            )
            return subprocess.run(
                [os.environ.get("SHELL", "/bin/bash")], env=environment, cwd=inventory.parent, check=False
            ).returncode
