"""The version of this Odradek, the commit from which it was built, and the tag of the release."""

from __future__ import annotations

import subprocess
from pathlib import Path

import odradek

__all__ = ["origin", "version_line"]

_PACKAGE = Path(odradek.__file__).parent


def version_line() -> str:
    """Return the version in one line, with the release's tag and the commit if they are known."""
    commit, tag = origin()
    known = ([f"tag {tag}"] if tag else []) + ([f"commit {commit}"] if commit else [])
    return f"odradek {odradek.__version__}" + (f" ({', '.join(known)})" if known else "")


def origin(package: Path = _PACKAGE) -> tuple[str | None, str | None]:
    """Return the commit from which the wheel was built, or else the checked-out commit; and the tag of this version
    if the commit has it. Each is None if it is unknown.
    """
    noted = package / "commit.txt"
    if noted.is_file():
        commit, *tags = noted.read_text().split()
        return commit, tags[0] if tags else None
    root = package.parent
    if not (root / ".git").exists():
        return None, None
    try:
        commit, tag = _git(root, "rev-parse", "HEAD").strip(), f"v{odradek.__version__}"
        return commit, tag if tag in _git(root, "tag", "--points-at", "HEAD").split() else None
    except (OSError, subprocess.CalledProcessError):
        return None, None  # git is not installed, or refuses a clone of another user


def _git(root: Path, *words: str) -> str:
    return subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, check=True).stdout
