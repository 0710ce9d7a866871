"""The fault matrix of the exactly-once sink: workers, drivers, executors and nodes are killed while Spark copies a topic.

    python -m tests.spark.kills.sink_kills [--only workers,executors,nodes,kafka,feed] [--scale 0.1]

| run | Spark | target | killed |
| --- | --- | --- | --- |
| workers | local | one node | 190 workers at named steps, 10 drivers while a batch is only in the offset log, 4 drivers' Python processes in a commit |
| executors | two executors on two hosts, speculation | one node | 12 executors' Java processes, 20 workers; 20 slow tasks get duplicates |
| nodes | local | three nodes | 12 nodes, 30 workers, 2 drivers |
| kafka | local | Apache Kafka | 60 workers, 4 drivers |
| feed | local, `derived-feed` | one node | 40 workers, 4 drivers |
| two-phase | local | one node | 80 workers, 10 drivers, and the driver's Python process 36 times at named steps of a commit |
| two-phase-executors | two executors, eager speculation | one node | as in executors, and the driver's Python process 18 times |
| two-phase-nodes | local | three nodes | as in nodes, and the driver's Python process 18 times |

The `two-phase` runs use `delivery=two-phase`, with a plan that shuffles its rows randomly; the others use
`delivery=exactly-once`. In the end the committed rows are compared, by number and content, with the expected ones. Each
must be there once, and no transaction may be open. Each run prints one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from itertools import cycle, islice
from pathlib import Path
from uuid import uuid4

import attrs

from jepsen_tests.real_cluster import Cluster
from odradek import Admin, Producer
from odradek.client.admin import NewTopic
from odradek.client.shells.blocking import Client
from odradek.spark.worker_process import worker_python
from testkit.kafka_server import kafka_server
from testkit.odradek_server import odradek_server
from tests.cluster.exactly_once import three_nodes
from tests.docs.markdown import ROOT
from tests.kafka_jars import NO_RETENTION, TRANSACTIONS
from tests.spark.kills.dying_daemon import ATTEMPTS, DRIVER, KILLS, STEPS, TWINS, mortal_python
from tests.spark.kills.kill_run import (
    DriverKills,
    ExecutorKills,
    Nemesis,
    NodeKills,
    StepKills,
    run_to_the_end,
)
from tests.spark.kills.killed_sink_query import TWO_PHASE
from tests.spark.python_path import python_path
from tests.spark.sessions.spark_hosts import spark_hosts
from tests.spark.writing.test_sink_task import stored_committed

__all__ = ["Outcome", "Run", "run_copy"]

_ROWS_PER_BATCH = 300
_PARTITIONS = 3
_EXACTLY_ONCE = "exactly-once"
_SLOW_POINTS = {
    _EXACTLY_ONCE: (
        *("before-fenced", "after-marker_read", "before-written"),
        *("before-committed", "after-committed"),
    ),
    TWO_PHASE: ("before-looked", "after-claimed", "before-written", "before-prepared", "after-prepared"),
}
_STEPS_OF_REPETITIONS = ("compare", "counted")
"""Steps that happen only in a repeated attempt. No kill is planned for them, because they might never be reached."""
_PREPARES = {"transaction.two.phase.commit.enable": "true"}
_FLIGHTS_PER_BATCH = 1_000


@attrs.define
class Outcome:
    """The result of a run: the kills that happened, repeated and duplicate attempts, and the rows of the target."""

    run: str
    worker_kills: int
    """Kills of Python workers at named steps. `other_kills` counts the others by kind."""
    slow_tasks: int
    twins: int
    """Slow tasks for which Spark started a duplicate."""
    other_kills: dict[str, int]
    kills_left: int
    """Planned kills whose step no process has reached."""
    repeated_attempts: int
    rows: int
    lost: int
    doubled: int
    open_transactions: int
    """The query's transactions that are still open at the end."""
    seconds: float

    @property
    def is_good(self) -> bool:
        """True if each row is there once, no transaction is open and all kills at steps happened.

        If there are slow tasks, one of them must have had a duplicate.
        """
        without_twins = self.slow_tasks and not self.twins
        return not (self.lost or self.doubled or self.open_transactions or self.kills_left or without_twins)


