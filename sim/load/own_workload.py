"""A user's own workload, beside those of `cluster_scenario`, and its required coroutines. PORTED.

A file of Python says `workload = SomethingWithThreeCoroutines()`, and `python -m sim --seed N --workload FILE` runs it in the
storm of the seed. docs/simulation.md has an example.
"""

from __future__ import annotations

from typing import Protocol

from sim.load.workload import Workload

__all__ = ["OwnWorkload", "found_in"]


class OwnWorkload(Protocol):
    """Uses the cluster by clients that `load.client(name)` makes; `load.is_over` is true after the storm."""

    async def setup(self, load: Workload) -> None:
        """Make topics before the storm."""

    async def run(self, load: Workload) -> None:
        """Run in the storm, until `load.is_over`. Remember the cluster's promises."""

    async def check(self, load: Workload) -> None:
        """Check the healed cluster against the promises. Raises `sim.history.SafetyViolation`."""


def found_in(names: dict[str, object]) -> OwnWorkload:
    """Find the workload of a file, by the names that it defines. Raises `ValueError`."""
    found = names.get("workload")
    missing = [name for name in ("setup", "run", "check") if not callable(getattr(found, name, None))]
    if found is None or missing:
        raise ValueError(f"the file must say `workload = ...`, something with {', '.join(missing)}")
    workload: OwnWorkload = found  # type: ignore[assignment]  # it has the three methods
    return workload
