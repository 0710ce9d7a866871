"""The order of tests, and the tests that stay together. The lists name files that exist."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import settings
from xdist.remote import Producer
from xdist.workermanage import WorkerController

from tests import schedule
from tests.durations import Durations, merged, read, write
from tests.schedule import FIRST, examples, expected_seconds, scope_of, seeds

ROOT = Path(__file__).resolve().parent.parent


def test_scopes_name_files_that_exist() -> None:
    """The lists of scopes name existing files. A moved file would begin last, or start a server of its own."""
    named = {*schedule.FIRST, *schedule.APACHE_KAFKA, *schedule.SHAPE, *schedule.SPARK}
    scopes = {scope_of(path) for path in (*schedule.APACHE_KAFKA, *schedule.SHAPE)}
    assert [name for name in sorted(named - scopes) if not (ROOT / name).exists()] == []


def test_tests_that_share_a_server_stay_together() -> None:
    """Spark's folder and the client's tests with Apache Kafka share a scope. Any other file is a scope of its own."""
    assert scope_of("tests/spark/writing/test_sink.py::test_a[1]") == scope_of(
        "tests/spark/test_guide.py::test_b"
    )
    assert scope_of(f"{schedule.OWN_SPARK}::test_a") == schedule.OWN_SPARK
    assert {scope_of(f"{path}::test") for path in schedule.APACHE_KAFKA} == {schedule.JAVA}
    assert scope_of("tests/wire/codecs/test_codec.py::TestA::test[x::y]") == "tests/wire/codecs/test_codec.py"


def test_tests_that_ask_for_spark_share_it() -> None:
    """Files of Spark's folder that use the session or Apache Kafka are one scope. The others start no server."""
    assert "tests/spark/reading/test_source_batch.py" in schedule.SPARK
    assert "tests/spark/reading/test_decode.py" not in schedule.SPARK
    assert schedule.OWN_SPARK not in schedule.SPARK
    assert len(schedule.SPARK) > 9


def test_the_longest_scopes_begin_first() -> None:
    """The longest scopes begin first: measured ones by their time, others by a guess."""
    measured = {"tests/a.py": 700.0, FIRST[1]: 0.5}
    scopes = {
        "tests/a.py": 0,
        FIRST[1]: 1,
        FIRST[0]: 1,
        FIRST[2]: 0,
        "tests/b.py": 9,
        "tests/c.py": 0,
        "tests/d.py": 2_000,
    }
    expected = sorted(scopes, key=lambda scope: -expected_seconds(scope, measured, scopes[scope]))
    assert expected == ["tests/a.py", FIRST[0], FIRST[2], "tests/d.py", "tests/b.py", FIRST[1], "tests/c.py"]


class FakeWorker:
    """A worker that runs its tests in order. It starts the last one only when it knows that no other follows."""

    def __init__(self, name: str) -> None:
        self.gateway = SimpleNamespace(id=name)
        self.shutting_down = False
        self.queue: list[int] = []
        self.began: list[tuple[float, str]] = []
        self.now = 0.0

    def send_runtest_some(self, indices: Sequence[int]) -> None:
        self.queue += indices

    def shutdown(self) -> None:
        self.shutting_down = True


def test_no_long_scope_waits_behind_another(pytestconfig: pytest.Config) -> None:
    """After a long scope a worker gets a short one, since it gets its next tests before the last one ends."""
    long = {f"tests/long_{number}.py": 100.0 - number for number in range(6)}
    measured = long | {f"tests/short_{number}.py": 0.1 for number in range(20)}
    nodeids = [f"{scope}::test" for scope in measured]
    option = SimpleNamespace(**vars(pytestconfig.option) | {"tx": ["popen"] * 2, "loadscopereorder": True})
    config: Any = SimpleNamespace(option=option, getvalue=lambda name: getattr(option, name))
    scheduling = schedule.Scheduling(config, Producer("test", enabled=False), measured)
    workers = [FakeWorker("gw0"), FakeWorker("gw1")]
    for worker in workers:
        scheduling.add_node(cast("WorkerController", worker))
        scheduling.add_node_collection(cast("WorkerController", worker), nodeids)
    scheduling.schedule()
    while any(worker.queue for worker in workers):
        ready = [each for each in workers if len(each.queue) > 1 or (each.queue and each.shutting_down)]
        worker = min(ready, key=lambda each: each.now + measured[scope_of(nodeids[each.queue[0]])])
        scope = scope_of(nodeids[worker.queue[0]])
        worker.began.append((worker.now, scope))
        worker.now += measured[scope]
        scheduling.mark_test_complete(cast("WorkerController", worker), worker.queue.pop(0))
    order = [scope for _, scope in sorted(began for worker in workers for began in worker.began)]
    assert [scope for scope in order if scope in long] == list(long)
    assert max(worker.now for worker in workers) < sum(measured.values()) / 2 + 10


def test_a_run_keeps_what_it_measured(tmp_path: Path) -> None:
    """A whole run replaces all figures. A partial run replaces only those of scopes that have more tests now."""
    path = tmp_path / "cache" / "durations.json"
    assert read(path) == {}
    kept: Durations = {"a": (10.0, 5), "b": (20.0, 5), "gone": (1.0, 1)}
    write(kept, path)
    assert read(path) == kept
    assert merged(kept, {"a": (1.0, 5), "b": (30.0, 6), "new": (2.0, 1)}, is_whole=False) == {
        "a": (10.0, 5),
        "b": (30.0, 6),
        "gone": (1.0, 1),
        "new": (2.0, 1),
    }
    assert merged(kept, {"a": (1.0, 4)}, is_whole=True) == {"a": (1.0, 4)}
    for damage in ("", "{", "[1]", '{"a": 1}', '{"a": ["x", 1]}'):
        path.write_text(damage)
        assert read(path) == {}


@pytest.mark.parametrize("count", [1, 2, 3, 7, 20])
def test_each_file_is_in_one_share(count: int) -> None:
    """Each file is compiled by exactly one worker, whatever number of workers there is."""
    files = [Path(f"test_{number}.py") for number in range(10)]
    shares = [schedule.share_of(files, number, count) for number in range(count)]
    assert [path for share in shares for path in share] == files
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_quick_runs_the_first_seeds() -> None:
    """`make quick` runs the first seeds and leaves the others to `make test`."""
    first, second, third = seeds(3)
    assert (first, second) == (0, 1)
    assert third == pytest.param(2, marks=pytest.mark.long)


def test_the_quick_profile_makes_a_fifth_of_the_examples() -> None:
    """The numbers of examples in the tests are those of `make test`. The profile `quick` makes a fifth."""
    before = settings.get_current_profile_name()
    try:
        settings.load_profile("odradek")
        assert examples(250) == 250
        settings.load_profile("quick")
        assert (examples(250), examples(3)) == (50, 1)
    finally:
        settings.load_profile(before)
