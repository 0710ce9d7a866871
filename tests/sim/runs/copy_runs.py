"""Quiet runs with workloads that copy in transactions."""

from __future__ import annotations

import attrs

from sim.machine.weather import Weather
from sim.options import TRANSACTION_SETTINGS, RunOptions
from sim.run import RunResult, run

SEED = 2
SECONDS = 6.0


def quiet_options(seed: int = SEED) -> RunOptions:
    """Make options for three nodes in calm weather, with copiers and one producer."""
    options = RunOptions.draw(seed, "calm", nodes=3, controllers=0, seconds=SECONDS)
    settings = {**options.shape.settings, **{key: values[0] for key, values in TRANSACTION_SETTINGS.items()}}
    return attrs.evolve(
        options,
        shape=attrs.evolve(options.shape, settings=settings, older=0),
        weather=Weather(latency_seconds=(0.001, 0.02)),
        workloads=("produce", "copy"),
        clients=1,
        duties=(),
    )


def quiet_copy(seed: int = SEED) -> RunResult:
    """Run such a quiet cluster with copiers."""
    return run(seed, quiet_options(seed))
