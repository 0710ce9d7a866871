"""The fault matrix of two-phase delivery: workers and drivers are killed at named steps while Spark copies a topic.

    python -m tests.spark.two_phase_kills [--bootstrap HOST:PORT] [--batches 40] [--worker-kills 80] [--driver-kills 10]
        [--step-kills 36] [--master 'local-cluster[2,1,1024]']

A query copies a topic in batches. Its workers die at each step in turn. The driver dies with its process
group while a batch is in the offset log alone. Then it is started again. The driver's Python process also dies at each
step of its commits. Spark then ends the query, which is started again. In the end the rows that a committed
reader sees are counted by content: each is there once. No transaction stays open.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from itertools import cycle, islice
from pathlib import Path
from uuid import uuid4

import attrs

from bench.odradek_server import start_odradek
from odradek import Producer
from spark.worker_process import worker_python
from tests.docs.markdown import ROOT
from tests.kafka_jars import NO_RETENTION, TRANSACTIONS
from tests.spark.test_sink_task import stored_committed
from tests.spark.topics import Topics
from tests.spark.two_phase_daemon import DRIVER_STEPS, KILLS

__all__ = ["Outcome", "run_matrix"]

_ROWS_PER_BATCH = 300
_DRIVER_STEP = "-driver-"
ATTEMPT_POINTS = tuple(
    f"{when}-{step}" for step in ("looked", "claimed", "written", "prepared") for when in ("before", "after")
)
DRIVER_POINTS = tuple(
    f"{when}-driver-{step}"
    for step in DRIVER_STEPS
    if step != "rolled_forward"
    for when in ("before", "after")
)
_SECONDS_MAX = 3600.0
PREPARES = {"transaction.two.phase.commit.enable": "true"}


@attrs.define
class Outcome:
    """The result of a run: kills that happened, and the rows of the target."""

    worker_kills: int
    driver_kills: int
    step_kills: int
    rows: int
    lost: int
    doubled: int


def run_matrix(
    bootstrap: str,
    *,
    batches: int,
    worker_kills: int,
    driver_kills: int,
    step_kills: int,
    master: str = "local[2,60]",
) -> Outcome:
    """Copy `batches` batches under kills. Raises `AssertionError` if the query fails or does not end."""
    topics, name = Topics(bootstrap), uuid4().hex[:8]
    origin, target = (topics.create(f"kills-{end}-{name}", partitions=3) for end in ("from", "to"))
    rows = batches * _ROWS_PER_BATCH
    with Producer(bootstrap_servers=bootstrap) as producer:
        for number in range(rows):
            producer.send(origin, b"%d" % number, partition=number % 3)
        producer.flush()
    with tempfile.TemporaryDirectory(prefix="sink-kills-") as folder:
        kills, checkpoint = Path(folder, "kills"), Path(folder, "checkpoint")
        kills.mkdir()
        points = [*islice(cycle(ATTEMPT_POINTS), worker_kills), *islice(cycle(DRIVER_POINTS), step_kills)]
        for number, point in enumerate(points):
            (kills / f"{number:04}-{point}").touch()
        command = [
            sys.executable,
            "-m",
            "tests.spark.killed_two_phase_query",
            bootstrap,
            origin,
            target,
            str(checkpoint),
            str(_ROWS_PER_BATCH),
            master,
        ]
        killed = _run_to_the_end(command, checkpoint, kills, driver_kills)
        left = [_DRIVER_STEP in file.name for file in kills.iterdir()]
    found = Counter(int(record.value) for record in stored_committed(bootstrap, target, 0))
    return Outcome(
        worker_kills=worker_kills - left.count(False),
        driver_kills=killed,
        step_kills=step_kills - left.count(True),
        rows=sum(found.values()),
        lost=rows - len(found),
        doubled=sum(count - 1 for count in found.values()),
    )


def _run_to_the_end(command: list[str], checkpoint: Path, kills: Path, driver_kills: int) -> int:
    """Run the query until it ends well; the number of times that its process group was killed."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "PYSPARK_PYTHON": worker_python(),
        KILLS: str(kills),
    }
    killed, seen = 0, set[str]()
    steps_left = len(list(kills.glob(f"*{_DRIVER_STEP}*")))
    deadline = time.monotonic() + _SECONDS_MAX
    while True:
        process = subprocess.Popen(command, cwd=ROOT, env=environment, start_new_session=True)
        try:
            while process.poll() is None:
                assert time.monotonic() < deadline, "the query does not end"
                between = _names(checkpoint / "offsets") - _names(checkpoint / "commits") - seen
                if between and killed < driver_kills:
                    seen |= between
                    os.killpg(process.pid, signal.SIGKILL)
                    killed += 1
                time.sleep(0.01)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if process.returncode == 0:
            return killed
        steps_left, before = len(list(kills.glob(f"*{_DRIVER_STEP}*"))), steps_left
        if process.returncode == 1 and steps_left < before:
            # The driver's Python process has died in a commit, which ends the query.
            continue
        assert process.returncode == -signal.SIGKILL, f"the query ended with {process.returncode}"


def _names(log: Path) -> set[str]:
    return {file.name for file in log.glob("[0-9]*")} if log.is_dir() else set()


def main() -> None:
    """Run the matrix and print what came of it; status 1 if rows are lost or doubled."""
    parser = argparse.ArgumentParser(
        description="Kill the two-phase sink at named points, and count its rows."
    )
    parser.add_argument("--bootstrap", help="a server that runs already; otherwise a node is started")
    parser.add_argument("--batches", type=int, default=40)
    parser.add_argument("--worker-kills", type=int, default=80)
    parser.add_argument("--driver-kills", type=int, default=10)
    parser.add_argument(
        "--step-kills", type=int, default=36, help="of the driver's commits, at each step in turn"
    )
    parser.add_argument("--master", default="local[2,60]")
    given = parser.parse_args()
    with contextlib.ExitStack() as stack:
        bootstrap = given.bootstrap
        if bootstrap is None:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="sink-kills-node-"))
            server = start_odradek(Path(folder), settings={**NO_RETENTION, **TRANSACTIONS, **PREPARES})
            stack.callback(server.stop)
            bootstrap = server.bootstrap
        outcome = run_matrix(
            bootstrap,
            batches=given.batches,
            worker_kills=given.worker_kills,
            driver_kills=given.driver_kills,
            step_kills=given.step_kills,
            master=given.master,
        )
    print(json.dumps(attrs.asdict(outcome)))
    sys.exit(1 if outcome.lost or outcome.doubled else 0)


if __name__ == "__main__":
    main()
