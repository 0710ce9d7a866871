"""Starts child processes that run modules of this package. Files beside a user's script or in the current directory
cannot replace such a module. SHELL.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

__all__ = ["child_environment", "child_program"]

_HOME = str(Path(__file__).parents[2])


def child_program(module: str) -> list[str]:
    """Return the first words of a command that runs a module. The option `-P` keeps the current directory out of
    Python's path.
    """
    return [sys.executable, "-P", "-m", module]


def child_environment() -> dict[str, str]:
    """Return this process's environment, with a `PYTHONPATH` that lets a child find the packages of this process.

    The first entry of Python's path is the folder of the user's script, or the current directory. The child gets that
    entry only if Odradek itself is there, as in a checkout that is not installed.
    """
    paths = [os.path.abspath(path) for path in (sys.path if sys.flags.safe_path else sys.path[1:])]
    if _HOME not in paths:
        paths.insert(0, _HOME)
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
