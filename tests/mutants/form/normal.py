"""The normal form of a function: its syntax tree as text, without docstring, comments and formatting.

Named states of the census (`reached("name")`) are left out, too, since they only count.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from functools import cached_property
from importlib import import_module
from types import FunctionType

Definition = ast.FunctionDef | ast.AsyncFunctionDef


def find(function: str) -> FunctionType:
    """Return the function, or the getter of the property, of this name ("package.module:Class.method")."""
    module, _, path = function.partition(":")
    found: object = import_module(module)
    for part in path.split("."):
        found = inspect.getattr_static(found, part)
    if isinstance(found, property):
        found = found.fget
    if isinstance(found, cached_property):
        found = found.func
    if isinstance(found, (staticmethod, classmethod)):
        found = found.__func__
    while hasattr(found, "__wrapped__"):
        found = found.__wrapped__
    if not isinstance(found, FunctionType):
        raise TypeError(f"{function} is no function of ours: {found!r}")
    return found


def normal_text(function: str) -> str:
    """Return the normal form of a function's present source."""
    return normalize(inspect.getsource(find(function)))


def normalize(source: str) -> str:
    """Return the normal form of a function's source. Raises `SyntaxError` if it is no function."""
    definition = definition_of(source)
    if ast.get_docstring(definition, clean=False) is not None:
        definition.body = definition.body[1:]
    _WithoutStates().visit(definition)
    definition.body = definition.body or [ast.Pass()]
    return ast.unparse(definition)


class _WithoutStates(ast.NodeTransformer):
    """Removes named states, and conditions whose body has nothing else."""

    def visit_Expr(self, node: ast.Expr) -> ast.Expr | None:
        match node.value:
            case ast.Call(func=ast.Name(id="reached")):
                return None
            case _:
                return node

    def visit_If(self, node: ast.If) -> ast.If | list[ast.stmt] | None:
        self.generic_visit(node)
        if not node.body and not node.orelse:
            return None
        node.body = node.body or [ast.Pass()]
        return node


def definition_of(source: str) -> Definition:
    """Parse the source of one function, at any indentation."""
    (definition,) = ast.parse(textwrap.dedent(source)).body
    if not isinstance(definition, (ast.FunctionDef, ast.AsyncFunctionDef)):
        raise SyntaxError(f"this is no function: {source}")
    return definition


def is_same(one: str, other: str) -> bool:
    """True if two normal forms have the same syntax tree, even if different versions of Python wrote them."""
    return ast.dump(ast.parse(one)) == ast.dump(ast.parse(other))