@attrs.frozen
class Run:
    """The numbers of batches and kills of a run. With `has_hosts`, it uses separate executors (`spark_hosts`)."""

    name: str
    batches: int
    worker_kills: int
    slow_tasks: int = 0
    driver_kills: int = 0
    executor_kills: int = 0
    node_kills: int = 0
    step_kills: int = 0
    """Kills of the driver's Python process during a commit."""
    has_hosts: bool = False
    delivery: str = _EXACTLY_ONCE

    def points(self, *, driver: bool) -> list[str]:
        """Return the points at which workers, or the driver's Python process, may be killed, in order."""
        names = [
            step
            for step in STEPS[self.delivery]
            if step.startswith(DRIVER) == driver and step not in _STEPS_OF_REPETITIONS
        ]
        return [f"{when}-{name}" for name in names for when in ("before", "after")]


RUNS = {
    each.name: each
    for each in (
        Run("workers", 40, 190, driver_kills=10, step_kills=4),
        Run("executors", 40, 20, slow_tasks=20, executor_kills=12, has_hosts=True),
        Run("nodes", 30, 30, driver_kills=2, node_kills=12),
        Run("kafka", 20, 60, driver_kills=4),
        Run("feed", 20, 40, driver_kills=4),
        Run("two-phase", 40, 80, driver_kills=10, step_kills=36, delivery=TWO_PHASE),
        Run(
            *("two-phase-executors", 40, 20),
            slow_tasks=20,
            executor_kills=12,
            step_kills=18,
            has_hosts=True,
            delivery=TWO_PHASE,
        ),
        Run(
            *("two-phase-nodes", 30, 30),
            driver_kills=2,
            node_kills=12,
            step_kills=18,
            delivery=TWO_PHASE,
        ),
    )
}


def scaled(run: Run, scale: float) -> Run:
    """Return a smaller run. At least one kill of each of its kinds is kept."""
    counts = {
        field.name: getattr(run, field.name) for field in attrs.fields(Run) if field.type in (int, "int")
    }
    return attrs.evolve(
        run, **{name: max(1, round(count * scale)) if count else 0 for name, count in counts.items()}
    )


