"""The interface of a user's own workload, which runs in addition to the workloads of `cluster_scenario`. PORTED.

A Python file defines `workload = SomethingWithThreeCoroutines()`. `python -m sim --seed N --workload FILE` runs it
in the storm of that seed. docs/simulation.md has an example.
"""

from __future__ import annotations

from typing import Protocol

from sim.load.workload import Workload

__all__ = ["OwnWorkload", "found_in"]


class OwnWorkload(Protocol):
    """Uses the cluster through clients that `load.client(name)` creates. `load.is_over` is True after the storm."""

    async def setup(self, load: Workload) -> None:
        """Create topics before the storm."""

    async def run(self, load: Workload) -> None:
        """Run during the storm, until `load.is_over`. Remember everything that the cluster acknowledges."""

    async def check(self, load: Workload) -> None:
        """Check, after all faults have ended, that the cluster has everything that it acknowledged. Raises
        `sim.history.SafetyViolation`.
        """


def found_in(names: dict[str, object]) -> OwnWorkload:
    """Return the workload of a user's file, given the names that the file defines. Raises `ValueError`."""
    found = names.get("workload")
    missing = [name for name in ("setup", "run", "check") if not callable(getattr(found, name, None))]
    if found is None or missing:
        raise ValueError(f"the file must define `workload`, an object with the methods {', '.join(missing)}")
    workload: OwnWorkload = found  # type: ignore[assignment]  # The object has the three methods.
    return workload
