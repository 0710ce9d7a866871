"""Hostile arguments, files, streams and terminals: a command ends with one sentence and status 1 or 2.

`odradek server` ends with 78 where only an operator can help.
"""

from __future__ import annotations

import argparse
import io
import math
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from unittest.mock import patch

import pytest

from odradek.cli.__main__ import GROUPS, main
from odradek.node.main import NEEDS_OPERATOR
from tests.cli.commands_walked import PATHS, leaves, value_actions, with_value
from tests.cli.running import ROOT, Outcome, command, environment
from tests.node_process import RunningNode

pytestmark = pytest.mark.xdist_group("cli")
COMMON = {"bootstrap_server", "timeout", "command_config"}
"""Options that nearly all commands share. One parser function handles them, so one command is tested for all."""
HELD_BACK = {("dev",): ["--nodes=501"], ("console",): ["--listen=192.0.2.1:9"]}
"""Extra options for commands that would otherwise run on. Their values are out of range, or an address of no machine
(RFC 5737), so the command fails."""
HOSTILE = {
    "empty": "",
    "control": "a\x1b]0;title\x07\r\n\x9b2Jb",
    "hidden": "a\u202eb\u2028c",
    "letters": "é東京",
    "huge": "x" * 40_000,
    "deep": "[" * 3_000 + "%s" * 100,
}
NO_TEXT = {"undecodable": "a\udcffb", "zero": "a\0b"}
NOT_NUMBERS = (
    "nan",
    "inf",
    "-inf",
    "1e999",
    "9" * 400,
    "-" + "9" * 400,
    "-1",
    "1_000",
    "٣",
    "0x10",
    " 1",
    "1e3",
    "",
    "½",
)
"""Numbers in unusual notation. An option may accept those that fit into a request."""


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """A listening socket that must get no connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        monkeypatch.setenv("ODRADEK_BOOTSTRAP", f"127.0.0.1:{server.getsockname()[1]}")
        yield server


def run(words: list[str]) -> Outcome:
    """Run a command in this process with an empty input."""
    streams = {
        name: io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for name in ("stdin", "stdout", "stderr")
    }
    with patch.multiple(sys, **streams):
        code = main(words)
    for name in ("stdout", "stderr"):
        streams[name].flush()
    out, err = (streams[name].buffer.getvalue().decode() for name in ("stdout", "stderr"))  # type: ignore[attr-defined]
    return Outcome(code, out, err)


def judge(words: list[str], done: Outcome) -> None:
    """Assert the contract: a known status, printable output, and on failure only lines that begin with `odradek: `."""
    known = (0, 1, 2, NEEDS_OPERATOR) if words[0] == "server" else (0, 1, 2)
    assert done.code in known, (words, done)
    for line in [*done.err.splitlines(), *done.out.splitlines()]:
        assert line.isprintable(), (words, line)
    if done.code:
        said = done.err.splitlines()
        assert said, words
        assert all(line.startswith("odradek: ") for line in said), (words, done.err)


@pytest.mark.parametrize("value", NO_TEXT.values(), ids=NO_TEXT)
@pytest.mark.parametrize("group", GROUPS)
def test_bytes_that_are_no_text(group: str, value: str, silent: socket.socket) -> None:
    """Undecodable bytes in any argument are refused before a request is sent. Paths may have them, but no zero byte."""
    for words, parser in leaves([group]):
        for action in value_actions(parser):
            is_path = action.metavar in PATHS
            typed = with_value(words, parser, action, value) + HELD_BACK.get(words, [])
            if action.dest in COMMON and words[-1] not in ("list", "produce"):
                continue
            done = run(typed)
            judge(typed, done)
            assert done.code == 2 if "\0" in value or not is_path else done.code in (1, 2), (typed, done)
            if not is_path:
                assert "is not text in UTF-8" in done.err or "invalid choice" in done.err, (typed, done)
    with pytest.raises(BlockingIOError):
        silent.accept()


@pytest.mark.parametrize("group", GROUPS)
def test_words_of_every_kind(
    group: str, node: RunningNode, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """With a node that answers, each command handles hostile text in any of its arguments cleanly."""
    monkeypatch.setenv("ODRADEK_BOOTSTRAP", node.bootstrap)
    monkeypatch.chdir(tmp_path)
    for words, parser in leaves([group]):
        for action in value_actions(parser):
            if action.dest in COMMON and words[-1] != "list":
                continue
            for value in HOSTILE.values():
                typed = with_value(words, parser, action, value) + HELD_BACK.get(words, [])
                judge(typed, run(typed))


@pytest.mark.parametrize("group", GROUPS)
def test_numbers_are_judged_before_anything_is_sent(group: str, silent: socket.socket) -> None:
    """Each number that an option accepts fits into 64 bits. Only quotas may be infinite. No connection is made before
    the check."""
    endless = {"request_percentage", "mutation_rate", "connection_rate"}
    for words, parser in leaves([group]):
        for action in value_actions(parser):
            if action.type is None or action.choices:
                continue
            for text in NOT_NUMBERS:
                typed = with_value(words, parser, action, text) + HELD_BACK.get(words, [])
                args = argparse.Namespace()
                with patch.object(sys, "stderr", io.StringIO()) as said, suppress(SystemExit):
                    parser.parse_args(typed[len(words) :], args)
                if said.getvalue():
                    assert len(said.getvalue().splitlines()) == 1, (typed, said.getvalue())
                    continue
                for number in numbers_in(getattr(args, action.dest)):
                    is_endless = isinstance(number, float) and math.isinf(number) and action.dest in endless
                    assert is_endless or -(1 << 63) < number < 1 << 63, typed
    with pytest.raises(BlockingIOError):
        silent.accept()


def numbers_in(value: object) -> Iterator[float]:
    """Yield all numbers within a parsed value."""
    if isinstance(value, int | float):
        yield value
    elif isinstance(value, list | tuple):
        for each in value:
            yield from numbers_in(each)
    elif isinstance(value, dict):
        yield from numbers_in(list(value.items()))


def shell(line: str, *words: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[bytes]:
    """Run a command through a shell that redirects its streams."""
    return subprocess.run(
        ["sh", "-c", line, "sh", *command(*words)],
        env=environment("127.0.0.1:1") | {"PYTHONPATH": str(ROOT)} | (env or {}),
        capture_output=True,
        stdin=subprocess.DEVNULL,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(
    ("redirection", "stderr"),
    [
        ("<&-", True),
        (">&-", True),
        ("<&- >&-", True),
        ("2>&-", False),
        ("<&- >&- 2>&-", False),
        ("2>/dev/full", False),
        (">/dev/full 2>/dev/full", False),
    ],
)
def test_closed_and_full_streams(redirection: str, stderr: bool) -> None:
    """With closed or full streams the status still shows the failure. The message appears on stderr if it is
    writable."""
    done = shell(f'"$@" {redirection}', "topic", "list")
    assert (done.returncode, done.stdout) == (1, b"")
    lines = done.stderr.decode().splitlines()
    assert len(lines) == stderr
    assert all(line.startswith("odradek: cannot connect to ") for line in lines)


@pytest.mark.parametrize("words", [("--help",), ("storage", "random-uuid"), ("--version",)])
@pytest.mark.parametrize("redirection", [">/dev/full", "2>/dev/full >/dev/full"])
def test_a_full_output_is_a_failure(words: tuple[str, ...], redirection: str) -> None:
    """Output to a full device ends with status 1, even if the write happens only at the end."""
    done = shell(f'"$@" {redirection}', *words)
    assert done.returncode == 1
    said = b"odradek: the output cannot be written: the device has no space left\n"
    assert done.stderr == (b"" if "2>" in redirection else said)


@pytest.mark.parametrize(
    "env",
    [
        {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"},
        {"PYTHONIOENCODING": "ascii"},
        {"PYTHONIOENCODING": "latin-1"},
    ],
    ids=str,
)
def test_encodings_that_lack_letters(node: RunningNode, env: dict[str, str]) -> None:
    """Characters that the output's encoding lacks are printed as escapes, and JSON stays valid."""
    bootstrap = {"ODRADEK_BOOTSTRAP": node.bootstrap}
    for words in (("group", "describe", "東"), ("topic", "describe", "é東")):
        done = shell('"$@"', *words, env=env | bootstrap)
        assert done.returncode == 1
        (line,) = done.stderr.splitlines()
        assert line.startswith(b"odradek: ")
        assert b"Traceback" not in line
    entity = ("--user", "東")
    assert shell('"$@"', "quota", "set", *entity, "--produce-rate", "5", env=env | bootstrap).returncode in (
        0,
        2,
    )
    for form in ((), ("--json",)):
        done = shell('"$@"', "quota", "list", *form, env=env | bootstrap)
        assert done.returncode == 0, done.stderr
        done.stdout.decode("ascii" if b"\\u6771" in done.stdout else "utf-8")


