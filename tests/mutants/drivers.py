"""What seeds are run with: the quorum alone, partitions alone, one node, whole clusters.

Where a driver is aimed (fewer kinds of trouble than a seed would draw, or more of them), its docstring says so: such a
mutant is within the reach of the default profile, too, and takes more seeds there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import attrs

from sim import raft_alone, replication_alone
from sim.cluster import SETTINGS
from sim.options import RunOptions
from sim.raft_alone import RaftPlan
from sim.run import run
from sim.scenario import Scenario
from sim.weather import Weather
from tests.mutants.mutant import Driver


def _verdict_of(function: Callable[[int], object]) -> Driver:
    def driver(seed: int) -> str:
        try:
            function(seed)
        except Exception as error:  # noqa: BLE001 - however it fails, it has been found
            return f"{type(error).__name__}: {error}".partition("\n")[0]
        return ""

    return driver


def _run_options(seed: int, options: RunOptions) -> str:
    result = run(seed, options)
    return "" if result.verdict == "ok" else result.signature


def cluster(seed: int) -> str:
    """Whole clusters of the lite profile, in calm weather, which is twice as fast to run."""
    return _run_options(seed, attrs.evolve(RunOptions.draw(seed, "lite"), weather=Weather()))


def power(seed: int) -> str:
    """Aimed: clusters whose brokers lose power and are back before their sessions end; nothing else happens."""
    options = RunOptions.draw(seed, "lite", seconds=25.0)
    shape = attrs.evolve(options.shape, settings=SETTINGS, log_dirs=1)
    storm = attrs.evolve(options.storm, kinds=("deaths", "deaths", "deaths"), power=True)
    return _run_options(
        seed,
        attrs.evolve(options, shape=shape, storm=storm, weather=Weather(), workloads=("produce",)),
    )


def node(seed: int) -> str:
    """One node that dies five times, with topics that sync each batch."""
    return _verdict_of(lambda _: Scenario(seed, crashes=5).run())(seed)


DRIVERS: Mapping[str, Driver] = {
    "raft": _verdict_of(raft_alone.run),
    "replication": _verdict_of(replication_alone.run),
    "cluster": cluster,
    "power": power,
    "node": node,
}
