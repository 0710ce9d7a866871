"""The configured rules for the partitions of a topic: min ISR, unclean election, eligible replicas."""

from __future__ import annotations

import attrs

from odradek.metadata_quorum.config.effective_config import MIN_ISR
from odradek.metadata_quorum.config.typed_settings import settings_of, topic_setting
from odradek.metadata_quorum.controller.decision_basis import DecisionBasis
from odradek.metadata_quorum.controller.unclean_recovery import Recovery, awaited_brokers
from odradek.metadata_quorum.features import ELIGIBLE_LEADER_REPLICAS
from odradek.metadata_quorum.image.config_layers import layers_for
from odradek.metadata_quorum.image.metadata_image import MetadataImage, TopicImage

UNCLEAN_ELECTION = "unclean.leader.election.enable"


@attrs.frozen
class TopicRules:
    """The rules for all partitions of one topic."""

    min_isr: int = topic_setting(MIN_ISR)
    """The configured `min.insync.replicas`. For a partition with fewer replicas than this number, all
    replicas must be in sync.
    """
    unclean_election: bool = topic_setting(UNCLEAN_ELECTION)
    """True if a replica that may lack committed records may lead when no better replica is available."""
    eligible_replicas: bool = False
    """True if replicas that leave an ISR below `min_isr` become eligible leaders (KIP-966)."""
    troubled_directories: frozenset[bytes] = frozenset()
    """Directories that take no records now. A replica in such a directory leads only if no replica in another
    directory has all records.
    """
    recovery: Recovery | None = None
    """The election of the replica with the longest log, for a partition whose replicas may all lack committed
    records. If this field is None, the last known leader is elected instead.
    """
    awaited: frozenset[int] = frozenset()
    """Brokers that may have records of a partition after a recovery of the quorum. A partition waits for
    their logs without a time limit.
    """


def topic_rules(image: MetadataImage, basis: DecisionBasis, topic: TopicImage) -> TopicRules:
    """Compute the rules of one topic from its overrides, the cluster's dynamic values and the properties
    file.
    """
    return settings_of(
        TopicRules,
        layers_for(image, basis.settings.static_config),
        image.topic_configs(topic.name),
        eligible_replicas=image.features.get(ELIGIBLE_LEADER_REPLICAS, 0) >= 1,
        recovery=basis.recovery.in_image(image),
        awaited=awaited_brokers(image),
        troubled_directories=frozenset(each for ids in image.troubled_directories.values() for each in ids),
    )
