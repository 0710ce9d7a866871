"""The action behind modules that wait: it calls them again and again, and shows what they wait for."""

from __future__ import annotations

from ansible.errors import AnsibleConnectionFailure
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display
from ansible_collections.odradek.cluster.plugins.plugin_utils.waiting import wait

_SECONDS = 180
"""The modules' own default of `timeout_seconds`."""


class WaitingAction(ActionBase):
    """Runs the module of the task, with slices of its time."""

    def run(self, tmp=None, task_vars=None):  # type: ignore[no-untyped-def]  # Ansible has no types
        """Wait for the module's answer; the host's name is in each line."""
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
