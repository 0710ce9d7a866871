"""Run a mirror that kills itself at a step: `python -m tests.spark.mirror.killed_mirror STEP COUNT ARGUMENTS...`.

The process kills itself before the COUNT-th call of the step or, with the prefix `after-`, after it. With `during-commit`
it sends the commit and kills itself at once, while the coordinator handles it.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

from odradek import Producer
from odradek.spark.pipelines.mirror import command, copying

STEPS = {
    "init": (Producer, "init_transactions"),
    "read-map": (copying, "read_map"),
    "begin": (Producer, "begin_transaction"),
    "ship": (Producer, "send_encoded"),
    "flush": (Producer, "flush"),
    "map": (Producer, "send"),
    "commit": (Producer, "commit_transaction"),
}
"""The calls of a session by the name of the step, in order."""
POINTS = (*STEPS, *(f"after-{step}" for step in STEPS), "during-commit")


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def arm(point: str, count: int) -> None:
    """Make this process kill itself when it reaches the point for the `count`-th time."""
    when, _, step = ("", "", point) if point in STEPS else point.partition("-")
    home, name = STEPS[step]
    call: Callable[..., Any] = getattr(home, name)
    calls = 0

    def killed(*arguments: Any, **keywords: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls < count:
            return call(*arguments, **keywords)
        if when == "during":
            threading.Timer(0.001, _die).start()
        if when == "":
            _die()
        result = call(*arguments, **keywords)
        _die()
        return result

    setattr(home, name, killed)


if __name__ == "__main__":
    arm(sys.argv[1], int(sys.argv[2]))
    sys.exit(command.main(sys.argv[3:]))
