"""The option --watch: a list is drawn again on a terminal, and printed again in a pipe."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable

import pytest

from odradek.cli.streams.watching import cut_to_width
from tests.cli.running import ROOT, command, environment, odradek_here
from tests.cli.terminal.screen import needs, screen
from tests.node_process import RunningNode

pytestmark = [pytest.mark.xdist_group("cli"), pytest.mark.long]


def test_rounds_in_a_pipe(node: RunningNode) -> None:
    """In a pipe each round is complete and flushed. Ctrl-C ends the command with status 130, without a traceback."""
    process = subprocess.Popen(
        command("broker", "list", "--json", "--watch", "0.05"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(node.bootstrap) | {"PYTHONPATH": str(ROOT)},
    )
    try:
        assert process.stdout is not None
        for _ in range(3):
            (broker,) = json.loads(process.stdout.readline())["brokers"]
            assert broker["broker"] == 1
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, err) == (130, b"")


def test_blocks_in_a_pipe(node: RunningNode) -> None:
    """Tables in a pipe have an empty line between them, and no codes of a terminal."""
    process = subprocess.Popen(
        command("broker", "list", "--watch=0.05"),
        stdout=subprocess.PIPE,
        env=environment(node.bootstrap) | {"PYTHONPATH": str(ROOT)},
    )
    try:
        assert process.stdout is not None
        lines = [process.stdout.readline().decode() for _ in range(5)]
    finally:
        process.kill()
        process.wait()
    assert lines[0].startswith("BROKER")
    assert lines[2] == "\n"
    assert lines[3] == lines[0]
    assert "\033" not in "".join(lines)


def test_a_pause_that_is_no_number() -> None:
    """A name behind the option is refused as its value, and the message names the option."""
    done = odradek_here("topic", "describe", "--watch", "words")
    assert done.code == 2
    assert "argument --watch: 'words' is not a number" in done.err


@needs("tmux")
def test_a_list_on_a_terminal(node: RunningNode, fresh_topic: Callable[[str], str]) -> None:
    """On a terminal a round replaces the one before, also after the terminal has become smaller."""
    name = fresh_topic("watched")
    words = [*command("group", "list", "--watch", "0.2")]
    more = {"PYTHONPATH": str(ROOT)}
    # The node has groups of other tests.
    with screen(words, bootstrap=node.bootstrap, lines=1000, more=more) as terminal:
        text = terminal.wait("GROUP")
        assert text.startswith("every 0.2 s, at ")
        assert odradek_here("topic", "create", name, bootstrap=node.bootstrap).code == 0
        assert odradek_here("consume", name, "--group", name, bootstrap=node.bootstrap).code == 0
        text = terminal.wait(name)
        assert text.count("GROUP ") == text.count("every ") == 1
        terminal.resize(30, 4)
        text = terminal.wait(lambda text: len(text.splitlines()) <= 4 and "every" in text)
        assert all(len(line) <= 30 for line in text.splitlines())


@needs("tmux")
def test_an_outage_on_a_terminal() -> None:
    """While no broker answers, the screen shows the error, and the command goes on. Ctrl-C ends it without a traceback."""
    line = " ".join(command("cluster", "health", "--watch=0.1"))
    more = {"PYTHONPATH": str(ROOT)}
    with screen(
        ["sh", "-c", f"trap : INT; {line}; echo status $?; cat"], bootstrap="127.0.0.1:1", more=more
    ) as terminal:
        terminal.wait("odradek: cannot connect to 127.0.0.1:1")
        terminal.keys("C-c")
        text = terminal.wait("status 130")
        assert "Traceback" not in text


@pytest.mark.parametrize(
    ("line", "columns", "cut"),
    [
        ("plain", 3, "pla"),
        ("plain", 5, "plain"),
        ("\033[31mred words\033[0m and more", 5, "\033[31mred w\033[0m"),
        ("a\033[31mred\033[0m", 4, "a\033[31mred\033[0m"),
    ],
)
def test_lines_are_cut_with_their_colours(line: str, columns: int, cut: str) -> None:
    """A line is cut to the width of the screen, and its colour ends."""
    assert cut_to_width(line, columns) == cut
