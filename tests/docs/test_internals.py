"""ARCHITECTURE.md, which is read from front to back, and the pages of docs/internals, to which it leads."""

from __future__ import annotations

import re

from tests.docs.markdown import ROOT, prose
from tests.structure import PACKAGES, modules

PAGE = "ARCHITECTURE.md"
BYTES_MAX = 18_000
MAP = "docs/internals/where-things-are.md"


def test_the_architecture_is_read_in_one_sitting() -> None:
    """What goes deeper than this page belongs to docs/internals."""
    assert len((ROOT / PAGE).read_bytes()) <= BYTES_MAX


def test_the_architecture_names_every_package_once() -> None:
    """The table has a row for each package at the top and each room of `odradek`, unless a line below names it."""
    table = re.findall(r"^\| `([\w/]+)/` \|", prose(PAGE), re.MULTILINE)
    rooms = [path.name for path in (ROOT / "odradek").iterdir() if path.is_dir() and not path.is_symlink()]
    rooms = [name for name in rooms if (ROOT / "odradek" / name / "__init__.py").exists()]
    tops = [name for name in PACKAGES if name not in ("odradek", "pyspark_odradek", "jepsen_tests")]
    assert sorted(table) == sorted([*tops, *(f"odradek/{name}" for name in rooms)])
    assert all(f"`{name}/`" in prose(PAGE) for name in ("pyspark_odradek", "jepsen_tests"))


def test_the_map_names_every_folder() -> None:
    """A folder with modules stands on the map, by its whole path, and every path there leads to something."""
    named = set(re.findall(r"`((?:\w+/)+(?:\w+\.py)?)`", prose(MAP)))
    folders = {module.rpartition("/")[0] for module in modules()}
    missing = {f"{folder}/" for folder in folders} - named - {f"{name}/" for name in PACKAGES}
    assert missing == set()
    below = {name for name in named if name.count("/") > 1 or name.endswith(".py")}
    assert [name for name in sorted(below) if not (ROOT / name).exists()] == []
