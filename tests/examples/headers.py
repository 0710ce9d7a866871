"""The headers of the examples, in which each program shows its output."""

from __future__ import annotations

import ast
import textwrap

from tests.docs.markdown import ROOT

EXAMPLES = tuple(sorted(path.stem for path in (ROOT / "examples").glob("*.py")))
"""The names of the examples, without `.py`."""
PRINTS = "prints:\n\n"


def printed_by(name: str) -> str:
    """Return the output that an example's header shows. Raises `ValueError` if it shows none."""
    header = ast.get_docstring(ast.parse((ROOT / "examples" / f"{name}.py").read_text())) or ""
    _, _, shown = header.partition(PRINTS)
    if not shown:
        raise ValueError(
            f"the header of {name}.py shows no output: add a line that ends with 'prints:', and the output below it"
        )
    return textwrap.dedent(shown) + "\n"
