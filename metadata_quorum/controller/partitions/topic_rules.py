"""The configured rules by which the partitions of a topic are decided: min ISR, unclean election, eligible replicas."""

from __future__ import annotations

import attrs

from metadata_quorum.config.config_defs import ConfigValue
from metadata_quorum.config.effective_config import MIN_ISR, topic_value
from metadata_quorum.controller.controller_settings import ControllerSettings
from metadata_quorum.features import ELIGIBLE_LEADER_REPLICAS
from metadata_quorum.image.config_layers import layers_for
from metadata_quorum.image.metadata_image import MetadataImage, TopicImage

UNCLEAN_ELECTION = "unclean.leader.election.enable"


@attrs.frozen
class TopicRules:
    """What holds for all partitions of one topic."""

    min_isr: int = 1
    """As configured; a partition of fewer replicas needs no more than it has."""
    unclean_election: bool = False
    """Whether a replica that is not known to hold everything may lead when no other is left."""
    eligible_replicas: bool = False
    """Whether replicas that leave an ISR below `min_isr` are kept as eligible leaders (KIP-966)."""
    troubled_directories: frozenset[bytes] = frozenset()
    """A replica on one of these leads only where no other can that holds everything."""


def topic_rules(image: MetadataImage, settings: ControllerSettings, topic: TopicImage) -> TopicRules:
    """The rules of one topic, as its overrides, the cluster's defaults and the properties file have them."""
    min_isr = _value(image, settings, topic.name, MIN_ISR)
    assert isinstance(min_isr, int)
    return TopicRules(
        min_isr,
        unclean_election_enabled(image, settings, topic.name),
        image.features.get(ELIGIBLE_LEADER_REPLICAS, 0) >= 1,
        frozenset(each for ids in image.troubled_directories.values() for each in ids),
    )


def unclean_election_enabled(image: MetadataImage, settings: ControllerSettings, topic: str) -> bool:
    """`unclean.leader.election.enable` of a topic."""
    return bool(_value(image, settings, topic, UNCLEAN_ELECTION))


def _value(image: MetadataImage, settings: ControllerSettings, topic: str, key: str) -> ConfigValue:
    """What the brokers mean by the key as well: they ask the same function."""
    return topic_value(key, image.topic_configs(topic), layers_for(image, settings.static_config))
