"""A node that goes on after a bug has told of it in its log: the run ends with that error."""

from __future__ import annotations

import attrs

from sim.machine.weather import Weather
from sim.options import RunOptions
from sim.run import run
from tests.mutants.patching import patched


def test_an_error_behind_which_a_node_goes_on_is_the_runs_verdict() -> None:
    """A request that fails with an error of no kind costs its connection alone; the run is not sound."""
    options = RunOptions.draw(1, "calm", nodes=3, controllers=0, seconds=3.0)
    options = attrs.evolve(options, weather=Weather(), workloads=("produce", "consume"), duties=())
    with patched(
        "data_plane.replication.waiting_fetches:WaitingFetches.remove",
        "mark, serial, until, _ = ticket\n",
        "mark, serial, until = ticket\n",
    ):
        result = run(1, options)
    assert (result.verdict, result.signature) == (
        "crash",
        "crash: ValueError in data_plane/replication/waiting_fetches.py remove",
    )
