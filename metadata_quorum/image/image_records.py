"""The records from which an image can be built; they are the contents of a snapshot. PURE.

When they are replayed over an empty image, they give an equal image. Equal images give the same records in
the same order, so all nodes write the same snapshot for an offset. The order is Kafka's. First come the
feature levels, `metadata.version` before all, so that a reader knows the formats of what follows. Then come
brokers, controllers, topics with their partitions, configurations, producer ids, quotas, ACLs, users and
tokens. Where Kafka's order depends on a hash table, Odradek sorts by name or number.
"""

from __future__ import annotations

from collections.abc import Iterator

from odradek.metadata_quorum.features import METADATA_VERSION
from odradek.metadata_quorum.image.metadata_image import (
    BrokerImage,
    ControllerImage,
    FeatureRange,
    ListenerImage,
    MetadataImage,
    PartitionImage,
    TopicImage,
)
from odradek.wire.messages.metadata_records import (
    BrokerEndpoint,
    BrokerFeature,
    ConfigRecord,
    ControllerEndpoint,
    ControllerFeature,
    FeatureLevelRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
    RegisterControllerRecord,
    TopicRecord,
)
from odradek.wire.structure import Message

__all__ = ["records_of"]

NOBODY = -1


def records_of(image: MetadataImage) -> Iterator[Message]:
    """Yield the records that give `image` when they are replayed over an empty one.

    Its offset and epoch are not in the records.
    """
    yield from _features(image)
    for _, broker in sorted(image.brokers.items()):
        yield _broker(broker)
    for _, controller in sorted(image.controllers.items()):
        yield _controller(controller)
    for name in sorted(image.topics):
        yield from _topic(image.topics[name])
    # A value that this version cannot read comes after the value in force, as it did in the log.
    for configs in (image.configs, image.unreadable_configs):
        for kind, name in sorted(configs):
            for key, value in sorted(configs[kind, name].items()):
                yield ConfigRecord(kind, name, key, value)
    if image.next_producer_id:
        yield ProducerIdsRecord(NOBODY, NOBODY, image.next_producer_id)
    yield from image.access.records()


def _features(image: MetadataImage) -> Iterator[FeatureLevelRecord]:
    for name, level in sorted(
        image.features.items(), key=lambda item: (item[0] != METADATA_VERSION, item[0])
    ):
        yield FeatureLevelRecord(name, level)


def _broker(broker: BrokerImage) -> RegisterBrokerRecord:
    return RegisterBrokerRecord(
        broker_id=broker.broker_id,
        incarnation_id=broker.incarnation_id,
        broker_epoch=broker.epoch,
        end_points=[BrokerEndpoint(*_endpoint(each)) for each in broker.listeners],
        features=[BrokerFeature(*_range(each)) for each in broker.features],
        rack=broker.rack,
        fenced=broker.fenced,
        in_controlled_shutdown=broker.in_controlled_shutdown,
        log_dirs=list(broker.log_dirs),
        cordoned_log_dirs=list(broker.cordoned_log_dirs) or None,
    )


def _controller(controller: ControllerImage) -> RegisterControllerRecord:
    return RegisterControllerRecord(
        controller_id=controller.controller_id,
        incarnation_id=controller.incarnation_id,
        zk_migration_ready=False,
        end_points=[ControllerEndpoint(*_endpoint(each)) for each in controller.listeners],
        features=[ControllerFeature(*_range(each)) for each in controller.features],
    )


def _endpoint(listener: ListenerImage) -> tuple[str, str, int, int]:
    return listener.name, listener.host, listener.port, listener.security_protocol


def _range(feature: FeatureRange) -> tuple[str, int, int]:
    return feature.name, feature.min_level, feature.max_level


def _topic(topic: TopicImage) -> Iterator[Message]:
    yield TopicRecord(topic.name, topic.topic_id)
    for number, partition in sorted(topic.partitions.items()):
        yield _partition(topic.topic_id, number, partition)


def _partition(topic_id: bytes, number: int, partition: PartitionImage) -> PartitionRecord:
    return PartitionRecord(
        partition_id=number,
        topic_id=topic_id,
        replicas=list(partition.replicas),
        isr=list(partition.isr),
        removing_replicas=list(partition.removing_replicas),
        adding_replicas=list(partition.adding_replicas),
        leader=partition.leader,
        leader_recovery_state=partition.leader_recovery_state,
        leader_epoch=partition.leader_epoch,
        partition_epoch=partition.partition_epoch,
        directories=list(partition.directories),
        eligible_leader_replicas=list(partition.elr) or None,
        last_known_elr=list(partition.last_known_elr) or None,
    )
