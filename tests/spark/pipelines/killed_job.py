"""Kill a job, with its Java process, as soon as one of its batches has begun."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from odradek.spark.worker_process import worker_python
from tests.docs.markdown import ROOT

__all__ = ["kill_job"]

WAIT_SECONDS = 300


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
            env={**os.environ, "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": worker_python()},
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
