"""The command that adds compiled modules to PySpark's archives, so that the Python processes of Spark start in half
the time. SHELL.

    odradek spark pyspark-archive [DIRECTORY]

Spark puts the archives of `python/lib` first on the path of each Python process that it starts. These archives have
only sources, and Python cannot store compiled modules in them. So every process compiles all modules that it imports,
which takes most of a second. Spark starts such processes for the source of each streaming query, and for the first
planning and the first task of a session. This command adds the compiled modules once per installation. Another version
of Python ignores them and compiles the sources.

Each archive is replaced as a whole. In the new archive, all old entries keep their positions, so that running
processes can go on reading.
"""

from __future__ import annotations

import argparse
import compileall
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from py_compile import PycInvalidationMode
from zipfile import ZIP_DEFLATED, ZipFile

__all__ = ["compile_archive", "main"]

_RARE = (
    "pyspark/ml/",
    "pyspark/mllib/",
    "pyspark/pandas/",
    "pyspark/pipelines/",
    "pyspark/sql/connect/",
    "pyspark/sql/tests/",
    "pyspark/testing/",
    "pyspark/tests/",
)
"""Packages that are not compiled, because no process needs their modules at its start. Each process reads the
names of all entries of an archive twice when it starts, so there should be few entries.
"""


def compile_archive(archive: Path) -> int:
    """Add the compiled form of each module that lacks it, except those in `_RARE`. Return the number of modules
    added.

    Raises `OSError` if the archive or its directory cannot be written.
    """
    with tempfile.TemporaryDirectory() as name, ZipFile(archive) as before:
        there = set(before.namelist())
        wanted = [
            each
            for each in there
            if each.endswith(".py") and f"{each}c" not in there and not each.startswith(_RARE)
        ]
        before.extractall(name, wanted)
        compileall.compile_dir(
            name,
            quiet=2,
            legacy=True,
            # No check against the sources is needed: a program that replaces the sources replaces the whole archive.
            invalidation_mode=PycInvalidationMode.UNCHECKED_HASH,
            stripdir=name,
            prependdir=str(archive),
        )
        made = [each for each in sorted(wanted) if Path(name, f"{each}c").exists()]
        if made:
            _append(archive, [(f"{each}c", Path(name, f"{each}c")) for each in made])
    return len(made)


def _append(archive: Path, files: Sequence[tuple[str, Path]]) -> None:
    handle, temporary = tempfile.mkstemp(dir=archive.parent, prefix=archive.name)
    os.close(handle)
    try:
        shutil.copy(archive, temporary)
        with ZipFile(temporary, "a", ZIP_DEFLATED) as after:
            for name, path in files:
                after.write(path, name)
        os.replace(temporary, archive)
    finally:
        Path(temporary).unlink(missing_ok=True)


def _installed() -> Path:
    import pyspark

    home = os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent
    return Path(home, "python", "lib")


def main(words: Sequence[str] | None = None) -> int:
    """Compile all archives of a directory. Return the exit status: 1 if there are none, or if the directory is
    read-only.
    """
    parser = argparse.ArgumentParser(
        prog="odradek spark pyspark-archive", description="Compile the modules in PySpark's archives."
    )
    parser.add_argument(
        "directory",
        nargs="?",
        type=Path,
        help="folder python/lib of a Spark installation (default: that of the installed PySpark)",
    )
    directory = parser.parse_args(words).directory or _installed()
    archives = sorted(directory.glob("*.zip"))
    if not archives:
        print(f"the directory {directory} has no archive of PySpark", file=sys.stderr)
        return 1
    for archive in archives:
        try:
            print(f"{archive}: {compile_archive(archive)} modules compiled")
        except OSError as error:
            print(f"{archive} was left unchanged: {error}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
