"""A bug put into one function, for a while: some of its text is replaced, and its code with it.

The function object stays the same, so a module that has imported it by name runs the bug too. The old text must be in
the function exactly once. Otherwise a mutant would quietly become sound when the code around it changes.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import CodeType, FunctionType


@contextmanager
def patched(function: str, old: str, new: str) -> Iterator[None]:
    """Run with `new` instead of `old` in `function` ("package.module:Class.method")."""
    target = find(function)
    sound = target.__code__
    target.__code__ = changed_code(target, old, new)
    try:
        yield
    finally:
        target.__code__ = sound


def find(function: str) -> FunctionType:
    """The function, or the getter of the property, of this name."""
    module, _, path = function.partition(":")
    found: object = import_module(module)
    for part in path.split("."):
        found = inspect.getattr_static(found, part)
    if isinstance(found, property):
        found = found.fget
    if isinstance(found, (staticmethod, classmethod)):
        found = found.__func__
    if not isinstance(found, FunctionType):
        raise TypeError(f"{function} is no function of ours: {found!r}")
    return found


def changed_code(function: FunctionType, old: str, new: str) -> CodeType:
    """The function's code with `old` replaced. Raises `ValueError` unless it is there exactly once."""
    text = inspect.getsource(function)
    if text.count(old) != 1:
        raise ValueError(f"{function.__qualname__} has {text.count(old)} times {old!r}")
    tree = ast.parse(textwrap.dedent(text.replace(old, new)))
    definition = tree.body[0]
    assert isinstance(definition, (ast.FunctionDef, ast.AsyncFunctionDef))
    definition.decorator_list = []
    # Annotations of the bug's text are as lazy as those of the module that it goes into.
    tree.body.insert(0, ast.parse("from __future__ import annotations").body[0])
    module = compile(tree, inspect.getfile(function), "exec")
    code = next(
        each for each in module.co_consts if isinstance(each, CodeType) and each.co_name == definition.name
    )
    if code.co_freevars != function.__code__.co_freevars:
        raise ValueError(f"{function.__qualname__} is a closure")
    return code
