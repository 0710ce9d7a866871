"""Fixtures that tests of several folders share: a running node, Apache Kafka, and the choice to rewrite scripts."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Generator
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from odradek.named_states import counting
from testkit.odradek_server import use_nursery
from tests.durations import Measuring
from tests.kafka_jars import apache_kafka, kafka_jars
from tests.last_words import LastWords, Sendable
from tests.node_process import fresh_topic, node
from tests.schedule import Scheduling, begin_with_the_longest, share_of

__all__ = ["apache_kafka", "fresh_topic", "kafka_jars", "node"]

# If this variable were set, each of the hundreds of processes that tests start would compile our sources again. A node
# would need half a second of CPU for that.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

use_nursery()

# Hypothesis must not fail an example for being slow, since its time depends on the load of the machine.
settings.register_profile(
    "odradek", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.register_profile("quick", settings.get_profile("odradek"), max_examples=20)
settings.load_profile("odradek")

ROOT = Path(__file__).resolve().parent.parent
SERVERS = {"apache_kafka", "node", "spark"}
"""Fixtures that start a server process."""
ON_REQUEST = ("attack", "ecosystem", "install")
"""Markers of tests that run only if `-m` names the marker."""

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell without job control starts background commands with SIGINT ignored, and children inherit that. Then the
    # commands that tests interrupt would run for ever.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure(config: pytest.Config) -> None:
    """Measure each scope, and report a run that breaks off, in the process that sees all tests."""
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Measuring(config), "odradek-durations")
        config.pluginmanager.register(LastWords(), "odradek-last-words")
    config.pluginmanager.register(Sendable(), "odradek-sendable")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Fail a test marked with `reaches` if it does not reach the named states (`sim/census/states.py`)."""
    names = [name for mark in item.iter_markers("reaches") for name in mark.args]
    if not names:
        return (yield)
    counts: dict[str, int] = {}
    with counting(counts):
        result = yield
    missed = [name for name in names if name not in counts]
    assert not missed, f"never reached: {', '.join(missed)}"
    return result


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Exclude the collected tests from garbage collection, since they live to the end of the run."""
    gc.disable()
    try:
        if session.config.args_source is pytest.Config.ArgsSource.TESTPATHS:
            compile_a_share(getattr(session.config, "workerinput", None))
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


def compile_a_share(worker: dict[str, Any] | None) -> None:
    """Import a worker's share of the test files, so that they are compiled once.

    All workers collect all files in the same order. Without this, each worker in a new clone would compile each file.
    """
    if worker is None:
        return
    number, count = int(worker["workerid"].removeprefix("gw")), worker["workercount"]
    files = sorted(Path(__file__).parent.rglob("test_*.py"))
    for path in share_of(files, number, count):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        # The collection that follows reports errors and skips.
        with suppress(Exception, pytest.skip.Exception):
            import_module(name)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite", action="store_true", help="write what scripts print as the expected output")
    parser.addoption(
        "--matrix",
        action="store_true",
        help="the long forms: make test-transactions, test-recovery, test-spark, test-console",
    )


@pytest.fixture
def rewrite(request: pytest.FixtureRequest) -> bool:
    """True if scripts are to be rewritten with their actual output. The developer then reviews the difference."""
    return bool(request.config.getoption("--rewrite"))


@pytest.fixture(scope="session")
def whole_matrix(request: pytest.FixtureRequest) -> bool:
    """True if tests run in their long form, as in `make test-transactions`, `test-recovery`, `test-spark`."""
    return bool(request.config.getoption("--matrix"))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark tests that use a server as long. Leave out full attacks and third-party programs unless `-m` names them.

    On a worker of xdist the longest scopes come first, so that all end together.
    """
    for item in items:
        if SERVERS & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.long)
    for marker in ON_REQUEST:
        if marker not in str(config.option.markexpr):
            full = [item for item in items if item.get_closest_marker(marker) is not None]
            items[:] = [item for item in items if item.get_closest_marker(marker) is None]
            config.hook.pytest_deselected(items=full)
    if hasattr(config, "workerinput"):
        begin_with_the_longest(items, config.workerinput["seconds"])


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Schedule whole files, the longest first, so that no long file waits behind another one."""
    if config.getvalue("dist") != "loadfile":
        return None
    measuring = config.pluginmanager.get_plugin("odradek-durations")
    assert isinstance(measuring, Measuring)
    return Scheduling(config, log, measuring.seconds)
