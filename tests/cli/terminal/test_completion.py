"""Completion of words: the words that are offered, in bash, zsh and fish, too."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from odradek.cli.__main__ import GROUPS, build_parser
from odradek.cli.terminal import completion
from odradek.cli.terminal.completion import candidates
from tests.cli.running import ROOT, environment, odradek_here
from tests.cli.terminal.screen import Screen, needs, screen
from tests.cli.test_import_budget import FORBIDDEN, modules_after
from tests.node_process import RunningNode

pytestmark = [pytest.mark.xdist_group("cli"), pytest.mark.long]
TABS_MAX = 3


def offered(*words: str) -> list[str]:
    """Return the words that are offered in the place of the last one."""
    found = candidates(words, lambda group: build_parser() if group is None else build_parser([group]))
    return [word for word, _ in found]


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (("tok",), ["token"]),
        (("topic", "cl"), ["clone"]),
        (("topic", "create", "t", "--rep"), ["--replication-factor"]),
        (("consume", "t", "--isolation", ""), ["read_uncommitted", "read_committed"]),
        (("consume", "t", "--isolation=read_c"), ["--isolation=read_committed"]),
        (("config", "get", "gr"), ["group"]),
        (("server", ""), [":files"]),
        (("topic", "list", "--command-config", ""), [":files"]),
        (("topic", "list", "--command-config=/et"), [":files"]),
        (("topic", "list", "--json", "--js"), []),
        (("topic", "nothing", ""), []),
        (("completion", ""), ["bash", "fish", "zsh"]),
    ],
)
def test_words_that_are_offered(words: tuple[str, ...], found: list[str]) -> None:
    """Commands, options, choices and files are offered. An option that was given is not offered again."""
    assert offered(*words) == found


def test_every_command_is_offered() -> None:
    """All groups of commands are offered at the beginning, and an explanation stands beside each."""
    found = candidates(("",), lambda _: build_parser())
    assert set(GROUPS) <= {word for word, _ in found}
    assert all(text for word, text in found if not word.startswith("-"))


def test_names_of_the_cluster(
    node: RunningNode, fresh_topic: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names of topics, groups and brokers are asked from the cluster, by the options that were typed."""
    name = fresh_topic("complete")
    assert odradek_here("topic", "create", name, bootstrap=node.bootstrap).code == 0
    assert odradek_here("consume", name, "--group", f"{name}-g", bootstrap=node.bootstrap).code == 0
    monkeypatch.setenv("ODRADEK_BOOTSTRAP", node.bootstrap)
    assert offered("topic", "describe", name[:-1]) == [name]
    assert offered("topic", "describe", "other", name[:-1]) == [name]
    assert offered("config", "get", "topic", name[:-1]) == [name]
    assert offered("group", "reset", f"{name}-") == [f"{name}-g"]
    assert offered("consume", "t", "--group", f"{name}-") == [f"{name}-g"]
    assert offered("broker", "drain", "") == ["1"]
    monkeypatch.setenv("ODRADEK_BOOTSTRAP", "127.0.0.1:1")
    assert offered("topic", "describe", name[:-1]) == []
    assert offered("topic", "describe", "--bootstrap-server", node.bootstrap, name[:-1]) == [name]
    assert offered("topic", "describe", f"--bootstrap-server={node.bootstrap}", name[:-1]) == [name]
    assert offered("topic", "describe", "--command-config=/nowhere", name[:-1]) == []


def test_a_completion_imports_little() -> None:
    """Completion of commands and options imports no client, so a press of the key costs as much as `--help`."""
    modules = modules_after("__complete", "bash", "odradek topic des")
    assert not [name for name in modules if name.startswith((*FORBIDDEN, "odradek.client", "attr"))]


def test_a_failure_is_silent() -> None:
    """Senseless words are completed to nothing, silently."""
    for line in (
        "odradek nothing x",
        "odradek topic describe --bootstrap-server=:::: x",
        "odradek 'open",
        "",
    ):
        done = odradek_here("__complete", "bash", line)
        assert (done.code, done.err) == (0, ""), line


HOSTILE = ["$(touch ran)", "x;touch ran", "*", "a b", "it's", "`touch ran`", "~", "gr\u00fcn"]
"""Names that a stranger may give to a group."""


