"""READMEs list the modules of their folders with the first sentences of their docstrings."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.markdown import ROOT
from tests.docs.module_tables import BEGIN, END, first_sentence, folders, with_table


@pytest.mark.parametrize("folder", folders(), ids=lambda folder: str(folder.relative_to(ROOT)))
def test_a_readme_lists_the_modules_of_its_folder(folder: Path) -> None:
    """Each README's table equals the output of `python -m tests.docs.module_tables`."""
    page = folder / "README.md"
    assert page.exists(), (
        f"{page.relative_to(ROOT)} is missing: a heading, a sentence, and the comments {BEGIN}{END}"
    )
    text = page.read_text()
    assert with_table(folder, text) == text


@pytest.mark.parametrize(
    ("docstring", "sentence"),
    [
        ('"""One thing."""', "One thing"),
        ('"""One thing: a|b, v4.3 too. More.\n\nRest."""', "One thing: a\\|b, v4.3 too"),
        ('"""One thing over\ntwo lines.\n"""', "One thing over two lines"),
    ],
)
def test_a_row_has_the_first_sentence(docstring: str, sentence: str, tmp_path: Path) -> None:
    """A row has the whole first sentence of a docstring, even if it continues on the second line."""
    module = tmp_path / "module.py"
    module.write_text(docstring + "\n")
    assert first_sentence(module) == sentence