@attrs.frozen
class _Place:
    """The folder of a run, with its checkpoint and the files of the remaining kills."""

    folder: Path

    @property
    def checkpoint(self) -> Path:
        return self.folder / "checkpoint"

    @property
    def kills(self) -> Path:
        return self.folder / "kills"

    def prepare(self, run: Run) -> None:
        self.kills.mkdir()
        slow = [f"slow-{point}" for point in _SLOW_POINTS[run.delivery]]
        for points, count in (
            (run.points(driver=False), run.worker_kills),
            (run.points(driver=True), run.step_kills),
            (slow, run.slow_tasks),
        ):
            for number, point in enumerate(islice(cycle(points), count)):
                # Kills are spread over all batches except the last, because none may be left at the end.
                batch = number * (run.batches - 1) // count
                (self.kills / f"{batch:04}-{number:04}-{point}").touch()

    def environment(self, *, is_quiet: bool = False) -> dict[str, str]:
        """Return the environment variables of a driver. With `is_quiet`, nothing is killed."""
        python = worker_python() if is_quiet else mortal_python(worker_python(), self.folder)
        return {
            "PYTHONPATH": python_path(),
            "PYSPARK_PYTHON": python,
            # In local mode Spark prefers this variable, which may be set in our environment.
            "PYSPARK_DRIVER_PYTHON": python,
            "SPARK_CONF_DIR": str(ROOT / "spark" / "conf"),
            KILLS: str(self.kills),
        }

    def nemeses(self, run: Run) -> list[Nemesis]:
        """Return the kills of the driver."""
        return [DriverKills(run.driver_kills), StepKills(self.kills, f"*-{DRIVER}*")]

    def outcome(
        self,
        run: Run,
        bootstrap: str,
        nemeses: Sequence[Nemesis],
        wanted: Counter[bytes],
        found: Counter[bytes],
        began: float,
    ) -> Outcome:
        slow, steps = (len(list(self.kills.glob(pattern))) for pattern in ("*-slow-*", f"*-{DRIVER}*"))
        left = len(list(self.kills.iterdir())) - slow - steps
        attempts = file.read_text().splitlines() if (file := self.folder / ATTEMPTS).exists() else []
        tasks = {tuple(line.split()[:2]) for line in attempts}
        return Outcome(
            run.name,
            run.worker_kills - left,
            run.slow_tasks - slow,
            len(twins.read_text().splitlines()) if (twins := self.folder / TWINS).exists() else 0,
            {type(each).__name__: each.kills for each in nemeses if each.kills},
            slow + steps + left,
            len(attempts) - len(tasks),
            found.total(),
            (wanted - found).total(),
            (found - wanted).total(),
            self._open_transactions(bootstrap),
            round(time.monotonic() - began, 1),
        )

    def _open_transactions(self, bootstrap: str) -> int:
        query = json.loads((self.checkpoint / "metadata").read_text())["id"]
        with Client(bootstrap) as client:
            listed = client.admin.list_transactions(states=["Ongoing"])
        return sum(query in each.transactional_id for each in listed)


def run_copy(run: Run, bootstrap: str, cluster: Cluster | None = None) -> Outcome:
    """Copy a topic under kills; return the outcome. Raises `AssertionError` if the query fails or does not end."""
    began, name = time.monotonic(), uuid4().hex[:8]
    origin, target = f"kills-from-{name}", f"kills-to-{name}"
    replicas = 1 if cluster is None else 3
    with Admin(bootstrap_servers=bootstrap) as admin:
        for created in admin.create_topics(
            [NewTopic(each, _PARTITIONS, replicas) for each in (origin, target)]
        ):
            assert created.error is None, created.error
    rows = [b"%d" % number for number in range(run.batches * _ROWS_PER_BATCH)]
    with Producer(bootstrap_servers=bootstrap) as producer:
        sent = [
            producer.send(origin, value, partition=number % _PARTITIONS) for number, value in enumerate(rows)
        ]
        producer.flush()
        for each in sent:
            each.result()
    rng = random.Random(run.name)
    with tempfile.TemporaryDirectory(prefix="sink-kills-") as folder:
        place = _Place(Path(folder))
        place.prepare(run)
        nemeses = place.nemeses(run)
        if cluster is not None:
            nemeses.append(NodeKills(run.node_kills, cluster, rng))
        words = [bootstrap, origin, target, str(place.checkpoint), str(_ROWS_PER_BATCH), run.delivery]
        with spark_hosts(place.folder) if run.has_hosts else nullcontext() as hosts:
            if hosts is not None:
                words.append(hosts.master)
                nemeses.append(ExecutorKills(run.executor_kills, rng, hosts.executors))
            command = [sys.executable, "-m", "tests.spark.kills.killed_sink_query", *words]
            run_to_the_end(command, place.environment(), place.checkpoint, nemeses)
        found = Counter(bytes(each.value) for each in stored_committed(bootstrap, target, 0))
        return place.outcome(run, bootstrap, nemeses, Counter(rows), found, began)


