"""A cluster id may be any text. Clients, commands and metrics show exactly this text."""

from __future__ import annotations

from pathlib import Path
from urllib.request import urlopen

from odradek import Admin
from testkit.odradek_server import launch_odradek
from testkit.processes import combined_node_properties, free_ports
from tests.cli.running import odradek_here

CLUSTER_ID = 'Zürich "main"=:#1\\ cDZEekk4T3hTNGVlNzB3LUtUbkxaQQo='


def test_a_node_tells_the_id_that_it_was_given(tmp_path: Path) -> None:
    """Clients, a command and the metrics page show the formatted id. Another id in the configuration prevents the
    start."""
    spare = free_ports(3)
    settings = combined_node_properties(tmp_path, spare[0], spare[1])
    settings["odradek.metrics.listener"] = f"127.0.0.1:{spare[2]}"
    path = tmp_path / "server.properties"
    path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    done = odradek_here("storage", "format", path, "--cluster-id", CLUSTER_ID, "--json")
    assert done.json()["cluster_id"] == CLUSTER_ID
    again = odradek_here("storage", "format", path, "--cluster-id", "other", "--ignore-formatted")
    assert CLUSTER_ID in again.refusal()
    server = launch_odradek(path)
    try:
        with Admin(bootstrap_servers=server.bootstrap) as admin:
            assert admin.describe_cluster().cluster_id == CLUSTER_ID
        status = odradek_here("cluster", "status", "--json", bootstrap=server.bootstrap)
        assert status.json()["cluster_id"] == CLUSTER_ID
        info = odradek_here("storage", "info", path, "--json")
        assert info.json()["directories"][0]["cluster_id"] == CLUSTER_ID
        with urlopen(f"http://127.0.0.1:{spare[2]}/metrics", timeout=10) as page:
            escaped = CLUSTER_ID.replace("\\", "\\\\").replace('"', '\\"')
            assert f'cluster_id="{escaped}"' in page.read().decode()
    finally:
        server.stop()
