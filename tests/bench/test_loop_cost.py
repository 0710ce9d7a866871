"""The benchmark that compares the connection loop with a copy that has no quotas."""

from __future__ import annotations

from bench.hot_path.loop_cost import without_quotas
from odradek.node.connections.connection_loop import Connection


def test_code_without_quotas_can_be_made() -> None:
    """The copy of the loop leaves out every step that charges quotas. With such a step the comparison would be
    wrong."""
    made = without_quotas()
    assert made is not Connection
    assert "charging" not in made._dispatch_frame.__code__.co_names
    assert "charging" in Connection._dispatch_frame.__code__.co_names
