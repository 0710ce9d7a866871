"""Which commit is which release: what CHANGELOG.md and the tags say.

Tags may not travel with every clone, so the changelog names each release's commit, too. A commit cannot name itself:
the commit that states a release's version comes first, and the next one writes its name under the heading.
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
    """A release in the changelog; its commit is None as long as no later commit has named it."""

    version: str
    date: str
    commit: str | None


class UnknownRelease(Exception):
    """Raised for a name that is no release, tag or commit. The message has the reason."""


def releases(changelog: str) -> list[Released]:
    """Return the releases of a changelog's text, the newest first."""
    return [Released(*found.group("version", "date", "commit")) for found in _HEADING.finditer(changelog)]


def commit_named(name: str, root: Path) -> tuple[str, str | None]:
    """Return the commit of a version, tag or commit, and the version if `name` is a release.

    Raises `UnknownRelease`, also if tag and changelog name different commits for one version.
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
