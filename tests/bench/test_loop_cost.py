"""The comparison of the connection loop with code that has no quotas."""

from __future__ import annotations

from bench.hot_path.loop_cost import without_quotas
from odradek.node.connections.connection_loop import Connection


def test_code_without_quotas_can_be_made() -> None:
    """A step of a request that newly asks for quotas would make the comparison a lie: it is counted."""
    made = without_quotas()
    assert made is not Connection
    assert "charging" not in made._dispatch_frame.__code__.co_names
    assert "charging" in Connection._dispatch_frame.__code__.co_names
