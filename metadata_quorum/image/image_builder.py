"""The replay of records of the metadata log on an image: which record changes what, and which records mean that
the log is wrong.

* **Replay is deterministic and strict.** The same records give the same image on the leader, on followers, on
  brokers and after a restart, however they are divided into batches. A record that does not fit (e.g. a
  partition of an unknown topic) means that the log is wrong. `InvalidMetadata` is raised, and the node stops.
  A record of an unknown type also stops the node. (Kafka 4 writes no records about the migration from
  ZooKeeper, and ignores those of older releases; so does Odradek.)
* **The base image is never changed.** Changes are collected beside it, and the cost of `build` depends only
  on the changes.
* **Metadata transactions** (KIP-868) become visible as a whole: no image can be built while a transaction is
  open. A change that is too large for one batch is written between a Begin record and an End or Abort record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

import attrs

from odradek.metadata_quorum.config.config_defs import ConfigError
from odradek.metadata_quorum.config.config_values import check_value
from odradek.metadata_quorum.image.access_image import ACCESS_RECORDS, AccessChanges
from odradek.metadata_quorum.image.metadata_image import (
    MIGRATING_DIRECTORY,
    NO_LEADER_CHANGE,
    BrokerImage,
    ControllerImage,
    FeatureRange,
    InvalidMetadata,
    ListenerImage,
    MetadataDelta,
    MetadataImage,
    PartitionImage,
    TopicImage,
    collision_key,
    is_subset,
)
from odradek.serving.disk_troubles import troubled_directories
from odradek.wire.config_resources import RESOURCE_BROKER, RESOURCE_TOPIC
from odradek.wire.messages import metadata_records as records
from odradek.wire.structure import Message

T = TypeVar("T")


class Interned:
    """A table that replaces equal tuples by one shared tuple. This saves memory, because most partitions of a
    cluster have one of a few replica lists.
    """

    __slots__ = ("_seen",)

    _LIMIT = 4096

    def __init__(self) -> None:
        self._seen: dict[tuple[Any, ...], tuple[Any, ...]] = {}

    def tuple(self, items: Iterable[T]) -> tuple[T, ...]:
        value = tuple(items)
        if not value:
            return value
        if len(self._seen) >= self._LIMIT:
            self._seen.clear()
        return self._seen.setdefault(value, value)


class _TopicChange:
    """A topic while it is being changed: its partitions by number, and the numbers of the changed partitions."""

    __slots__ = ("before", "name", "partitions", "topic_id", "touched")

    def __init__(self, name: str, topic_id: bytes, before: TopicImage | None) -> None:
        self.name = name
        self.topic_id = topic_id
        self.before = before
        self.partitions: dict[int, PartitionImage] = {}
        self.touched: dict[int, None] = {}

    def get(self, partition: int) -> PartitionImage | None:
        if partition in self.partitions:
            return self.partitions[partition]
        return None if self.before is None else self.before.partitions.get(partition)

    def set(self, partition: int, image: PartitionImage) -> None:
        self.partitions[partition] = image
        self.touched[partition] = None

    def all_partitions(self) -> list[tuple[int, PartitionImage]]:
        return sorted({**(self.before.partitions if self.before else {}), **self.partitions}.items())

    def copy(self) -> _TopicChange:
        other = _TopicChange(self.name, self.topic_id, self.before)
        other.partitions = dict(self.partitions)
        other.touched = dict(self.touched)
        return other

    def build(self) -> TopicImage:
        partitions = dict(self.before.partitions) if self.before is not None else {}
        for number in sorted(self.partitions):
            if number > len(partitions):
                raise InvalidMetadata(
                    f"topic {self.name} has partition {number}, but no partition {len(partitions)}"
                )
            partitions[number] = self.partitions[number]
        return TopicImage(self.name, self.topic_id, partitions)


@attrs.define
class _Changes:
    """The changes since the last `build`. The base image itself is not changed."""

    topics: dict[bytes, _TopicChange] = attrs.field(factory=dict)
    names: dict[str, bytes | None] = attrs.field(factory=dict)
    deleted: dict[bytes, TopicImage] = attrs.field(factory=dict)
    brokers: dict[int, BrokerImage | None] = attrs.field(factory=dict)
    controllers: dict[int, ControllerImage] = attrs.field(factory=dict)
    configs: dict[tuple[int, str], dict[str, str]] = attrs.field(factory=dict)
    unreadable: dict[tuple[int, str], dict[str, str]] = attrs.field(factory=dict)
    features: dict[str, int] | None = None
    next_producer_id: int | None = None
    access: AccessChanges = attrs.field(factory=AccessChanges)

    def copy(self) -> _Changes:
        return _Changes(
            {topic_id: change.copy() for topic_id, change in self.topics.items()},
            dict(self.names),
            dict(self.deleted),
            dict(self.brokers),
            dict(self.controllers),
            {resource: dict(values) for resource, values in self.configs.items()},
            {resource: dict(values) for resource, values in self.unreadable.items()},
            None if self.features is None else dict(self.features),
            self.next_producer_id,
            self.access.copy(),
        )


class ImageBuilder:
    """Applies records to an image.

    Use one builder for a whole replay, since it shares tuples between partitions.
    """

    def __init__(self, image: MetadataImage, interned: Interned | None = None) -> None:
        self._base = image
        self._changes = _Changes()
        self._before_transaction: _Changes | None = None
        self._visible_offset = image.offset
        self._visible_epoch = image.epoch
        self._interned = interned or Interned()
        self._replays = _replays()

    @property
    def in_transaction(self) -> bool:
        """True while a metadata transaction is open."""
        return self._before_transaction is not None

    def replay(self, offset: int, record: Message, epoch: int = -1) -> None:
        """Apply one record. Raises `InvalidMetadata` if the record does not fit the state."""
        replay = self._replays.get(type(record))
        if replay is None:
            raise InvalidMetadata(
                f"{type(record).__name__} at offset {offset} is a record that this version does not know"
            )
        try:
            replay(self, record)
        except InvalidMetadata as error:
            raise InvalidMetadata(
                f"{type(record).__name__} at offset {offset} cannot be applied: {error}"
            ) from None
        if self._before_transaction is None:
            self._visible_offset = offset
            self._visible_epoch = max(epoch, self._visible_epoch)

    def advance(self, offset: int, epoch: int) -> None:
        """Advance to `offset`, at which the log has a control record. Such a record changes nothing in the
        image.
        """
        if self._before_transaction is None:
            self._visible_offset = offset
            self._visible_epoch = max(epoch, self._visible_epoch)

    def build(self) -> tuple[MetadataImage, MetadataDelta]:
        """Build the image after all records so far. Returns the image, and its difference from the previously
        built image. Later records are applied to the new image.
        """
        pending = self._changes
        if self._before_transaction is not None:
            raise InvalidMetadata("the metadata image cannot be built while a metadata transaction is open")
        image, delta = _build(self._base, pending, self._visible_offset, self._visible_epoch)
        self._base = image
        self._changes = _Changes()
        return image, delta

    # -- current values: changes first, then the base image -------------------------------------------------

    def _topic(self, topic_id: bytes) -> _TopicChange:
        change = self._changes.topics.get(topic_id)
        if change is None:
            base: TopicImage | None = self._base.topics_by_id.get(topic_id)
            if base is None or topic_id in self._changes.deleted:
                raise InvalidMetadata(f"no topic has the topic id {topic_id.hex()}")
            change = _TopicChange(base.name, topic_id, base)
            self._changes.topics[topic_id] = change
        return change

    def _topic_id(self, name: str) -> bytes | None:
        if name in self._changes.names:
            return self._changes.names[name]
        base: TopicImage | None = self._base.topics.get(name)
        return None if base is None else base.topic_id

    def _broker(self, broker_id: int, epoch: int) -> BrokerImage:
        broker = self._changes.brokers.get(broker_id, self._base.brokers.get(broker_id))
        if broker is None:
            raise InvalidMetadata(f"broker {broker_id} is not registered")
        if broker.epoch != epoch:
            raise InvalidMetadata(f"broker {broker_id} has the broker epoch {broker.epoch}, not {epoch}")
        return broker

    # -- one method per record ----------------------------------------------------------------------------

    def _begin_transaction(self, record: records.BeginTransactionRecord) -> None:
        if self._before_transaction is not None:
            raise InvalidMetadata("a metadata transaction begins while another metadata transaction is open")
        self._before_transaction = self._changes.copy()

    def _end_transaction(self, record: records.EndTransactionRecord) -> None:
        if self._before_transaction is None:
            raise InvalidMetadata("a metadata transaction ends, but no metadata transaction is open")
        self._before_transaction = None

    def _abort_transaction(self, record: records.AbortTransactionRecord) -> None:
        if self._before_transaction is None:
            raise InvalidMetadata("a metadata transaction is aborted, but no metadata transaction is open")
        self._changes = self._before_transaction
        self._before_transaction = None

    def _no_op(self, record: records.NoOpRecord) -> None:
        """Apply a record without contents: it only advances the offset."""

    def _create_topic(self, record: records.TopicRecord) -> None:
        if self._topic_id(record.name) is not None:
            raise InvalidMetadata(f"topic {record.name} exists already")
        self._changes.topics[record.topic_id] = _TopicChange(record.name, record.topic_id, None)
        self._changes.names[record.name] = record.topic_id

    def _remove_topic(self, record: records.RemoveTopicRecord) -> None:
        change = self._topic(record.topic_id)
        del self._changes.topics[record.topic_id]
        if change.before is not None:
            self._changes.deleted[record.topic_id] = change.before
        self._changes.names[change.name] = None
        self._changes.configs[(RESOURCE_TOPIC, change.name)] = {}
        self._changes.unreadable[(RESOURCE_TOPIC, change.name)] = {}

    def _create_partition(self, record: records.PartitionRecord) -> None:
        _check_isr(record.partition_id, record.isr, record.replicas)
        share = self._interned.tuple
        self._topic(record.topic_id).set(
            record.partition_id,
            PartitionImage(
                record.leader,
                record.leader_epoch,
                record.partition_epoch,
                share(record.replicas),
                share(record.isr),
                share(record.directories or [MIGRATING_DIRECTORY] * len(record.replicas)),
                share(record.eligible_leader_replicas or ()),
                share(record.last_known_elr or ()),
                share(record.adding_replicas),
                share(record.removing_replicas),
                record.leader_recovery_state,
            ),
        )

    def _change_partition(self, record: records.PartitionChangeRecord) -> None:
        topic = self._topic(record.topic_id)
        before = topic.get(record.partition_id)
        if before is None:
            raise InvalidMetadata(f"topic {topic.name} has no partition {record.partition_id}")
        after = merge_partition(before, record, self._interned.tuple)
        _check_isr(record.partition_id, after.isr, after.replicas)
        topic.set(record.partition_id, after)

    def _clear_elr(self, record: records.ClearElrRecord) -> None:
        nobody = records.PartitionChangeRecord(eligible_leader_replicas=[], last_known_elr=[])
        names = [record.topic_name] if record.topic_name else [*self._base.topics, *self._changes.names]
        for name in names:
            topic_id = self._topic_id(name)
            if topic_id is None:
                if record.topic_name:
                    raise InvalidMetadata(f"topic {name} does not exist")
                continue
            topic = self._topic(topic_id)
            for number, partition in topic.all_partitions():
                if partition.elr or partition.last_known_elr:
                    topic.set(number, merge_partition(partition, nobody, self._interned.tuple))

    def _set_config(self, record: records.ConfigRecord) -> None:
        """Store a configuration value.

        If this version cannot read the value, the earlier value stays in force.
        """
        resource = (record.resource_type, record.resource_name)
        values = _changed_values(self._changes.configs, self._base.configs, resource)
        unreadable = _changed_values(self._changes.unreadable, self._base.unreadable_configs, resource)
        unreadable.pop(record.name, None)
        if record.value is None:
            values.pop(record.name, None)
            return
        try:
            check_value(record.resource_type, record.name, record.value)
        except ConfigError:
            unreadable[record.name] = record.value
        else:
            values[record.name] = record.value

    def _register_broker(self, record: records.RegisterBrokerRecord) -> None:
        self._changes.brokers[record.broker_id] = BrokerImage(
            record.broker_id,
            record.broker_epoch,
            record.incarnation_id,
            tuple(ListenerImage(e.name, e.host, e.port, e.security_protocol) for e in record.end_points),
            _features(record.features),
            record.rack,
            record.fenced,
            record.in_controlled_shutdown,
            tuple(record.log_dirs),
            tuple(record.cordoned_log_dirs or ()),
        )

    def _unregister_broker(self, record: records.UnregisterBrokerRecord) -> None:
        self._broker(record.broker_id, record.broker_epoch)
        self._changes.brokers[record.broker_id] = None

    def _fence_broker(self, record: records.FenceBrokerRecord) -> None:
        self._changes.brokers[record.id] = attrs.evolve(self._broker(record.id, record.epoch), fenced=True)

    def _unfence_broker(self, record: records.UnfenceBrokerRecord) -> None:
        self._changes.brokers[record.id] = attrs.evolve(self._broker(record.id, record.epoch), fenced=False)

    def _change_broker(self, record: records.BrokerRegistrationChangeRecord) -> None:
        broker = self._broker(record.broker_id, record.broker_epoch)
        if record.fenced:
            broker = attrs.evolve(broker, fenced=record.fenced > 0)
        if record.in_controlled_shutdown:
            broker = attrs.evolve(broker, in_controlled_shutdown=record.in_controlled_shutdown > 0)
        if record.log_dirs:
            broker = attrs.evolve(broker, log_dirs=tuple(record.log_dirs))
        if record.cordoned_log_dirs is not None:
            broker = attrs.evolve(broker, cordoned_log_dirs=tuple(record.cordoned_log_dirs))
        self._changes.brokers[record.broker_id] = broker

    def _register_controller(self, record: records.RegisterControllerRecord) -> None:
        self._changes.controllers[record.controller_id] = ControllerImage(
            record.controller_id,
            record.incarnation_id,
            tuple(ListenerImage(e.name, e.host, e.port, e.security_protocol) for e in record.end_points),
            _features(record.features),
        )

    def _set_feature(self, record: records.FeatureLevelRecord) -> None:
        if self._changes.features is None:
            self._changes.features = dict(self._base.features)
        if record.feature_level:
            self._changes.features[record.name] = record.feature_level
        else:
            self._changes.features.pop(record.name, None)

    def _set_next_producer_id(self, record: records.ProducerIdsRecord) -> None:
        current = self._changes.next_producer_id
        before = self._base.next_producer_id if current is None else current
        if record.next_producer_id <= before:
            raise InvalidMetadata(
                f"the next producer id {record.next_producer_id} is not above the former next producer "
                f"id {before}"
            )
        self._changes.next_producer_id = record.next_producer_id

    def _change_access(self, record: Message) -> None:
        self._changes.access.replay(record)


def _check_isr(number: int, isr: Sequence[int], replicas: Sequence[int]) -> None:
    if not is_subset(isr, replicas):
        raise InvalidMetadata(
            f"partition {number} has the ISR {list(isr)}, but its replicas are {list(replicas)}"
        )


def merge_partition(
    before: PartitionImage,
    record: records.PartitionChangeRecord,
    share: Callable[[Iterable[Any]], tuple[Any, ...]] = tuple,
) -> PartitionImage:
    """Return a partition after a change record.

    Every change raises the partition epoch. A record that names a leader also raises the leader epoch, even
    if it names the same leader or "none".
    """
    replicas = before.replicas if record.replicas is None else share(record.replicas)
    if record.directories is not None:
        directories = share(record.directories)
    elif record.replicas is not None:
        directories = share(before.directory_of(replica) for replica in replicas)
    else:
        directories = before.directories
    new_leader = record.leader != NO_LEADER_CHANGE
    return PartitionImage(
        record.leader if new_leader else before.leader,
        before.leader_epoch + new_leader,
        before.partition_epoch + 1,
        replicas,
        before.isr if record.isr is None else share(record.isr),
        directories,
        before.elr if record.eligible_leader_replicas is None else share(record.eligible_leader_replicas),
        before.last_known_elr if record.last_known_elr is None else share(record.last_known_elr),
        before.adding_replicas if record.adding_replicas is None else share(record.adding_replicas),
        before.removing_replicas if record.removing_replicas is None else share(record.removing_replicas),
        before.leader_recovery_state if record.leader_recovery_state < 0 else record.leader_recovery_state,
    )


def _features(features: Iterable[Any]) -> tuple[FeatureRange, ...]:
    return tuple(FeatureRange(f.name, f.min_supported_version, f.max_supported_version) for f in features)


def _replays() -> dict[type, Callable[[ImageBuilder, Any], None]]:
    return {
        records.TopicRecord: ImageBuilder._create_topic,
        records.RemoveTopicRecord: ImageBuilder._remove_topic,
        records.PartitionRecord: ImageBuilder._create_partition,
        records.PartitionChangeRecord: ImageBuilder._change_partition,
        records.ClearElrRecord: ImageBuilder._clear_elr,
        records.ConfigRecord: ImageBuilder._set_config,
        records.RegisterBrokerRecord: ImageBuilder._register_broker,
        records.UnregisterBrokerRecord: ImageBuilder._unregister_broker,
        records.BrokerRegistrationChangeRecord: ImageBuilder._change_broker,
        records.FenceBrokerRecord: ImageBuilder._fence_broker,
        records.UnfenceBrokerRecord: ImageBuilder._unfence_broker,
        records.RegisterControllerRecord: ImageBuilder._register_controller,
        records.FeatureLevelRecord: ImageBuilder._set_feature,
        records.ProducerIdsRecord: ImageBuilder._set_next_producer_id,
        **dict.fromkeys(ACCESS_RECORDS, ImageBuilder._change_access),
        records.NoOpRecord: ImageBuilder._no_op,
        records.ZkMigrationStateRecord: ImageBuilder._no_op,
        records.BeginTransactionRecord: ImageBuilder._begin_transaction,
        records.EndTransactionRecord: ImageBuilder._end_transaction,
        records.AbortTransactionRecord: ImageBuilder._abort_transaction,
    }


_Configs: TypeAlias = Mapping[tuple[int, str], Mapping[str, str]]


def _changed_values(
    changes: dict[tuple[int, str], dict[str, str]], base: _Configs, resource: tuple[int, str]
) -> dict[str, str]:
    """Return the resource's values as a dictionary that the replay may change.

    The first call copies them from the base.
    """
    values = changes.get(resource)
    if values is None:
        values = changes[resource] = dict(base.get(resource, {}))
    return values


def _differing(
    changes: Mapping[tuple[int, str], dict[str, str]], base: _Configs
) -> dict[tuple[int, str], Mapping[str, str] | None]:
    """Return the resources whose values differ from the base image, with the new values. A resource that has
    lost its last value gets None.
    """
    return {
        resource: values or None for resource, values in changes.items() if values != base.get(resource, {})
    }


def _build(
    base: MetadataImage, changes: _Changes, offset: int, epoch: int
) -> tuple[MetadataImage, MetadataDelta]:
    by_name: dict[str, TopicImage | None] = dict.fromkeys(changes.names)
    by_id: dict[bytes, TopicImage | None] = dict.fromkeys(changes.deleted)
    collisions: dict[str, tuple[str, ...] | None] = {}
    created: list[str] = []
    changed: dict[str, tuple[int, ...]] = {}

    def move_collision(name: str, present: bool) -> None:
        key = collision_key(name)
        if key is not None:
            names = collisions[key] if key in collisions else base.colliding_names.get(key)
            others = tuple(other for other in names or () if other != name)
            collisions[key] = tuple(sorted((*others, name))) if present else (others or None)

    for topic in changes.deleted.values():
        move_collision(topic.name, False)
    for change in changes.topics.values():
        topic = change.build()
        by_name[topic.name] = topic
        by_id[topic.topic_id] = topic
        changed[topic.name] = tuple(change.touched)
        if change.before is None:
            created.append(topic.name)
            move_collision(topic.name, True)

    configs = _differing(changes.configs, base.configs)
    unreadable = _differing(changes.unreadable, base.unreadable_configs)
    image = MetadataImage(
        offset,
        epoch,
        base.cluster_id,
        base.topics.changed(by_name),
        base.topics_by_id.changed(by_id),
        base.colliding_names.changed(collisions),
        _brokers(base, changes),
        {**base.controllers, **changes.controllers} if changes.controllers else base.controllers,
        base.configs.changed(configs),
        base.unreadable_configs.changed(unreadable),
        base.features if changes.features is None else changes.features,
        base.next_producer_id if changes.next_producer_id is None else changes.next_producer_id,
        _troubled(base, configs),
        changes.access.applied_to(base.access),
    )
    delta = MetadataDelta(
        changes.deleted,
        changed,
        tuple(created),
        tuple(changes.brokers),
        tuple(dict.fromkeys([*configs, *unreadable])),
        changes.features is not None,
        not changes.access.is_empty,
        tuple(changes.access.acls),
        tuple(changes.access.client_quotas),
    )
    return image, delta


def _brokers(base: MetadataImage, changes: _Changes) -> dict[int, BrokerImage]:
    """Return the registered brokers by id, with the changes applied."""
    if not changes.brokers:
        return base.brokers
    merged = {**base.brokers, **changes.brokers}
    return {broker_id: broker for broker_id, broker in sorted(merged.items()) if broker is not None}


def _troubled(
    base: MetadataImage, configs: Mapping[tuple[int, str], Mapping[str, str] | None]
) -> dict[str, tuple[bytes, ...]]:
    """Return the troubled directories by broker, after these changes of configurations."""
    found = base.troubled_directories
    for (kind, name), values in configs.items():
        if kind == RESOURCE_BROKER:
            listed = troubled_directories(values or {})
            if listed != found.get(name, ()):
                found = {other: ids for other, ids in found.items() if other != name}
                if listed:
                    found = dict(sorted({**found, name: listed}.items()))
    return found
