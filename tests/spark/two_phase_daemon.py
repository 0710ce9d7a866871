"""Spark's daemon of Python processes, which kill themselves at steps of two-phase delivery. For `two_phase_kills`.

`spark.python.daemon.module` names this module. The directory KILLS has a file for each kill, `NUMBER-WHEN-STEP`. The
first worker that comes to the step, and takes the file away, dies.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

__all__ = ["DRIVER_STEPS", "KILLS"]

KILLS = "ODRADEK_TEST_KILLS"
_ATTEMPT_STEPS = ("looked", "claimed", "written", "prepared", "counted")
DRIVER_STEPS = (
    "fenced",
    "read",
    "rolled_forward",
    "decided",
    "completed",
    "found",
    "proved",
    "swept",
    "finished",
)


def _dies_when_told(when: str) -> None:
    for file in sorted(Path(os.environ[KILLS]).glob(f"*-{when}")):
        try:
            file.unlink()
        except FileNotFoundError:
            continue
        os.kill(os.getpid(), signal.SIGKILL)


def _mortal(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def step(*args: Any) -> Any:
        _dies_when_told(f"before-{name}")
        found = function(*args)
        _dies_when_told(f"after-{name}")
        return found

    return step


def main() -> None:
    """Be Spark's daemon."""
    from pyspark.daemon import manager

    # Spark imports the sink by this name (`pyspark_odradek`), not by `spark`.
    two_phase = import_module("pyspark_odradek.delivery.two_phase")
    for protocol, prefix, steps in (
        (two_phase.AttemptProtocol, "", _ATTEMPT_STEPS),
        (two_phase.DriverProtocol, "driver-", DRIVER_STEPS),
    ):
        for name in steps:
            setattr(protocol, name, _mortal(f"{prefix}{name}", getattr(protocol, name)))
    manager()


if __name__ == "__main__":
    main()
