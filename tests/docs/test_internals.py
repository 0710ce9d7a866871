"""ARCHITECTURE.md, which is read from front to back, and the pages of docs/internals to which it links."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.markdown import ROOT, prose
from tests.structure import PACKAGES, modules

PAGE = "ARCHITECTURE.md"
BYTES_MAX = 18_000
MAP = "docs/internals/where-things-are.md"
DECIDERS_MIN = 60


def test_the_architecture_is_read_in_one_sitting() -> None:
    """ARCHITECTURE.md is short enough to be read at once. Details belong in docs/internals."""
    assert len((ROOT / PAGE).read_bytes()) <= BYTES_MAX


def test_the_architecture_names_every_package_once() -> None:
    """The table has one row for each top-level package and each subfolder of `odradek`, unless a line below
    names it."""
    table = re.findall(r"^\| `([\w/]+)/` \|", prose(PAGE), re.MULTILINE)
    rooms = [path.name for path in (ROOT / "odradek").iterdir() if path.is_dir() and not path.is_symlink()]
    rooms = [name for name in rooms if (ROOT / "odradek" / name / "__init__.py").exists()]
    tops = [name for name in PACKAGES if name not in ("odradek", "pyspark_odradek", "jepsen_tests")]
    assert sorted(table) == sorted([*tops, *(f"odradek/{name}" for name in rooms)])
    assert all(f"`{name}/`" in prose(PAGE) for name in ("pyspark_odradek", "jepsen_tests"))


def test_the_map_names_every_folder() -> None:
    """The map has the whole path of each folder with modules, and every path on it exists."""
    named = set(re.findall(r"`((?:\w+/)+(?:\w+\.py)?)`", prose(MAP)))
    folders = {module.rpartition("/")[0] for module in modules()}
    missing = {f"{folder}/" for folder in folders} - named - {f"{name}/" for name in PACKAGES}
    assert missing == set()
    below = {name for name in named if name.count("/") > 1 or name.endswith(".py")}
    assert [name for name in sorted(below) if not (ROOT / name).exists()] == []


def _deciders() -> Iterator[tuple[str, Path, str]]:
    """Yield the question, file and function of each entry in the tables of the section "Who decides"."""
    section = prose(MAP).partition("## Who decides")[2].partition("\n## ")[0]
    for question, file, functions in re.findall(
        r"^\| (.+\?) \| `(\S+\.py)` \| (.+) \|$", section, re.MULTILINE
    ):
        for name, other in re.findall(r"`(\w[\w.]*)`(?: of `(\S+\.py)`)?", functions):
            beside = (ROOT / file).parent / other
            if other:
                yield question, beside if beside.exists() else ROOT / other, name
            elif not name.endswith(".py"):
                yield question, ROOT / file, name


def _defined(body: list[ast.stmt]) -> dict[str, ast.stmt]:
    """Return the functions, classes and annotated or assigned names of a module or class."""
    found: dict[str, ast.stmt] = {}
    for each in body:
        match each:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                found[name] = each
            case ast.AnnAssign(target=ast.Name(id=name)) | ast.Assign(targets=[ast.Name(id=name)]):
                found[name] = each
    return found


@pytest.mark.parametrize(("question", "file", "name"), list(_deciders()), ids=str)
def test_a_decider_is_where_the_table_says(question: str, file: Path, name: str) -> None:
    """Each function in the table "Who decides" is in the file beside it."""
    assert file.exists(), question
    body = ast.parse(file.read_text()).body
    for part in name.split("."):
        known = _defined(body)
        assert part in known, question
        body = getattr(known[part], "body", [])


def test_the_table_of_deciders_is_named_where_newcomers_begin() -> None:
    """ARCHITECTURE.md and CONTRIBUTING.md link to the table, which has a row for each kind of behaviour."""
    assert len({question for question, _, _ in _deciders()}) >= DECIDERS_MIN
    for page in (PAGE, "CONTRIBUTING.md"):
        assert f"{MAP}#who-decides" in prose(page)
