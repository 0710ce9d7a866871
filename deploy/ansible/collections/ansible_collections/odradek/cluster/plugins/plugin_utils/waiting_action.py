"""The action plugin of modules that wait: it calls the module repeatedly, and prints what the module waits for."""

from __future__ import annotations

from ansible.errors import AnsibleConnectionFailure
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display
from ansible_collections.odradek.cluster.plugins.plugin_utils.waiting import wait

_SECONDS = 180
"""The default of the modules' option `timeout_seconds`."""


class WaitingAction(ActionBase):
    """Runs the task's module repeatedly, each time for a part of the timeout."""

    def run(self, tmp=None, task_vars=None):  # type: ignore[no-untyped-def]  # Ansible has no types
        """Wait for the module's answer, and return it. Each printed line has the host's name."""
        super().run(tmp, task_vars)
        arguments = dict(self._task.args)
        lost: list[AnsibleConnectionFailure] = []

        def call(seconds: int) -> dict:
            try:
                result = self._execute_module(
                    module_args={**arguments, "timeout_seconds": seconds}, task_vars=task_vars
                )
            except AnsibleConnectionFailure as error:
                lost[:] = [error]
                return {
                    "still_waiting": True,
                    "sentence": f"it does not answer over SSH ({error})",
                    "failed": True,
                }
            lost.clear()
            return result

        def say(line: str) -> None:
            host = (task_vars or {}).get("inventory_hostname", "")
            Display().display(f"{host}: {line}")

        result = wait(call, say, int(arguments.get("timeout_seconds") or _SECONDS))
        if lost:
            raise lost[0]
        return result
