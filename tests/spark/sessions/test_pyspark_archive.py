"""Compiled modules are added to PySpark's archives. Python imports them, and a second run changes nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

from odradek.spark.pyspark_archive import main


def test_modules_are_imported_compiled(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Python imports the compiled modules. Existing entries, such as the sources, stay in place, and a second run adds
    nothing."""
    archive = tmp_path / "pyspark.zip"
    with ZipFile(archive, "w") as made:
        made.writestr("thing/__init__.py", "WHERE = __file__\n")
        made.writestr("thing/part.py", "def where():\n    return where.__code__.co_filename\n")
        made.writestr("thing/broken.py", "def (:\n")
        made.writestr("thing/data.txt", "x")
    with ZipFile(archive) as opened:
        before = {each.filename: each.header_offset for each in opened.infolist()}
    assert main([str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"{archive}: 2 modules compiled\n"
    with ZipFile(archive) as opened:
        assert opened.testzip() is None
        after = {each.filename: each.header_offset for each in opened.infolist()}
    assert before.items() <= after.items()
    assert after.keys() - before.keys() == {"thing/__init__.pyc", "thing/part.pyc"}
    program = "import thing.part; print(thing.WHERE, thing.part.where())"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": str(archive)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == [f"{archive}/thing/__init__.pyc", f"{archive}/thing/part.py"]
    assert main([str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"{archive}: 0 modules compiled\n"


def test_a_directory_without_archives_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A directory without PySpark's archives is refused with one sentence and a nonzero exit status."""
    assert main([str(tmp_path)]) == 1
    assert capsys.readouterr().err == f"the directory {tmp_path} has no archive of PySpark\n"
