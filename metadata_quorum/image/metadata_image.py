"""The cluster's metadata at one offset as an immutable value (topics, partitions, brokers, controllers), and
the difference between two such images.

All cluster state is the replay of one log. `MetadataImage` is the state after all records up to `offset`;
`odradek.metadata_quorum.image.image_builder` makes the next image from the records that follow. The
controller's replicated state *is* a MetadataImage, and brokers serve from the same class.

* **Images are never changed.** Readers may keep an image for any time. An image shares all unchanged parts
  with the previous one, so the cost of a change depends only on its own size. Everything that grows with the
  cluster is in `LayeredMap`s. Small parts are plain dicts, which are copied: brokers, features, the
  partitions of one topic.
* **Undo returns to an older image.** The leader's state machine keeps the images above the high watermark.
  When it resigns, it returns to the newest committed image. There is no undo log.

Partitions dominate memory: a `PartitionImage` is one slotted object whose tuples are shared between partitions.
Access rules, quotas, users and delegation tokens are in `access_image.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs

from odradek.metadata_quorum.image.access_image import AccessImage, QuotaEntity
from odradek.serving.layered_map import LayeredMap
from odradek.wire.config_resources import RESOURCE_BROKER, RESOURCE_TOPIC

NO_LEADER = -1
NO_LEADER_CHANGE = -2
RECOVERED = 0
RECOVERING = 1

UNASSIGNED_DIRECTORY = bytes(16)
LOST_DIRECTORY = bytes(15) + b"\x01"
MIGRATING_DIRECTORY = bytes(15) + b"\x02"
RESERVED_DIRECTORIES = frozenset(bytes(15) + bytes([number]) for number in range(100))
"""Directory ids that are reserved, and name no directory (KIP-858)."""


def is_subset(replicas: Sequence[int], of: Sequence[int]) -> bool:
    """True if all of `replicas` are in `of`. Usually both arguments are the same object, so this case is
    checked first.
    """
    return replicas == of or set(of).issuperset(replicas)


class InvalidMetadata(Exception):
    """Raised if a record of the metadata log does not fit the state after the records before it."""


@attrs.frozen(hash=False)
class PartitionImage:
    """One partition: its replicas, in-sync replicas and leader. Tuples keep Kafka's order of preference.

    `directories` names the log directory of each replica, in the order of `replicas`.
    """

    leader: int
    leader_epoch: int
    partition_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    directories: tuple[bytes, ...] = ()
    elr: tuple[int, ...] = ()
    last_known_elr: tuple[int, ...] = ()
    adding_replicas: tuple[int, ...] = ()
    removing_replicas: tuple[int, ...] = ()
    leader_recovery_state: int = RECOVERED

    def directory_of(self, broker_id: int) -> bytes:
        """Return the id of the directory that holds a broker's replica; `UNASSIGNED_DIRECTORY` if the broker
        has no replica.
        """
        if broker_id in self.replicas and self.directories:
            return self.directories[self.replicas.index(broker_id)]
        return UNASSIGNED_DIRECTORY

    def is_online(self, broker_id: int, broker: BrokerImage) -> bool:
        """True if the directory of a broker's replica is online; an unassigned directory counts as online."""
        return broker.holds_online(self.directory_of(broker_id))


@attrs.frozen
class TopicImage:
    """A topic. `partitions` has the partitions by number, from 0 without a gap."""

    name: str
    topic_id: bytes
    partitions: Mapping[int, PartitionImage]


@attrs.frozen
class ListenerImage:
    """An endpoint that a broker or controller advertises; `security_protocol` is Kafka's number (0 PLAINTEXT)."""

    name: str
    host: str
    port: int
    security_protocol: int


@attrs.frozen
class FeatureRange:
    """The lowest and highest level of one feature that a node supports."""

    name: str
    min_level: int
    max_level: int


@attrs.frozen
class BrokerImage:
    """A registered broker. `epoch` identifies this registration. A fenced broker serves no clients."""

    broker_id: int
    epoch: int
    incarnation_id: bytes
    listeners: tuple[ListenerImage, ...]
    features: tuple[FeatureRange, ...]
    rack: str | None
    fenced: bool
    in_controlled_shutdown: bool
    log_dirs: tuple[bytes, ...]
    cordoned_log_dirs: tuple[bytes, ...] = ()

    @property
    def is_active(self) -> bool:
        """True if the broker may lead and may be in sync, because it is neither fenced nor shutting down."""
        return not self.fenced and not self.in_controlled_shutdown

    def holds_online(self, directory: bytes) -> bool:
        """True if a replica in this directory is online. If the directory is still unassigned, the replica
        counts as online.
        """
        return directory in (UNASSIGNED_DIRECTORY, MIGRATING_DIRECTORY) or directory in self.log_dirs

    def endpoint(self, listener: str) -> ListenerImage | None:
        """Return the address on which this listener of the broker can be reached; None if the broker has no
        such listener.
        """
        return next((endpoint for endpoint in self.listeners if endpoint.name == listener), None)


@attrs.frozen
class ControllerImage:
    """A node that has registered as a controller: its listeners and its supported features."""

    controller_id: int
    incarnation_id: bytes
    listeners: tuple[ListenerImage, ...]
    features: tuple[FeatureRange, ...]


