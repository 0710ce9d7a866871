"""The settings for Kafka during recording and for our node during comparison. They keep waits short.

Besides the plaintext listener there is one for logins by PLAIN. Its address is read from the node's `listeners`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from odradek.wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from odradek.wire.messages.sasl_authenticate import SaslAuthenticateRequest
from odradek.wire.messages.sasl_handshake import SaslHandshakeRequest
from testkit.processes import free_ports
from testkit.raw_requests import RawClient

__all__ = ["PASSWORDS", "SETTINGS", "Place", "find_login_listener", "log_in"]

PASSWORDS = {"admin": "admin-secret", "asker": "asker-secret", "another": "another-secret"}
"""The users that can log in, and their passwords."""
_USERS = " ".join(f'user_{name}="{password}"' for name, password in PASSWORDS.items())
SETTINGS = {
    "delegation.token.secret.key": "a key that all nodes have",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "500",
    "group.max.size": "4",
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "200",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "4",
    "transaction.state.log.replication.factor": "1",
}


@attrs.frozen
class Place:
    """The ports and settings of a server that is about to start."""

    port: int
    settings: Mapping[str, str]

    @classmethod
    def of(cls, settings: Mapping[str, str]) -> Place:
        """Choose ports for both listeners and add them to the settings."""
        port, controller, logins = free_ports(3)
        listeners = f"PLAINTEXT://127.0.0.1:{port},SASL://127.0.0.1:{logins}"
        return cls(
            port,
            {
                **settings,
                "listeners": f"{listeners},CONTROLLER://127.0.0.1:{controller}",
                "advertised.listeners": listeners,
                "controller.quorum.voters": f"1@127.0.0.1:{controller}",
                "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL:SASL_PLAINTEXT",
                "listener.name.sasl.sasl.enabled.mechanisms": "PLAIN",
                "listener.name.sasl.plain.sasl.jaas.config": (
                    f"org.apache.kafka.common.security.plain.PlainLoginModule required {_USERS};"
                ),
            },
        )


def find_login_listener(client: RawClient) -> str:
    """Return the server's address for logins. Raises `ValueError` for a server without such a listener."""
    asked = DescribeConfigsResource(4, "1", ["listeners"])
    told: Any = client.request(DescribeConfigsRequest([asked]), 4)
    for listener in (told.results[0].configs[0].value or "").split(","):
        name, _, address = listener.partition("://")
        if name == "SASL":
            return str(address)
    raise ValueError("the server has no listener SASL: `tests/conformance/servers.py` has the settings")


def log_in(client: RawClient, user: str) -> None:
    """Open a new connection and log in."""
    client.request(SaslHandshakeRequest("PLAIN"), 1)
    token = f"\0{user}\0{PASSWORDS[user]}".encode()
    answer = client.request(SaslAuthenticateRequest(token), 2)
    if answer.error_code:
        raise ValueError(f"{user} cannot log in: {answer}")