@pytest.mark.parametrize(
    "content",
    [
        b"\xff\xfe",
        b"a\0b=c\n",
        b"log.dirs=/tmp/a\0b\nnode.id=1\n",
        b"\\u12",
        b"node.id=" + b"9" * 5000,
        bytes(range(256)),
        b"",
    ],
)
def test_files_of_any_bytes(content: bytes, tmp_path: Path) -> None:
    """A file of arbitrary bytes is handled cleanly by each command that reads a file."""
    path = tmp_path / "file"
    path.write_bytes(content)
    for words, parser in leaves():
        for action in value_actions(parser):
            if action.metavar not in PATHS or (action.dest == "command_config" and words[-1] != "list"):
                continue
            typed = with_value(words, parser, action, str(path)) + HELD_BACK.get(words, [])
            if action.dest != "command_config" and "--bootstrap-server" in parser._option_string_actions:
                typed = [*words, "--bootstrap-server=127.0.0.1:1", *typed[len(words) :]]
            judge(typed, run(typed))


def test_a_directory_in_the_place_of_a_file(tmp_path: Path) -> None:
    """A path that is a directory, that leads through a file, or that is too long is handled cleanly by each command."""
    (tmp_path / "file").write_text("")
    for path in (tmp_path, tmp_path / "file" / "below", Path("/dev/null"), Path("x" * 300)):
        for words, parser in leaves():
            for action in value_actions(parser):
                if action.metavar in PATHS and (action.dest != "command_config" or words[-1] == "list"):
                    typed = with_value(words, parser, action, str(path)) + HELD_BACK.get(words, [])
                    if (
                        action.dest != "command_config"
                        and "--bootstrap-server" in parser._option_string_actions
                    ):
                        typed = [*words, "--bootstrap-server=127.0.0.1:1", *typed[len(words) :]]
                    judge(typed, run(typed))


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (b"\xff\xfe\n", "not text in UTF-8"),
        (b"\x04", "no password was typed"),
    ],
)
def test_a_terminal_of_any_bytes(node: RunningNode, typed: bytes, said: str) -> None:
    """A typed password that is not UTF-8 is refused, and so is the end of the input."""
    terminal, slave = os.openpty()
    try:
        process = subprocess.Popen(
            command("user", "add", "ann"),
            stdin=slave,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment(node.bootstrap) | {"PYTHONPATH": str(ROOT)},
            start_new_session=True,
            bufsize=0,
        )
        assert process.stderr is not None
        shown = b""
        while not shown.endswith(b"password: ") and process.poll() is None:
            shown += process.stderr.read(1)
        os.write(terminal, typed)
        _, err = process.communicate(timeout=60)
    finally:
        os.close(terminal)
        os.close(slave)
    lines = [line for line in err.decode().splitlines() if line.startswith("odradek: ")]
    assert (process.returncode, len(lines)) == (1, 1), err
    assert said in lines[0]
    assert "Traceback" not in err.decode()


