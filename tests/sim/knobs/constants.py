"""Find the upper-case numeric constants in the product's source, and the modules that use one at import."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import attrs

REPOSITORY = Path(__file__).resolve().parents[3]
ROOTS = {"odradek": "", "wire": "wire.", "metadata_quorum": "metadata_quorum.", "data_plane": "data_plane."}
"""The folders of the product, with the module prefix of each below `odradek.`."""
_ARITHMETIC = (ast.Constant, ast.BinOp, ast.UnaryOp, ast.Name, ast.operator, ast.unaryop, ast.expr_context)


@attrs.frozen
class Source:
    """A module of the product. `name` leaves out `odradek.`."""

    name: str
    tree: ast.Module


@cache
def sources() -> Mapping[str, Source]:
    """Parse all modules of the product."""
    found: dict[str, Source] = {}
    for root, prefix in ROOTS.items():
        for path in sorted((REPOSITORY / root).rglob("*.py")):
            inside = path.relative_to(REPOSITORY / root)
            if any(parent.is_symlink() for parent in path.parents) or inside.parts[0] == "cli":
                continue
            parts = inside.with_suffix("").parts
            name = prefix + ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            found[name] = Source(name, ast.parse(path.read_text()))
    return found


@cache
def constants() -> Mapping[str, str]:
    """Find all numeric constants with their sources, by path. Members of enumerations are left out."""
    return {
        f"{source.name}.{name}": text
        for source in sources().values()
        for name, text in _constants_of(source.tree.body, "")
    }


def _constants_of(body: list[ast.stmt], owner: str) -> Iterator[tuple[str, str]]:
    for statement in body:
        match statement:
            case ast.ClassDef(name=name, bases=bases, body=inside):
                if not any("Enum" in ast.unparse(base) for base in bases):
                    yield from _constants_of(inside, f"{owner}{name}.")
            case (
                ast.Assign(targets=[ast.Name(id=name)], value=value)
                | ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value)
            ):
                if name.strip("_").isupper() and _is_number(value):
                    yield owner + name, ast.unparse(value)


def _is_number(value: ast.expr) -> bool:
    """True if an expression consists of numbers, or of constants and at least one number."""
    parts = list(ast.walk(value))
    numbers = [part.value for part in parts if isinstance(part, ast.Constant)]
    return (
        all(isinstance(part, _ARITHMETIC) for part in parts)
        and bool(numbers)
        and all(isinstance(number, (int, float)) and not isinstance(number, bool) for number in numbers)
    )


def used_at_import(home: str, name: str) -> list[str]:
    """List the modules that read a constant while they are loaded, so that a later change has no effect there."""
    users = [home, *(user for user, imports in _imports().items() if (home, name, None) in imports)]
    return [user for user in users if name in _read_at_import(user)]


def imported_otherwise(home: str, name: str) -> list[str]:
    """List the modules that import a constant under another name, or from a module that only re-exports it."""
    users = {user for user, imports in _imports().items() if (home, name, None) in imports}
    return [
        user
        for user, imports in _imports().items()
        for origin, imported, alias in imports
        if imported == name and (origin in users or (origin == home and alias is not None))
    ]


@cache
def _imports() -> Mapping[str, frozenset[tuple[str, str, str | None]]]:
    """List the imports of each module as (module, name, local name)."""
    return {
        source.name: frozenset(
            ((node.module or "").removeprefix("odradek."), alias.name, alias.asname)
            for node in ast.walk(source.tree)
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
        )
        for source in sources().values()
    }


@cache
def _read_at_import(module: str) -> frozenset[str]:
    """List the names that a module reads at import, outside of function bodies."""
    found = set()
    waiting: list[ast.AST] = list(sources()[module].tree.body)
    while waiting:
        node = waiting.pop()
        match node:
            case (
                ast.FunctionDef(args=args, decorator_list=decorators)
                | ast.AsyncFunctionDef(args=args, decorator_list=decorators)
            ):
                waiting += [
                    *args.defaults,
                    *(each for each in args.kw_defaults if each is not None),
                    *decorators,
                ]
            case ast.Lambda(args=args):
                waiting += [*args.defaults, *(each for each in args.kw_defaults if each is not None)]
            case ast.Name(id=name, ctx=ast.Load()):
                found.add(name)
            case ast.AnnAssign(value=value):
                waiting += [] if value is None else [value]
            case _:
                waiting += ast.iter_child_nodes(node)
    return frozenset(found)
