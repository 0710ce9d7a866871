"""Our node as a real process on a free loopback port. It is stopped by its pid.

With `ODRADEK_TEST_BOOTSTRAP=host:port` the `node` fixture uses a server that already runs. If this is an Apache Kafka,
the client tests check whether their expectations are true of Kafka itself.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import attrs
import pytest

from testkit.odradek_server import start_odradek
from testkit.processes import ServerProcess
from tests.kafka_jars import GROUPS, NO_RETENTION, TRANSACTIONS


@attrs.frozen
class RunningNode:
    """The facts about a server that tests of clients need."""

    bootstrap: str
    process: ServerProcess | None
    """None if the environment names the server, which then must not be stopped."""


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    """Run a node for the whole session, one for each xdist worker."""
    named = os.environ.get("ODRADEK_TEST_BOOTSTRAP")
    if named:
        yield RunningNode(named, None)
        return
    directory: Path = tmp_path_factory.mktemp("node")
    # The delay is short, since group tests start their members one by one. With no delay, kafka-python could lead a
    # group before it has metadata, which it fetches 0.1 s after it joins. Then it would never assign anything.
    settings = {**NO_RETENTION, **TRANSACTIONS, **GROUPS, "group.initial.rebalance.delay.ms": "300"}
    server = start_odradek(directory, settings=settings)
    try:
        yield RunningNode(server.bootstrap, server)
        assert server.is_running(), f"the node ended during the tests:\n{server.log_tail()}"
    finally:
        server.stop()


_SERIAL = itertools.count()


@pytest.fixture
def fresh_topic() -> Callable[[str], str]:
    """Return names that no other test uses, even if the server outlives the session."""
    return lambda stem: f"{stem}-{os.getpid()}-{os.urandom(3).hex()}-{next(_SERIAL)}"
