"""Debian's Prometheus and promtool. A test that needs them is skipped, with the reason, where they are missing."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

UNPACKED = Path(__file__).parents[3] / ".cache" / "prometheus" / "usr" / "bin"
"""The directory into which `make install-dev` unpacks the package."""
SECONDS_MAX = 60


def tool(name: str) -> str:
    """Return the path of a program of Prometheus, or skip the test."""
    found = shutil.which(name) or shutil.which(name, path=str(UNPACKED))
    if found is None:
        pytest.skip(f"{name} is missing: make install-dev unpacks Debian's package prometheus")
    return found


def promtool(words: Sequence[str], text: str = "") -> tuple[int, str]:
    """Run promtool with this standard input. Return its status and all that it printed."""
    done = subprocess.run(
        [tool("promtool"), *words], input=text, capture_output=True, text=True, timeout=SECONDS_MAX
    )
    return done.returncode, done.stdout + done.stderr
