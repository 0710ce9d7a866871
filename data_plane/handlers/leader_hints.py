"""Leader hints (KIP-951): a broker that refuses a request because it does not lead names the leader and its
address.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from odradek.metadata_quorum.image.metadata_image import MetadataImage

T = TypeVar("T")


def leader_endpoints(
    image: MetadataImage,
    listener: str,
    leader_ids: Iterable[int],
    endpoint_class: Callable[[int, str, int, str | None], T],
) -> list[T]:
    """Make a `NodeEndpoint` of class `endpoint_class` for each leader in `leader_ids`; -1 means no leader."""
    endpoints = []
    for node_id in sorted(set(leader_ids)):
        broker = image.brokers.get(node_id)
        endpoint = None if broker is None else broker.endpoint(listener)
        if broker is not None and endpoint is not None:
            endpoints.append(endpoint_class(node_id, endpoint.host, endpoint.port, broker.rack))
    return endpoints
