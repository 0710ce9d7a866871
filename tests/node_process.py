"""Our node as a real process on a free loopback port, ended by its pid.

`ODRADEK_TEST_BOOTSTRAP=host:port` makes the `node` fixture use a server that runs already: with Apache
Kafka's address, the client tests prove themselves against the original.
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
    """The facts about the server that a client test needs."""

    bootstrap: str
    process: ServerProcess | None
    """None when the server was named by the environment and is not ours to end."""


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    """A node that serves, for the whole session (each xdist worker has its own)."""
    named = os.environ.get("ODRADEK_TEST_BOOTSTRAP")
    if named:
        yield RunningNode(named, None)
        return
    directory: Path = tmp_path_factory.mktemp("node")
    # Short, since group tests start their members one by one; not zero, since kafka-python fetches metadata 0.1 s after it
    # joins, and assigns nothing (and stays so) when it leads a group that is complete before.
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
    """Names that no other test uses, also when the server outlives the session."""
    return lambda stem: f"{stem}-{os.getpid()}-{os.urandom(3).hex()}-{next(_SERIAL)}"
