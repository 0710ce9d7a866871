"""Spark's daemon of Python workers, in which a worker kills itself at steps of exactly-once tasks. For `sink_kills`.

`spark.python.daemon.module` names this module. The directory KILLS has a file for each kill,
`BATCH-NUMBER-WHEN-STEP`. The first worker of that batch, or of a later one, that comes to the step, and takes the file
away, dies. With `BATCH-NUMBER-slow-WHEN-STEP` it stands still until Spark has given the task a twin, and the twin has
fenced it. The file `attempts` beside the directory gets a line for each attempt, and `twins` one for each twin.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

__all__ = ["ATTEMPTS", "KILLS", "STEPS", "TWINS"]

KILLS = "ODRADEK_TEST_KILLS"
ATTEMPTS, TWINS = "attempts", "twins"
STEPS = ("fenced", "end_taken", "marker_read", "written", "committed", "compare")
_FIRST_STEP = "fenced"
_SLOW_SECONDS_MAX = 90.0


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


def _come_to(when: str, protocol: Any) -> None:
    if _is_told(f"slow-{when}", protocol.batch):
        _wait_for_twin(protocol)
    if _is_told(when, protocol.batch):
        os.kill(os.getpid(), signal.SIGKILL)


def _line(protocol: Any) -> str:
    return f"{protocol.batch} {protocol.task} {os.getpid()}"


def _wait_for_twin(protocol: Any) -> None:
    """Stand still until another process has begun the same task; Spark may kill this one first."""
    before = _file(ATTEMPTS).read_text().splitlines() if _file(ATTEMPTS).exists() else []
    own = _line(protocol)
    task = own.rpartition(" ")[0] + " "
    deadline = time.monotonic() + _SLOW_SECONDS_MAX
    while time.monotonic() < deadline:
        lines = _file(ATTEMPTS).read_text().splitlines() if _file(ATTEMPTS).exists() else []
        if any(line.startswith(task) and line != own for line in lines[len(before) :]):
            _append(TWINS, own)
            return
        time.sleep(0.02)


def _file(name: str) -> Path:
    return Path(os.environ[KILLS]).with_name(name)


def _append(name: str, line: str) -> None:
    handle = os.open(_file(name), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(handle, f"{line}\n".encode())
    finally:
        os.close(handle)


def _mortal(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def step(*args: Any) -> Any:
        if name == _FIRST_STEP:
            _append(ATTEMPTS, _line(args[0]))
        _come_to(f"before-{name}", args[0])
        found = function(*args)
        _come_to(f"after-{name}", args[0])
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
