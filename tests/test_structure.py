"""Limits on the shape of the code. `python -m tests.structure` prints all figures.

The lists of exceptions only shrink: an entry that is no longer needed fails the test, like a new violation.
"""

from __future__ import annotations

import ast
import subprocess

import pytest

from tests.structure import (
    FOLDER_MAX,
    LINES_MAX,
    PARAMETERS_MAX,
    ROOT,
    circles,
    circles_through_parents,
    dead_mentions,
    functions,
    imports,
    lines_of_code,
    modules_freed_from_any_rule,
    modules_with_any,
    mutual_siblings,
    says_any,
    widths,
)

LONG = {
    "wire/batches/records.py parse_fields": "the loop of all that read records one by one, unrolled: a call per field costs a fifth",
    "data_plane/log/partition_log.py PartitionLog.append": "every produced batch passes: a call costs what its checks cost",
}
"""Functions over 60 lines, each with its reason."""
MANY_PARAMETERS = {
    "odradek/client/consumer/positions.py Positions.__init__": "the consumer's parts are wired in one place",
    "odradek/client/producer/accumulator.py Accumulator.open_batch": "a record's fields, as `append` takes them: no value for each",
    "spark/decode.py decode_batches": "a documented call; all but four have defaults",
}
"""Functions over 8 parameters, each with its reason."""
CIRCLES: dict[tuple[str, ...], str] = {
    ("sim/machine/disk.py", "sim/machine/disk_files.py"): "an open file asks its disk whether it still spins",
}
"""Files that import each other, each set with its reason."""
MODULES_WITH_ANY_MAX = 289
"""The most modules that may use `Any`. Lower it when the list in pyproject.toml gets shorter."""
ANY_BY_ALIAS = {
    "bench.budget.attackers",
    "bench.budget.beside",
    "odradek.client.consumer.delivery",
    "odradek.client.consumer.handout",
    "odradek.client.consumer.subscription",
    "odradek.metadata_quorum.replica.checkpoint_files",
    "odradek.spark.pipelines.mirror.copying",
    "sim.load.consumers.member",
    "sim.load.copying.copier",
}
"""Modules that do not use `Any` itself, but a name that stands for it."""
WIDE = {
    "odradek/cli/commands": "one module for each group of commands, found by its name",
    "tests": "a folder for each part of the product and each kind of proof: the table in tests/README.md leads to them",
    "tests/conformance/cases": "one file for each API, found by its name",
    "tests/conformance/kafka_4.3": "Kafka's recorded answers, one file for each API",
    "deploy/ansible/collections/ansible_collections/odradek/cluster/playbooks": "Ansible looks for playbooks here alone",
}
"""Folders of more than twenty names, each with its reason."""
FRIENDS: dict[tuple[str, str], str] = {}
"""Pairs (A, B), each with its reason: A imports B from a folder above, and B imports a module of A's folder."""


def test_functions_fit_a_screen() -> None:
    """Each function has at most 60 lines, or is listed with a reason."""
    long = {f"{each.module} {each.name}" for each in functions() if each.lines > LINES_MAX}
    assert long == set(LONG)


def test_functions_take_few_arguments() -> None:
    """Each function has at most 8 parameters, or is listed with a reason."""
    many = {f"{each.module} {each.name}" for each in functions() if each.parameters > PARAMETERS_MAX}
    assert many == set(MANY_PARAMETERS)


def test_files_import_in_one_direction() -> None:
    """No files import each other, even for types only, unless they are listed with a reason."""
    assert {tuple(ring) for ring in circles(imports())} == set(CIRCLES)


def test_sibling_folders_import_in_one_direction() -> None:
    """Two folders with the same parent never import each other."""
    assert mutual_siblings() == []


def test_rooms_stand_on_what_does_not_know_them() -> None:
    """If a module A imports B from a folder above, B imports nothing from A's folder, unless the pair is listed."""
    assert set(circles_through_parents()) == set(FRIENDS)


def test_folders_show_few_names() -> None:
    """Each folder shows at most twenty names, or is listed with a reason."""
    assert {folder for folder, width in widths().items() if width > FOLDER_MAX} == set(WIDE)


def test_few_modules_say_any() -> None:
    """Exactly the listed modules use `Any`, and the list only shrinks."""
    freed = modules_freed_from_any_rule()
    assert (modules_with_any() | ANY_BY_ALIAS) ^ set(freed) == set()
    assert len(freed) == len(set(freed)) <= MODULES_WITH_ANY_MAX


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("x: Any = 1", True),
        ("def f(x: dict[str, Any]) -> None: ...", True),
        ("x: Callable[..., int]", True),
        ("x = cast('Any', y)", True),
        ("x: Callable[[int], tuple[int, ...]]", False),
        ("# Any", False),
    ],
)
def test_any_is_found(source: str, found: bool) -> None:
    """The search for `Any` finds examples of it."""
    assert says_any(ast.parse(source)) is found


def test_pages_and_docstrings_name_files_that_exist() -> None:
    """Each path of a Python file in a page or a docstring exists."""
    listed = subprocess.run(
        ["git", "ls-files", "*.md", "*.py"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if listed.returncode != 0:
        pytest.skip("this is no checkout of git, so there is no list of pages")
    texts = [text for text in listed.stdout.split() if not text.startswith(("deploy/", "tests/", "docs/"))]
    assert dead_mentions([text for text in texts if (ROOT / text).exists()]) == []


@pytest.mark.parametrize(
    ("graph", "found"),
    [
        ({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}, [["a", "b", "c"]]),
        ({"a": {"b"}, "b": {"a"}, "c": {"d"}, "d": {"c"}}, [["a", "b"], ["c", "d"]]),
        ({"a": {"b", "c"}, "b": {"c"}, "c": set()}, []),
    ],
)
def test_circles_are_found(graph: dict[str, set[str]], found: list[list[str]]) -> None:
    """The search for circles of imports finds an example of one."""
    assert circles({node: frozenset(targets) for node, targets in graph.items()}) == found


def test_lines_of_code_are_counted_without_prose_and_imports() -> None:
    """`--lines` counts code without prose and imports."""
    source = '''"""A page."""

import ast
from os import (
    path,
)

TABLE = {
    "a": 1,  # a reason
}
"""A fact."""


def double(number: int) -> int:
    """Double it.

    A second paragraph.
    """
    # A comment.
    return 2 * number
'''
    assert lines_of_code(source) == 4
