"""Replaces the body of a product's function in memory, for the time of a block.

The function object stays, and only its code changes. So the bug runs wherever the function was imported by name, bound
to an object, or stored as a callback.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType, FunctionType

from tests.mutants.form.normal import definition_of, find


@contextmanager
def patched(function: str, old: str, new: str) -> Iterator[None]:
    """Run the block with `new` in place of `old` in the source of `function` ("package.module:Class.method")."""
    with replaced(function, changed_source(function, old, new)):
        yield


def changed_source(function: str, old: str, new: str) -> str:
    """Return the function's source with `old` replaced. Raises `ValueError` unless `old` occurs exactly once."""
    source = inspect.getsource(find(function))
    if source.count(old) != 1:
        raise ValueError(f"{function} has {source.count(old)} times {old!r}")
    return source.replace(old, new)


@contextmanager
def replaced(function: str, source: str) -> Iterator[None]:
    """Run the block with `source` as the body of `function`."""
    target = find(function)
    sound = target.__code__
    target.__code__ = compiled(target, source)
    try:
        yield
    finally:
        target.__code__ = sound


def compiled(function: FunctionType, source: str) -> CodeType:
    """Compile a source to code for a function. Raises `ValueError` if the code needs outer variables that the function
    lacks."""
    definition = definition_of(source)
    definition.decorator_list = []
    sound = function.__code__
    # The code may use only variables of an enclosing function that the original uses, too, `__class__` among them.
    outer = ast.parse("def outer():\n pass").body[0]
    assert isinstance(outer, ast.FunctionDef)
    outer.body = [*(ast.parse(f"{name} = None").body[0] for name in sound.co_freevars), definition]
    # Annotations are evaluated as lazily as in the function's own module.
    tree = ast.parse("from __future__ import annotations")
    tree.body.append(outer)
    ast.fix_missing_locations(ast.increment_lineno(tree, sound.co_firstlineno - 1))
    (around,) = _codes(compile(tree, sound.co_filename, "exec"))
    (code,) = _codes(around)
    if code.co_freevars != sound.co_freevars:
        raise ValueError(
            f"{function.__qualname__} has the outer variables {sound.co_freevars}, not {code.co_freevars}"
        )
    return code.replace(co_qualname=sound.co_qualname)


def _codes(code: CodeType) -> list[CodeType]:
    return [each for each in code.co_consts if isinstance(each, CodeType)]
