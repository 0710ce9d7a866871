"""Spark's daemon of Python processes that kill themselves at steps of the sink's protocols. For `sink_kills`.

`mortal_python` makes a Python launcher whose Spark daemon is this module. (`spark.python.daemon.module` would only reach
workers, and not the process of a commit.)

The directory KILLS has a file `BATCH-NUMBER-WHEN-STEP` for each kill. The first process that reaches this step, in this
batch or a later one, removes the file and kills itself. A STEP that begins with `driver-` belongs to the driver's commit.
With `BATCH-NUMBER-slow-WHEN-STEP` a worker waits until Spark has started a duplicate of its task.

Beside the directory, the file `attempts` gets a line for each attempt, and `twins` gets a line for each duplicate.
"""

from __future__ import annotations

import os
import shlex
import signal
import sys
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import attrs

__all__ = ["ATTEMPTS", "DRIVER", "KILLS", "STEPS", "TWINS", "mortal_python"]

KILLS = "ODRADEK_TEST_KILLS"
ATTEMPTS, TWINS = "attempts", "twins"
DRIVER = "driver-"
_END, _COMPLETE = f"{DRIVER}end_batch", f"{DRIVER}write_completion"
STEPS = {
    "exactly-once": (
        "fenced",
        "end_taken",
        "marker_read",
        "written",
        "committed",
        "compare",
        _END,
        _COMPLETE,
    ),
    "two-phase": (
        *("looked", "claimed", "written", "prepared", "counted"),
        *(
            f"{DRIVER}{name}"
            for name in (
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
        ),
    ),
}
"""The steps of an attempt and of the driver, for each delivery."""
_FIRST_STEPS = ("FENCE", "LOOK")
"""The first step of an attempt, for each delivery."""
_WORKER = "pyspark.worker"
_COMMITTING = "pyspark.sql.worker.python_streaming_sink_runner"
"""Spark's programs that run tasks (`_WORKER`) and that commit a micro-batch (`_COMMITTING`)."""
_SLOW_SECONDS_MAX = 90.0
_LAUNCHER = """#!/bin/sh
if [ "$2" = pyspark.daemon ]; then
    shift 2
    set -- -m {module} "$@"
fi
exec {python} "$@"
"""


def mortal_python(python: str, folder: Path) -> str:
    """Write the program for PYSPARK_PYTHON into a folder: Python, with this module as Spark's daemon. Return its path."""
    launcher = folder / "mortal-python"
    launcher.write_text(_LAUNCHER.format(module="tests.spark.kills.dying_daemon", python=shlex.quote(python)))
    launcher.chmod(0o700)
    return str(launcher)


@attrs.frozen
class _Place:
    """The batch in which a process has reached a step. `attempt` is the protocol object in a worker."""

    batch: int
    attempt: Any = None

    @property
    def line(self) -> str:
        return f"{self.batch} {self.attempt.task} {os.getpid()}"


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


def _come_to(when: str, place: _Place) -> None:
    if place.attempt is not None and _is_told(f"slow-{when}", place.batch):
        _wait_for_twin(place.line)
    if _is_told(when, place.batch):
        os.kill(os.getpid(), signal.SIGKILL)


def _wait_for_twin(own: str) -> None:
    """Wait until another process has begun the same task. Spark may kill this process first."""
    before = _file(ATTEMPTS).read_text().splitlines() if _file(ATTEMPTS).exists() else []
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


def _mortal(name: str, function: Callable[..., Any], place_of: Callable[..., _Place]) -> Callable[..., Any]:
    def step(*args: Any, **named: Any) -> Any:
        place = place_of(*args)
        if place.attempt is not None and place.attempt.step.name in _FIRST_STEPS:
            _append(ATTEMPTS, place.line)
        _come_to(f"before-{name}", place)
        found = function(*args, **named)
        _come_to(f"after-{name}", place)
        return found

    return step


def main() -> None:
    """Run Spark's daemon for the program that `sys.argv[1]` names.

    Only processes that run tasks or commits may kill themselves.
    """
    from pyspark.daemon import manager

    if sys.argv[1:] in ([_WORKER], [_COMMITTING]):
        _make_mortal(is_driver=sys.argv[1] == _COMMITTING)
    manager()


def _make_mortal(*, is_driver: bool) -> None:
    two_phase = import_module("odradek.spark.delivery.two_phase")
    once = import_module("odradek.spark.delivery.task_protocol").TaskProtocol
    for delivery, attempt in (("exactly-once", once), ("two-phase", two_phase.AttemptProtocol)):
        for step in STEPS[delivery]:
            if step.startswith(DRIVER) != is_driver:
                continue
            owner: Any = two_phase.DriverProtocol if is_driver else attempt
            place_of: Callable[..., _Place] = _place_in_commit if is_driver else _place_in_task
            if step == _END:
                owner, place_of = import_module("odradek.spark.sink"), _place_in_end
            if step == _COMPLETE:
                owner, place_of = import_module("odradek.spark.delivery.batch_driver"), _place_in_completion
            name = step.removeprefix(DRIVER)
            setattr(owner, name, _mortal(step, getattr(owner, name), place_of))


def _place_in_task(protocol: Any, *_: Any) -> _Place:
    return _Place(protocol.batch, protocol)


def _place_in_commit(protocol: Any, *_: Any) -> _Place:
    return _Place(protocol.batch)


def _place_in_end(_properties: Any, _topic: str, end: Any, _held: Any) -> _Place:
    return _Place(end.batch)


def _place_in_completion(_decisions: Any, _producer: Any, _query: str, completion: Any) -> _Place:
    return _Place(completion.batch)


if __name__ == "__main__":
    main()
