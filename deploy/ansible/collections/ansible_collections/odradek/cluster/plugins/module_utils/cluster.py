"""Access to a cluster by the command C(odradek) on a host, and sentences about mistakes in an inventory."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable
from typing import Any

ARGUMENTS = {
    "bootstrap": {"type": "str", "required": True},
    "odradek": {"type": "path", "default": "/opt/odradek/current/bin/odradek"},
}
"""The arguments that all modules for a cluster have."""


class Refused(Exception):
    """Raised if a command fails; the message is the last line of its output."""


class Cluster:
    """A cluster, accessed by the command line. C(done) has sentences about changes that were made, or would be made
    in check mode.
    """

    def __init__(self, module: Any) -> None:
        self._module = module
        self.done: list[str] = []

    def try_to(self, *words: str, stdin: str | None = None) -> str:
        """Run a command and return its output. Raises `Refused`."""
        params = self._module.params
        command = [params["odradek"], *words, "--bootstrap-server", params["bootstrap"]]
        status, out, err = self._module.run_command(command, data=stdin)
        if status:
            raise Refused(
                (err.strip() or out.strip() or "no answer").splitlines()[-1].removeprefix("odradek: ")
            )
        return str(out)

    def ask(self, *words: str, stdin: str | None = None) -> str:
        """Run a command and return its output. If it fails, the module fails with the command's last line."""
        try:
            return self.try_to(*words, stdin=stdin)
        except Refused as error:
            self._module.fail_json(msg=f"odradek {words[0]} {words[1]} failed: {error}", done=self.done)
            raise

    def ask_json(self, *words: str) -> Any:
        """Run a command with --json, and return the parsed output."""
        return json.loads(self.ask(*words, "--json"))

    def change(self, told: str, *words: str, stdin: str | None = None) -> None:
        """Run a command that changes the cluster, and add `told` to C(done). In check mode, only add `told`,
        and run no command.
        """
        if not self._module.check_mode:
            self.ask(*words, stdin=stdin)
        self.done.append(told)


def unknown_keys(of: str, entry: dict, known: Iterable[str]) -> list[str]:
    """Return a sentence for each unknown key of an entry, with the most similar known key."""
    known = sorted(known)
    found = []
    for key in sorted(map(str, set(entry) - set(known))):
        near = difflib.get_close_matches(key, known, 1)
        found.append(
            f"{of} has no key {key}: "
            + (f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}.")
        )
    return found
