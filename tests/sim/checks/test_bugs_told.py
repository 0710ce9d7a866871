"""If a node logs a bug and continues, the simulated run ends with this bug as its verdict."""

from __future__ import annotations

import attrs

from sim.machine.weather import Weather
from sim.options import RunOptions
from sim.run import run
from tests.mutants.patching import patched


def test_an_error_behind_which_a_node_goes_on_is_the_runs_verdict() -> None:
    """A bug makes a parked fetch raise TypeError. The node survives it, but the run's verdict is `crash`."""
    options = RunOptions.draw(1, "calm", nodes=3, controllers=0, seconds=3.0)
    options = attrs.evolve(options, weather=Weather(), workloads=("produce", "consume"), duties=())
    with patched(
        "odradek.data_plane.handlers.fetching.delayed_fetch:DelayedFetch._try_again",
        "        attempt = job.read()\n",
        "        attempt = job.read(1)\n",
    ):
        result = run(1, options)
    assert (result.verdict, result.signature) == (
        "crash",
        "crash: TypeError in data_plane/handlers/fetching/delayed_fetch.py _try_again",
    )