@pytest.mark.parametrize("value", [*HOSTILE.values(), *NO_TEXT.values()], ids=[*HOSTILE, *NO_TEXT])
def test_words_that_no_command_has(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unknown command, option or argument is refused with one line; so is a bad value in the environment."""
    for words in ([value], ["topic", value], ["topic", "list", value], ["topic", "list", f"--{value}"]):
        done = run(words)
        judge(words, done)
        assert done.code == 2
    for name in ("ODRADEK_BOOTSTRAP", "ODRADEK_COMMAND_CONFIG"):
        if "\0" not in value:  # the environment cannot hold a zero byte
            with monkeypatch.context() as patched:
                patched.setenv("ODRADEK_BOOTSTRAP", "127.0.0.1:1")
                patched.setenv(name, value)
                words = ["topic", "list", "--timeout=1"]
                done = run(words)
                judge(words, done)
                # An empty address is the default one, where a node of the tester's may be running.
                is_default = name == "ODRADEK_BOOTSTRAP" and not value
                assert done.code in ((0, 1, 2) if is_default else (1, 2))


@pytest.mark.parametrize(
    "address",
    [
        "a..b:9092",
        "ä:9092",
        "x" * 300 + ":9092",
        "*:1",
        "\udcff:9092",
        "[::1:9092",
        "a b:9092",
        "127.0.0.1:99999",
        ":",
        ",",
    ],
)
def test_addresses_of_any_form(address: str) -> None:
    """An address that the resolver refuses to look up is reported like an unknown one."""
    typed = ["topic", "list", f"--bootstrap-server={address}", "--timeout=5"]
    done = run(typed)
    judge(typed, done)
    assert done.code in (1, 2)


def test_names_are_printed_by_one_function() -> None:
    """In the commands only `output` may call `print`, because it escapes control characters."""
    import ast

    for path in sorted((ROOT / "odradek" / "cli").rglob("*.py")):
        if path.name in ("output.py", "standard_streams.py"):
            continue
        for found in ast.walk(ast.parse(path.read_text())):
            assert not (isinstance(found, ast.Name) and found.id == "print"), f"{path}:{found.lineno}"
