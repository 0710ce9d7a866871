"""Commands that may take a day: what is said each minute, and when they count as done."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import pytest

from tests.deploy.plugins import plugin

LATE = (
    "odradek: --timeout has passed: 28 partitions not moved yet (12 of 40 partitions, 3.0 GiB of 9.0 GiB, 50.0 MiB/s, "
    "about 2m left); moves that have begun go on (`odradek partition list --moving`), repeat the command\n"
)


@pytest.fixture
def awaited(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    stands_in: dict[str, Any] = {
        "ansible": {},
        "ansible.errors": {"AnsibleConnectionFailure": ConnectionError},
        "ansible.plugins": {},
        "ansible.plugins.action": {"ActionBase": Base},
        "ansible.utils": {},
        "ansible.utils.display": {"Display": Shown},
    }
    for name, values in stands_in.items():
        monkeypatch.setitem(sys.modules, name, cast(ModuleType, SimpleNamespace(**values)))
    Shown.lines.clear()
    return plugin("action", "awaited")


class Shown:
    """What an operator sees while the task runs."""

    lines: list[str] = []  # noqa: RUF012

    def display(self, line: str) -> None:
        self.lines.append(line)


class Base:
    """Ansible's base of an action, whose host gives prepared answers."""

    def __init__(self, answers: list[Any], check_mode: bool = False) -> None:
        self._answers = answers
        self.asked: list[list[str]] = []
        args = {"argv": ["odradek", "broker", "drain", 3], "seconds": "3600"}
        self._task = SimpleNamespace(args=args, check_mode=check_mode, get_name=lambda: "Partitions move")

    def run(self, tmp: Any, task_vars: Any) -> dict[str, Any]:
        return {}

    def _execute_module(self, *, module_name: str, module_args: Any, task_vars: Any) -> Any:
        self.asked.append(module_args["argv"])
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def answer(status: int, stdout: str = "", stderr: str = "") -> dict[str, Any]:
    return {"rc": status, "stdout": stdout, "stderr": stderr}


def test_a_wait_says_what_is_left(awaited: ModuleType) -> None:
    """Each piece that was not enough is followed by a line with the rest, until the command is done."""
    action = awaited.ActionModule([answer(1, "{}", LATE), answer(0, '{"partitions":[]}')])
    result = action.run(None, {})
    assert (result["rc"], result["changed"]) == (0, True)
    assert action.asked[0] == ["odradek", "broker", "drain", "3", "--json", "--timeout", "60"]
    (line,) = Shown.lines
    assert "Partitions move: 28 partitions not moved yet (12 of 40 partitions" in line
    assert "about 2m left)" in line
    assert "repeat" not in line


def test_a_lost_connection_costs_a_piece(awaited: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """What has begun goes on without the connection, so the command is asked again."""
    monkeypatch.setattr(awaited.time, "sleep", lambda seconds: None)
    action = awaited.ActionModule([ConnectionError("reset"), answer(0, '{"partitions":[{"topic":"t"}]}')])
    result = action.run(None, {})
    assert (result["rc"], result["changed"], len(action.asked)) == (0, True, 2)
    assert "no connection (reset), trying again" in Shown.lines[0]


def test_a_refusal_is_the_failure(awaited: ModuleType) -> None:
    """A command that fails for another reason ends the wait with its own sentence; its document is kept."""
    refused = answer(1, '{"partitions":[],"kept":[1]}', "odradek: broker 3 still holds 1 partition\n")
    result = awaited.ActionModule([refused]).run(None, {})
    assert result["failed"] is True
    assert result["msg"] == "broker 3 still holds 1 partition"
    assert result["document"]["kept"] == [1]


def test_nothing_to_move_is_no_change(awaited: ModuleType) -> None:
    """A playbook that is run again changes nothing; in check mode nothing is asked."""
    assert awaited.ActionModule([answer(0, '{"partitions":[]}')]).run(None, {})["changed"] is False
    assert awaited.ActionModule([answer(0, '{"brokers":[{"moves":[]}]}')]).run(None, {})["changed"] is False
    assert awaited.ActionModule([], check_mode=True).run(None, {})["changed"] is False
