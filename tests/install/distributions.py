"""The wheel and the source distribution, built once per run from a clone of this checkout."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.docs.markdown import ROOT

__all__ = ["build", "clone"]

_HOOK = "import sys; sys.path.insert(0, 'deploy'); import build_backend as b; print(getattr(b, sys.argv[1])(sys.argv[2]))"


def clone(target: Path) -> Path:
    """Clone this checkout's last commit."""
    subprocess.run(["git", "clone", "-q", "--no-hardlinks", str(ROOT), str(target)], check=True)
    return target


def build(kind: str, source: Path, out: Path, *, umask: int = 0o022) -> Path:
    """Build a `wheel` or an `sdist` with the locked version of setuptools. Return its path."""
    out.mkdir(exist_ok=True)
    done = subprocess.run(
        [sys.executable, "-c", _HOOK, f"build_{kind}", str(out)],
        cwd=source,
        env={**os.environ, "PYTHONPATH": ""},
        umask=umask,
        capture_output=True,
        text=True,
        check=True,
    )
    return out / done.stdout.splitlines()[-1]
