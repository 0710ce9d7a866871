"""The corpus, whole: importing this module enters the cases of all APIs, one file each in `cases/`."""

from __future__ import annotations

from importlib import import_module

from tests.conformance.talk import CORPUS, hold
from wire.api import ApiKey

APIS = (
    "api_versions",
    "create_topics",
    "delete_topics",
    "describe_cluster",
    "describe_configs",
    "fetch",
    "init_producer_id",
    "sync_group",
    "heartbeat",
    "leave_group",
    "find_coordinator",
    "join_group",
    "list_offsets",
    "metadata",
    "offset_for_leader_epoch",
    "produce",
)
"""In the order of conversation."""

for _api in APIS:
    import_module(f"tests.conformance.cases.{_api}")


def cases_of(api: str) -> list[str]:
    """The names of the cases that are about one API."""
    return [name for name in CORPUS if name.partition(" ")[0] == api]


def key_of(api: str) -> ApiKey:
    """The API key of a file of cases."""
    return ApiKey[api.upper()]


__all__ = ["APIS", "CORPUS", "cases_of", "hold", "key_of"]
