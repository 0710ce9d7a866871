"""UpdateFeatures: levels that the whole cluster speaks (KIP-584, KIP-1022), and what a level brings with it."""

from __future__ import annotations

from collections.abc import Iterable

from metadata_quorum.config_defs import broker_defs
from metadata_quorum.controller.settings import ControllerSettings
from metadata_quorum.controller.topic_rules import MIN_ISR
from metadata_quorum.features import ELIGIBLE_LEADER_REPLICAS
from metadata_quorum.image import RESOURCE_BROKER, MetadataImage
from wire.messages.metadata_records import ConfigRecord, FeatureLevelRecord
from wire.structure import Message


def enables_eligible_replicas(records: Iterable[Message]) -> bool:
    """Whether the records finalize eligible leader replicas."""
    return any(
        isinstance(record, FeatureLevelRecord)
        and record.name == ELIGIBLE_LEADER_REPLICAS
        and record.feature_level >= 1
        for record in records
    )


def cluster_wide_min_isr(image: MetadataImage, settings: ControllerSettings) -> list[Message]:
    """With eligible replicas there is one `min.insync.replicas` for all brokers, and it is written down.

    Otherwise a controller with another properties file would think of other replicas as eligible.
    """
    records: list[Message] = []
    if MIN_ISR not in image.broker_configs(None):
        value = settings.static_config.get(MIN_ISR, broker_defs()[MIN_ISR].default)
        records.append(ConfigRecord(RESOURCE_BROKER, "", MIN_ISR, value))
    for kind, name in sorted(image.configs):
        if kind == RESOURCE_BROKER and name and MIN_ISR in image.configs[(kind, name)]:
            records.append(ConfigRecord(RESOURCE_BROKER, name, MIN_ISR, None))
    return records
