"""Finds the commit of a release, by CHANGELOG.md and the tags.

A clone may lack the tags, so the changelog also names the commit of each release. A commit cannot contain its own hash.
So a first commit adds a heading with the version, and the next commit writes the hash of that commit under this
heading.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import NamedTuple

__all__ = ["Released", "UnknownRelease", "commit_named", "releases"]

_HEADING = re.compile(
    r"^## (?P<version>\d+\.\d+\.\d+) \((?P<date>\d{4}-\d\d-\d\d)\)\n(?:\nCommit `(?P<commit>[0-9a-f]{40})`)?",
    re.MULTILINE,
)


class Released(NamedTuple):
    """A release in the changelog. `commit` is None until a later commit has written its hash to the changelog."""

    version: str
    date: str
    commit: str | None


class UnknownRelease(Exception):
    """Raised for a name that is no release, tag or commit. The message has the reason."""


def releases(changelog: str) -> list[Released]:
    """Return the releases of a changelog's text, the newest first."""
    return [Released(*found.group("version", "date", "commit")) for found in _HEADING.finditer(changelog)]


def commit_named(name: str, root: Path) -> tuple[str, str | None]:
    """Return the hash of the commit that `name` means: a version, a tag or a commit. Also return the version if the
    commit is a release, otherwise None.

    Raises `UnknownRelease`, also if the tag of a version and the changelog name different commits.
    """
    version = name.removeprefix("v")
    stated = {each.version: each.commit for each in releases((root / "CHANGELOG.md").read_text())}
    tagged = _commit(root, f"refs/tags/v{version}")
    if version in stated or tagged:
        listed = stated.get(version)
        if tagged and listed and tagged != listed:
            raise UnknownRelease(f"the tag v{version} is at {tagged}, CHANGELOG.md names {listed}")
        found = listed or tagged
        if found is None:
            raise UnknownRelease(
                f"CHANGELOG.md names no commit for {version} yet, and there is no tag v{version}"
            )
        if _commit(root, found) is None:
            raise UnknownRelease(f"the commit {found} of {version} is not in this clone")
        return found, version
    found = _commit(root, name)
    if found is None:
        raise UnknownRelease(f"{name!r} is no version of CHANGELOG.md, no tag and no commit")
    return found, None


def _commit(root: Path, name: str) -> str | None:
    asked = [
        "git",
        "-C",
        str(root),
        "rev-parse",
        "--verify",
        "--quiet",
        "--end-of-options",
        f"{name}^{{commit}}",
    ]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else None
