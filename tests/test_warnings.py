"""Warnings about our own code are errors on each Python that runs these tests. A newer Python deprecates more."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
OURS = ("odradek", "pyspark_odradek", "sim", "testkit", "tests", "bench", "jepsen_tests", "deploy")
"""The packages whose warnings fail a test (`filterwarnings` in pyproject.toml)."""
LINKED = ("data_plane", "metadata_quorum", "spark", "wire")
"""The folders that are parts of `odradek` by links."""


@pytest.mark.parametrize("package", OURS)
def test_a_warning_in_our_code_is_an_error(package: str) -> None:
    """A deprecation that a module of ours causes fails the test."""
    statement = compile("import warnings\nwarnings.warn('old', DeprecationWarning)\n", "module.py", "exec")
    with pytest.raises(DeprecationWarning, match="old"):
        exec(statement, {"__name__": f"{package}.module"})


@pytest.mark.long
def test_each_file_compiles_without_a_warning() -> None:
    """The compiler of this Python warns about no file. Its warnings name a path, so pytest's filter matches none."""
    files = [each for folder in (*OURS, *LINKED) for each in sorted((ROOT / folder).rglob("*.py"))]
    assert len(files) > 1000
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for each in files:
            compile(each.read_bytes(), str(each), "exec")


def test_the_compiler_warns() -> None:
    """The compiler warns about a bad escape, which a later Python refuses."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        compile(r"x = '\d'", "module.py", "exec")
    assert [each.category for each in found] in ([DeprecationWarning], [SyntaxWarning])
