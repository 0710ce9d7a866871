"""Counts how often unchanged code reaches each mutant's place. Only a seed that reaches the place can show the bug."""

from __future__ import annotations

import ast
import builtins
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from tests.mutants.form.change import first_line
from tests.mutants.form.normal import find, normal_text
from tests.mutants.mutant import Mutant
from tests.mutants.patching import compiled, replaced

_COUNTER = "__mutants_reached__"


@contextmanager
def counted(mutants: Sequence[Mutant]) -> Iterator[Counter[str]]:
    """Run the block with code that counts, by mutant, how often the first line that it changes is reached."""
    places: dict[str, list[tuple[int, str]]] = {}
    for mutant in mutants:
        function, change = mutant.changes[0]
        places.setdefault(function, []).append((first_line(normal_text(function), change), mutant.name))
    counts: Counter[str] = Counter()
    setattr(builtins, _COUNTER, counts)
    try:
        with ExitStack() as stack:
            for function, found in places.items():
                stack.enter_context(replaced(function, _counting(function, found)))
            yield counts
    finally:
        delattr(builtins, _COUNTER)


def _counting(function: str, places: Sequence[tuple[int, str]]) -> str:
    text = normal_text(function)
    for at, name in sorted(places, reverse=True):
        text = _with_count(function, text, at, f"{_COUNTER}[{name!r}] += 1")
    return text


def _with_count(function: str, text: str, at: int, count: str) -> str:
    lines = text.splitlines()
    indent = lines[at][: len(lines[at]) - len(lines[at].lstrip())]
    here = "\n".join([*lines[:at], indent + count, *lines[at:]])
    try:
        compiled(find(function), here)
    except SyntaxError:
        # The count cannot stand before an `elif` or an `except`. The beginning of the function is the nearest place.
        assert isinstance(ast.parse(text).body[0], (ast.FunctionDef, ast.AsyncFunctionDef))
        return "\n".join([lines[0], f"    {count}", *lines[1:]])
    return here
