"""Changes of partitions that follow from changes of the configuration (min ISR, unclean election, disks in
trouble), made in the same decision.

* A lower `min.insync.replicas` may make an ISR large enough to commit. The high watermark then advances
  again, and eligible replicas may lack the newly committed records. So they stop being eligible. (Kafka
  removes all eligible replicas with each change, even those of a partition without a leader.)
* If `unclean.leader.election.enable` becomes true, partitions without a leader get one at once, before the
  timer elects one.
* If a broker reports that a directory takes no records now, the replicas in it lose their leaderships. A
  replica keeps its leadership if no other replica is in sync (`odradek.serving.disk_troubles`).

A decision with more than 10,000 records is written as several batches. If the controller fails, only the
first batches may be committed. So the order of the records matters. Eligible replicas are removed before the
lower `min.insync.replicas` is written. Leaders are elected after the configuration that allows these
elections is written.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from odradek.metadata_quorum.config.effective_config import MIN_ISR
from odradek.metadata_quorum.controller.decision_basis import DecisionBasis
from odradek.metadata_quorum.controller.limits import ELECTIONS_PER_TURN_MAX
from odradek.metadata_quorum.controller.partitions.partition_change import (
    Acceptable,
    acceptable_leaders,
    change_partition,
)
from odradek.metadata_quorum.controller.partitions.topic_rules import UNCLEAN_ELECTION, topic_rules
from odradek.metadata_quorum.image.image_builder import ImageBuilder
from odradek.metadata_quorum.image.metadata_image import NO_LEADER, MetadataImage, TopicImage
from odradek.metadata_quorum.state_machine import DecisionContext
from odradek.serving.disk_troubles import TROUBLED_LOG_DIRS
from odradek.wire.config_resources import RESOURCE_BROKER, RESOURCE_TOPIC
from odradek.wire.messages.metadata_records import ConfigRecord
from odradek.wire.structure import Message


def with_partition_changes(
    image: MetadataImage, records: Sequence[Message], context: DecisionContext, basis: DecisionBasis
) -> list[Message]:
    """Return the records of a decision together with the partition changes that follow from its configuration
    records.
    """
    names = _affected_topics(image, records)
    names_disks = any(
        isinstance(record, ConfigRecord) and record.name == TROUBLED_LOG_DIRS for record in records
    )
    if not names and not names_disks:
        return list(records)
    builder = ImageBuilder(image)
    for offset, record in enumerate(records, context.next_offset):
        builder.replay(offset, record)
    future, _ = builder.build()
    acceptable = acceptable_leaders(future)
    changes: list[Message] = []
    elections: list[Message] = []
    for name in names:
        topic: TopicImage = future.topics[name]
        rules = topic_rules(future, basis, topic)
        for number, partition in topic.partitions.items():
            leaderless = partition.leader == NO_LEADER and rules.unclean_election
            if not partition.elr and not (leaderless and len(elections) < ELECTIONS_PER_TURN_MAX):
                continue
            change = change_partition(topic.topic_id, number, partition, acceptable, rules)
            if change is not None:
                (elections if leaderless else changes).append(change)
    moved = []
    if future.troubled_directories != image.troubled_directories:
        moved = _moved_leaderships(future, acceptable, basis)
    return [*changes, *records, *elections, *moved]


def _moved_leaderships(image: MetadataImage, acceptable: Acceptable, basis: DecisionBasis) -> list[Message]:
    """Move leaderships away from replicas in troubled directories, if another replica can lead. Returns the
    records.
    """
    troubled = frozenset(each for ids in image.troubled_directories.values() for each in ids)
    moved: list[Message] = []
    for name in sorted(image.topics) if troubled else ():
        topic: TopicImage = image.topics[name]
        rules = None
        for number, partition in topic.partitions.items():
            if partition.directory_of(partition.leader) in troubled:
                rules = rules or topic_rules(image, basis, topic)
                change = change_partition(topic.topic_id, number, partition, acceptable, rules)
                if change is not None:
                    moved.append(change)
    return moved


def _affected_topics(image: MetadataImage, records: Iterable[Message]) -> list[str]:
    """List the topics whose rules (`TopicRules`) these records may change, sorted by name."""
    names: set[str] = set()
    for record in records:
        if isinstance(record, ConfigRecord) and record.name in (MIN_ISR, UNCLEAN_ELECTION):
            if record.resource_type == RESOURCE_TOPIC:
                names.add(record.resource_name)
            elif record.resource_type == RESOURCE_BROKER and not record.resource_name:
                return sorted(image.topics)
    return sorted(names)
