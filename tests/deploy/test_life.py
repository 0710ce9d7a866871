"""The short life of a cluster on three booted hosts; the whole one is `make deploy-test`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from tests.deploy.needs import ROOT, what_is_missing

_SECONDS_MAX = 900
_CANNOT = 2


def test_short_life() -> None:
    """Deploy, deploy again without a change, reconfigure host by host, lose power and come back: no record is lost."""
    missing = what_is_missing(with_tree=True)
    if missing:
        pytest.skip(f"hosts cannot be booted: {missing}")
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.deploy", "short"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        # Its way out takes everything away; what it has started ends with it.
        os.killpg(process.pid, signal.SIGINT)
        output, _ = process.communicate(timeout=60)
        pytest.fail(f"not done after {_SECONDS_MAX} s:\n{output[-4000:]}")
    if process.returncode == _CANNOT:
        pytest.skip(output.strip().splitlines()[-1])
    assert process.returncode == 0, output[-6000:]
    assert "0 lost, 0 twice, 0 not seen by the group, errors: none" in output
