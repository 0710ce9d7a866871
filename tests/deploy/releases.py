"""Releases for the test: two that work, built as an operator builds them, and one that does not start."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

from deploy.build_release import UNAVAILABLE
from tests.deploy.needs import ROOT

OLD, NEW, BROKEN = "0.1.0", "0.1.1", "0.1.2"
_ENTRY = "odradek/node/main.py"


class CannotBuild(Exception):
    """The wheels that a release needs cannot be had."""


def build_releases(out: Path, *, whole: bool) -> None:
    """Write the archives; only the first one for the short form."""
    for version in (OLD, NEW) if whole else (OLD,):
        command = [
            sys.executable,
            str(ROOT / "deploy" / "build_release.py"),
            "--out",
            str(out),
            "--version",
            version,
        ]
        environment = {**os.environ, "PIP_RETRIES": "1", "PIP_DEFAULT_TIMEOUT": "10"}
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        if done.returncode == UNAVAILABLE:
            raise CannotBuild(f"no release can be built: {done.stderr.strip()[-500:]}")
        # All else is a fault of the sources: the test fails.
        assert done.returncode == 0, done.stderr
    if whole:
        _break(out / f"odradek-{NEW}.tar", out / f"odradek-{BROKEN}.tar")


def _break(source: Path, target: Path) -> None:
    """The same release under another name, whose server ends at once."""
    with tarfile.open(source) as old, tarfile.open(target, "w") as new:
        for member in old:
            file = old.extractfile(member)
            assert file is not None
            content = file.read()
            if member.name == "MANIFEST.json":
                content = json.dumps({**json.loads(content), "name": BROKEN}).encode()
            elif Path(member.name).name.startswith("odradek-"):
                content = _without_entry(content)
            member.size = len(content)
            new.addfile(member, io.BytesIO(content))


def _without_entry(wheel: bytes) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(wheel)) as old, zipfile.ZipFile(out, "w") as new:
        for name in old.namelist():
            new.writestr(name, b"raise ImportError('made to fail')\n" if name == _ENTRY else old.read(name))
    return out.getvalue()
