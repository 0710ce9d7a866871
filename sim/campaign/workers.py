"""Processes that run seeds side by side. SHELL.

A worker is a process that runs one job after the other (`sim.campaign.worker`). A new process for each job would cost
a tenth of a run for starting Python and loading the node. The process is replaced after `JOBS_MAX` jobs, when it
dies, and when a job takes too long. Each process has its own hash seed. So a run that depends on the order of a set
gives another digest when it is replayed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from odradek.env.real_descriptors import readable
from sim.campaign.results import Outcome, Results
from sim.options import RunOptions

JOBS_MAX = 50
"""How many jobs a process runs before a new process replaces it. There is a limit because a process may leak memory."""
CPU_SECONDS_MAX = 600.0
"""The most CPU time in seconds that a run may take. A run also ends if it uses no CPU time for this number of real
seconds. Most runs take some seconds.
"""
LOOK_SECONDS = 5.0
COVERAGE_FACTOR = 4
"""How many times longer a run may take if its coverage is recorded."""
_REPOSITORY = Path(__file__).resolve().parent.parent.parent

__all__ = ["Worker"]


class Worker:
    """A child process that runs seeds. When the process dies, a new process replaces it. Only `stop` may be called
    from another thread.
    """

    def __init__(self, number: int, commit: str, cpu_seconds_max: float = CPU_SECONDS_MAX) -> None:
        self._number = number
        self._commit = commit
        self._cpu_seconds_max = cpu_seconds_max
        self._process: subprocess.Popen[bytes] | None = None
        self._jobs = 0
        self._generation = 0
        self._received = b""
        self._is_endless = False
        """True if the last run was ended because it took too long."""
        self._stopped = False

    def run(
        self,
        seed: int,
        options: RunOptions,
        timeline: str | None = None,
        coverage: str | None = None,
        *,
        parts: bool = False,
    ) -> Outcome:
        """Run a seed. `timeline` and `coverage` are names of files to write, if given.

        With `parts` the schedules of single parts that belong to the seed are run afterwards. If the process dies,
        the outcome is a crash.
        """
        began = time.monotonic()
        job: dict[str, Any] = {"seed": seed, "options": options.to_json(), "commit": self._commit}
        if timeline is not None:
            job["timeline"] = timeline
        if coverage is not None:
            job["coverage"] = coverage
        if parts:
            job["parts"] = True
        seconds_max = self._cpu_seconds_max * (1 if coverage is None else COVERAGE_FACTOR)
        process = self._live_process()
        assert process.stdin is not None
        assert process.stdout is not None
        line = None
        with suppress(BrokenPipeError):  # The process has died. Its exit status shows why.
            process.stdin.write(json.dumps(job).encode() + b"\n")
            process.stdin.flush()
            line = self._line(process, seconds_max)
        if line is None:
            return self._lost(process, seed, options, began)
        self._jobs += 1
        if self._jobs >= JOBS_MAX:
            self._end()
        (outcome,) = Results.parse([line]).outcomes.values()
        return outcome

    def _live_process(self) -> subprocess.Popen[bytes]:
        if self._stopped:
            raise RuntimeError("the worker has been stopped")
        if self._process is None:
            self._generation += 1
            self._jobs, self._received = 0, b""
            hash_seed = str(1 + self._number + 100 * self._generation)
            self._process = subprocess.Popen(
                [sys.executable, "-m", "sim.campaign.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                cwd=_REPOSITORY,
                env=os.environ | {"PYTHONHASHSEED": hash_seed},
                start_new_session=True,  # Ctrl-C must interrupt only the campaign, not its workers.
            )
        return self._process

    def _line(self, process: subprocess.Popen[bytes], seconds_max: float) -> str | None:
        """Read the worker's answer. Returns None if the process died or has used up its time.

        The limit counts CPU time, since a correct run may take much more real time on a busy machine.
        """
        assert process.stdout is not None
        began = known = _cpu_seconds(process.pid)
        used_at = time.monotonic()
        self._is_endless = False
        while b"\n" not in self._received:
            if not readable([process.stdout.fileno()], min(LOOK_SECONDS, seconds_max)):
                now, spent = time.monotonic(), _cpu_seconds(process.pid)
                if spent > known:
                    known, used_at = spent, now
                self._is_endless = spent - began >= seconds_max or now - used_at >= seconds_max
                if self._is_endless:
                    return None
                continue
            data = os.read(process.stdout.fileno(), 1 << 16)
            if not data:
                return None
            self._received += data
        line, _, self._received = self._received.partition(b"\n")
        return line.decode()

    def _lost(
        self, process: subprocess.Popen[bytes], seed: int, options: RunOptions, began: float
    ) -> Outcome:
        seconds = time.monotonic() - began
        if self._is_endless:
            why = f"no end after {self._cpu_seconds_max:.0f} seconds of CPU time"
        else:
            why = f"the process ended with status {process.wait()}"
        self._end()
        return Outcome.lost(seed, options, self._commit, why, seconds)

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()

    def stop(self) -> None:
        """Kill the process; the outcome of its present job is lost."""
        self._stopped = True
        if self._process is not None:
            self._process.kill()

    def close(self) -> None:
        """End the process after its last job."""
        self._stopped = True
        self._end()


def _cpu_seconds(pid: int) -> float:
    """Read the CPU time of a process in seconds. Return the real time instead if the system does not report the CPU
    time.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return time.monotonic()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
