"""The order of tests on xdist's workers: which ones stay together, which begin first, and which `make quick` leaves
out.

A scope is a file, or several files that share a costly server. The longest begin first, so that the workers end at about the
same time. How long a scope takes is measured by each run for the next one (`durations.py`).

xdist gives a worker its next scope while the last test of the previous scope still runs, so the next scope waits for
that test. Therefore one of the shortest scopes follows a long one. A second long one would begin late, and its worker
would end last.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

_ROOT = Path(__file__).resolve().parent.parent
OWN_SPARK = "tests/spark/kills/test_sink_kills.py"
"""Files of Spark's folder that need a Spark of their own, and share no server."""
_ASKS_FOR_SPARK = re.compile(r"\b(spark: SparkSession|jvm_connector: |apache_kafka: )")
SPARK = frozenset(
    str(path.relative_to(_ROOT))
    for path in (_ROOT / "tests" / "spark").rglob("test_*.py")
    if _ASKS_FOR_SPARK.search(path.read_text())
)
"""Files whose tests share the folder's Spark or an Apache Kafka, so that each is started once."""
APACHE_KAFKA = frozenset(
    (
        "tests/client/admin/test_admin.py",
        "tests/client/admin/test_admin_transactions.py",
        "tests/client/consumer/test_committed_readers.py",
        "tests/client/consumer/test_consumer_servers.py",
        "tests/client/consumer/coordinated/test_group_servers.py",
        "tests/client/core/test_servers.py",
        "tests/client/producer/test_producer.py",
        "tests/client/producer/test_transactional_servers.py",
        "tests/docs/walks/test_client.py",
    )
)
"""Files whose tests share an Apache Kafka, also with some of Spark's tests."""
JAVA = "Spark and Apache Kafka"
SHAPE = ("tests/test_architecture.py", "tests/test_structure.py")
"""Files that read the same syntax trees."""

FIRST = (
    JAVA,
    "tests/deploy/test_life.py",
    "tests/cluster/test_moved_controllers.py",
    "tests/node/life/test_bad_files.py",
    "tests/node/requests/test_request_budget.py",
    "tests/cli/test_hostile_words.py",
    "tests/jepsen/test_cluster.py",
    "tests/cluster/test_deaths_in_a_transaction.py",
    "tests/other_clients/test_groups.py",
    "tests/sim/runs/test_campaign.py",
    "tests/log/cleaning/test_kafka_agrees.py",
    "tests/other_clients/test_apache_tools.py",
    OWN_SPARK,
    "tests/spark/sessions/test_own_modules.py",
    "tests/cluster/test_exactly_once.py",
    "tests/node/life/test_stop_while_starting.py",
    "tests/sim/test_seeds.py",
)
"""The scopes that begin first, in this order, if no run has measured them. Scopes with many long tests follow."""
GUESSED_SECONDS_MAX = 180
"""The largest guess for the time of a scope."""
SHORT_SECONDS_MAX = 3.0
"""The most that a scope may take if a long one is to wait for it."""


def scope_of(nodeid: str) -> str:
    """Return the scope of a test: its file, the shared Spark and Apache Kafka, or the syntax trees."""
    path = nodeid.partition("::")[0]
    if path in APACHE_KAFKA or path in SPARK:
        return JAVA
    if path in SHAPE:
        return "the shape of the code"
    return path


def expected_seconds(scope: str, measured: Mapping[str, float], long_tests: int) -> float:
    """Return the expected seconds of a scope: its last time, or else a guess that puts it in the right order.

    `long_tests` is the number of its tests with the marker `long`.
    """
    if scope in measured:
        return measured[scope]
    if scope in FIRST:
        return GUESSED_SECONDS_MAX - FIRST.index(scope)
    return min(long_tests, GUESSED_SECONDS_MAX - len(FIRST))


def begin_with_the_longest(items: list[pytest.Item], measured: Mapping[str, float]) -> None:
    """Sort tests by their scopes, the longest first. Workers with the same tests and figures sort alike."""
    scopes = {item.nodeid: scope_of(item.nodeid) for item in items}
    long_tests = Counter(scopes[item.nodeid] for item in items if item.get_closest_marker("long") is not None)
    expected = {
        scope: expected_seconds(scope, measured, long_tests[scope])
        for scope in dict.fromkeys(scopes.values())
    }
    items.sort(key=lambda item: -expected[scopes[item.nodeid]])


def waits_long(pending: Iterable[str], measured: Mapping[str, float]) -> bool:
    """Return True if a worker that still has tests of these scopes would start another one late."""
    return any(expected_seconds(scope, measured, 0) > SHORT_SECONDS_MAX for scope in pending)


class Scheduling(LoadFileScheduling):
    """A scheduler that keeps files whole, as with `--dist loadfile`, and also scopes of several files."""

    def __init__(self, config: pytest.Config, log: Any, measured: Mapping[str, float]) -> None:
        # Keep the order of the workers. xdist would begin with the scopes that have most tests.
        config.option.loadscopereorder = False
        super().__init__(config, log)
        self._measured = measured

    def _split_scope(self, nodeid: str) -> str:
        return scope_of(nodeid)

    def _assign_work_unit(self, node: WorkerController) -> None:
        """Give a worker the longest scope that is left, or the shortest if it would wait behind a long one."""
        work = self.assigned_work.get(node, {})
        if waits_long((scope for scope, tests in work.items() if not all(tests.values())), self._measured):
            self.workqueue.move_to_end(next(reversed(self.workqueue)), last=False)
        super()._assign_work_unit(node)


def share_of(files: Sequence[Path], number: int, count: int) -> Sequence[Path]:
    """Return the files of worker `number` of `count`. They are neighbours, which import the same modules."""
    return files[len(files) * number // count : len(files) * (number + 1) // count]


def seeds(count: int, quick: int = 2) -> list[Any]:
    """Return parameters for `count` seeds, of which `make quick` runs the first `quick`."""
    return [seed if seed < quick else pytest.param(seed, marks=pytest.mark.long) for seed in range(count)]


def examples(count: int) -> int:
    """Return how many examples Hypothesis makes: `count` in `make test`, and a fifth of it in `make quick`."""
    return max(1, count * settings().max_examples // 100)