def run_feed(run: Run, bootstrap: str) -> Outcome:
    """Run `derived-feed` without and with kills, and compare the two feeds."""
    began, name = time.monotonic(), uuid4().hex[:8]
    flights = f"flights-{name}"
    job = [sys.executable, "-m", "odradek", "spark"]
    where = ["--master", "local[2,60]", "--bootstrap", bootstrap]
    with tempfile.TemporaryDirectory(prefix="sink-kills-") as folder:
        place = _Place(Path(folder))
        place.prepare(run)
        load = [*job, "flights", *where, "--topic", flights, "--partitions", "3"]
        load += ["--limit", str(run.batches * _FLIGHTS_PER_BATCH)]
        run_to_the_end(load, place.environment(is_quiet=True), place.checkpoint, [])
        conf = Path(folder, "conf")
        conf.mkdir()
        (conf / "spark-defaults.conf").write_text("spark.sql.shuffle.partitions 3\n")
        (conf / "log4j2.properties").write_text("rootLogger.level = off\n")

        def feed(target: str, checkpoint: Path) -> list[str]:
            bounds = ["--records-per-batch", str(_FLIGHTS_PER_BATCH), "--window", "1 hour"]
            ends = ["--topic", flights, "--to", target, "--checkpoint", str(checkpoint)]
            return [*job, "derived-feed", *where, *ends, *bounds, "--delivery", "exactly-once"]

        quiet, killed = f"quiet-{name}", f"killed-{name}"
        quiet_checkpoint = Path(folder, "quiet")
        run_to_the_end(feed(quiet, quiet_checkpoint), place.environment(is_quiet=True), quiet_checkpoint, [])
        nemeses = place.nemeses(run)
        environment = place.environment() | {"SPARK_CONF_DIR": str(conf)}
        run_to_the_end(feed(killed, place.checkpoint), environment, place.checkpoint, nemeses)
        wanted, found = (
            Counter(b"%s %s" % (each.key, each.value) for each in stored_committed(bootstrap, topic, 1))
            for topic in (quiet, killed)
        )
        return place.outcome(run, bootstrap, nemeses, wanted, found, began)


@contextmanager
def _server(run: Run) -> Iterator[tuple[str, Cluster | None]]:
    """Start the target server of a run; yield its address, and the cluster if its nodes are to be killed."""
    more = _PREPARES if run.delivery == TWO_PHASE else {}
    if run.node_kills:
        with (
            tempfile.TemporaryDirectory(prefix="sink-kills-nodes-") as folder,
            three_nodes(Path(folder), **more) as nodes,
        ):
            yield nodes.bootstrap, nodes
        return
    settings = {**NO_RETENTION, **TRANSACTIONS, **more}
    started = kafka_server if run.name == "kafka" else odradek_server
    with started(settings=settings) as server:
        yield server.bootstrap, None


def main() -> None:
    """Run the matrix and print each outcome. The exit status is 1 if any run is not good."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default=",".join(RUNS), help="comma-separated names of runs (%(default)s)")
    parser.add_argument(
        "--scale", type=float, default=1.0, help="factor for the numbers of batches and kills"
    )
    parser.add_argument(
        "--bootstrap",
        help="a server that already runs, instead of one started for the run; not for runs that kill nodes",
    )
    given = parser.parse_args()
    names = given.only.split(",")
    if not set(names) <= set(RUNS) or (given.bootstrap and any(RUNS[name].node_kills for name in names)):
        parser.error(
            f"--only takes some of {', '.join(RUNS)}; with --bootstrap leave out the runs that kill nodes"
        )
    os.environ.pop("SPARK_HOME", None)
    is_good = True
    for run in (scaled(RUNS[name], given.scale) for name in names):
        with (
            nullcontext((given.bootstrap, None)) if given.bootstrap else _server(run) as (bootstrap, cluster)
        ):
            outcome = run_feed(run, bootstrap) if run.name == "feed" else run_copy(run, bootstrap, cluster)
        print(json.dumps(attrs.asdict(outcome)), flush=True)
        is_good &= outcome.is_good
    sys.exit(0 if is_good else 1)


if __name__ == "__main__":
    main()
