"""docs/operations.md: its commands run against a node, and all names on it and on its neighbouring pages exist."""

from __future__ import annotations

import ast
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from odradek.cli.__main__ import PROGRAMS, build_parser, main
from tests.cli.running import environment, odradek
from tests.docs.log_events import EVENT, sources_of_a_node
from tests.docs.markdown import ROOT, blocks, prose
from tests.node_process import RunningNode

PAGE = "docs/operations.md"
TIMEOUT_SECONDS = 60.0
KEYS = ("log.dirs", "node.id")
"""Configuration keys that look like names of log events."""


def _code(page: str) -> list[str]:
    """Return the code within the sentences of a page."""
    return [" ".join(code.split()) for code in re.findall(r"`([^`]+)`", prose(page))]


def test_every_command_runs(node: RunningNode, fresh_topic: Callable[[str], str], tmp_path: Path) -> None:
    """Each command of a block succeeds on a healthy node and prints nothing on stderr."""
    topic, group = fresh_topic("orders"), fresh_topic("kitchen")
    assert odradek("topic", "create", topic, "--partitions", "1", bootstrap=node.bootstrap).code == 0
    assert odradek("produce", topic, bootstrap=node.bootstrap, stdin=b"a\nb\n").code == 0
    read = odradek("consume", topic, "--group", group, "--from", "earliest", bootstrap=node.bootstrap)
    assert read.out == "a\nb\n"
    here = {"orders": topic, "kitchen": group, "127.0.0.1:9092": node.bootstrap}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    commands = [line for block in blocks(PAGE, "sh") for line in block.code.splitlines()]
    assert len(commands) > 20
    for command in dict.fromkeys(commands):
        done = subprocess.run(
            [here.get(word, word) for word in shlex.split(command)],
            capture_output=True,
            text=True,
            env=environment(node.bootstrap) | {"PATH": path},
            cwd=tmp_path,
            timeout=TIMEOUT_SECONDS,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, ""), command


@pytest.mark.parametrize("page", [PAGE, "docs/logs.md"])
def test_every_command_in_a_sentence_can_be_given(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each command in a sentence has only words and options that the command line knows."""
    commands = [code for code in _code(page) if code.startswith("odradek ")]
    assert commands
    for command in commands:
        words = [
            word.replace("ID", "1").replace("BROKER:DIR", "1:/data") for word in shlex.split(command)[1:]
        ]
        options = {word for word in words if word.startswith("--")}
        depth = 1 if words[0] in ("dev", "server", "produce", "consume") else 2
        assert main([*words[:depth], "--help"]) == 0, command
        assert options <= set(re.findall(r"--[\w-]+", capsys.readouterr().out)), command
        if page == PAGE and words[0] not in PROGRAMS:
            build_parser().parse_args(words)


def test_every_metric_and_event_that_it_names_is_there() -> None:
    """Each metric and event that the page names is explained in docs/metrics.md or docs/logs.md."""
    named = _code(PAGE)
    metrics, logs = ((ROOT / page).read_text() for page in ("docs/metrics.md", "docs/logs.md"))
    events = {code for code in _code("docs/logs.md") if EVENT.fullmatch(code) and f"\n| `{code}` |" in logs}
    subjects = {event.partition(".")[0] for event in events}
    shown = [code for code in named if code.startswith("odradek_")]
    assert [code for code in shown if code.split("{")[0] not in metrics] == []
    said = [code for code in named if EVENT.fullmatch(code) and code.partition(".")[0] in subjects]
    assert [code for code in said if code not in events and code not in KEYS] == []
    assert min(len(shown), len(said)) > 20


def test_the_words_of_a_node_that_does_not_start_are_its_own() -> None:
    """Each message that the page quotes from a node that does not start is in the sources, in one piece."""
    section = prose(PAGE).partition("\n## A node does not start\n")[2].partition("\n## ")[0]
    quoted = re.findall(r"^\| `([^`]+)` \|", section, re.MULTILINE)
    assert len(quoted) > 5
    texts = [
        part.value
        for _, source in sources_of_a_node()
        for part in ast.walk(ast.parse(source))
        if isinstance(part, ast.Constant) and isinstance(part.value, str)
    ]
    assert [words for words in quoted if not any(words in text for text in texts)] == []
