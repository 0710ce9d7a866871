"""The limits on a module by its colour, checked in its syntax tree. See STYLE.md and `test_architecture`."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import attrs

WORLD = frozenset(
    {
        *(
            "trio",
            "time",
            "threading",
            "_thread",
            "asyncio",
            "uuid",
            "secrets",
            "os",
            "posix",
            "socket",
            "select",
        ),
        *(
            "selectors",
            "subprocess",
            "mmap",
            "signal",
            "multiprocessing",
            "concurrent",
            "tempfile",
            "shutil",
            "io",
        ),
        *(
            "pathlib",
            "glob",
            "fcntl",
            "resource",
            "socketserver",
            "ssl",
            "http",
            "urllib",
            "ctypes",
            "weakref",
            "gc",
        ),
    }
)
"""Modules with IO, and modules whose results depend on the garbage collector or on memory addresses."""

_ORDERED_USES = frozenset(
    {"list", "tuple", "iter", "enumerate", "zip", "map", "filter", "reversed", "next", "dict"}
)
_SET_TYPES = frozenset({"set", "frozenset", "Set", "AbstractSet", "FrozenSet", "MutableSet"})


@attrs.frozen
class Finding:
    """A line that breaks a rule."""

    line: int
    rule: str


def is_async(tree: ast.AST) -> bool:
    """True if the module has any async code (so it is PORTED, or SHELL)."""
    kinds = (ast.AsyncFunctionDef, ast.Await, ast.AsyncFor, ast.AsyncWith)
    return any(isinstance(node, kinds) for node in ast.walk(tree))


_SCOPES = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def findings(tree: ast.Module) -> list[Finding]:
    """Return the lines of a module that use what only SHELL modules may use."""
    nodes: list[ast.AST] = []
    scopes: list[tuple[ast.AST, int, int]] = []
    _flatten(tree, nodes, scopes)
    found = [*_imports(nodes), *_calls(nodes), *_global_random(nodes)]
    # Each function is a scope. So are the module and its classes, which have attributes of `self`.
    for scope, start, end in scopes:
        found += _set_iterations(scope, nodes[start:end])
    return sorted(set(found), key=lambda finding: (finding.line, finding.rule))


def _flatten(node: ast.AST, nodes: list[ast.AST], scopes: list[tuple[ast.AST, int, int]]) -> None:
    """Append a node and all nodes below it, parents first. Record where the nodes of each scope begin and end."""
    start = len(nodes)
    nodes.append(node)
    for name in node._fields:
        value = getattr(node, name, None)
        for child in value if isinstance(value, list) else (value,):
            if isinstance(child, ast.AST) and not isinstance(child, _WITHOUT_MEANING):
                _flatten(child, nodes, scopes)
    if isinstance(node, _SCOPES):
        scopes.append((node, start, len(nodes)))


_WITHOUT_MEANING = (ast.expr_context, ast.operator, ast.cmpop, ast.boolop, ast.unaryop)
"""Kinds of nodes that no rule reads."""


def _imports(nodes: list[ast.AST]) -> Iterator[Finding]:
    for node in nodes:
        if isinstance(node, ast.If) and _name(node.test) == "TYPE_CHECKING":
            for inner in ast.walk(node):
                inner.type_checking = True  # type: ignore[attr-defined]  # a mark on the tree
        if getattr(node, "type_checking", False):
            continue
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names = [node.module or ""]
            if node.module == "random" and any(alias.name != "Random" for alias in node.names):
                yield Finding(node.lineno, "of random only the type Random")
        else:
            continue
        for name in names:
            if name.partition(".")[0] in WORLD:
                yield Finding(node.lineno, f"import {name}")


def _calls(nodes: list[ast.AST]) -> Iterator[Finding]:
    for node in nodes:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            if node.func.id in ("id", "hash"):
                yield Finding(node.lineno, f"{node.func.id}() differs from process to process")
            if node.func.id in ("open", "input", "breakpoint", "__import__"):
                yield Finding(node.lineno, f"{node.func.id}() passes the ports by")
        if (
            isinstance(node, ast.Attribute)
            and node.attr in ("now", "utcnow", "today")
            and _name(node.value) in ("datetime", "date")
        ):
            yield Finding(node.lineno, "the clock is a port")


def _global_random(nodes: list[ast.AST]) -> Iterator[Finding]:
    """Find uses of the module `random` other than its type. A parameter named `random` is an injected generator."""
    aliases = {
        alias.asname or alias.name
        for node in nodes
        if isinstance(node, ast.Import)
        for alias in node.names
        if alias.name == "random"
    }
    if not aliases:
        return
    injected = {
        inner
        for node in nodes
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        and any(argument.arg in aliases for argument in [*node.args.args, *node.args.kwonlyargs])
        for inner in ast.walk(node)
    }
    for node in nodes:
        if not isinstance(node, ast.Attribute) or node in injected:
            continue
        if _name(node.value) in aliases and node.attr != "Random":
            yield Finding(node.lineno, "of random only the type Random")


def _set_iterations(scope: ast.AST, nodes: list[ast.AST]) -> Iterator[Finding]:
    """Find iterations over an expression that is plainly a set: a literal, a call of `set`, or a name that
    holds one."""
    of_class = isinstance(scope, ast.ClassDef)
    known = _names_of_sets(nodes, attributes=of_class)
    for node in nodes:
        for iterated in _ordered_uses(node):
            if _is_set(iterated, known, names=not of_class):
                yield Finding(iterated.lineno, "the order of a set differs from process to process")


def _ordered_uses(node: ast.AST) -> Iterator[ast.expr]:
    """Return the expressions on whose order `node` depends."""
    if isinstance(node, (ast.For, ast.AsyncFor)):
        yield node.iter
    elif isinstance(node, (ast.ListComp, ast.DictComp)):
        yield from (each.iter for each in node.generators)
    elif isinstance(node, ast.GeneratorExp):
        if not getattr(node, "order_is_lost", False):
            yield from (each.iter for each in node.generators)
    elif isinstance(node, ast.Set):
        for element in node.elts:
            element.order_is_lost = True  # type: ignore[attr-defined]  # as below
    elif isinstance(node, ast.Starred):
        if not getattr(node, "order_is_lost", False):
            yield node.value
    elif isinstance(node, ast.Call):
        name = _name(node.func)
        if name in ("sorted", "set", "frozenset", "any", "all", "sum", "min", "max", "len"):
            for argument in node.args:
                argument.order_is_lost = True  # type: ignore[attr-defined]  # a mark on the tree, seen further down
        elif name in _ORDERED_USES or (
            isinstance(node.func, ast.Attribute) and node.func.attr in ("join", "extend")
        ):
            yield from node.args
        elif isinstance(node.func, ast.Attribute) and node.func.attr == "pop" and not node.args:
            yield node.func.value


def _names_of_sets(nodes: list[ast.AST], *, attributes: bool) -> frozenset[str]:
    """Return the names (or attributes of `self`) that hold only sets, by annotation or assignment."""
    sets: set[str] = set()
    others: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.AnnAssign):
            name = _target(node.target, attributes)
            if name:
                (sets if _is_set_annotation(node.annotation) else others).add(name)
        elif isinstance(node, ast.arg) and node.annotation is not None and not attributes:
            (sets if _is_set_annotation(node.annotation) else others).add(node.arg)
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                name = _target(target, attributes)
                if name:
                    (sets if _is_set(node.value, frozenset(sets), names=True) else others).add(name)
        elif isinstance(node, (ast.For, ast.comprehension)):
            others |= {inner.id for inner in ast.walk(node.target) if isinstance(inner, ast.Name)}
    return frozenset(sets - others)


def _target(node: ast.expr, attributes: bool) -> str | None:
    if attributes and isinstance(node, ast.Attribute) and _name(node.value) == "self":
        return f"self.{node.attr}"
    if isinstance(node, ast.Name):
        return f"self.{node.id}" if attributes else node.id
    return None


def _is_set_annotation(node: ast.expr) -> bool:
    if isinstance(node, ast.Subscript):
        node = node.value
    return _name(node) in _SET_TYPES or (isinstance(node, ast.Attribute) and node.attr in _SET_TYPES)


def _is_set(node: ast.expr, known: frozenset[str], *, names: bool) -> bool:
    if isinstance(node, (ast.Set, ast.SetComp)):
        return True
    if isinstance(node, ast.Call):
        if _name(node.func) in ("set", "frozenset"):
            return True
        return isinstance(node.func, ast.Attribute) and node.func.attr in (
            *("union", "intersection", "difference", "symmetric_difference"),
        )
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Sub, ast.BitOr, ast.BitAnd, ast.BitXor)):
        return _is_set(node.left, known, names=names) or _is_set(node.right, known, names=names)
    if isinstance(node, ast.Attribute) and _name(node.value) == "self":
        return f"self.{node.attr}" in known
    return names and isinstance(node, ast.Name) and node.id in known


def _name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else ""
