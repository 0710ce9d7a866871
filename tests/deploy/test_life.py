"""The short life of a cluster on two booted hosts. `make deploy-test` runs the whole life."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.deploy.needs import DEBIAN, ROOT, what_is_missing

_SECONDS_MAX = 420
_CANNOT, _TIME_UP = 2, 3


def test_short_life() -> None:
    """A cluster under load is deployed, deployed again unchanged, and reconfigured host by host. No record is lost.

    A machine that cannot boot hosts, or that is too slow, skips the test with the reason.
    """
    missing = what_is_missing(DEBIAN, with_tree=True)
    if missing:
        pytest.skip(f"hosts cannot be booted: {missing}")
    # A low priority lets the tests beside this one go first, since hosts are many processes.
    command = [
        # The command gets SIGTERM when its parent ends, so that it can remove its hosts and disks.
        "setpriv",
        "--pdeathsig",
        "TERM",
        "nice",
        "-n",
        "5",
        sys.executable,
        "-m",
        "tests.deploy",
        "short",
        "--seconds",
        str(_SECONDS_MAX),
    ]
    done = subprocess.run(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if done.returncode in (_CANNOT, _TIME_UP):
        pytest.skip(done.stdout.strip()[-500:])
    assert done.returncode == 0, done.stdout[-6000:]
    assert "0 lost, 0 twice, 0 not seen by the group, errors: none" in done.stdout
