"""A user's own modules beside his job: the format works whatever their names are, or says which one is in its way."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.markdown import ROOT

pytest.importorskip("pyspark", reason="Spark is not installed (the extra spark)")

LOAD = """
import pickle, sys
from pyspark_odradek import DefaultSource
options = {"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "t", "topic": "t"}
source = DefaultSource(options)
columns = source.schema()
readers = [source.reader(columns), source.streamReader(columns)]
from pyspark_odradek import sink
sys.stdout.buffer.write(pickle.dumps(readers))
"""
UNPICKLE = """
import pickle, sys
for each in pickle.load(sys.stdin.buffer):
    print(type(each).__module__, type(each.options).__module__)
import spark
assert spark.MINE
"""


def run(code: str, beside: Path, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """Python as Spark starts it: the job's folder comes first on the path."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(beside), str(ROOT)])}
    return subprocess.run(
        [sys.executable, "-c", code],
        input=given,
        env=env,
        cwd=beside,
        capture_output=True,
        timeout=120,
        check=False,
    )


def test_spark_py_of_the_users(tmp_path: Path) -> None:
    """His `spark.py` stays his, where the format is planned and where readers are unpickled."""
    (tmp_path / "spark.py").write_text("MINE = True\n")
    pickled = run(LOAD, tmp_path)
    assert pickled.returncode == 0, pickled.stderr.decode()
    done = run(UNPICKLE, tmp_path, pickled.stdout)
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout.decode().split() == [
        *("pyspark_odradek.source", "pyspark_odradek.source_options"),
        *("pyspark_odradek.source_stream", "pyspark_odradek.source_options"),
    ]


def test_the_format_is_found_from_anywhere(tmp_path: Path) -> None:
    """Spark looks for modules named `pyspark_*` where files lie, so an editable installation must be a path."""
    code = "import pkgutil; print(*(each.name for each in pkgutil.iter_modules()))"
    env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=env,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "pyspark_odradek" in done.stdout.split()


def test_a_module_that_hides_ours_is_named(tmp_path: Path) -> None:
    """`wire` is a name that the whole product has: a file of that name is an error that says so."""
    (tmp_path / "wire.py").write_text("")
    done = run(LOAD, tmp_path)
    assert done.returncode != 0
    assert (
        done.stderr.decode()
        .splitlines()[-1]
        .endswith("wire.py hides Odradek's package wire: give it another name")
    )


def test_the_code_imports_itself_by_relative_names() -> None:
    """What Spark imports must work by the name `pyspark_odradek`, so it never says `spark`."""
    absolute = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in sorted((ROOT / "spark").rglob("*.py"))
        if "pipelines" not in path.parts and path.name != "__main__.py"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, (ast.Import, ast.ImportFrom)) and _is_absolute(node)
    ]
    assert absolute == []


def _is_absolute(node: ast.Import | ast.ImportFrom) -> bool:
    if isinstance(node, ast.ImportFrom):
        return node.level == 0 and (node.module or "").split(".")[0] == "spark"
    return any(each.name.split(".")[0] == "spark" for each in node.names)
