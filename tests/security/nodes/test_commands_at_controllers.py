"""`cluster events` reads from a secured listener of the controllers: by certificate, password and token."""

from __future__ import annotations

from pathlib import Path

import pytest

from testkit.processes import free_ports
from tests.cli.running import odradek_here
from tests.security.nodes.test_nodes_know_each_other import OAUTH_MODULE, Way, _cluster
from tests.security.secured_node import PLAIN_MODULE

pytestmark = pytest.mark.long
WAYS = {
    "certificate": Way("SSL", nodes=1),
    "password": Way("SASL_PLAINTEXT", nodes=1),
    "password over TLS": Way("SASL_SSL", nodes=1),
    "token": Way("SASL_PLAINTEXT", "OAUTHBEARER", nodes=1),
}


def _keys(directory: Path, way: Way) -> dict[str, str]:
    keys = {"security.protocol": way.protocol}
    if "SSL" in way.protocol:
        keys |= {
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(directory / "authority.pem"),
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(directory / "node.pem"),
        }
    if "SASL" in way.protocol:
        jaas = f'{PLAIN_MODULE} required username="node" password="node-secret";'
        oauth = way.mechanism == "OAUTHBEARER"
        keys |= {
            "sasl.mechanism": way.mechanism,
            "sasl.jaas.config": f"{OAUTH_MODULE} required;" if oauth else jaas,
        }
        if oauth:
            keys["sasl.oauthbearer.token.endpoint.url"] = f"file://{directory}/token.jwt"
    return keys


@pytest.mark.parametrize("way", WAYS)
def test_events_from_a_secured_listener(tmp_path: Path, way: str) -> None:
    """With the right keys the command reads events. Without them the error names the listener, its protocol and the key."""
    chosen = WAYS[way]
    ports = free_ports(3)
    with _cluster(tmp_path, chosen, ports) as (server,):
        assert odradek_here("topic", "create", "t", "--partitions", "1", bootstrap=server.bootstrap).code == 0
        words = ("cluster", "events", "--topic", "t", "--timeout", "2")
        refusal = odradek_here(*words, bootstrap=server.bootstrap).refusal()
        assert f"the controllers' listener CONTROLLER at 127.0.0.1:{ports[2]}" in refusal
        assert (
            f"set odradek.controller.security.protocol={chosen.protocol} in the --command-config file"
            in refusal
        )
        path = tmp_path / "client.properties"
        keys = {f"odradek.controller.{key}": value for key, value in _keys(tmp_path, chosen).items()}
        path.write_text("".join(f"{key}={value}\n" for key, value in keys.items()))
        done = odradek_here(*words, "--command-config", path, bootstrap=server.bootstrap)
        assert (done.code, done.err) == (0, "")
        assert "topic t was created" in done.out
        if chosen.mechanism == "PLAIN" and "SASL" in chosen.protocol:
            path.write_text(path.read_text().replace("node-secret", "wrong"))
            refusal = odradek_here(*words, "--command-config", path, bootstrap=server.bootstrap).refusal()
            assert "the controllers' listener CONTROLLER" in refusal
            assert "check the keys that begin with odradek.controller.sasl." in refusal
