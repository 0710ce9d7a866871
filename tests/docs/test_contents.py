"""The pages as a whole: the table of contents, and the links between them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.markdown import ROOT, prose

PAGES = sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))
ROOT_PAGES = sorted({path.name for path in ROOT.glob("*.md")} - {"README.md"})


def _readmes() -> list[str]:
    """The README of the repository and those of its folders; what tools keep has a name that begins with a dot."""
    folders = [path for path in ROOT.iterdir() if path.is_dir() and not path.name.startswith(".")]
    found = {ROOT / "README.md", *(path for folder in folders for path in folder.rglob("README.md"))}
    return sorted(str(path.relative_to(ROOT)) for path in found if path.parent != ROOT / "docs")


def test_the_contents_name_every_page_once() -> None:
    """docs/README.md has a line for each page, and for no other."""
    lines = re.findall(r"^\| \[([\w-]+\.md)\]\(([\w-]+\.md)\) \|", prose("docs/README.md"), re.MULTILINE)
    assert [target for _, target in lines] == [name for name, _ in lines]
    assert sorted(f"docs/{name}" for name, _ in lines) == [page for page in PAGES if page != "docs/README.md"]


@pytest.mark.parametrize("page", [*PAGES, *ROOT_PAGES, *_readmes()])
def test_links_lead_somewhere(page: str) -> None:
    """A link to a file of ours finds the file, and a heading of it where it names one."""
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if re.match(r"\w+:", target):
            continue
        path, _, heading = target.partition("#")
        file = ((ROOT / page).parent / path).resolve() if path else ROOT / page
        assert file.exists(), target
        assert not heading or heading in _headings(file), target


def _headings(file: Path) -> set[str]:
    """As addresses name them."""
    titles = re.findall(r"^#+ (.+)$", file.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
