"""Releases for the test: two good ones, built as an operator builds them, a broken one, and one of few features."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

from deploy.build_release import UNAVAILABLE
from tests.deploy.needs import ROOT

OLD, NEW, BROKEN, NARROW = "0.1.0", "0.1.1", "0.1.2", "0.1.3"
_ENTRY = "odradek/node/main.py"
_FEATURES = "odradek/metadata_quorum/features.py"


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
        _other(out, BROKEN, _ENTRY, lambda _: b"raise ImportError('made to fail')\n")
        _other(out, NARROW, _FEATURES, _narrowed)


def _narrowed(source: bytes) -> bytes:
    """Make the features those of a release that lacks the newest level of transactions."""
    narrow = source.replace(b"TRANSACTION_VERSION: (0, 2)", b"TRANSACTION_VERSION: (0, 1)")
    assert narrow != source
    return narrow


def _other(out: Path, name: str, changed: str, change: Callable[[bytes], bytes]) -> None:
    """Write the newer release under another name, with one module changed."""
    source, target = out / f"odradek-{NEW}.tar", out / f"odradek-{name}.tar"
    with tarfile.open(source) as old, tarfile.open(target, "w") as new:
        for member in old:
            file = old.extractfile(member)
            assert file is not None
            content = file.read()
            if member.name == "MANIFEST.json":
                content = json.dumps({**json.loads(content), "name": name}).encode()
            elif Path(member.name).name.startswith("odradek-"):
                content = _changed(content, changed, change)
            member.size = len(content)
            new.addfile(member, io.BytesIO(content))


def _changed(wheel: bytes, changed: str, change: Callable[[bytes], bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(wheel)) as old, zipfile.ZipFile(out, "w") as new:
        for name in old.namelist():
            new.writestr(name, change(old.read(name)) if name == changed else old.read(name))
    return out.getvalue()
