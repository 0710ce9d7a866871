"""Seals on the recorded answers of Apache Kafka: digests of the cases and modules with which they were recorded.

Kafka's release is pinned, so its answers change only if the questions change. `record` seals what it has written. `make
test` checks only the seals and needs no Kafka. If a seal is broken, `make conformance` asks Kafka again.
"""

from __future__ import annotations

import ast
import hashlib
import json
from pathlib import Path

from testkit.kafka_server import KAFKA_VERSION
from tests.conformance.comparison import RECORDING

HERE = Path(__file__).parent
PACKAGE = "tests.conformance."
NO_QUESTIONS = frozenset((f"{PACKAGE}deliberate",))
"""Modules that describe differences between answers and ask no questions."""
SEALS = HERE / "seals.json"
SHARED = tuple(
    HERE / f"{name}.py"
    for name in (
        "asking/batches",
        "asking/broken_frames",
        "asking/configs",
        "asking/members",
        "asking/offsets",
        "asking/talk",
        "asking/transactions",
        "comparison",
        "corpus",
        "servers",
    )
)
"""The modules that all cases use. A change of their code breaks all seals."""


def seal_of(api: str) -> str:
    """Return the digest of an API's recorded answers, of its cases, of the modules they use, and of Kafka's release."""
    digest = hashlib.sha256(KAFKA_VERSION.encode())
    cases = HERE / "cases" / f"{api}.py"
    for path in (*SHARED, *used_by(cases), cases):
        digest.update(asking_code(path))
    digest.update((RECORDING / f"{api}.json").read_bytes())
    return digest.hexdigest()


def used_by(cases: Path) -> list[Path]:
    """Return the modules of this folder that a file of cases imports for its questions, without the shared ones."""
    imported = (each for each in ast.walk(ast.parse(cases.read_text())) if isinstance(each, ast.ImportFrom))
    names = {each.module for each in imported if each.module is not None} - NO_QUESTIONS
    used = (name.removeprefix(PACKAGE).split(".") for name in names if name.startswith(PACKAGE))
    paths = {HERE.joinpath(*parts).with_suffix(".py") for parts in used}
    return sorted(paths.difference(SHARED))


def seals() -> dict[str, str]:
    """Load the seals, by API."""
    written: dict[str, str] = json.loads(SEALS.read_text()) if SEALS.exists() else {}
    return written


def seal(api: str) -> None:
    """Seal the answers that Kafka has just given."""
    SEALS.write_text(json.dumps({**seals(), api: seal_of(api)}, indent=1, sort_keys=True) + "\n")


def asking_code(path: Path) -> bytes:
    """Return a module's code without its docstrings and the paths of its imports.

    So the seal stays valid if an imported module moves to another folder. The imported names count, in sorted order.
    """
    tree = ast.parse(path.read_text())
    imported: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            for each in node.body:
                if isinstance(each, ast.ImportFrom):
                    imported += (f"{name.name} as {name.asname or name.name}" for name in each.names)
            node.body = [
                each for each in node.body if not _is_text(each) and not isinstance(each, ast.ImportFrom)
            ]
    return f"{sorted(imported)}{ast.dump(tree)}".encode()


def _is_text(statement: ast.stmt) -> bool:
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )
