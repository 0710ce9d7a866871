"""Fixtures that tests of several folders share: a running node, Apache Kafka beside it, scripts to rewrite."""

from __future__ import annotations

import signal
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.kafka_jars import apache_kafka, kafka_jars
from tests.node_process import fresh_topic, node

__all__ = ["apache_kafka", "fresh_topic", "kafka_jars", "node"]

# No test asserts times: how long an example takes says how busy the machine is.
settings.register_profile(
    "odradek", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile("odradek")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell without job control starts what runs in its background like this, and a child would inherit it: the commands
    # that tests interrupt would go on for ever.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite", action="store_true", help="write what scripts print as the expected output")


@pytest.fixture
def rewrite(request: pytest.FixtureRequest) -> bool:
    """Whether to write what the scripts print into them; review the difference."""
    return bool(request.config.getoption("--rewrite"))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Files stay whole, as with `--dist loadfile`, and `tests/spark` does: its tests share one Spark."""
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return "tests/spark" if nodeid.startswith("tests/spark/") else str(super()._split_scope(nodeid))

    return Scheduling(config, log) if config.getvalue("dist") == "loadfile" else None