def test_bash_gets_only_plain_words(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """bash inserts words as they are, so it gets no word that it would expand. zsh and fish get all words."""
    plain = ["plain", "a.b_c-1", "--opt=read", ":files"]
    monkeypatch.setattr(completion, "candidates", lambda words, build: [(w, "") for w in [*HOSTILE, *plain]])
    for shell, words in (("bash", plain), ("zsh", HOSTILE + plain), ("fish", HOSTILE + plain)):
        assert completion.answer([shell, "odradek "], lambda group: build_parser()) == 0
        assert capsys.readouterr().out.splitlines() == words


def _program(path: Path, words: list[str]) -> Path:
    """Write a program that answers each question of a script with these words."""
    answers = path / "answers"
    answers.write_text("".join(f"{word}\n" for word in words))
    (path / "bin").mkdir()
    program = path / "bin" / "odradek"
    program.write_text(f"#!/bin/sh\ncat {answers}\n")
    program.chmod(0o755)
    return program


def test_the_script_of_bash_expands_nothing(tmp_path: Path) -> None:
    """The script of bash takes the answers as they are: a pattern in a name becomes no name of a file."""
    program = _program(tmp_path, HOSTILE)
    (tmp_path / "file").write_text("")
    script = f"source {_script('bash', tmp_path)}; _odradek_complete {program} ''; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    done = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.splitlines() == HOSTILE
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "shell",
    [pytest.param("zsh", marks=needs("tmux", "zsh")), pytest.param("fish", marks=needs("tmux", "fish"))],
)
def test_other_shells_quote_what_they_insert(shell: str, tmp_path: Path) -> None:
    """zsh and fish quote a name that would be a command, so that nothing runs when the line is entered."""
    program = _program(tmp_path, ["x;touch ran;$(touch ran)"])
    path = f"{program.parent}{os.pathsep}{os.environ['PATH']}"
    more = {"HOME": str(tmp_path), "PATH": path, "LC_ALL": "C.UTF-8"}
    begin = {
        "zsh": f"{BEGIN['zsh'].format(path=_script('zsh', tmp_path))}; cd {tmp_path}",
        "fish": f"function fish_prompt; echo 'ready> '; end; source {_script('fish', tmp_path)}; cd {tmp_path}",
    }[shell]
    with screen(SHELLS[shell], bootstrap="127.0.0.1:1", columns=200, more=more) as terminal:
        terminal.type(begin)
        terminal.keys("Enter", "C-l")
        terminal.wait(lambda text: text.strip() == "ready>")
        terminal.type("odradek group describe x")
        terminal.wait("describe x")
        terminal.keys("Tab")
        terminal.wait("touch")
        terminal.type("; echo en'd'ed")
        terminal.keys("Enter")
        terminal.wait(lambda text: any(line.strip() == "ended" for line in text.splitlines()))
    assert not (tmp_path / "ran").exists()


def _complete(terminal: Screen, wanted: str) -> None:
    """Ask for a completion by Tab, and again if the screen does not show `wanted`. The cluster may not have answered within a second."""
    for _ in range(TABS_MAX - 1):
        terminal.keys("Tab")
        with suppress(AssertionError):
            terminal.wait(wanted)
            return
    terminal.keys("Tab")
    terminal.wait(wanted)


def _script(shell: str, tmp_path: Path) -> Path:
    path = tmp_path / f"completion.{shell}"
    path.write_text(odradek_here("completion", shell).out)
    return path


@needs("fish")
def test_fish(node: RunningNode, fresh_topic: Callable[[str], str], tmp_path: Path) -> None:
    """fish lists commands with their explanations, options, and names of the cluster."""
    name = fresh_topic("fish")
    assert odradek_here("topic", "create", name, bootstrap=node.bootstrap).code == 0
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"

    def complete(line: str) -> list[str]:
        words = f"source {_script('fish', tmp_path)}; complete -C {line!r}"
        done = subprocess.run(
            [shutil.which("fish") or "fish", "--no-config", "-c", words],
            env=environment(node.bootstrap) | {"PATH": path, "PYTHONPATH": str(ROOT), "HOME": str(tmp_path)},
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        return done.stdout.splitlines()

    assert (
        "clone\tcreate a topic with the partitions, replicas and configurations of another one"
        in complete("odradek topic cl")
    )
    assert [line.split("\t")[0] for line in complete("odradek topic create t --replic")] == [
        "--replication-factor"
    ]
    assert complete(f"odradek topic describe {name[:-1]}") == [name]


SHELLS = {
    "bash": ["bash", "--norc", "--noprofile", "-i"],
    "zsh": ["zsh", "-f", "-i"],
    "fish": ["fish", "--no-config", "-i"],
}
BEGIN = {
    "bash": "PS1='ready> '; source {path}",
    "zsh": "PS1='ready> '; autoload -U compinit; compinit -u -D; source {path}",
}


@pytest.mark.parametrize(
    "shell",
    [pytest.param("bash", marks=needs("tmux", "bash")), pytest.param("zsh", marks=needs("tmux", "zsh"))],
)
def test_shells_at_a_terminal(
    shell: str, node: RunningNode, fresh_topic: Callable[[str], str], tmp_path: Path
) -> None:
    """The key Tab completes a command, an option, a topic of the cluster, and a file."""
    name = fresh_topic("tab")
    assert odradek_here("topic", "create", name, bootstrap=node.bootstrap).code == 0
    (tmp_path / "client-keys.properties").write_text("")
    more = {"HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
    with screen(SHELLS[shell], bootstrap=node.bootstrap, columns=160, more=more) as terminal:
        terminal.type(f"cd {tmp_path}; {BEGIN[shell].format(path=_script(shell, tmp_path))}")
        terminal.keys("Enter", "C-l")
        terminal.wait(lambda text: text.strip() == "ready>")
        # Each completion ends with a blank, so that the next word can follow.
        for typed, wanted in (
            ("odradek topic desc", "odradek topic describe"),
            (name[:-1], f"odradek topic describe {name}"),
            ("--bootstr", f"odradek topic describe {name} --bootstrap-server"),
            ("127.0.0.1:1 --command-c", "--bootstrap-server 127.0.0.1:1 --command-config"),
            ("client-k", "--command-config client-keys.properties"),
        ):
            terminal.type(typed)
            terminal.wait(typed)
            _complete(terminal, wanted)
