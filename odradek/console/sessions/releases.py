"""The release of each broker, by the formats of metadata that it knows. PURE.

No request of Kafka's protocol gives the version of a broker's program. But each broker reports the range of
`metadata.version` that it supports (KIP-584), and each release of Apache Kafka has added levels to it. Odradek's brokers
report the same levels as the release that they are compatible with.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from odradek.client.core.operation import Operation
from odradek.client.core.requests import refresh_metadata, request
from odradek.client.errors import ClientError

if TYPE_CHECKING:
    from odradek.client.core.client_core import ClientCore

__all__ = ["Releases", "ask_releases", "release_of"]

Releases = tuple[dict[int, int], int | None]
"""The newest level of `metadata.version` that each broker knows, and the level of the cluster (None if unknown)."""
METADATA_VERSION = "metadata.version"
_FIRST_VERSION = 3
"""The first version of ApiVersions whose answer has features."""
_LEVELS = (
    ("3.0", 1),
    ("3.1", 2),
    ("3.2", 3),
    ("3.3", 7),
    ("3.4", 8),
    ("3.5", 11),
    ("3.6", 14),
    ("3.7", 19),
    ("3.8", 20),
    ("3.9", 21),
    ("4.0", 25),
    ("4.1", 27),
    ("4.2", 29),
    ("4.3", 30),
)
"""Each release of Apache Kafka with its last level, by its class `MetadataVersion`."""


def release_of(level: int | None) -> str | None:
    """Return the release of Apache Kafka that has brought this level of `metadata.version`; None for no level."""
    if level is None or level <= 0:
        return None
    found = next((release for release, last in _LEVELS if level <= last), None)
    return found or f"{_LEVELS[-1][0]} or newer"


def ask_releases(core: ClientCore, brokers: Iterable[int], *, timeout: float) -> Operation[Releases]:
    """Ask these brokers, one after the other, for the levels that they know. Those that do not answer are left out.
    Raises `ClientError` if no broker answers.
    """
    from odradek.wire.messages.api_versions import ApiVersionsRequest

    found: dict[int, int] = {}
    level, newest = None, -1
    deadline = core.now + timeout
    yield from refresh_metadata(core, (), timeout=timeout)
    message = ApiVersionsRequest("odradek-console", "1")
    for node in brokers:
        try:
            response = yield from request(
                core, message, node=node, timeout=max(0.0, deadline - core.now), version_min=_FIRST_VERSION
            )
        except ClientError:
            continue
        for each in response.supported_features:
            if each.name == METADATA_VERSION:
                found[node] = each.max_version
        if response.finalized_features_epoch > newest:
            newest = response.finalized_features_epoch
            for each in response.finalized_features:
                if each.name == METADATA_VERSION:
                    level = each.max_version_level
    return found, level
