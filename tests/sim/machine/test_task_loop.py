"""The task loop of simulated worlds makes the same steps as trio's own loop."""

from __future__ import annotations

import pytest
from trio._core import _run

from sim.options import RunOptions
from sim.run import run


def test_a_run_has_the_digest_that_trios_own_loop_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    """A storm with deaths and cancelled waits gives the same digest in both loops."""
    options = RunOptions.draw(3, "lite", seconds=4.0)
    ours = run(3, options)
    monkeypatch.setattr("sim.machine.world.task_loop", vars(_run)["unrolled_run"])
    trios = run(3, options)
    assert (ours.verdict, ours.digest) == (trios.verdict, trios.digest) == ("ok", ours.digest)
