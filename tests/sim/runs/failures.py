"""The ways in which a run may fail, for tests of how failures are reported."""

from __future__ import annotations

import attrs
import pytest

from sim.history import SafetyViolation
from sim.machine.world import Liveness


@attrs.frozen
class Failure:
    """A way to fail: the error that ends the run, its verdict, and the command's exit status."""

    error: Exception
    verdict: str
    status: int

    def __str__(self) -> str:
        return self.verdict

    def befall(self, patch: pytest.MonkeyPatch, scenario: type) -> list[object]:
        """Let each run of this scenario class raise the error; return the list to which the runs are added."""
        ran: list[object] = []

        def broken(run: object) -> object:
            ran.append(run)
            raise self.error

        patch.setattr(scenario, "run", broken)
        return ran


FAILURES = (
    Failure(SafetyViolation("a promise at 7"), "safety", 1),
    Failure(Liveness("a standstill at 7"), "liveness", 2),
    Failure(RuntimeError("a bug at 7"), "crash", 3),
)
in_each_way = pytest.mark.parametrize("failure", FAILURES, ids=str)
