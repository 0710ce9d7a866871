"""Jobs on a Spark cluster whose hosts have no odradek: docs/spark-cluster.md, executors that come and go, and
speculation."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import attrs
import pytest

pytest.importorskip("pyspark", reason="Spark is not installed (the extra spark)")

import pyspark

from testkit.kafka_server import KafkaUnavailable, java_command
from tests.docs.markdown import ROOT, blocks
from tests.node_process import RunningNode
from tests.spark.sessions.spark_hosts import SparkHosts, spark_hosts
from tests.spark.topics import Topics
from tests.spark.writing.test_sink_task import stored_committed

PAGE = "docs/spark-cluster.md"
JOB = Path(__file__).with_name("cluster_job.py")
TIMEOUT_SECONDS = 600.0
RECORDS, PARTITIONS = 2000, 4
SENTENCE = (
    "lacks the module 'odradek', which the format odradek needs on the driver and on every executor: install the "
    "packages odradek and pyarrow there, or send an environment that has them with --archives, and name its Python "
    "by PYSPARK_PYTHON (docs/spark-cluster.md)"
)
SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.minTaskRuntime": "500ms",
}
ALLOCATION = {
    "spark.dynamicAllocation.enabled": "true",
    "spark.dynamicAllocation.shuffleTracking.enabled": "true",
    "spark.dynamicAllocation.executorIdleTimeout": "1s",
    "spark.dynamicAllocation.maxExecutors": "2",
}
DECOMMISSION = {"spark.decommission.enabled": "true", "spark.storage.decommission.enabled": "true"}


@attrs.frozen
class Place:
    """The driver's directory, with the environment and its archive beside the job, and the cluster."""

    folder: Path
    hosts: SparkHosts
    clean: Mapping[str, str]
    """The variables of a machine on which nothing names this repository."""

    def submit(
        self,
        what: str,
        conf: Mapping[str, str] | None = None,
        variables: Mapping[str, str] | None = None,
        **settings: object,
    ) -> subprocess.CompletedProcess[str]:
        """Run a function of the job as the page says, with more of Spark's settings, and other variables."""
        build, submit, *_ = (each.code for each in blocks(PAGE, "sh"))
        assert "venv environment" in build
        for key, value in (conf or {}).items():
            submit = submit.replace("--master", f"--conf {key}={value} --master")
        submit = submit.replace("spark://HOST:7077", self.hosts.master)
        more = " ".join(f"export {key}={value};" for key, value in (variables or {}).items())
        submit = submit.replace("spark-submit", f"{more} exec $SPARK_HOME/bin/spark-submit")
        submit = submit.replace("job.py", f"{JOB} {what} '{json.dumps(settings)}'")
        return self.run(submit)

    def run(self, script: str) -> subprocess.CompletedProcess[str]:
        """Run a script in the driver's directory."""
        return subprocess.run(
            ["bash", "-e", "-o", "pipefail", "-c", script],
            cwd=self.folder,
            env=dict(self.clean),
            capture_output=True,
            text=True,
            timeout=TIMEOUT_SECONDS,
            check=False,
        )


def seen(done: subprocess.CompletedProcess[str]) -> dict[str, int]:
    """Return the facts that the job has printed. Raises `AssertionError` if it failed."""
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
    facts: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    return facts


