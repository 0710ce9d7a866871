"""The kinds of resources that have configurations, as AlterConfigs, DescribeConfigs and the metadata log number them."""

from __future__ import annotations

__all__ = [
    "RESOURCE_BROKER",
    "RESOURCE_BROKER_LOGGER",
    "RESOURCE_CLIENT_METRICS",
    "RESOURCE_GROUP",
    "RESOURCE_TOPIC",
    "resource_kind",
]

RESOURCE_TOPIC = 2
RESOURCE_BROKER = 4
RESOURCE_BROKER_LOGGER = 8
RESOURCE_CLIENT_METRICS = 16
RESOURCE_GROUP = 32
"""The resource type of groups. The resource types of ACLs are other numbers
(`odradek.security.acls.rules.ResourceType`).
"""

_KINDS = {
    RESOURCE_TOPIC: "topic",
    RESOURCE_BROKER: "broker",
    RESOURCE_BROKER_LOGGER: "broker-logger",
    RESOURCE_CLIENT_METRICS: "client-metrics",
    RESOURCE_GROUP: "group",
}


def resource_kind(number: int) -> str:
    """Return the name of a kind of resources for messages to people. An unknown number is returned as text."""
    return _KINDS.get(number, str(number))
