"""Write the hashes of all wheels that an installation fetches, so that pip can verify them: `make lock` runs this.

    python deploy/lock_wheels.py            from the packages of this environment; fetches the hashes from pip's index

`wheels.txt` has the packages that a node needs, at the versions of `constraints.txt`; pip installs them with
`--require-hashes --no-deps`. `wheels-build.txt` has the packages that build our own wheel, and `deploy/wheels.txt` has
pip for the hosts. Each version has the hashes of all its wheels, for any Python and platform. Run this with the oldest
supported Python, because it may need packages that newer Pythons do not need.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from importlib.metadata import requires
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
WHEELS, BUILD, HOSTS = ROOT / "wheels.txt", ROOT / "wheels-build.txt", ROOT / "deploy" / "wheels.txt"
_JSON = "application/vnd.pypi.simple.v1+json"
_PIN = re.compile(r"^([A-Za-z0-9._-]+)==(\S+)(?: \\)?$", re.MULTILINE)


def normal(name: str) -> str:
    """Return a project's name in the normalized form of package indexes (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def pins(path: Path) -> dict[str, str]:
    """Return the versions by name in a constraints file."""
    return {normal(name): version for name, version in _PIN.findall(path.read_text())}


def needed(roots: Iterable[str]) -> set[str]:
    """Return the names of the projects that `roots` require, directly or indirectly, by the metadata of installed
    packages.
    """
    from pip._vendor.packaging.requirements import Requirement

    found: set[str] = set()
    todo = [Requirement(each) for each in roots]
    while todo:
        requirement = todo.pop()
        name = normal(requirement.name)
        marker = requirement.marker
        if name not in found and (marker is None or marker.evaluate({"extra": ""})):
            found.add(name)
            todo += map(Requirement, requires(name) or ())
    return found


def of_a_node(project: dict[str, Any]) -> list[str]:
    """Return the requirements of a node with its console."""
    found = project["project"]
    return [*found["dependencies"], *found["optional-dependencies"]["console"]]


def wheel_hashes(document: dict[str, Any], version: str) -> list[str]:
    """Return the SHA-256 of each wheel of a version, from an index's answer about the project (PEP 691)."""
    return sorted(
        each["hashes"]["sha256"]
        for each in document["files"]
        if each["filename"].endswith(".whl")
        and each["filename"].split("-")[1] == version
        and not each.get("yanked")
    )


def locked(pinned: dict[str, str], documents: dict[str, dict[str, Any]]) -> str:
    """Return the text of a lock file with the hashes of all versions in `pinned`. Raises `ValueError` for a version
    without wheels.
    """
    lines = ["# Hashes of wheels, for pip install --require-hashes; written by make lock.\n"]
    for name, version in sorted(pinned.items()):
        hashes = wheel_hashes(documents[name], version)
        if not hashes:
            raise ValueError(f"the index has no wheel of {name} {version}")
        lines.append(
            f"{name}=={version}" + "".join(f" \\\n    --hash=sha256:{each}" for each in hashes) + "\n"
        )
    return "".join(lines)


def _index() -> str:
    """Return the URL of the package index that pip uses."""
    from pip._internal.models.index import PyPI

    asked = [sys.executable, "-m", "pip", "config", "list"]
    text = subprocess.run(asked, check=True, capture_output=True, text=True).stdout
    found = re.search(r"index-url='([^']+)'", text)
    return (found[1] if found else PyPI.simple_url).rstrip("/")


def _ask(names: Iterable[str]) -> dict[str, dict[str, Any]]:
    from pip._vendor import requests

    index, documents = _index(), {}
    for name in names:
        answer = requests.get(f"{index}/{name}/", headers={"Accept": _JSON}, timeout=60)
        answer.raise_for_status()
        documents[name] = answer.json()
    return documents


def main() -> int:
    """Write the lock files; return the exit status."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    constraints = pins(ROOT / "constraints.txt")
    run = {name: constraints[name] for name in needed(of_a_node(project))}
    own = pins(ROOT / "deploy" / "constraints.txt")
    documents = _ask(sorted({*run, "pip", "setuptools"}))
    WHEELS.write_text(locked(run, documents))
    BUILD.write_text(locked({"setuptools": own["setuptools"]}, documents))
    HOSTS.write_text(locked({"pip": own["pip"]}, documents))
    return 0


if __name__ == "__main__":
    sys.exit(main())
