"""A run of pytest: what it says if a worker breaks off. No text of a test can break it off."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CONFTEST = """
from tests.last_words import LastWords, Sendable

def pytest_configure(config):
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(LastWords())
    config.pluginmanager.register(Sendable())
"""
TESTS = """
import logging, pytest, warnings

def test_a_name():
    logging.getLogger("a").warning("a lone surrogate: \\udcff")
    warnings.warn("another: \\udcfe")

def test_that_fails():
    assert 1 == 2

def test_another():
    pass
"""
BREAKS = """
def pytest_runtest_logfinish(nodeid, location):
    import os
    if "fails" in nodeid and "PYTEST_XDIST_WORKER" in os.environ:
        raise RuntimeError("this hook breaks")
"""


def run(folder: Path, conftest: str) -> tuple[int, str]:
    (folder / "conftest.py").write_text(conftest)
    (folder / "test_some.py").write_text(TESTS)
    words = [
        "-n",
        "1",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:schemathesis",
        "-p",
        "no:anyio",
        "--rootdir",
        str(folder),
    ]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words, str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    return done.returncode, done.stdout + done.stderr


def test_a_lone_surrogate_ends_no_run(tmp_path: Path) -> None:
    """A test that logs a lone surrogate, or warns of one, passes. The tests after it still run."""
    status, text = run(tmp_path, CONFTEST)
    assert status == 1
    assert "1 failed, 2 passed" in text
    assert "broke off" not in text


def test_a_run_that_breaks_off_says_why(tmp_path: Path) -> None:
    """The last lines name the failed tests and the first error."""
    status, text = run(tmp_path, CONFTEST + BREAKS)
    assert status == 3
    words = text.partition("call of test_some.py::test_that_fails")[2]
    assert "assert 1 == 2" in words
    assert "RuntimeError: this hook breaks" in words.partition("The run broke off.")[2]
