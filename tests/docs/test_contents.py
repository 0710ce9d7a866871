"""The pages as a whole: the table of contents, and the links between them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.markdown import ROOT, prose

PAGES = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md"))
ROOT_PAGES = sorted({path.name for path in ROOT.glob("*.md")} - {"README.md"})


def _readmes() -> list[str]:
    """Return the README of the repository and those of its folders. Folders of tools, which begin with a dot, are left
    out."""
    folders = [path for path in ROOT.iterdir() if path.is_dir() and not path.name.startswith(".")]
    found = {ROOT / "README.md", *(path for folder in folders for path in folder.rglob("README.md"))}
    return sorted({str(path.relative_to(ROOT)) for path in found} - set(PAGES))


@pytest.mark.parametrize("folder", ["docs", "docs/internals"])
def test_the_contents_name_every_page_once(folder: str) -> None:
    """The README of each folder of pages has one line for each page, and none for other pages."""
    contents = f"{folder}/README.md"
    lines = re.findall(r"^\| \[([\w-]+\.md)\]\(([\w-]+\.md)\) \|", prose(contents), re.MULTILINE)
    assert [target for _, target in lines] == [name for name, _ in lines]
    here = [page for page in PAGES if page.rpartition("/")[0] == folder and page != contents]
    assert sorted(f"{folder}/{name}" for name, _ in lines) == here


def test_the_contents_lead_to_the_pages_of_each_folder() -> None:
    """docs/README.md links to the README of every folder below it."""
    folders = {page.rpartition("/")[0] for page in PAGES} - {"docs"}
    linked = set(re.findall(r"\]\(([\w/-]+)/README\.md\)", prose("docs/README.md")))
    assert {f"docs/{name}" for name in linked} >= folders


@pytest.mark.parametrize("page", [*PAGES, *ROOT_PAGES, *_readmes()])
def test_links_lead_somewhere(page: str) -> None:
    """Each link to a file of this repository leads to a file that exists, and to an existing heading if it
    names one."""
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if re.match(r"\w+:", target):
            continue
        path, _, heading = target.partition("#")
        file = ((ROOT / page).parent / path).resolve() if path else ROOT / page
        assert file.exists(), target
        assert not heading or heading in _headings(file), target


def _headings(file: Path) -> set[str]:
    """Return a page's headings in the form that links use."""
    titles = re.findall(r"^#+ (.+)$", file.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
