"""The tables of modules in READMEs, generated from docstrings. `python -m tests.docs.module_tables` writes them all.

A folder with modules has a README with a table between two comments. The table has a row for each subfolder, then a row
for each module. A row has the first sentence of the docstring, and the module's colour. The text around the table is
written by hand.
"""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

from tests.colours import is_async
from tests.docs.markdown import ROOT
from tests.structure import GENERATED, PACKAGES
from tests.test_architecture import is_shell, modules

TOPS = (*PACKAGES, "bench", "testkit")
BEGIN = "<!-- modules: python -m tests.docs.module_tables -->\n"
END = "<!-- end of modules -->\n"
_TABLE = re.compile(re.escape(BEGIN) + ".*?" + re.escape(END), re.DOTALL)
_COLOUR = re.compile(r"\b(?:PURE|PORTED|SHELL)\b")
_END_OF_SENTENCE = re.compile(r"(?<=\.)\s")


@cache
def folders() -> tuple[Path, ...]:
    """Return the folders that need a table: all that have modules, except generated ones."""
    found = {
        path.parent
        for top in TOPS
        for path in (ROOT / top).rglob("*.py")
        if not str(path.relative_to(ROOT)).startswith(GENERATED) and path.name != "__init__.py"
    }
    return tuple(sorted(found))


def first_sentence(path: Path) -> str:
    """Return the first sentence of a module's docstring without its full stop. Fail if there is none."""
    text = ast.get_docstring(ast.parse(path.read_text()))
    assert text, f"{path.relative_to(ROOT)} has no docstring"
    paragraph = " ".join(text.partition("\n\n")[0].split())
    sentence = _END_OF_SENTENCE.split(paragraph)[0].removesuffix(".")
    return sentence.replace("|", "\\|")


def colour_of(path: Path) -> str:
    """Return a module's colour (STYLE.md), or an empty text outside the product.

    A docstring may name the colour. Otherwise it follows from the folder and the code. Fail if a module with coroutines
    calls itself PURE.
    """
    module = str(path.relative_to(ROOT))
    if module not in coloured():
        return ""
    tree = ast.parse(path.read_text())
    found = "SHELL" if is_shell(module) else "PORTED" if is_async(tree) else "PURE"
    named = set(_COLOUR.findall((ast.get_docstring(tree) or "").partition("\n\n")[0]))
    if len(named) != 1:
        return found
    (colour,) = named
    assert colour != "PURE" or not is_async(tree), f"{module} has coroutines, so it is not PURE"
    return colour


def table_of(folder: Path) -> str:
    """Make the table of a folder."""
    rooms = sorted(path.parent for path in folder.glob("*/__init__.py") if path.parent.name != "messages")
    files = sorted(path for path in folder.glob("*.py") if path.name != "__init__.py")
    rows = [(_room(room), first_sentence(room / "__init__.py"), "") for room in rooms]
    rows += [(f"`{module.name}`", first_sentence(module), colour_of(module)) for module in files]
    columns = ["module", "what it is"]
    if any(colour for _, _, colour in rows):
        columns.append("colour")
    lines = [columns, ["---"] * len(columns), *(row[: len(columns)] for row in rows)]
    return BEGIN + "".join(f"| {' | '.join(cells)} |\n".replace("|  |", "| |") for cells in lines) + END


def _room(folder: Path) -> str:
    """Return a subfolder's name, with a link if it has a page."""
    is_named = (folder / "README.md").exists() and not folder.is_symlink()
    return f"[`{folder.name}/`]({folder.name}/README.md)" if is_named else f"`{folder.name}/`"


@cache
def coloured() -> frozenset[str]:
    """List the modules that have a colour."""
    return frozenset(modules())


def with_table(folder: Path, page: str) -> str:
    """Return a README's text with the table that the sources give now."""
    assert BEGIN in page, f"{folder.relative_to(ROOT)}/README.md has no place for its table: {BEGIN.strip()}"
    return _TABLE.sub(lambda _: table_of(folder), page)


def main() -> None:
    """Write all tables."""
    for folder in folders():
        page = folder / "README.md"
        page.write_text(with_table(folder, page.read_text()))


if __name__ == "__main__":
    main()
