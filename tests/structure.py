"""The shape of the code, read from its syntax trees: lengths, arguments, circles of imports, widths of folders.

`python -m tests.structure` prints the figures that `tests/test_structure.py` checks. `python -m tests.structure --lines
COMMIT` prints the lines of code of each package, in that commit and now.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import product
from pathlib import Path

import attrs

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = (
    "wire",
    "metadata_quorum",
    "data_plane",
    "odradek",
    "sim",
    "spark",
    "pyspark_odradek",
    "jepsen_tests",
)
GENERATED = "wire/messages/"
BESIDE = ("testkit", "bench", "tests", "examples", "deploy")
"""Programs beside the packages that run from a checkout."""
LINES_MAX = 60
PARAMETERS_MAX = 8
FOLDER_MAX = 20
NOT_COUNTED = ("__init__.py", "README.md", "py.typed", "__pycache__")


@cache
def modules() -> tuple[str, ...]:
    """Return all modules written by hand, relative to the root of the repository."""
    found = (str(path.relative_to(ROOT)) for name in PACKAGES for path in (ROOT / name).rglob("*.py"))
    return tuple(sorted(module for module in found if not module.startswith(GENERATED)))


@cache
def tree_of(module: str) -> ast.Module:
    """Return a module's syntax tree."""
    return ast.parse((ROOT / module).read_text(), module)


@attrs.frozen
class Function:
    """The place of a function, and its size."""

    module: str
    name: str
    lines: int
    parameters: int


def _functions(
    tree: ast.AST, prefix: str = ""
) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef, bool]]:
    in_class = isinstance(tree, ast.ClassDef)
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield prefix + node.name, node, in_class
            yield from _functions(node, f"{prefix}{node.name}.")
        elif isinstance(node, ast.ClassDef):
            yield from _functions(node, f"{prefix}{node.name}.")
        else:
            yield from _functions(node, prefix)


@cache
def functions() -> tuple[Function, ...]:
    """Return all functions and methods. `self` does not count as a parameter, and docstrings count as lines."""
    found = []
    for module in modules():
        for name, node, is_method in _functions(tree_of(module)):
            given = node.args
            count = len(given.posonlyargs) + len(given.args) + len(given.kwonlyargs)
            static = any(
                isinstance(each, ast.Name) and each.id == "staticmethod" for each in node.decorator_list
            )
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            found.append(Function(module, name, lines, count - (is_method and not static)))
    return tuple(found)


@cache
def _by_dotted_name() -> dict[str, str]:
    return {dotted_name(module): module for module in modules()}


def dotted_name(module: str) -> str:
    """Return the name by which a module is imported. Some top-level folders are also folders of `odradek`."""
    name = module.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    return f"odradek.{name}" if (ROOT / "odradek" / name.partition(".")[0]).is_symlink() else name


@cache
def imports() -> Mapping[str, frozenset[str]]:
    """Return the modules of this project that each module imports anywhere, even only for type checkers."""
    names = _by_dotted_name()
    found: dict[str, frozenset[str]] = {}
    for module in modules():
        of_module: set[str] = set()
        for node in ast.walk(tree_of(module)):
            if isinstance(node, ast.Import):
                of_module.update(names[each.name] for each in node.names if each.name in names)
            elif isinstance(node, ast.ImportFrom) and node.module is not None:
                for each in node.names:
                    full = f"{node.module}.{each.name}"
                    target = names.get(full) or names.get(node.module)
                    if target is not None:
                        of_module.add(target)
        found[module] = frozenset(of_module - {module})
    return found


def circles(graph: Mapping[str, frozenset[str]]) -> list[list[str]]:
    """Return strongly connected sets of more than one node, sorted (Tarjan, SIAM Journal on Computing 1972)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for target in sorted(graph.get(node, ())):
            if target not in index:
                visit(target)
                low[node] = min(low[node], low[target])
            elif target in stack:
                low[node] = min(low[node], index[target])
        if low[node] == index[node]:
            component = []
            while True:
                component.append(stack.pop())
                if component[-1] == node:
                    break
            if len(component) > 1:
                found.append(sorted(component))

    for node in sorted(graph):
        if node not in index:
            visit(node)
    return sorted(found)


def _folder(module: str) -> str:
    return module.rpartition("/")[0]


@cache
def folder_imports() -> Mapping[tuple[str, str], tuple[tuple[str, str], ...]]:
    """Return, for two folders, the pairs of modules by which the first imports the second."""
    found: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for module, targets in imports().items():
        for target in sorted(targets):
            if _folder(module) != _folder(target):
                found.setdefault((_folder(module), _folder(target)), []).append((module, target))
    return {key: tuple(value) for key, value in found.items()}


def mutual_siblings() -> list[tuple[str, str]]:
    """Return pairs of folders with the same parent that import each other."""
    known = folder_imports()
    return sorted(
        (one, other)
        for one, other in known
        if one < other and _folder(one) == _folder(other) and (other, one) in known
    )


def circles_through_parents() -> list[tuple[str, str]]:
    """Return pairs (A, B): module A imports B from a folder above, and B imports a module of A's folder."""
    return sorted(
        (module, target)
        for module, targets in imports().items()
        for target in targets
        if _folder(module).startswith(_folder(target) + "/")
        and not target.endswith("__init__.py")
        and any(_folder(each).startswith(_folder(module)) for each in imports()[target])
    )