@attrs.frozen
class MetadataImage:
    """All state of the cluster after the record at `offset`, which was written in leader epoch `epoch`.

    An offset of -1 is before the first record.
    """

    offset: int = -1
    epoch: int = -1
    cluster_id: str = ""
    topics: LayeredMap[str, TopicImage] = attrs.field(factory=LayeredMap)
    topics_by_id: LayeredMap[bytes, TopicImage] = attrs.field(factory=LayeredMap)
    colliding_names: LayeredMap[str, tuple[str, ...]] = attrs.field(factory=LayeredMap)
    """Topic names with a '.' or '_', by the form of the name in which each '.' is replaced by '_'. Kafka
    refuses a new topic if an existing name has the same form.

    The names are sorted: like a snapshot, the image must not depend on the order in which topics were created.
    """
    brokers: dict[int, BrokerImage] = attrs.field(factory=dict)
    controllers: dict[int, ControllerImage] = attrs.field(factory=dict)
    configs: LayeredMap[tuple[int, str], Mapping[str, str]] = attrs.field(factory=LayeredMap)
    """Configuration values by (resource type, resource name). The values for all brokers have the empty name.

    Each value is the last value of its key in the log that passes `config_values.check_value`.
    """
    unreadable_configs: LayeredMap[tuple[int, str], Mapping[str, str]] = attrs.field(factory=LayeredMap)
    """For each resource, the newest values in the log that this version cannot read. These values are not in
    force. Snapshots contain them, so that a later version may read them.
    """
    features: dict[str, int] = attrs.field(factory=dict)
    """Finalized feature levels. A feature with level 0 has no entry."""
    next_producer_id: int = 0
    troubled_directories: dict[str, tuple[bytes, ...]] = attrs.field(factory=dict)
    """Directories that take no records now, by the broker that reports them. These values are not in
    `configs` (`odradek.serving.disk_troubles`).
    """
    access: AccessImage = attrs.field(factory=AccessImage)

    @classmethod
    def empty(cls, cluster_id: str) -> MetadataImage:
        """Make the image before the first record of the log."""
        return cls(cluster_id=cluster_id)

    @property
    def metadata_version(self) -> int:
        """The finalized level of `metadata.version`; 0 before the bootstrap records."""
        return self.features.get("metadata.version", 0)

    def partition(self, topic: str, partition: int) -> PartitionImage | None:
        image: TopicImage | None = self.topics.get(topic)
        return None if image is None else image.partitions.get(partition)

    def topic_configs(self, topic: str) -> Mapping[str, str]:
        overrides: Mapping[str, str] = self.configs.get((RESOURCE_TOPIC, topic), {})
        return overrides

    def broker_configs(self, broker_id: int | None) -> Mapping[str, str]:
        """Return the dynamic values of one broker. For None, return the dynamic values for all brokers."""
        name = "" if broker_id is None else str(broker_id)
        overrides: Mapping[str, str] = self.configs.get((RESOURCE_BROKER, name), {})
        return overrides


@attrs.frozen
class MetadataDelta:
    """The difference between two successive images, in the order of the changes.

    A topic that was deleted and created again under the same name is in both `deleted_topics` (with its old
    image) and `changed_topics`.
    """

    deleted_topics: Mapping[bytes, TopicImage] = attrs.field(factory=dict)
    """Deleted topics by topic id, with their state before the deletion."""
    changed_topics: Mapping[str, tuple[int, ...]] = attrs.field(factory=dict)
    """For each new or changed topic, the numbers of its new or changed partitions."""
    created_topics: tuple[str, ...] = ()
    changed_brokers: tuple[int, ...] = ()
    """The ids of registered, changed or removed brokers."""
    changed_configs: tuple[tuple[int, str], ...] = ()
    """The changed configurations: (resource type, resource name)."""
    features_changed: bool = False
    access_changed: bool = False
    changed_acls: tuple[bytes, ...] = ()
    """The ids of ACLs that are new, changed or removed."""
    changed_quotas: tuple[tuple[QuotaEntity, str], ...] = ()
    """The quotas that are new, changed or removed, each by its entity and key."""

    @classmethod
    def everything(cls, image: MetadataImage) -> MetadataDelta:
        """Make the delta from an empty image to `image`, for a subscriber that starts with this image."""
        topics = {name: tuple(image.topics[name].partitions) for name in sorted(image.topics)}
        return cls(
            {},
            topics,
            tuple(topics),
            tuple(image.brokers),
            tuple(sorted(dict.fromkeys([*image.configs, *image.unreadable_configs]))),
            bool(image.features),
            image.access != AccessImage(),
            tuple(image.access.acls),
            tuple(image.access.client_quotas),
        )

    @property
    def changed_topic_configs(self) -> tuple[str, ...]:
        return tuple(name for kind, name in self.changed_configs if kind == RESOURCE_TOPIC)

    @property
    def is_empty(self) -> bool:
        return self == _NOTHING


_NOTHING = MetadataDelta()


def collision_key(name: str) -> str | None:
    """Return a topic name with each '.' replaced by '_'. Two names collide if they have the same result.
    Returns None for a name that contains neither character.
    """
    return name.replace(".", "_") if "." in name or "_" in name else None
