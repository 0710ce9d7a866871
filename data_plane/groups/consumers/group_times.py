"""The time limits of one consumer group: the group's own configuration or the broker's default, within the
broker's bounds. PURE.
"""

from __future__ import annotations

from contextlib import suppress

from odradek.data_plane.groups.group_settings import GroupSettings
from odradek.metadata_quorum.config.config_defs import ConfigError, group_defs
from odradek.metadata_quorum.image.metadata_image import MetadataImage
from odradek.wire.config_resources import RESOURCE_GROUP

__all__ = ["assignment_interval_ms", "heartbeat_interval_ms", "session_timeout_ms"]


def session_timeout_ms(settings: GroupSettings, image: MetadataImage, group_id: str) -> int:
    """Return the session timeout in milliseconds. A member that sends nothing for this time is removed."""
    return _within(
        _own_value(image, group_id, "consumer.session.timeout.ms"),
        settings.consumer_session_timeout_ms,
        settings.consumer_session_timeout_ms_min,
        settings.consumer_session_timeout_ms_max,
    )


def heartbeat_interval_ms(settings: GroupSettings, image: MetadataImage, group_id: str) -> int:
    """Return the time between two heartbeats of a member, in milliseconds."""
    return _within(
        _own_value(image, group_id, "consumer.heartbeat.interval.ms"),
        settings.consumer_heartbeat_interval_ms,
        settings.consumer_heartbeat_interval_ms_min,
        settings.consumer_heartbeat_interval_ms_max,
    )


def assignment_interval_ms(settings: GroupSettings, image: MetadataImage, group_id: str) -> int:
    """Return the shortest time between two computations of the group's target, in milliseconds."""
    return _within(
        _own_value(image, group_id, "consumer.assignment.interval.ms"),
        settings.consumer_assignment_interval_ms,
        settings.consumer_assignment_interval_ms_min,
        settings.consumer_assignment_interval_ms_max,
    )


def _own_value(image: MetadataImage, group_id: str, key: str) -> int | None:
    overrides = image.configs.get((RESOURCE_GROUP, group_id))
    if overrides is None or key not in overrides:
        return None
    with suppress(ConfigError):
        value = group_defs()[key].parse(overrides[key])
        assert isinstance(value, int)
        return value
    return None


def _within(own: int | None, broker: int, lowest: int, highest: int) -> int:
    return broker if own is None else max(lowest, min(own, highest))
