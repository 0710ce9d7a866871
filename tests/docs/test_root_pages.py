"""The pages in the repository's root, which a forge shows: everything that they name exists."""

from __future__ import annotations

import re
import tomllib

import pytest

from tests.docs.markdown import ROOT, blocks, prose
from tests.prose import PAGES

TEMPLATES = (
    ".github/PULL_REQUEST_TEMPLATE.md",
    ".github/ISSUE_TEMPLATE/bug.md",
    ".github/ISSUE_TEMPLATE/feature.md",
)
ROOT_PAGES = ("CHANGELOG.md", "CODE_OF_CONDUCT.md", "CONTRIBUTING.md", "SECURITY.md")


def test_every_page_of_the_root_is_held_to_the_rules_of_prose() -> None:
    """The checker of prose knows every page in the root."""
    assert sorted(PAGES) == sorted(path.name for path in ROOT.glob("*.md"))


@pytest.mark.parametrize("page", [*ROOT_PAGES, *TEMPLATES])
def test_a_target_of_make_that_a_page_names_is_one(page: str) -> None:
    """Each `make` target that a page names is in the Makefile."""
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    text = (ROOT / page).read_text()
    named = set(re.findall(r"(?:`|^)make ([a-z-]+)", text, re.MULTILINE))
    assert named <= targets
    if page == "CONTRIBUTING.md":
        assert {"install-dev", "quick", "test"} <= named
        assert len(blocks(page, "sh")) == 1


@pytest.mark.parametrize("page", [*ROOT_PAGES, *TEMPLATES])
def test_a_path_that_a_page_names_is_there(page: str) -> None:
    """Each path that a page names exists, in code or in a sentence."""
    text = prose(page).replace("`python -m tests.attacks`", "tests/attacks")
    named = re.findall(r"(?<![\w/.])((?:docs|tests|odradek|deploy)/[\w./-]*\w|[A-Z_]{4,}\.md)", text)
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_the_changelog_begins_with_what_is_unreleased() -> None:
    """The changelog begins with unreleased changes. Then come the versions, newest first, and the current one is among
    them."""
    titles = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    versions = [tuple(map(int, title.split("."))) for title in titles[1:]]
    assert titles[0] == "Unreleased"
    assert versions == sorted(versions, reverse=True)
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert version in titles


def test_no_page_of_the_root_gives_an_address() -> None:
    """No page gives an e-mail address or a URL, since reports go through the forge."""
    for page in (*ROOT_PAGES, *TEMPLATES):
        assert not re.search(r"[\w.+-]+@[\w-]+\.\w+|https?://", (ROOT / page).read_text()), page
