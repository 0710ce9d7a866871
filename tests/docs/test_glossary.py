"""The private words are few. Each is used by several packages and has one meaning in one place."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from tests.docs.glossary import (
    GLOSSARY,
    PACKAGES,
    PACKAGES_MIN,
    ROWS_MAX,
    is_used,
    packages_that_use,
    rows,
    rows_of_package,
    words_of,
)


def test_the_glossary_is_short() -> None:
    """The glossary has at most `ROWS_MAX` rows, since a newcomer must learn each word."""
    assert 0 < len(rows(GLOSSARY)) <= ROWS_MAX


def test_the_rows_are_in_order() -> None:
    """The rows are in alphabetical order, with capital letters counted as small ones."""
    cells = [cell.lower() for cell, _ in rows(GLOSSARY)]
    assert cells == sorted(cells)


@pytest.mark.parametrize("word", [word for cell, _ in rows(GLOSSARY) for word in words_of(cell)])
def test_a_word_of_the_glossary_is_used_by_several_packages(word: str) -> None:
    """Each word is used by three packages or more. Any other word belongs in a package's README, or is replaced."""
    assert len(packages_that_use(word)) >= PACKAGES_MIN, packages_that_use(word)


@pytest.mark.parametrize(
    ("package", "word"),
    [
        (package, word)
        for package in PACKAGES
        for cell, _ in rows_of_package(package)
        for word in words_of(cell)
    ],
)
def test_a_word_of_a_package_is_used_there(package: str, word: str) -> None:
    """A package uses each word that its own README explains."""
    assert is_used(word, package)


def test_a_word_has_one_place() -> None:
    """Each word is explained once, either in the glossary or in one README."""
    places = Counter(
        word
        for table in (rows(GLOSSARY), *map(rows_of_package, PACKAGES))
        for cell, _ in table
        for word in words_of(cell)
    )
    assert [word for word, count in places.items() if count > 1] == []


def test_a_row_gives_one_meaning() -> None:
    """A row gives a single meaning, without "also" or a special meaning for one place."""
    tables = [rows(GLOSSARY), *map(rows_of_package, PACKAGES)]
    second = re.compile(r"\balso\b|; (?:of|in|to|said of)\b")
    assert [cell for table in tables for cell, meaning in table if second.search(meaning)] == []
