"""A model of the metadata log: the state that follows from the log's records in KRaft, in plain dicts. PURE.

The model shares no rules with the product's code. It takes decoded records, and applies the change that each kind of
record means. `metadata_difference` compares an image with it.

* A partition change names only the fields that change. If it names a leader, the leader epoch grows, even if the leader
  stays the same. Each change increases the partition epoch (KIP-866, KIP-966).
* The removal of a topic also removes its partitions and its configuration.
* A feature of level 0 is not finalized. A configuration without a value is removed.
* Records in a metadata transaction take effect at its end, or never if it is aborted (KIP-868).

In a correct log each record fits the state before it. A record that does not fit, such as a change of an unknown
partition, raises `SafetyViolation`.

For each configuration key, all values since its last removal are kept: a node that cannot parse the newest value
keeps using an older one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

import attrs

from odradek.wire.messages import metadata_records as wire
from odradek.wire.structure import Message
from sim.history import SafetyViolation

__all__ = [
    "BrokerFold",
    "ControllerFold",
    "Entity",
    "Judge",
    "MetadataFold",
    "PartitionFold",
    "Resource",
    "Touched",
]

NO_LEADER_CHANGE = -2
NO_RECOVERY_CHANGE = -1
MIGRATING = bytes(15) + b"\x02"
TOPIC_RESOURCE = 2

Resource: TypeAlias = tuple[int, str]
Entity: TypeAlias = tuple[tuple[str, str | None], ...]
Credential: TypeAlias = tuple[str, int]
"""(user name, SCRAM mechanism)."""
Quota: TypeAlias = tuple[Entity, str]


Judge: TypeAlias = "Callable[[MetadataFold, Message], None]"


@attrs.define
class Touched:
    """Keys of the entries that have changed, in each part of the state."""

    topics: dict[bytes, None] = attrs.Factory(dict)
    brokers: dict[int, None] = attrs.Factory(dict)
    controllers: dict[int, None] = attrs.Factory(dict)
    configs: dict[Resource, None] = attrs.Factory(dict)
    acls: dict[bytes, None] = attrs.Factory(dict)
    credentials: dict[Credential, None] = attrs.Factory(dict)
    tokens: dict[str, None] = attrs.Factory(dict)
    quotas: dict[Quota, None] = attrs.Factory(dict)


@attrs.define
class PartitionFold:
    """One partition. The fields have the same names as in the product's image."""

    leader: int
    leader_epoch: int
    partition_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    directories: tuple[bytes, ...]
    elr: tuple[int, ...]
    last_known_elr: tuple[int, ...]
    adding_replicas: tuple[int, ...]
    removing_replicas: tuple[int, ...]
    leader_recovery_state: int


@attrs.define
class BrokerFold:
    """One registered broker. Lists are sorted, since their order has no meaning."""

    epoch: int
    incarnation_id: bytes
    listeners: list[tuple[str, str, int, int]]
    features: list[tuple[str, int, int]]
    rack: str | None
    fenced: bool
    in_controlled_shutdown: bool
    log_dirs: list[bytes]
    cordoned_log_dirs: list[bytes]


@attrs.define
class ControllerFold:
    """One registered controller."""

    incarnation_id: bytes
    listeners: list[tuple[str, str, int, int]]
    features: list[tuple[str, int, int]]


@attrs.define
class TopicFold:
    """One topic, with its partitions by number."""

    name: str
    partitions: dict[int, PartitionFold] = attrs.Factory(dict)


