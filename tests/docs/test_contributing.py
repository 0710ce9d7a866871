"""docs/contributing.md: everything that its recipes name exists."""

from __future__ import annotations

import re

from tests.docs.markdown import ROOT

PAGE = "docs/contributing.md"
PLACEHOLDER = "NAME"


def test_every_file_that_a_recipe_names_is_there() -> None:
    """Each file that a recipe names exists, also after files have moved."""
    named = re.findall(r"`((?:\w+/)+(?:[\w.]+)?)`", (ROOT / PAGE).read_text())
    assert len(named) > 40
    assert [name for name in named if PLACEHOLDER not in name and not (ROOT / name).exists()] == []


def test_every_name_that_a_recipe_gives_is_defined() -> None:
    """Each table or function that a recipe names is defined: `TROUBLES`, `LEAVES`, `add_command`, `CliError` and
    others."""
    names = set(re.findall(r"`([A-Z_]{4,}|[A-Z]\w+[a-z]\w*|[a-z]+_[a-z]+)`", (ROOT / PAGE).read_text()))
    assert len(names) > 5
    sources = [
        path.read_text()
        for top in ("bench", "data_plane", "metadata_quorum", "odradek", "sim", "testkit", "tests", "wire")
        for path in sorted((ROOT / top).rglob("*.py"))
    ]
    defined = re.compile(r"^\s*(?:class |def |)(\w+)\b(?=[(:]| =| :|\[)", re.MULTILINE)
    known = {name for source in sources for name in defined.findall(source)}
    assert sorted(names - known - {PLACEHOLDER}) == []
