"""The internal topic `__transaction_state`, and the settings of transaction coordinators. PURE."""

from __future__ import annotations

import attrs

from odradek.metadata_quorum.config.typed_settings import setting
from odradek.wire.messages.create_topics import CreatableTopic, CreatableTopicConfig

TRANSACTIONS_TOPIC = "__transaction_state"


@attrs.frozen(kw_only=True)
class TransactionSettings:
    """The settings of transaction coordinators and of their topic.

    Times are in milliseconds, sizes in bytes.
    """

    timeout_ms_max: int = setting("transaction.max.timeout.ms")
    id_expiration_ms: int = setting("transactional.id.expiration.ms")
    expiry_interval_ms: int = setting("transaction.remove.expired.transaction.cleanup.interval.ms")
    timeout_check_interval_ms: int = setting("transaction.abort.timed.out.transaction.cleanup.interval.ms")
    two_phase_commit: bool = setting("transaction.two.phase.commit.enable")
    topic_partitions: int = setting("transaction.state.log.num.partitions")
    topic_replication_factor: int = setting("transaction.state.log.replication.factor")
    topic_segment_bytes: int = setting("transaction.state.log.segment.bytes")
    topic_min_isr: int = setting("transaction.state.log.min.isr")
    ids_per_partition_max: int = 100_000
    """The most transactional ids of one coordinator. Each id uses memory until it has been idle for
    `id_expiration_ms`.
    """


def transactions_topic(settings: TransactionSettings) -> CreatableTopic:
    """Build the request to create the topic, from the `transaction.state.log.*` keys.

    Unclean elections are disabled, because a lost record could revoke a committed outcome.
    """
    configs = [
        CreatableTopicConfig("cleanup.policy", "compact"),
        CreatableTopicConfig("compression.type", "uncompressed"),
        CreatableTopicConfig("segment.bytes", str(settings.topic_segment_bytes)),
        CreatableTopicConfig("min.insync.replicas", str(settings.topic_min_isr)),
        CreatableTopicConfig("unclean.leader.election.enable", "false"),
    ]
    return CreatableTopic(
        TRANSACTIONS_TOPIC, settings.topic_partitions, settings.topic_replication_factor, [], configs
    )