class MetadataFold:
    """The state after all records up to `offset`."""

    def __init__(self, judge: Judge | None = None) -> None:
        """Begin with an empty log. `judge` is called with this state and a record before the record takes effect."""
        self.judge = judge
        self.offset = -1
        self.epoch = -1
        self.topics: dict[bytes, TopicFold] = {}
        self.ids: dict[str, bytes] = {}
        """Topic ids by topic name."""
        self.brokers: dict[int, BrokerFold] = {}
        self.controllers: dict[int, ControllerFold] = {}
        self.configs: dict[Resource, dict[str, list[str]]] = {}
        """For each resource and key, all values since the key's last removal, the newest last."""
        self.features: dict[str, int] = {}
        self.next_producer_id = 0
        self.acls: dict[bytes, tuple[int, str, int, str, str, int, int]] = {}
        self.credentials: dict[Credential, tuple[bytes, bytes, bytes, int]] = {}
        self.tokens: dict[str, tuple[str, str, tuple[str, ...], int, int, int]] = {}
        self.quotas: dict[Quota, float] = {}
        self.held: list[Message] | None = None
        """Records of the present metadata transaction; None outside a transaction."""
        self.touched = Touched()
        """The entries that have changed since the caller last took this object."""

    def take(self, offset: int, epoch: int, records: Iterable[Message | None]) -> None:
        """Apply records, of which the last is at `offset`; control records are None. Raises `SafetyViolation`."""
        self.offset, self.epoch = offset, epoch
        for record in records:
            if record is not None:
                self._take(record)

    def _take(self, record: Message) -> None:
        if isinstance(record, wire.BeginTransactionRecord):
            self._demand(self.held is None, "a metadata transaction begins within another one")
            self.held = []
        elif isinstance(record, wire.EndTransactionRecord | wire.AbortTransactionRecord):
            held, self.held = self.held, None
            self._demand(held is not None, "a metadata transaction ends that has not begun")
            if held and isinstance(record, wire.EndTransactionRecord):
                for each in held:
                    self._apply(each)
        elif self.held is not None:
            self.held.append(record)
        else:
            self._apply(record)

    def _apply(self, record: Message) -> None:
        """Apply one record: at once outside of a metadata transaction, or at the end of its transaction."""
        if self.judge is not None:
            self.judge(self, record)
        match record:
            case wire.TopicRecord():
                self._topic(record)
            case wire.RemoveTopicRecord():
                self._remove_topic(record)
            case wire.PartitionRecord():
                self._partition(record)
            case wire.PartitionChangeRecord():
                self._change_partition(record)
            case wire.ClearElrRecord():
                self._clear_elr(record)
            case wire.RegisterBrokerRecord():
                self._register_broker(record)
            case wire.UnregisterBrokerRecord():
                self._unregister_broker(record)
            case wire.FenceBrokerRecord():
                self._fence(record)
            case wire.UnfenceBrokerRecord():
                self._unfence(record)
            case wire.BrokerRegistrationChangeRecord():
                self._change_broker(record)
            case wire.RegisterControllerRecord():
                self._register_controller(record)
            case wire.ConfigRecord():
                self._config(record)
            case wire.FeatureLevelRecord():
                self._feature(record)
            case wire.ProducerIdsRecord():
                self._producer_ids(record)
            case wire.AccessControlEntryRecord():
                self._acl(record)
            case wire.RemoveAccessControlEntryRecord():
                self._remove_acl(record)
            case wire.UserScramCredentialRecord():
                self._credential(record)
            case wire.RemoveUserScramCredentialRecord():
                self._remove_credential(record)
            case wire.DelegationTokenRecord():
                self._token(record)
            case wire.RemoveDelegationTokenRecord():
                self._remove_token(record)
            case wire.ClientQuotaRecord():
                self._quota(record)
            case wire.NoOpRecord() | wire.ZkMigrationStateRecord():
                pass
            case _:
                raise SafetyViolation(f"metadata log: {type(record).__name__} up to offset {self.offset}")

    def _demand(self, holds: bool, complaint: str) -> None:
        if not holds:
            raise SafetyViolation(f"metadata log: up to offset {self.offset}, {complaint}")

    # --- topics

    def _topic(self, record: wire.TopicRecord) -> None:
        self._demand(record.topic_id not in self.topics, f"the id of topic {record.name} is taken")
        self._demand(record.name not in self.ids, f"topic {record.name} is made twice")
        self.topics[record.topic_id] = TopicFold(record.name)
        self.ids[record.name] = record.topic_id
        self.touched.topics[record.topic_id] = None

    def _remove_topic(self, record: wire.RemoveTopicRecord) -> None:
        topic = self.topics.pop(record.topic_id, None)
        if topic is None:
            raise SafetyViolation(f"metadata log: up to offset {self.offset}, an unknown topic is removed")
        del self.ids[topic.name]
        self.configs.pop((TOPIC_RESOURCE, topic.name), None)
        self.touched.topics[record.topic_id] = None
        self.touched.configs[TOPIC_RESOURCE, topic.name] = None

    def _partition(self, record: wire.PartitionRecord) -> None:
        topic = self.topics.get(record.topic_id)
        if topic is None:
            raise SafetyViolation(f"metadata log: up to offset {self.offset}, a partition has no topic")
        directories = tuple(record.directories) or (MIGRATING,) * len(record.replicas)
        self._demand(
            len(directories) == len(record.replicas),
            f"{topic.name}-{record.partition_id} has replicas without a directory",
        )
        topic.partitions[record.partition_id] = PartitionFold(
            leader=record.leader,
            leader_epoch=record.leader_epoch,
            partition_epoch=record.partition_epoch,
            replicas=tuple(record.replicas),
            isr=tuple(record.isr),
            directories=directories,
            elr=tuple(record.eligible_leader_replicas or ()),
            last_known_elr=tuple(record.last_known_elr or ()),
            adding_replicas=tuple(record.adding_replicas),
            removing_replicas=tuple(record.removing_replicas),
            leader_recovery_state=record.leader_recovery_state,
        )
        self.touched.topics[record.topic_id] = None

    def _change_partition(self, record: wire.PartitionChangeRecord) -> None:
        topic = self.topics.get(record.topic_id)
        partition = None if topic is None else topic.partitions.get(record.partition_id)
        if partition is None:
            raise SafetyViolation(
                f"metadata log: up to offset {self.offset}, an unknown partition changes ({record.partition_id})"
            )
        partition.partition_epoch += 1
        if record.leader != NO_LEADER_CHANGE:
            partition.leader = record.leader
            partition.leader_epoch += 1
        if record.leader_recovery_state != NO_RECOVERY_CHANGE:
            partition.leader_recovery_state = record.leader_recovery_state
        for name, value in (
            ("isr", record.isr),
            ("replicas", record.replicas),
            ("removing_replicas", record.removing_replicas),
            ("adding_replicas", record.adding_replicas),
            ("directories", record.directories),
            ("elr", record.eligible_leader_replicas),
            ("last_known_elr", record.last_known_elr),
        ):
            if value is not None:
                setattr(partition, name, tuple(value))
        self._demand(
            len(partition.directories) == len(partition.replicas),
            f"partition {record.partition_id} no longer has as many directories as replicas",
        )
        self.touched.topics[record.topic_id] = None

    def _clear_elr(self, record: wire.ClearElrRecord) -> None:
        """Clear the ELR in all partitions of the named topic, or of all topics if the record has no name (KIP-966)."""
        if record.topic_name:
            self._demand(record.topic_name in self.ids, f"topic {record.topic_name} is unknown")
        for topic_id in [self.ids[record.topic_name]] if record.topic_name else list(self.topics):
            for partition in self.topics[topic_id].partitions.values():
                if partition.elr or partition.last_known_elr:
                    partition.elr = partition.last_known_elr = ()
                    partition.partition_epoch += 1
                    self.touched.topics[topic_id] = None

    # --- nodes

    def _register_broker(self, record: wire.RegisterBrokerRecord) -> None:
        self.brokers[record.broker_id] = BrokerFold(
            epoch=record.broker_epoch,
            incarnation_id=record.incarnation_id,
            listeners=_listeners(record.end_points),
            features=_features(record.features),
            rack=record.rack,
            fenced=record.fenced,
            in_controlled_shutdown=record.in_controlled_shutdown,
            log_dirs=sorted(record.log_dirs),
            cordoned_log_dirs=sorted(record.cordoned_log_dirs or ()),
        )
        self.touched.brokers[record.broker_id] = None

    def _broker(self, broker_id: int, epoch: int) -> BrokerFold:
        broker = self.brokers.get(broker_id)
        if broker is None or broker.epoch != epoch:
            raise SafetyViolation(
                f"metadata log: up to offset {self.offset}, a record is about broker {broker_id} in epoch {epoch}; it is "
                f"{'unknown' if broker is None else f'in {broker.epoch}'}"
            )
        self.touched.brokers[broker_id] = None
        return broker

    def _unregister_broker(self, record: wire.UnregisterBrokerRecord) -> None:
        self._broker(record.broker_id, record.broker_epoch)
        del self.brokers[record.broker_id]

    def _fence(self, record: wire.FenceBrokerRecord) -> None:
        self._broker(record.id, record.epoch).fenced = True

    def _unfence(self, record: wire.UnfenceBrokerRecord) -> None:
        self._broker(record.id, record.epoch).fenced = False

    def _change_broker(self, record: wire.BrokerRegistrationChangeRecord) -> None:
        broker = self._broker(record.broker_id, record.broker_epoch)
        if record.fenced:
            broker.fenced = record.fenced > 0
        if record.in_controlled_shutdown:
            broker.in_controlled_shutdown = True
        if record.log_dirs:
            broker.log_dirs = sorted(record.log_dirs)
        if record.cordoned_log_dirs is not None:
            broker.cordoned_log_dirs = sorted(record.cordoned_log_dirs)

    def _register_controller(self, record: wire.RegisterControllerRecord) -> None:
        self.controllers[record.controller_id] = ControllerFold(
            record.incarnation_id, _listeners(record.end_points), _features(record.features)
        )
        self.touched.controllers[record.controller_id] = None

    # --- settings

    def _config(self, record: wire.ConfigRecord) -> None:
        resource = (record.resource_type, record.resource_name)
        texts = self.configs.setdefault(resource, {})
        if record.value is None:
            texts.pop(record.name, None)
        else:
            texts.setdefault(record.name, []).append(record.value)
        if not texts:
            del self.configs[resource]
        self.touched.configs[resource] = None

    def _feature(self, record: wire.FeatureLevelRecord) -> None:
        if record.feature_level:
            self.features[record.name] = record.feature_level
        else:
            self.features.pop(record.name, None)

    def _producer_ids(self, record: wire.ProducerIdsRecord) -> None:
        self.next_producer_id = record.next_producer_id

    # --- access

    def _acl(self, record: wire.AccessControlEntryRecord) -> None:
        self.acls[record.id] = (
            record.resource_type,
            record.resource_name,
            record.pattern_type,
            record.principal,
            record.host,
            record.operation,
            record.permission_type,
        )
        self.touched.acls[record.id] = None

    def _remove_acl(self, record: wire.RemoveAccessControlEntryRecord) -> None:
        self.acls.pop(record.id, None)
        self.touched.acls[record.id] = None

    def _credential(self, record: wire.UserScramCredentialRecord) -> None:
        self.credentials[record.name, record.mechanism] = (
            bytes(record.salt),
            bytes(record.stored_key),
            bytes(record.server_key),
            record.iterations,
        )
        self.touched.credentials[record.name, record.mechanism] = None

    def _remove_credential(self, record: wire.RemoveUserScramCredentialRecord) -> None:
        self.credentials.pop((record.name, record.mechanism), None)
        self.touched.credentials[record.name, record.mechanism] = None

    def _token(self, record: wire.DelegationTokenRecord) -> None:
        self.tokens[record.token_id] = (
            record.owner,
            record.requester,
            tuple(record.renewers),
            record.issue_timestamp,
            record.max_timestamp,
            record.expiration_timestamp,
        )
        self.touched.tokens[record.token_id] = None

    def _remove_token(self, record: wire.RemoveDelegationTokenRecord) -> None:
        self.tokens.pop(record.token_id, None)
        self.touched.tokens[record.token_id] = None

    def _quota(self, record: wire.ClientQuotaRecord) -> None:
        entity = tuple(sorted({each.entity_type: each.entity_name for each in record.entity}.items()))
        if record.remove:
            self.quotas.pop((entity, record.key), None)
        else:
            self.quotas[entity, record.key] = record.value
        self.touched.quotas[entity, record.key] = None


def _listeners(
    end_points: Sequence[wire.BrokerEndpoint] | Sequence[wire.ControllerEndpoint],
) -> list[tuple[str, str, int, int]]:
    return sorted((each.name, each.host, each.port, each.security_protocol) for each in end_points)


def _features(
    features: Sequence[wire.BrokerFeature] | Sequence[wire.ControllerFeature],
) -> list[tuple[str, int, int]]:
    return sorted((each.name, each.min_supported_version, each.max_supported_version) for each in features)
