"""Kill a job, with its Java process, as soon as one of its batches has begun, or at a step of `offline-load`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from odradek.spark.pipelines import offline_load
from odradek.spark.pipelines.tables.landing import Landing
from odradek.spark.worker_process import worker_python
from tests.spark.python_path import python_path

__all__ = ["kill_job", "kill_load"]

WAIT_SECONDS = 900
"""The longest run until the kill. It only ends a job that hangs: under a load of 20, one began its first batch after 165 s."""


def kill_job(words: Sequence[str], checkpoint: Path, batch: int, folder: Path) -> None:
    """Run `odradek spark WORDS` in a folder, and kill it with SIGKILL when batch number `batch` has begun.

    Raises `AssertionError` if the job ends before, or if the batch does not begin.
    """
    log = folder / "killed_job.log"
    with log.open("wb") as out:
        job = subprocess.Popen(
            [sys.executable, "-m", "odradek", "spark", *words],
            stdout=out,
            stderr=out,
            cwd=folder,
            env={**os.environ, "PYTHONPATH": python_path(), "PYSPARK_PYTHON": worker_python()},
            # The job and its Java process are a process group of their own.
            start_new_session=True,
        )
    try:
        deadline = time.monotonic() + WAIT_SECONDS
        while not (checkpoint / "offsets" / str(batch)).exists():
            assert job.poll() is None, f"the job has ended: {log.read_text()}"
            assert time.monotonic() < deadline, f"batch {batch} has not begun: {log.read_text()}"
            time.sleep(0.02)
    finally:
        os.killpg(job.pid, signal.SIGKILL)
        job.wait()


def kill_load(words: Sequence[str], step: str, folder: Path) -> None:
    """Run `odradek spark offline-load WORDS`, which kills itself and its Java process with SIGKILL at a step.

    Raises `AssertionError` if the job ends otherwise.
    """
    done = subprocess.run(
        [sys.executable, "-m", "tests.spark.pipelines.killed_job", step, *words],
        capture_output=True,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": python_path(), "PYSPARK_PYTHON": worker_python()},
        start_new_session=True,
        timeout=WAIT_SECONDS,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()


def _die(step: str, reached: str) -> None:
    if reached == step:
        os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    offline_load.Landing = partial(Landing, step=partial(_die, sys.argv[1]))  # type: ignore[misc,assignment]
    sys.exit(offline_load.main(sys.argv[2:]))
