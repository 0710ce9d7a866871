"""The project's private words: those of the glossary, and those that a package explains in its README."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.docs.markdown import ROOT, prose
from tests.structure import GENERATED

GLOSSARY = "docs/internals/glossary.md"
ROWS_MAX = 50
PACKAGES_MIN = 3
ROOMS_OF_ODRADEK = ("cli", "client", "env", "node", "operations", "security", "serving")
PACKAGES = (
    "bench",
    "data_plane",
    "deploy",
    "jepsen_tests",
    "metadata_quorum",
    "sim",
    "spark",
    "wire",
    *(f"odradek/{room}" for room in ROOMS_OF_ODRADEK),
)
"""The packages in which the use of a word counts. Use in tests and pages does not count."""
_ROW = re.compile(r"^\| (?!word \||---)([^|]+) \| ([^|]+) \|$", re.MULTILINE)
_DOCSTRING = re.compile(r'"""(.*?)"""', re.DOTALL)
"""Finds docstrings as texts in three quotes. Parsing 1,700 syntax trees would take ten seconds."""
_ENDINGS = r"(?:s|es|d|ed|ing)?"
_IRREGULAR = {"begin": "beg[aiu]n(?:s|ning)?", "decide": "decid(?:e|es|ed|ing)", "pin": "pin(?:s|ned|ning)?"}


def rows(page: str) -> list[tuple[str, str]]:
    """Return the words and the meaning in each row of the glossary."""
    return _ROW.findall(prose(page))


def rows_of_package(package: str) -> list[tuple[str, str]]:
    """Return the rows of the section "Words" in a package's README."""
    page = f"{package}/README.md"
    if not (ROOT / page).exists():
        return []
    _, _, section = prose(page).partition("\n## Words\n")
    return _ROW.findall(section.partition("\n## ")[0])


def words_of(cell: str) -> list[str]:
    """Return the words in the first cell of a row."""
    return [word.strip() for word in cell.split(",")]


def packages_that_use(word: str) -> list[str]:
    """Return the packages that use the word, in any form, in comments, docstrings or READMEs."""
    return [package for package in PACKAGES if is_used(word, package)]


def is_used(word: str, package: str) -> bool:
    """True if a package's comments, docstrings or READMEs use the word in any form."""
    return _pattern(word).search(_prose_of(package)) is not None


def _pattern(word: str) -> re.Pattern[str]:
    first, *others = word.split()
    start = _IRREGULAR.get(first, re.escape(first) + _ENDINGS)
    forms = [start, *(re.escape(each) + _ENDINGS for each in others)]
    return re.compile(r"\b" + r"\s+".join(forms) + r"\b", 0 if word.isupper() else re.IGNORECASE)


@cache
def _prose_of(package: str) -> str:
    """Return all comments and docstrings of a package, and its READMEs without their tables of words."""
    texts: list[str] = []
    for path in sorted((ROOT / package).rglob("*")):
        name = path.relative_to(ROOT).as_posix()
        if name.startswith(GENERATED) or not path.is_file():
            continue
        if path.suffix == ".py":
            texts += _prose_of_module(path)
        elif path.name == "README.md":
            texts.append(path.read_text().partition("\n## Words\n")[0])
    return "\n".join(texts)


def _prose_of_module(path: Path) -> Iterator[str]:
    source = path.read_text()
    yield from (line.strip() for line in source.splitlines() if line.lstrip().startswith("#"))
    yield from _DOCSTRING.findall(source)
