"""Configuration values in the metadata log that this node cannot read: each is logged once and counted. PURE.

Kafka counts values that its controllers and brokers fail to apply as MetadataErrorCount.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from odradek.metadata_quorum.config.config_defs import ConfigError
from odradek.metadata_quorum.config.config_values import check_value
from odradek.metadata_quorum.image.metadata_image import MetadataDelta, MetadataImage
from odradek.wire.config_resources import resource_kind

__all__ = ["MetadataErrors"]

REASON_LENGTH_MAX = 300


class MetadataErrors:
    """The counter and the log lines of unreadable values. `look` must get every image, in order."""

    def __init__(self, logger: Any) -> None:
        self._logger = logger
        self._logged: dict[tuple[int, str], Mapping[str, str]] = {}
        self.count = 0
        """The number of unreadable values since the start of this process."""

    def look(self, image: MetadataImage, delta: MetadataDelta) -> None:
        """Count and log the values that became unreadable with this image."""
        for resource in delta.changed_configs:
            logged = self._logged.pop(resource, {})
            unreadable: Mapping[str, str] = image.unreadable_configs.get(resource, {})
            for key, text in sorted(unreadable.items()):
                if logged.get(key) != text:
                    self._log_unreadable(resource, key, text, image.configs.get(resource, {}).get(key))
            if unreadable:
                self._logged[resource] = unreadable

    def _log_unreadable(self, resource: tuple[int, str], key: str, text: str, in_force: str | None) -> None:
        self.count += 1
        kind, name = resource
        try:
            check_value(kind, key, text)
            reason = ""
        except ConfigError as error:
            reason = str(error)[:REASON_LENGTH_MAX]
        self._logger.error(
            "config.unreadable",
            resource_type=resource_kind(kind),
            resource=name,
            key=key,
            reason=reason,
            in_force="the next level's value (docs/configuration.md)" if in_force is None else in_force,
        )
