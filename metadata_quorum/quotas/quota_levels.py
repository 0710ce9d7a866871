"""The quota that applies to a client, by the eight levels of precedence (KIP-13, KIP-55). PURE.

For each key separately, the most specific level with a value applies:

| | user | client id |
| --- | --- | --- |
| 1 | this user | this client id |
| 2 | this user | default |
| 3 | this user | |
| 4 | default | this client id |
| 5 | default | default |
| 6 | default | |
| 7 | | this client id |
| 8 | | default |

The level also decides which connections share the quota. If the level has both columns, all connections of
one user with one client id share it. If it has only a user, all connections of one user share it. If it has
only a client id, all connections with one client id share it. At a level with a default, each user or client
id still has a quota of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import attrs

__all__ = [
    "CLIENT_ID",
    "CONNECTION_CREATION_RATE",
    "CONSUMER_BYTE_RATE",
    "CONTROLLER_MUTATION_RATE",
    "IP",
    "PRODUCER_BYTE_RATE",
    "REQUEST_PERCENTAGE",
    "USER",
    "Entity",
    "Holding",
    "holding_quota",
    "text_of",
]

USER = "user"
CLIENT_ID = "client-id"
IP = "ip"
PRODUCER_BYTE_RATE = "producer_byte_rate"
CONSUMER_BYTE_RATE = "consumer_byte_rate"
REQUEST_PERCENTAGE = "request_percentage"
CONTROLLER_MUTATION_RATE = "controller_mutation_rate"
CONNECTION_CREATION_RATE = "connection_creation_rate"

Entity: TypeAlias = tuple[tuple[str, str | None], ...]
"""The entity of a quota: (type, name) pairs, sorted by type, as in the metadata image. The name None stands
for the default of that type.
"""


@attrs.frozen
class Holding:
    """The quota that applies to a client, and the clients that share it."""

    value: float
    level: int
    """The row of the table above, 1 to 8."""
    entity: Entity
    """The entity whose value applies. An operator must change its quota."""
    sharers: tuple[str, str]
    """The user and the client id that share the quota. An empty text means any."""


def holding_quota(
    quotas: Mapping[tuple[Entity, str], float], key: str, user: str, client_id: str
) -> Holding | None:
    """Return the quota of one key that applies to a client. Returns None if no level has a value."""
    for level, (entity, sharers) in enumerate(_levels(user, client_id), 1):
        if (not client_id and len(entity) == 2) or not sharers[0] + sharers[1]:
            # A client without a client id has no quota by client id.
            continue
        value = quotas.get((entity, key))
        if value is not None:
            return Holding(value, level, entity, sharers)
    return None


def _levels(user: str, client_id: str) -> tuple[tuple[Entity, tuple[str, str]], ...]:
    both, of_user, of_client = (user, client_id), (user, ""), ("", client_id)
    return (
        (((CLIENT_ID, client_id), (USER, user)), both),
        (((CLIENT_ID, None), (USER, user)), both),
        (((USER, user),), of_user),
        (((CLIENT_ID, client_id), (USER, None)), both),
        (((CLIENT_ID, None), (USER, None)), both),
        (((USER, None),), of_user),
        (((CLIENT_ID, client_id),), of_client),
        (((CLIENT_ID, None),), of_client),
    )


def text_of(entity: Entity) -> str:
    """Format an entity for operators, e.g. `user=ann, client-id=<default>`."""
    return ", ".join(f"{kind}={'<default>' if name is None else name}" for kind, name in reversed(entity))
