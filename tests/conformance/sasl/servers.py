"""The listeners that the conversations use. Apache Kafka and our node get the same keys.

`SASL` and `SHORT` accept every mechanism. On `SHORT` a login lasts for a minute. `carol` and `dave` log in by PLAIN,
`alice` and `a,b=c` by SCRAM, and anybody with a token of the issuer.
"""

from __future__ import annotations

from pathlib import Path

import attrs

from tests.security.logins.issuer import Issuer

__all__ = ["FRAME_BYTES_MAX", "PASSWORDS", "SCRAM_USERS", "Place", "settings"]

PACKAGE = "org.apache.kafka.common.security."
FRAME_BYTES_MAX = 16_384
SCRAM_USERS = {"alice": "alice-secret", "a,b=c": "odd-secret"}
PASSWORDS = {"carol": "carol-secret", "dave": "dave-secret", **SCRAM_USERS}
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
LIFETIME_MS = 60_000


@attrs.frozen
class Place:
    """The addresses of a server's listeners, and the issuer whose tokens it accepts."""

    plaintext: str
    sasl: str
    short: str
    issuer: Issuer


def settings(directory: Path, ports: list[int]) -> dict[str, str]:
    """Return the keys of the listeners. `directory` has the issuer's keys in `jwks.json`.

    Keys that every combined node needs are left out.
    """
    plaintext, sasl, short, controller = ports
    clients = f"SASL://127.0.0.1:{sasl},SHORT://127.0.0.1:{short},PLAINTEXT://127.0.0.1:{plaintext}"
    found = {
        "listeners": f"CONTROLLER://127.0.0.1:{controller},{clients}",
        "advertised.listeners": clients,
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL:SASL_PLAINTEXT,"
        "SHORT:SASL_PLAINTEXT",
        "inter.broker.listener.name": "PLAINTEXT",
        "sasl.enabled.mechanisms": ",".join(MECHANISMS),
        "sasl.server.max.receive.size": str(FRAME_BYTES_MAX),
        "connection.failed.authentication.delay.ms": "0",
        "sasl.oauthbearer.jwks.endpoint.url": f"file://{directory}/jwks.json",
        "sasl.oauthbearer.expected.audience": "kafka",
        "sasl.oauthbearer.expected.issuer": "https://issuer",
        "listener.name.short.connections.max.reauth.ms": str(LIFETIME_MS),
    }
    for name in ("sasl", "short"):
        prefix = f"listener.name.{name}"
        oauth = f"{prefix}.oauthbearer.sasl"
        found |= {
            f"{prefix}.plain.sasl.jaas.config": f"{PACKAGE}plain.PlainLoginModule required "
            'user_carol="carol-secret" user_dave="dave-secret";',
            f"{prefix}.scram-sha-256.sasl.jaas.config": f"{PACKAGE}scram.ScramLoginModule required;",
            f"{prefix}.scram-sha-512.sasl.jaas.config": f"{PACKAGE}scram.ScramLoginModule required;",
            f"{oauth}.jaas.config": f"{PACKAGE}oauthbearer.OAuthBearerLoginModule required;",
            f"{oauth}.server.callback.handler.class": f"{PACKAGE}oauthbearer.OAuthBearerValidatorCallbackHandler",
        }
    return found
