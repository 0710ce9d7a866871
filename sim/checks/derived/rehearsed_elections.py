"""Check of unclean recovery by rehearsal: with made-up reports, the product elects the replica with the best one. PURE.

In a run all reports about a partition are mostly equal, or the newest log is the longest, too. So a check of real elections
seldom sees a wrong order. `rehearse_election` takes a real image in which a partition waits for an election. It gives
the product's own rule a random report of each broker. Some reports are of an earlier registration. The winner must have
the best report of a present registration: the highest epoch, then the highest end (KIP-966).
"""

from __future__ import annotations

from random import Random

import attrs

from odradek.metadata_quorum.controller.broker_sessions import BrokerSessions
from odradek.metadata_quorum.controller.unclean_recovery import UncleanRecovery
from odradek.metadata_quorum.image.metadata_image import MetadataImage
from odradek.wire.messages.broker_heartbeat import PartitionLogInfo, TopicPartitionLogInfo
from odradek.wire.topic_partition import TopicIdPartition
from sim.history import SafetyViolation

__all__ = ["rehearse_election"]

NOBODY = -1
EARLIER = 0.3
"""The probability that a report is of an earlier registration of its broker."""
SPREAD = 3
"""How many different epochs, and how many different ends, the reports have."""


def rehearse_election(image: MetadataImage, key: TopicIdPartition, random: Random) -> bool:
    """Elect a leader by random reports, and check the winner. Return False if the partition does not wait for an election
    by reports. Raises `SafetyViolation`.
    """
    topic = image.topics_by_id.get(key.topic_id)
    partition = None if topic is None else topic.partitions.get(key.partition)
    if topic is None or partition is None or partition.leader != NOBODY or partition.isr or partition.elr:
        return False
    rule = UncleanRecovery(is_enabled=True, timeout_ms=0, sessions=BrokerSessions(1))
    view = rule.in_image(image)
    brokers = [image.brokers[each] for each in partition.replicas if each in image.brokers]
    if view is None or not brokers:
        return False
    ranks: dict[int, tuple[int, int]] = {}
    for broker in random.sample(brokers, len(brokers)):
        rank = random.randrange(SPREAD), random.randrange(SPREAD)
        life = broker.epoch
        if random.random() < EARLIER:
            life -= 1
        else:
            ranks[broker.broker_id] = rank
        info = PartitionLogInfo(key.partition, rank[0], partition.leader_epoch, rank[1], 0)
        rule.note(image, attrs.evolve(broker, epoch=life), [TopicPartitionLogInfo(key.topic_id, [info])])
    if not ranks:
        return False
    winner = view.elect(key, partition, partition.last_known_elr, lambda broker_id: True, at_once=True)
    best = max(ranks.values())
    if winner is None or ranks.get(winner) != best:
        raise SafetyViolation(
            f"rehearsed election: {winner} wins in {topic.name}-{key.partition}, and the reports (epoch, end) of "
            f"present registrations are {ranks}"
        )
    return True
