"""Each program of examples/ runs as a user runs it, and prints the output in its header."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from testkit.odradek_server import start_odradek
from testkit.processes import ServerProcess
from tests.cli.running import environment
from tests.docs.markdown import ROOT
from tests.examples.headers import EXAMPLES, printed_by

TIMEOUT_SECONDS = 120.0
NEEDS_SPARK = "spark_stream"
"""Examples that need Spark. tests/spark/test_stream_example.py runs them."""
NEEDS_TWO_CLUSTERS = "mirror"
LINES_MAX = 90


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Start a new cluster for all examples, since their output contains offsets."""
    yield from _running(tmp_path_factory.mktemp("cluster"))


@pytest.fixture(scope="module")
def other_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Start the target cluster of the mirror."""
    yield from _running(tmp_path_factory.mktemp("other"))


def _running(directory: Path) -> Iterator[ServerProcess]:
    server = start_odradek(directory)
    try:
        yield server
        assert server.is_running(), server.log_tail()
    finally:
        server.stop()


def run(name: str, *words: str, **clusters: str) -> subprocess.CompletedProcess[str]:
    """Run an example as a process of its own."""
    return subprocess.run(
        [sys.executable, ROOT / "examples" / f"{name}.py", *words],
        capture_output=True,
        text=True,
        env=environment() | {"PYTHONPATH": str(ROOT)} | clusters,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in EXAMPLES if name not in (NEEDS_SPARK, NEEDS_TWO_CLUSTERS)])
def test_an_example_prints_what_its_header_says(name: str, cluster: ServerProcess) -> None:
    """On a new node, an example prints the lines of its header, and nothing on stderr."""
    done = run(name, ODRADEK_BOOTSTRAP=cluster.bootstrap)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == printed_by(name)


@pytest.mark.long
def test_the_mirror_moves_a_reader_to_another_cluster(
    cluster: ServerProcess, other_cluster: ServerProcess
) -> None:
    """A reader moves to the mirrored cluster and goes on there. Only the progress of `odradek mirror` is on stderr."""
    target = other_cluster.bootstrap
    done = run(NEEDS_TWO_CLUSTERS, ODRADEK_BOOTSTRAP=cluster.bootstrap, ODRADEK_TARGET=target)
    assert done.returncode == 0, done.stderr
    assert done.stdout == printed_by(NEEDS_TWO_CLUSTERS)
    assert [line for line in done.stderr.splitlines() if not line.startswith("mirror ")] == []


@pytest.mark.long
def test_a_log_file_of_the_user_is_shipped(cluster: ServerProcess, tmp_path: Path) -> None:
    """`log_pipeline.py FILE` sends the lines of that file."""
    file = tmp_path / "access.log"
    file.write_text("web-9 200 GET /\nweb-9 500 GET /\n")
    done = run("log_pipeline", str(file), ODRADEK_BOOTSTRAP=cluster.bootstrap)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == "2 lines shipped, 0 lost"


def test_the_contents_name_each_example_once() -> None:
    """examples/README.md has one row for each program, and no other row."""
    rows = re.findall(
        r"^\| \[(\w+)\.py\]\((\w+)\.py\) \|", (ROOT / "examples/README.md").read_text(), re.MULTILINE
    )
    assert [name for name, _ in rows] == [target for _, target in rows]
    assert sorted(name for name, _ in rows) == list(EXAMPLES)


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_read_in_a_minute(name: str) -> None:
    """Each example shows its command, fits two screens, and imports only installed packages of a user."""
    source = (ROOT / "examples" / f"{name}.py").read_text()
    assert f"python examples/{name}.py" in (ast.get_docstring(ast.parse(source)) or "")
    assert len(source.splitlines()) <= LINES_MAX
    imported = {
        each.module if isinstance(each, ast.ImportFrom) else each.names[0].name
        for each in ast.walk(ast.parse(source))
        if isinstance(each, ast.Import | ast.ImportFrom)
    }
    ours = {module for module in imported if module and module.startswith("odradek")}
    assert ours <= {"odradek", "odradek.trio", "odradek.client.admin"}
    tops = {str(module).partition(".")[0] for module in imported} - set(sys.stdlib_module_names)
    assert tops <= {"odradek", "trio", "pyspark"}
