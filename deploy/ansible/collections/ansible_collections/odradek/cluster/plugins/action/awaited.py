"""Runs an `odradek` command that may take a day. The command is run for a minute at a time until its work is done.
After each run a line about the remaining work is printed.
"""

from __future__ import annotations

import datetime
import json
import time
from typing import Any

from ansible.errors import AnsibleConnectionFailure
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

LATE = "--timeout has passed: "
"""The text that a command prints to standard error if its `--timeout` has passed and its moves continue."""
_PIECE_SECONDS_MAX = 60
_REACH_SECONDS_MAX = 300
_PAUSE_SECONDS = 5


def is_late(answer: dict[str, Any]) -> bool:
    """True if the command ended only because its `--timeout` has passed. The caller should then run it again."""
    return answer.get("rc") not in (0, None) and LATE in answer.get("stderr", "")


def left_text(stderr: str) -> str:
    """Return the part of a late command's output that describes the remaining work."""
    line = next((line for line in reversed(stderr.splitlines()) if LATE in line), "")
    return line.partition(LATE)[2].partition(";")[0].strip()


def document_of(stdout: str) -> dict[str, Any]:
    """Parse the JSON object that the command printed; return {} if it printed none."""
    for line in reversed(stdout.splitlines()):
        try:
            found = json.loads(line)
        except ValueError:
            continue
        if isinstance(found, dict):
            return found
    return {}


def has_moves(document: dict[str, Any]) -> bool:
    """True if the command had replicas to move."""
    brokers = document.get("brokers") or ()
    return bool(document.get("partitions") or document.get("moves") or any(each["moves"] for each in brokers))


def failure_text(answer: dict[str, Any]) -> str:
    """Return the last line of a failed command's output."""
    lines = str(answer.get("stderr") or answer.get("msg") or answer.get("stdout") or "no answer").splitlines()
    return next((line for line in reversed(lines) if line.strip()), "no answer").removeprefix("odradek: ")


class ActionModule(ActionBase):  # type: ignore[misc]  # Ansible has no types
    """Runs a command repeatedly until it is done. If the connection breaks, only one of these runs is lost."""

    _supports_check_mode = True

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Run the action."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        argv = [str(word) for word in self._task.args["argv"]]
        if self._task.check_mode:
            return {**result, "changed": False, "skipped": True, "document": {}}
        begun = time.monotonic()
        deadline = begun + float(self._task.args["seconds"])
        pieces = 0
        while True:
            pieces += 1
            left = max(1, min(_PIECE_SECONDS_MAX, int(deadline - time.monotonic())))
            answer = self._asked([*argv, "--json", "--timeout", str(left)], task_vars)
            if not is_late(answer) or time.monotonic() >= deadline:
                break
            self._say(left_text(answer["stderr"]), time.monotonic() - begun)
        document = document_of(answer.get("stdout", ""))
        result |= {"document": document, "rc": answer.get("rc", 1), "stdout": answer.get("stdout", "")}
        result["changed"] = pieces > 1 or has_moves(document)
        if result["rc"] != 0:
            result["msg"] = failure_text(answer)
            result["failed"] = True
        return result

    def _asked(self, argv: list[str], task_vars: dict[str, Any] | None) -> dict[str, Any]:
        """Run the command once, for a short time. Retry for a while if the host cannot be reached."""
        until = time.monotonic() + _REACH_SECONDS_MAX
        while True:
            try:
                answer: dict[str, Any] = self._execute_module(
                    module_name="ansible.builtin.command", module_args={"argv": argv}, task_vars=task_vars
                )
                return answer
            except AnsibleConnectionFailure as error:
                if time.monotonic() >= until:
                    raise
                self._say(f"no connection ({error}), trying again", 0)
                time.sleep(_PAUSE_SECONDS)

    def _say(self, text: str, seconds: float) -> None:
        """Print a line at once. (Ansible shows a task's result only when the task ends.)"""
        now = datetime.datetime.now().astimezone().strftime("%H:%M:%S")
        Display().display(f"{now} {self._task.get_name()}: {text} (after {seconds / 60:.0f} min)")
