"""The version of this Odradek, and the commit from which it was built."""

from __future__ import annotations

import subprocess
from pathlib import Path

import odradek

__all__ = ["commit", "version_line"]

_PACKAGE = Path(odradek.__file__).parent


def version_line() -> str:
    """Return the version in one line, with the commit if it is known."""
    found = commit()
    return f"odradek {odradek.__version__}" + (f" (commit {found})" if found else "")


def commit(package: Path = _PACKAGE) -> str | None:
    """Return the commit from which the wheel was built, or else the checked-out commit; None if neither is known."""
    noted = package / "commit.txt"
    if noted.is_file():
        return noted.read_text().strip()
    if not (package.parent / ".git").exists():
        return None
    try:
        done = subprocess.run(
            ["git", "-C", str(package.parent), "rev-parse", "HEAD"],
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return None  # git is not installed, or refuses a clone of another user
    return done.stdout.strip()
