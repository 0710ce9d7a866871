"""`odradek top` on a real terminal: views, keys, sizes, and the terminal after its end."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from odradek.cli.streams.screen_columns import cut_to_columns, width_of
from odradek.cli.streams.watching import cut_to_width
from odradek.cli.terminal.top.drawing import View, _body, press
from odradek.cli.terminal.top.views import Column, Table, cell_text, ordered
from tests.cli.running import ROOT, command, odradek_here
from tests.cli.terminal.screen import needs, screen
from tests.node_process import RunningNode

pytestmark = [pytest.mark.xdist_group("cli"), pytest.mark.long]
TOP = [*command("top", "--interval", "0.2")]
MORE = {"PYTHONPATH": str(ROOT)}


@pytest.fixture
def topic(node: RunningNode, fresh_topic: Callable[[str], str]) -> str:
    """A topic with ten records, and a group that has read none of them."""
    name = fresh_topic("top")
    assert odradek_here("topic", "create", name, "--partitions", "2", bootstrap=node.bootstrap).code == 0
    read = odradek_here("consume", name, "--group", f"{name}-g", bootstrap=node.bootstrap)
    assert read.code == 0, read.err
    assert odradek_here("produce", name, bootstrap=node.bootstrap, stdin=b"x\n" * 10).code == 0
    return name


@needs("tmux")
def test_views_and_keys(node: RunningNode, topic: str) -> None:
    """Keys choose a view, sort it, filter it and end the command with status 0."""
    line = " ".join([*TOP, "--view", "brokers"])
    with screen(
        ["sh", "-c", f"{line}; echo status $?; cat"], bootstrap=node.bootstrap, more=MORE
    ) as terminal:
        text = terminal.wait("online")
        assert text.splitlines()[3].startswith("[1 brokers]")
        assert node.bootstrap in text
        terminal.keys("3")
        terminal.wait("[3 topics]")
        terminal.type("/")
        terminal.type(topic)
        terminal.keys("Enter")
        text = terminal.wait(lambda text: f"filter {topic}" in text and "0.0/s" in text)
        rows = [each for each in text.splitlines() if each.startswith(topic)]
        assert [row.split()[:3] for row in rows] == [[topic, "2", "1"]]
        assert odradek_here("produce", topic, bootstrap=node.bootstrap, stdin=b"x\n" * 50_000).code == 0
        terminal.wait(
            lambda text: any(
                (row.startswith(topic) and ",0" in row) or "KiB" in row for row in text.splitlines()
            )
        )
        terminal.keys("4")
        text = terminal.wait(lambda text: "[4 groups]" in text and "50,010" in text)
        assert "LAG*" in text
        terminal.keys("s", "s")
        terminal.wait("READS*")
        terminal.keys("Escape", "2")
        text = terminal.wait("[2 disks]")
        terminal.wait("DIRECTORY")
        terminal.keys("5")
        terminal.wait("[5 clients]")
        terminal.keys("q")
        text = terminal.wait("status 0")
        assert "[5 clients]" not in text


@needs("tmux")
def test_the_terminal_comes_back(node: RunningNode, topic: str) -> None:
    """Ctrl-C ends the command with status 130, without a traceback, and the terminal shows and echoes as before."""
    line = " ".join(TOP)
    words = ["sh", "-c", f"trap : INT; echo before; stty -a >/dev/null; {line}; echo status $?; stty -a; cat"]
    with screen(words, bootstrap=node.bootstrap, more=MORE) as terminal:
        terminal.wait("[3 topics]")
        terminal.keys("C-c")
        text = terminal.wait("status 130")
        text = terminal.wait("-echoprt")
        assert "before" in text
        assert "Traceback" not in text
        assert " icanon" in text
        assert " echo " in text
        assert terminal.tmux("display-message", "-p", "-t", "0", "#{alternate_on} #{cursor_flag}") == "0 1\n"


@needs("tmux")
@pytest.mark.parametrize(("columns", "lines"), [(20, 4), (10, 2), (60, 8)])
def test_small_terminals(node: RunningNode, topic: str, columns: int, lines: int) -> None:
    """A small terminal shows what fits, and the command goes on when the terminal grows."""
    with screen(TOP, bootstrap=node.bootstrap, columns=columns, lines=lines, more=MORE) as terminal:
        terminal.wait("cluster")
        for key in ("1", "2", "3", "Down", "PageDown", "s"):
            terminal.keys(key)
        terminal.resize(100, 30)
        terminal.wait("quit")


@needs("tmux")
@pytest.mark.parametrize("no_colour", ["1", ""])
def test_colours(node: RunningNode, topic: str, no_colour: str) -> None:
    """With NO_COLOR the screen has no code of a colour or weight."""
    more = {**MORE, "NO_COLOR": no_colour} if no_colour else MORE
    with screen(TOP, bootstrap=node.bootstrap, more=more) as terminal:
        terminal.wait("[3 topics]")
        terminal.wait("TOPIC")
        assert ("\033[1m" in terminal.text(colours=True)) is not bool(no_colour)


@needs("tmux")
def test_a_broker_that_goes_away(fresh_topic: Callable[[str], str]) -> None:
    """Without an answer the command fails in one line at its start, and needs a terminal or --json."""
    with screen(
        ["sh", "-c", f"{' '.join(TOP)}; echo status $?; cat"], bootstrap="127.0.0.1:1", more=MORE
    ) as terminal:
        text = terminal.wait("status 1")
        assert "odradek: cannot connect to 127.0.0.1:1" in text
    assert "needs a terminal" in odradek_here("top", bootstrap="127.0.0.1:1").refusal()


def test_figures_for_scripts(node: RunningNode, topic: str) -> None:
    """`--json` prints all views once."""
    document = odradek_here("top", "--json", "--interval", "0.1", bootstrap=node.bootstrap).json()
    (shown,) = [each for each in document["topics"] if each["topic"] == topic]
    assert (shown["partitions"], shown["records"]) == (2, 0.0)
    (group,) = [each for each in document["groups"] if each["group"] == f"{topic}-g"]
    assert (group["lag"], group["lag_grows"]) == (10, 0.0)
    assert document["brokers"][0]["state"] == "online"
    assert document["disks"][0]["broker"] == 1


@needs("tmux", "bash")
def test_a_stop_and_a_return(node: RunningNode, topic: str) -> None:
    """After Ctrl-Z and `fg` the screen is drawn again at once, even if the view is paused."""
    with screen(["bash", "--norc", "--noprofile", "-i"], bootstrap=node.bootstrap, more=MORE) as terminal:
        terminal.type("PS1='ready> '")
        terminal.keys("Enter")
        terminal.wait("\nready>")
        terminal.type(" ".join([*command("top", "--interval", "3600")]))
        terminal.keys("Enter")
        terminal.wait("healthy")
        terminal.keys("Space")
        terminal.wait("paused")
        terminal.keys("C-z")
        terminal.wait("Stopped")
        terminal.type("fg")
        terminal.keys("Enter")
        terminal.wait("[3 topics]")
        terminal.keys("q")
        terminal.wait(lambda text: text.rstrip().endswith("ready>"))


@needs("tmux")
def test_a_signal_ends_it(node: RunningNode, topic: str) -> None:
    """SIGTERM gives the terminal back, too."""
    with screen(
        ["sh", "-c", f"{' '.join(TOP)}; echo ended; cat"], bootstrap=node.bootstrap, more=MORE
    ) as terminal:
        terminal.wait("[3 topics]")
        pid = int(terminal.tmux("list-panes", "-F", "#{pane_pid}"))
        # The command is the last one of a chain of shells.
        while children := Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            (pid,) = map(int, children)
        os.kill(pid, signal.SIGTERM)
        terminal.wait("ended")
        assert terminal.tmux("display-message", "-p", "-t", "0", "#{alternate_on} #{cursor_flag}") == "0 1\n"


def test_rows_are_sorted_and_filtered() -> None:
    """Rows are sorted by value, unknown ones last; the filter looks at all texts of a row."""
    table = Table((Column("NAME"), Column("SIZE", "bytes")), [("b", 2), ("A", None), ("c", 10)])
    assert [row[0] for row in ordered(table, 1, descending=True)] == ["c", "b", "A"]
    assert [row[0] for row in ordered(table, 0, descending=False)] == ["A", "b", "c"]
    assert ordered(table, 0, descending=False, pattern="B") == [("b", 2)]


def test_cells_for_people() -> None:
    """Figures have their units, and an unknown figure is a dash."""
    assert cell_text("bytes/s", -2048.0) == "-2.0 KiB/s"
    assert cell_text("rate", 12.34) == "12.3/s"
    assert cell_text("rate", 12345.6) == "12,346/s"
    assert (cell_text("percent", 41.6), cell_text("count", 1234), cell_text("id", 1234)) == (
        "42%",
        "1,234",
        "1234",
    )
    assert cell_text("ms", None) == "-"


def test_wide_letters_take_two_columns() -> None:
    """A column with East Asian letters is as wide as the screen shows it, and a cut leaves room for whole letters."""
    table = Table((Column("NAME"), Column("SIZE", "count")), [("\u6771\u4eac", 2), ("e\u0301", 10)])
    lines = _body(table, table.rows, 0, 12, lambda _, text: text)
    assert lines == ["NAME*  SIZE ", "\u6771\u4eac      2", "e\u0301        10"]
    assert [width_of(line) for line in lines] == [12, 11, 11]
    assert cut_to_columns("\u6771\u4eac", 3) == "\u6771"
    assert cut_to_width("\033[1m\u6771\u4eac\033[0mx", 3) == "\033[1m\u6771\033[0mx"


def test_the_filter_takes_letters_that_are_keys() -> None:
    """While a filter is typed, letters belong to it. Escape drops it."""
    view = View()
    for key in ("/", "q", "s", "x", "\x7f"):
        press(view, key, 3)
    assert (view.pattern, view.is_over, view.columns) == ("qs", False, {})
    press(view, "escape", 3)
    assert (view.pattern, view.is_typing) == ("", False)