def widths() -> dict[str, int]:
    """Count the names that a reader sees in each folder: modules, data and folders. Names that every folder has are
    left out."""
    found: dict[str, int] = {}
    ahead = [ROOT / name for name in (*PACKAGES, *BESIDE)]
    while ahead:
        folder = ahead.pop()
        shown = [path for path in folder.iterdir() if path.name not in NOT_COUNTED and path.name[0] != "."]
        found[str(folder.relative_to(ROOT))] = len(shown)
        ahead += (path for path in shown if path.is_dir() and not path.is_symlink())
    return {folder: width for folder, width in sorted(found.items()) if f"{folder}/" != GENERATED}


def dead_mentions(texts: Sequence[str]) -> list[str]:
    """Return paths of Python files that pages or docstrings name but that do not exist."""
    known = {
        str(path.relative_to(ROOT)) for name in (*PACKAGES, *BESIDE) for path in (ROOT / name).rglob("*.py")
    }
    ends = {"/".join(path.split("/")[at:]) for path in known for at in range(path.count("/") + 1)}
    pattern = re.compile(r"(?<![\w/.*{-])((?:[a-z_]+/)*[a-z_]+\.py)\b(?!\w)")
    return [
        f"{text}:{number}: {mention}"
        for text in texts
        for number, line in enumerate((ROOT / text).read_text().split("\n"), 1)
        for mention in pattern.findall(line)
        if mention not in ends
    ]


def says_any(tree: ast.AST) -> bool:
    """True if a module uses `Any`, or `Callable[..., T]`, which accepts any arguments."""
    return any(
        (isinstance(node, ast.Name) and node.id == "Any")
        or (isinstance(node, ast.Constant) and node.value == "Any")
        or (
            isinstance(node, ast.Subscript)
            and isinstance(node.slice, ast.Tuple)
            and isinstance(node.slice.elts[0], ast.Constant)
            and node.slice.elts[0].value is ...
        )
        for node in ast.walk(tree)
    )


def modules_with_any() -> set[str]:
    """Return the dotted names of modules whose types mypy cannot fully check."""
    more = (
        str(path.relative_to(ROOT)) for name in ("bench", "testkit") for path in (ROOT / name).rglob("*.py")
    )
    return {dotted_name(module) for module in (*modules(), *more) if says_any(tree_of(module))}


def modules_freed_from_any_rule() -> list[str]:
    """Return the modules that pyproject.toml allows to use `Any`."""
    overrides = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["mypy"]["overrides"]
    (freed,) = [each["module"] for each in overrides if each.get("disallow_any_explicit") is False]
    return list(freed)


_LONE = frozenset((")", "}", "]", "),", "],", "},", "):"))


def lines_of_code(source: str) -> int:
    """Count lines without blanks, comments, docstrings, imports, and lines with only brackets."""
    left_out: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Expr(value=ast.Constant(value=str())) | ast.Import() | ast.ImportFrom():
                left_out.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return sum(
        1
        for number, line in enumerate(source.splitlines(), 1)
        if line.strip() and line.strip()[0] != "#" and number not in left_out and line.strip() not in _LONE
    )


def _package_of(module: str) -> str:
    """Return the package under which a module's lines are counted. Subfolders of `odradek` are counted separately."""
    first, _, rest = module.partition("/")
    return f"{first}/{rest.partition('/')[0]}" if first == "odradek" and "/" in rest else first


def code_lines(commit: str = "") -> Counter[str]:
    """Count the lines of code of each package, now or in a commit, without generated messages."""
    found: Counter[str] = Counter()
    if not commit:
        for module in modules():
            found[_package_of(module)] += lines_of_code((ROOT / module).read_text())
        return found
    listed = _git("ls-tree", "-r", "--name-only", commit).splitlines()
    for path in listed:
        is_ours = path.endswith(".py") and path.startswith(tuple(f"{name}/" for name in PACKAGES))
        if is_ours and not path.startswith(GENERATED):
            found[_package_of(path)] += lines_of_code(_git("show", f"{commit}:{path}"))
    return found


def _git(*arguments: str) -> str:
    return subprocess.run(
        ["git", "-C", str(ROOT), *arguments], check=True, capture_output=True, text=True
    ).stdout


def print_lines(commit: str) -> None:
    """Print each package's lines of code, before and now."""
    before, now = code_lines(commit), code_lines()
    for package in sorted({*before, *now}):
        print(f"{before[package]:7} {now[package]:7} {now[package] - before[package]:+6}  {package}")
    print(f"{before.total():7} {now.total():7} {now.total() - before.total():+6}  all")


def main() -> None:
    """Print the figures."""
    if sys.argv[1:2] == ["--lines"]:
        print_lines(sys.argv[2] if len(sys.argv) > 2 else "HEAD")
        return
    long = sorted((each for each in functions() if each.lines > LINES_MAX), key=lambda each: -each.lines)
    many = sorted(
        (each for each in functions() if each.parameters > PARAMETERS_MAX), key=lambda each: -each.parameters
    )
    print(f"{len(long)} functions over {LINES_MAX} lines, {len(many)} over {PARAMETERS_MAX} parameters")
    for each in long:
        print(f"  {each.lines:4} lines       {each.module} {each.name}")
    for each in many:
        print(f"  {each.parameters:4} parameters  {each.module} {each.name}")
    rings = circles(imports())
    print(f"{len(rings)} circles of files")
    for ring in rings:
        print("  " + " ".join(ring))
    print(f"{len(mutual_siblings())} pairs of sibling folders that import each other")
    for one, other in mutual_siblings():
        for pair in product((one, other), repeat=2):
            for module, target in folder_imports().get((pair[0], pair[1]), ()):
                print(f"  {module} -> {target}")
    parents = circles_through_parents()
    print(f"{len(parents)} imports of modules above that import the room")
    for module, target in parents:
        print(f"  {module} -> {target}")
    print("widths")
    for folder, width in widths().items():
        print(f"  {width:3} {folder}")


if __name__ == "__main__":
    main()
