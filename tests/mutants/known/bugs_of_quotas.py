"""Mutants of clients' quotas."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

CHARGING = "odradek.node.connections.charging:Charging."

MUTANTS_OF_QUOTAS: tuple[Mutant, ...] = (
    Mutant(
        "quota-of-the-wrong-level",
        "KIP-55: the most specific level with a value decides; here the most general one does.",
        "odradek.metadata_quorum.quotas.quota_levels:holding_quota",
        """
        - for level, (entity, sharers) in enumerate(_levels(user, client_id), 1):
        + for level, (entity, sharers) in reversed(tuple(enumerate(_levels(user, client_id), 1))):
        """,
        "quotas",
        3,
        aimed_only="looked for by its driver alone so far",
    ),
    Mutant(
        "quota-holds-after-its-removal",
        "KIP-546: quotas are dynamic; here a connection keeps the account that it found first.",
        CHARGING + "charge",
        """
        - share.generation != quotas.generation or share.client_id is not context.client_id or (share.principal is not context.principal)
        + share.client_id is not context.client_id or share.principal is not context.principal
        """,
        "quotas",
        3,
        aimed_only="looked for by its driver alone so far",
    ),
    Mutant(
        "nodes-are-throttled",
        "KIP-124: requests of brokers are exempt; here a follower pays like a consumer.",
        "odradek.node.connections.listeners_charging:ListenersCharging._is_follower",
        """
        - return self._authorizer is None and self._broker.is_brokers_fetch(request)
        + return self._authorizer is None and False
        """,
        "quotas",
        3,
        aimed_only="looked for by its driver alone so far",
    ),
)
