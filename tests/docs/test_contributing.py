"""docs/contributing.md: what its recipes name is there."""

from __future__ import annotations

import re

from tests.docs.markdown import ROOT

PAGE = "docs/contributing.md"
PLACEHOLDER = "NAME"


def test_every_file_that_a_recipe_names_is_there() -> None:
    """Files move; a recipe that sends its reader to a place that is gone is worse than none."""
    named = re.findall(r"`((?:\w+/)+(?:[\w.]+)?)`", (ROOT / PAGE).read_text())
    assert len(named) > 40
    assert [name for name in named if PLACEHOLDER not in name and not (ROOT / name).exists()] == []


def test_every_name_that_a_recipe_gives_is_defined() -> None:
    """Tables and functions by which a recipe enters something: `TROUBLES`, `LEAVES`, `add_command`, `CliError`."""
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
