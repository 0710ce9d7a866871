"""The `driver` fixture: every test that takes it runs once per client library."""

from __future__ import annotations

import pytest

from tests.node_process import RunningNode
from tests.other_clients.drivers import DRIVERS, Driver


@pytest.fixture(params=DRIVERS, ids=lambda driver: driver.name)
def driver(request: pytest.FixtureRequest, node: RunningNode) -> Driver:
    """Return each client library in turn, with the address of the node."""
    return request.param(node.bootstrap)
