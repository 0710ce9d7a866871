"""The quota that holds for a client, as KIP-13 and KIP-55 rank them. PURE."""

from __future__ import annotations

from collections.abc import Mapping

from sim.checks.folds.metadata_fold import Quota

__all__ = ["quota_of"]

USER, CLIENT = "user", "client-id"


def quota_of(
    quotas: Mapping[Quota, float], key: str, user: str, client_id: str
) -> tuple[float, str, str] | None:
    """Find value, user and client id of the most specific quota; an empty name means that all share it.

    Quotas of client ids are for clients that have an id.
    """
    for user_name in (user, None):
        for client in (client_id, None) if client_id else ():
            value = quotas.get((((CLIENT, client), (USER, user_name)), key))
            if value is not None:
                return value, user, client_id
        value = quotas.get((((USER, user_name),), key))
        if value is not None and user:
            return value, user, ""
    for client in (client_id, None) if client_id else ():
        value = quotas.get((((CLIENT, client),), key))
        if value is not None:
            return value, "", client_id
    return None
