"""Kafka's rules for the names of topics."""

from __future__ import annotations

import re

CLUSTER_METADATA_TOPIC = "__cluster_metadata"
INTERNAL_TOPICS = frozenset(("__consumer_offsets", "__transaction_state", "__share_group_state"))
TOPIC_NAME_LENGTH_MAX = 249

_LEGAL = re.compile(r"[a-zA-Z0-9._-]+\Z")


def invalid_topic_name_reason(name: str) -> str | None:
    """Return Kafka's error message for an invalid topic name; None if the name is valid."""
    if not name:
        problem = "the empty string is not allowed"
    elif name in (".", ".."):
        problem = f"'{name}' is not allowed"
    elif len(name) > TOPIC_NAME_LENGTH_MAX:
        problem = f"the length of '{name}' is longer than the max allowed length {TOPIC_NAME_LENGTH_MAX}"
    elif not _LEGAL.match(name):
        problem = f"'{name}' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"
    else:
        return None
    return f"Topic name is invalid: {problem}"
