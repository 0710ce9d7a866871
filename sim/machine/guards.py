"""The settings of clusters that authenticate and authorize clients. PURE.

Clients of the workload stay on the plaintext listener, where every client is `User:ANONYMOUS`, a super user. In
addition each broker has a listener with SASL, whose users have only the rights that an operator gives them.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

SASL = "SASL"
SASL_PORT = 9094
PLAIN = "PLAIN"
ADMIN, ADMIN_PASSWORD = "admin", "admin-secret"
NODE, _NODE_PASSWORD = "node", "node-secret"
SUPER_USERS = ("User:ANONYMOUS", f"User:{ADMIN}", f"User:{NODE}")
CLIENTS_LOG_IN, NODES_LOG_IN = 1, 2
"""Values of `Shape.guarded`. With `NODES_LOG_IN`, nodes also log in to each other, at the listeners of brokers and of
controllers.
"""
SESSION_MS = (0, 0, 3_000, 10_000)
"""Choices for how long a login lasts, in milliseconds (`connections.max.reauth.ms`); 0: no limit."""

__all__ = [
    "ADMIN",
    "ADMIN_PASSWORD",
    "CLIENTS_LOG_IN",
    "NODES_LOG_IN",
    "PLAIN",
    "SASL",
    "SASL_PORT",
    "SUPER_USERS",
    "draw_guards",
    "guarded_settings",
]

_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"


def draw_guards(random: Random) -> tuple[int, int]:
    """Draw a value of `Shape.guarded`, and how long a login lasts in milliseconds."""
    return random.choice((CLIENTS_LOG_IN, NODES_LOG_IN)), random.choice(SESSION_MS)


def guarded_settings(guarded: int, session_ms: int, listeners: Sequence[str]) -> dict[str, str]:
    """Return the settings for logins and ACLs of a node with these listeners.

    `guarded` is `CLIENTS_LOG_IN` or `NODES_LOG_IN`; `session_ms` is how long a login lasts, 0 for no limit.
    """
    jaas = (
        f'{_MODULE} required username="{NODE}" password="{_NODE_PASSWORD}"'
        f' user_{NODE}="{_NODE_PASSWORD}" user_{ADMIN}="{ADMIN_PASSWORD}";'
    )
    controllers = "SASL_PLAINTEXT" if guarded == NODES_LOG_IN else "PLAINTEXT"
    settings = {
        "listener.security.protocol.map": f"PLAINTEXT:PLAINTEXT,{SASL}:SASL_PLAINTEXT,CONTROLLER:{controllers}",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": ";".join(SUPER_USERS),
        "sasl.enabled.mechanisms": f"{PLAIN},SCRAM-SHA-256",
        "sasl.mechanism.inter.broker.protocol": PLAIN,
        "sasl.mechanism.controller.protocol": PLAIN,
        "listener.name.sasl.plain.sasl.jaas.config": jaas,
        "odradek.scram.secret": "a secret of all brokers",
        "delegation.token.secret.key": "a key of all nodes",
        "delegation.token.expiry.time.ms": "5000",
        "delegation.token.max.lifetime.ms": "60000",
        "delegation.token.expiry.check.interval.ms": "2000",
    }
    if guarded == NODES_LOG_IN:
        settings["listener.name.controller.plain.sasl.jaas.config"] = jaas
    if any(each.startswith(f"{SASL}:") for each in listeners):
        settings["inter.broker.listener.name"] = SASL if guarded == NODES_LOG_IN else "PLAINTEXT"
        settings["listener.name.sasl.connections.max.reauth.ms"] = str(session_ms)
    return settings
