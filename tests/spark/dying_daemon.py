"""Spark's daemon of Python workers, in which a worker kills itself at steps of exactly-once tasks. For `sink_kills`.

`spark.python.daemon.module` names this module. The directory KILLS has a file for each kill,
`BATCH-NUMBER-WHEN-STEP`. The first worker of that batch, or of a later one, that comes to the step, and takes the file
away, dies. With `BATCH-NUMBER-slow-WHEN-STEP` it stands still for a while, so that Spark gives the task a twin. The file
`attempts` beside the directory gets a line for each attempt.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

__all__ = ["ATTEMPTS", "KILLS", "STEPS"]

KILLS = "ODRADEK_TEST_KILLS"
ATTEMPTS = "attempts"
STEPS = ("fenced", "end_taken", "marker_read", "written", "committed", "compare")
_SLOW_SECONDS = 8.0


def _is_told(what: str, batch: int) -> bool:
    for file in sorted(Path(os.environ[KILLS]).glob(f"[0-9]*-[0-9]*[0-9]-{what}")):
        if int(file.name.partition("-")[0]) > batch:
            return False
        try:
            file.unlink()
        except FileNotFoundError:
            continue
        return True
    return False


def _come_to(when: str, batch: int) -> None:
    if _is_told(f"slow-{when}", batch):
        time.sleep(_SLOW_SECONDS)
    if _is_told(when, batch):
        os.kill(os.getpid(), signal.SIGKILL)


def _note_attempt(protocol: Any) -> None:
    line = f"{protocol.batch} {protocol.task} {os.getpid()}\n"
    handle = os.open(
        Path(os.environ[KILLS]).with_name(ATTEMPTS), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600
    )
    try:
        os.write(handle, line.encode())
    finally:
        os.close(handle)


def _mortal(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def step(*args: Any) -> Any:
        if name == STEPS[0]:
            _note_attempt(args[0])
        _come_to(f"before-{name}", args[0].batch)
        found = function(*args)
        _come_to(f"after-{name}", args[0].batch)
        return found

    return step


def main() -> None:
    """Be Spark's daemon."""
    from pyspark.daemon import manager

    # Spark imports the sink by this name (`pyspark_odradek`), not by `spark`.
    protocol = import_module("pyspark_odradek.delivery.task_protocol").TaskProtocol
    for name in STEPS:
        setattr(protocol, name, _mortal(name, getattr(protocol, name)))
    manager()


if __name__ == "__main__":
    main()
