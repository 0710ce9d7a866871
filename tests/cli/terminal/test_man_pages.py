"""Manual pages: one for each group of commands, with each command and option, and without mistakes of their language."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from odradek.cli.__main__ import GROUPS, PROGRAMS
from tests.cli.commands_walked import leaves
from tests.cli.running import odradek_here
from tests.cli.terminal.screen import needs


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A directory with all pages."""
    document = odradek_here("generate", "man", tmp_path / "man1", "--json").json()
    assert len(document["pages"]) == 1 + len(GROUPS) + len(PROGRAMS)
    return tmp_path / "man1"


def test_every_option_is_on_a_page(directory: Path) -> None:
    """The page of a group names each of its commands and options."""
    for words, parser in leaves():
        text = (directory / f"odradek-{words[0]}.1").read_text().replace("\\-", "-")
        assert f"odradek {' '.join(words)}" in text
        for action in parser._actions:
            for option in action.option_strings:
                assert option in text, (words, option)


def test_pages_are_the_same_each_time(directory: Path, tmp_path: Path) -> None:
    """Two runs write the same bytes."""
    assert odradek_here("generate", "man", tmp_path / "again").code == 0
    for path in directory.iterdir():
        assert path.read_bytes() == (tmp_path / "again" / path.name).read_bytes()


@needs("groff")
@pytest.mark.long
def test_groff_reads_the_pages(directory: Path) -> None:
    """groff formats each page without a warning, and shows options as they are typed."""
    for path in sorted(directory.iterdir()):
        done = subprocess.run(
            ["groff", "-man", "-ww", "-Tascii", "-P-cbou", str(path)],
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        assert done.stderr == "", path.name
        assert "NAME" in done.stdout
    shown = subprocess.run(
        ["groff", "-man", "-Tascii", "-P-cbou", str(directory / "odradek-topic.1")],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout
    assert "--with-records" in shown
    assert "odradek topic clone" in shown


def test_a_directory_that_cannot_be_written(tmp_path: Path) -> None:
    """A path that is a file is refused in one line."""
    (tmp_path / "file").write_text("")
    assert "cannot write" in odradek_here("generate", "man", tmp_path / "file").refusal()
