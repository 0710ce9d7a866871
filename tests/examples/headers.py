"""The headers of examples: what a program says that it prints."""

from __future__ import annotations

import ast
import textwrap

from tests.docs.markdown import ROOT

EXAMPLES = tuple(sorted(path.stem for path in (ROOT / "examples").glob("*.py")))
"""Their names, without `.py`."""
PRINTS = "prints:\n\n"


def printed_by(name: str) -> str:
    """Return the output that an example's header shows, as the program prints it. Raises `ValueError` without one."""
    header = ast.get_docstring(ast.parse((ROOT / "examples" / f"{name}.py").read_text())) or ""
    _, _, shown = header.partition(PRINTS)
    if not shown:
        raise ValueError(f"the header of {name}.py does not say what it prints")
    return textwrap.dedent(shown) + "\n"
