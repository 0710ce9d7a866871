"""Runs the scripts of `scripts/`: figures and rules of the Raft paper and thesis, and of Kafka's KIPs, step by step."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.quorum.raft.raft_script import run_script

SCRIPTS = sorted((Path(__file__).parent / "scripts").glob("*.txt"))


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_script(path: Path, rewrite: bool) -> None:
    """The commands of a script give the output that it contains. `--rewrite` writes the output anew; review the
    difference."""
    happened = run_script(path)
    if rewrite:
        path.write_text(happened)
    assert happened == path.read_text()
