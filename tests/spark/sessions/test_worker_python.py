"""The launcher for Spark's Python processes: which entries it removes from the path, and for which Spark."""

from __future__ import annotations

import os
import subprocess
import tomllib
from pathlib import Path

import pytest

from odradek.spark.worker_process import worker_python
from tests.docs.markdown import ROOT

LAUNCHER = ROOT / "spark" / "odradek-spark-python"


@pytest.fixture
def launcher(tmp_path: Path) -> Path:
    """A copy of the launcher in a `bin` folder whose `python3` prints its path and arguments."""
    place = tmp_path / "venv" / "bin"
    place.mkdir(parents=True)
    python = place / "python3"
    python.write_text('#!/bin/sh\necho "$PYTHONPATH"\nfor each in "$@"; do echo "$each"; done\n')
    python.chmod(0o755)
    copy = place / LAUNCHER.name
    copy.write_bytes(LAUNCHER.read_bytes())
    copy.chmod(0o755)
    return copy


def run(launcher: Path, spark_home: Path | None, path: list[str]) -> list[str]:
    """Run the launcher by its name alone; return the lines that `python3` prints."""
    env = {**os.environ, "PYTHONPATH": ":".join(path), "PATH": f"{launcher.parent}:{os.environ['PATH']}"}
    env.pop("SPARK_HOME", None)
    if spark_home is not None:
        env["SPARK_HOME"] = str(spark_home)
    words = [launcher.name, "-c", "a program", "*"]
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=60, check=True)
    return done.stdout.splitlines()


def test_the_archives_of_an_installed_spark_leave_the_path(launcher: Path) -> None:
    """The archives of the pip-installed Spark are removed from the path. The user's entries stay in order, and
    arguments are passed on."""
    home = launcher.parent.parent / "lib" / "python3.11" / "site-packages" / "pyspark"
    home.mkdir(parents=True)
    theirs = [f"{home}/python/lib/pyspark.zip", f"{home}/jars/spark-core.jar"]
    lines = run(launcher, home, [theirs[0], "/my modules", theirs[1], "/more", ""])
    assert lines == ["/my modules:/more", "-c", "a program", "*"]
    assert run(launcher, home, theirs)[0] == ""


@pytest.mark.parametrize("is_set", [True, False])
def test_other_sparks_keep_theirs(launcher: Path, tmp_path: Path, is_set: bool) -> None:
    """Archives of another Spark stay on the path, because only the pip-installed Spark's modules can be imported
    without archives."""
    home = tmp_path / "spark-4.2.0-bin-hadoop3"
    home.mkdir()
    path = [f"{home}/python/lib/pyspark.zip", "/my modules"]
    assert run(launcher, home if is_set else None, path)[0] == ":".join(path)


def test_without_a_python_beside_it(launcher: Path, tmp_path: Path) -> None:
    """If there is no Python beside the launcher, as after `pip install --user`, it uses the Python of the PATH."""
    alone = tmp_path / "local" / "bin" / launcher.name
    alone.parent.mkdir(parents=True)
    launcher.rename(alone)
    env = {**os.environ, "PYTHONPATH": "/my modules", "PATH": f"{launcher.parent}:{os.environ['PATH']}"}
    done = subprocess.run([alone, "-V"], env=env, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines() == ["/my modules", "-V"]


def test_the_current_directory_is_searched_last(tmp_path: Path) -> None:
    """A module of the user whose name is Python's own stays away. Others in the current directory are found."""
    (tmp_path / "token.py").write_text("raise SystemExit('a module of the user, and was imported')\n")
    (tmp_path / "beside.py").write_text("HERE = 'found'\n")
    (tmp_path / "shown.py").write_text(
        "import sys, token\nimport beside\nprint(beside.HERE, token.__name__, __name__, __spec__.name, *sys.argv[1:])\n"
    )
    python = worker_python()
    assert Path(python).name == LAUNCHER.name
    words = [python, "-m", "shown", "a word", "*"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "found token __main__ shown a word *\n"), done.stderr


def test_it_is_installed() -> None:
    """The launcher is installed, executable, beside the Python of the package."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    assert [ROOT / each for each in settings["script-files"]] == [LAUNCHER]
    assert os.access(LAUNCHER, os.X_OK)
