"""docs/delivery.md: each row about what an acknowledged record survives names tests that exist."""

from __future__ import annotations

import ast
import re

from tests.docs.markdown import ROOT

PAGE = ROOT / "docs/delivery.md"
SITUATIONS = (
    "process is killed",
    "one node loses power",
    "several lose power",
    "all lose power",
    "disk is lost",
    "disk is full",
    "disk hangs",
    "sync fails",
    "bytes rot",
    "clock jumps",
)


def _rows() -> list[list[str]]:
    """Return the rows of the table of proofs."""
    section = PAGE.read_text().split("## What an acknowledgement survives\n")[1].split("\n### ")[0]
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in section.splitlines()
        if line.startswith("|")
    ]
    assert rows[0][-1] == "proven by"
    return rows[2:]


def _tests_in(path: str) -> dict[str, ast.FunctionDef]:
    tree = ast.parse((ROOT / path).read_text())
    return {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_each_row_names_tests_that_run() -> None:
    """Each test named in a row exists and runs by default."""
    for row in _rows():
        named = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", row[-1])
        assert named, row[0]
        for path, name in named:
            function = _tests_in(path).get(name)
            assert function is not None, f"{path}::{name}"
            decorators = [ast.unparse(each) for each in function.decorator_list]
            assert not any("skip" in each for each in decorators), f"{path}::{name} is skipped"


def test_no_situation_is_missing() -> None:
    """The table has rows for killed processes, lost power, disks, corrupted data and clocks."""
    names = [row[0] for row in _rows()]
    for situation in SITUATIONS:
        assert any(situation in name for name in names), situation


def test_the_readme_leads_there() -> None:
    """README.md has one line with a link to the page."""
    assert "docs/delivery.md#what-an-acknowledgement-survives" in (ROOT / "README.md").read_text()