@pytest.fixture(scope="module")
def folder(whole_matrix: bool, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The driver's directory, with the environment that the page's commands make from this repository's wheel."""
    if not whole_matrix:
        pytest.skip("starts a Spark cluster and a job for each test, so it runs only in make test-spark")
    try:
        java_command()
    except KafkaUnavailable as reason:
        pytest.skip(f"Spark is unavailable: {reason}")
    folder = tmp_path_factory.mktemp("driver")
    words = ["wheel", "--no-deps", "--no-build-isolation", "-w", str(folder), str(ROOT)]
    subprocess.run([sys.executable, "-m", "pip", "-q", *words], check=True)
    [wheel] = folder.glob("*.whl")
    build = blocks(PAGE, "sh")[0].code.replace("odradek-VERSION-py3-none-any.whl", wheel.name)
    build = build.replace("python3", sys.executable)
    env = {**os.environ, "PIP_CONSTRAINT": str(ROOT / "constraints.txt")}
    env.pop("PYTHONPATH", None)
    subprocess.run(["bash", "-e", "-c", build], cwd=folder, env=env, check=True)
    return folder


@pytest.fixture(scope="module")
def place(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """A cluster of two hosts whose `python3` has pyarrow, and no odradek."""
    bare = tmp_path_factory.mktemp("hosts")
    venv.create(bare / "python", with_pip=False, symlinks=True)
    [theirs] = bare.glob("python/lib/python3*/site-packages")
    [packed] = folder.glob("environment/lib/python3*/site-packages")
    for name in ("pyarrow", "numpy", "numpy.libs"):
        (theirs / name).symlink_to(packed / name)
    clean = {
        key: value for key, value in os.environ.items() if not key.startswith(("PYSPARK", "PYTHON", "SPARK"))
    }
    theirs_first = f"{bare}/python/bin{os.pathsep}{os.environ['PATH']}"
    with spark_hosts(bare, {**clean, "PATH": theirs_first}) as hosts:
        mine = {"SPARK_HOME": pyspark.__path__[0], "SPARK_CONF_DIR": str(ROOT / "spark" / "conf")}
        yield Place(folder, hosts, {**clean, **mine})


@pytest.fixture
def topics(place: Place, node: RunningNode) -> Topics:
    """The topics of the node."""
    return Topics(node.bootstrap)


@pytest.fixture
def origin(topics: Topics, fresh_topic: Callable[[str], str]) -> str:
    """A topic with numbers from zero."""
    name = topics.create(fresh_topic("origin"), PARTITIONS)
    for partition in range(PARTITIONS):
        values = [b"%d" % number for number in range(partition, RECORDS, PARTITIONS)]
        topics.send(name, values, partition=partition)
    return name


@pytest.fixture
def target(topics: Topics, fresh_topic: Callable[[str], str]) -> str:
    """An empty topic."""
    return topics.create(fresh_topic("target"), PARTITIONS)


def assert_each_once(topics: Topics, name: str, count: int = RECORDS) -> None:
    """Raise `AssertionError` unless committed readers see each number once."""
    stored = Counter(int(record.value) for record in stored_committed(topics.bootstrap, name, 0))
    assert stored == Counter(range(count))


@pytest.mark.parametrize("register", [False, True], ids=["by name", "by class"])
def test_an_archive_is_enough(
    place: Place,
    topics: Topics,
    origin: str,
    fresh_topic: Callable[[str], str],
    tmp_path: Path,
    register: bool,
) -> None:
    """Executors whose hosts have no odradek run it from an archive. A registered class leaves the driver another Python."""
    batch, streamed = (topics.create(fresh_topic(name), PARTITIONS) for name in ("batch", "streamed"))
    words = {"bootstrap": topics.bootstrap, "origin": origin, "batch": batch, "streamed": streamed}
    other = {"PYSPARK_DRIVER_PYTHON": sys.executable, "PYTHONPATH": str(ROOT)} if register else {}
    done = place.submit("copy", variables=other, folder=str(tmp_path), register=register, **words)
    assert seen(done) == {"rows": RECORDS}
    assert_each_once(topics, batch)
    assert_each_once(topics, streamed)


def test_an_executor_without_the_package(place: Place, topics: Topics, origin: str, target: str) -> None:
    """A format found by name runs with the driver's Python. Where executors lack the package, the error is a sentence."""
    driver = {"PYSPARK_DRIVER_PYTHON": "python3", "PATH": f"{place.folder}/environment/bin:$PATH"}
    done = place.submit("shuffle", variables=driver, bootstrap=topics.bootstrap, origin=origin, target=target)
    told = done.stdout + done.stderr
    assert done.returncode != 0
    assert SENTENCE in told, told[-4000:]
    assert "ModuleNotFoundError" not in told
    assert "read_command" not in told, "a traceback of Spark's worker"
    assert_each_once(topics, target, 0)


def test_adaptive_execution(place: Place, topics: Topics, origin: str, target: str) -> None:
    """Adaptive execution joins the partitions of a shuffle, and each row is written once."""
    done = place.submit("shuffle", bootstrap=topics.bootstrap, origin=origin, target=target)
    assert 1 <= seen(done)["tasks"] < 200
    assert_each_once(topics, target)


def test_executors_that_leave_and_come(
    place: Place, topics: Topics, target: str, fresh_topic: Callable[[str], str], tmp_path: Path
) -> None:
    """With dynamic allocation a query loses all its executors three times, and writes each row once."""
    origin = topics.create(fresh_topic("rounds"), PARTITIONS)
    words = {"bootstrap": topics.bootstrap, "origin": origin, "target": target, "folder": str(tmp_path)}
    done = place.submit("allocate", ALLOCATION, rounds=3, rows=300, **words)
    assert seen(done) == {"rows": 900}
    assert_each_once(topics, target, 900)


def test_speculative_twins(place: Place, topics: Topics, origin: str, target: str, tmp_path: Path) -> None:
    """Each batch has a slow task with a speculative twin that writes at the same time. Each row is there once."""
    words = {"bootstrap": topics.bootstrap, "origin": origin, "target": target, "folder": str(tmp_path)}
    facts = seen(place.submit("twins", SPECULATION, **words))
    assert facts["twins"] == facts["batches"] == 2
    assert_each_once(topics, target)


def test_a_worker_is_decommissioned(
    place: Place, topics: Topics, origin: str, target: str, tmp_path: Path
) -> None:
    """A streaming query outlives the decommission of one of two hosts, and writes each row once.

    The last test of this file, because the cluster has one host afterwards.
    """
    words = {"bootstrap": topics.bootstrap, "origin": origin, "target": target, "folder": str(tmp_path)}
    facts = seen(place.submit("decommission", DECOMMISSION, worker=place.hosts.workers[0], **words))
    assert 0 < facts["before"] < facts["rows"] == RECORDS
    assert_each_once(topics, target)
