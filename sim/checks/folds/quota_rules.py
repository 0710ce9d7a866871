"""A model of client quotas: the quota that applies to a client according to the ranking in KIP-13 and KIP-55. PURE."""

from __future__ import annotations

from collections.abc import Mapping

from sim.checks.folds.metadata_fold import Quota

__all__ = ["quota_of"]

USER, CLIENT = "user", "client-id"


def quota_of(
    quotas: Mapping[Quota, float], key: str, user: str, client_id: str
) -> tuple[float, str, str] | None:
    """Return (value, user, client id) of the most specific quota; None without a quota. User or client id are "" if the
    quota does not depend on them.

    Quotas on client ids apply only to clients that have an id.
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
