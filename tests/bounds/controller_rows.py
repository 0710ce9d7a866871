"""The table of the metadata log: which request to the controller leads to each field of each record type."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from functools import partial
from random import Random
from typing import Any

from odradek.env.agreed_clock import Moment
from odradek.metadata_quorum.config.config_resources import Operation
from odradek.metadata_quorum.controller.access.tokens import TokenRequest
from odradek.metadata_quorum.controller.controller import Controller
from odradek.metadata_quorum.controller.controller_settings import ControllerSettings
from odradek.metadata_quorum.image.image_builder import ImageBuilder
from odradek.metadata_quorum.image.metadata_image import MetadataImage
from odradek.metadata_quorum.state_machine import ReplicatedStateMachine
from odradek.security.tokens import TokenSecrets
from odradek.wire.errors import ErrorCode
from odradek.wire.messages.allocate_producer_ids import AllocateProducerIdsRequest
from odradek.wire.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasRequestEntryData,
    EntityData,
    OpData,
)
from odradek.wire.messages.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionRequestPartitionData,
    AlterPartitionRequestTopicData,
    BrokerState,
)
from odradek.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from odradek.wire.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from odradek.wire.messages.broker_heartbeat import BrokerHeartbeatRequest
from odradek.wire.messages.broker_registration import BrokerRegistrationRequest, Feature, Listener
from odradek.wire.messages.controller_registration import ControllerRegistrationRequest
from odradek.wire.messages.controller_registration import Feature as ControllerFeature
from odradek.wire.messages.controller_registration import Listener as ControllerListener
from odradek.wire.messages.create_acls import AclCreation, CreateAclsRequest
from odradek.wire.messages.create_delegation_token import CreatableRenewers, CreateDelegationTokenRequest
from odradek.wire.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreateTopicsRequest,
)
from odradek.wire.messages.expire_delegation_token import ExpireDelegationTokenRequest
from odradek.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from odradek.wire.messages.metadata_records import NoOpRecord, ProducerIdsRecord
from odradek.wire.messages.unregister_broker import UnregisterBrokerRequest
from odradek.wire.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from tests.bounds.rows import NOTHING, UNSENDABLE, WRITTEN, Row, Sent, freely, number, refused
from tests.quorum.controller.controller_script import CLUSTER, ControllerScript, InstantLog

NOW_MS = 1_700_000_000_000
UUID = b"x" * 16
TOKEN_ID = base64.urlsafe_b64encode(UUID).decode().rstrip("=")
SECRETS = TokenSecrets(b"key")
SETTINGS = ControllerSettings(has_authorizer=True, token_secrets=SECRETS)
RETIRING = "odradek.retiring.log.dirs"
GROUP, BROKER = 32, 4
PRODUCER_IDS = 1000
"""The number of producer ids in one block."""
UNKNOWN_SERVER_ERROR = ErrorCode.UNKNOWN_SERVER_ERROR.name
INVALID_REGISTRATION = ErrorCode.INVALID_REGISTRATION.name
UNSUPPORTED_VERSION = ErrorCode.UNSUPPORTED_VERSION.name
INVALID_REQUEST = ErrorCode.INVALID_REQUEST.name
NO_SUCH_BROKER = ErrorCode.BROKER_ID_NOT_REGISTERED.name
STALE_EPOCH = ErrorCode.STALE_BROKER_EPOCH.name


def small_cluster() -> MetadataImage:
    """Make an image of two brokers and a topic `t` of one partition."""
    script = ControllerScript()
    script.run("join 1 2")
    script.run("create t assign=0:1,2")
    return script.image


IMAGE = small_cluster()
TOPIC_ID = IMAGE.topics["t"].topic_id
EPOCH = IMAGE.brokers[1].epoch


class Cluster:
    """A controller over a log that holds the small cluster and records of the caller."""

    def __init__(self, before: Sequence[Any] = (), settings: ControllerSettings = SETTINGS) -> None:
        builder = ImageBuilder(IMAGE)
        for offset, record in enumerate(before, IMAGE.offset + 1):
            builder.replay(offset, record)
        image = builder.build()[0] if before else IMAGE
        self.log = InstantLog()
        self.log.append_batch([NoOpRecord()] * (image.offset + 1))
        self.failed: list[BaseException] = []
        self.not_encoded: list[Exception] = []
        self.machine = ReplicatedStateMachine(
            Controller(settings),
            self.log,
            image,
            random=Random(1),
            new_uuid=lambda: UUID,
            fail=self.failed.append,
            not_encoded=lambda request, error: self.not_encoded.append(error),
        )

    def decide(self, request: Any) -> tuple[list[Any], Any]:
        """Submit a request. Return the records of the decision, and the response."""
        before = len(self.log.records)
        deferred = self.machine.submit(request, 0)
        self.log.commit()
        return self.log.records[before:], deferred.response


# -- nodes ------------------------------------------------------------------------------------------------------------

ELR_FEATURES = (
    ("metadata.version", 30, 30),
    ("eligible.leader.replicas.version", 0, 1),
    ("transaction.version", 0, 2),
    ("group.version", 0, 1),
)


def register(**fields: Any) -> list[Any]:
    known: dict[str, Any] = {
        "broker_id": 3,
        "cluster_id": CLUSTER,
        "incarnation_id": UUID,
        "listeners": [Listener("PLAINTEXT", "h", 9092, 0)],
        "features": [Feature(*each) for each in ELR_FEATURES],
        "rack": None,
        "log_dirs": [UUID],
    }
    return [BrokerRegistrationRequest(**{**known, **fields})]


def listener(**fields: Any) -> list[Any]:
    return register(listeners=[Listener(**{"name": "PLAINTEXT", "host": "h", "port": 9092, **fields})])


def feature(low: int, high: int, name: str = "x") -> list[Any]:
    return register(features=[*(Feature(*each) for each in ELR_FEATURES), Feature(name, low, high)])


def unregister(broker_id: int) -> list[Any]:
    return [UnregisterBrokerRequest(broker_id)]


def register_controller(**fields: Any) -> list[Any]:
    known: dict[str, Any] = {
        "controller_id": 9,
        "incarnation_id": UUID,
        "listeners": [ControllerListener("CONTROLLER", "h", 9093, 0)],
        "features": [ControllerFeature(*each) for each in ELR_FEATURES],
    }
    return [ControllerRegistrationRequest(**{**known, **fields})]


def controller_listener(**fields: Any) -> list[Any]:
    known = {"name": "CONTROLLER", "host": "h", "port": 9093, **fields}
    return register_controller(listeners=[ControllerListener(**known)])


def controller_feature(low: int, high: int, name: str = "x") -> list[Any]:
    features = [*(ControllerFeature(*each) for each in ELR_FEATURES), ControllerFeature(name, low, high)]
    return register_controller(features=features)


def heartbeat(**fields: Any) -> list[Any]:
    known = {"broker_id": 1, "broker_epoch": EPOCH, "current_metadata_offset": IMAGE.offset, **fields}
    return [BrokerHeartbeatRequest(**known)]


PORT = (UNSENDABLE, INVALID_REGISTRATION, WRITTEN, WRITTEN, WRITTEN, UNSENDABLE)
TOO_MANY_OF_A_NODE = (INVALID_REGISTRATION,) * 3
LOW_LEVEL = (UNSENDABLE, UNSUPPORTED_VERSION, UNSUPPORTED_VERSION, WRITTEN, WRITTEN, UNSENDABLE)
_registration_refused = partial(refused, ErrorCode.INVALID_REGISTRATION)

_NODES: dict[str, Row] = {
    "RegisterBrokerRecord.broker_id": number(lambda v: register(broker_id=v), INVALID_REGISTRATION, WRITTEN),
    "RegisterBrokerRecord.broker_epoch": "an offset of the metadata log: 2^63 records are out of reach",
    "RegisterBrokerRecord.end_points": Sent(
        lambda v: register(listeners=[Listener("P", "h", 1, 0)] * v), TOO_MANY_OF_A_NODE
    ),
    "RegisterBrokerRecord.end_points.name": _registration_refused(lambda v: listener(name=v)),
    "RegisterBrokerRecord.end_points.host": _registration_refused(lambda v: listener(host=v)),
    "RegisterBrokerRecord.end_points.port": Sent(lambda v: listener(port=v), PORT),
    "RegisterBrokerRecord.end_points.security_protocol": number(
        lambda v: listener(security_protocol=v), INVALID_REGISTRATION, INVALID_REGISTRATION
    ),
    "RegisterBrokerRecord.features": Sent(
        lambda v: register(features=[Feature("x", 0, 1)] * v), TOO_MANY_OF_A_NODE
    ),
    "RegisterBrokerRecord.features.name": _registration_refused(lambda v: feature(0, 1, v)),
    "RegisterBrokerRecord.features.min_supported_version": Sent(
        lambda v: feature(v, (1 << 15) - 1), LOW_LEVEL
    ),
    "RegisterBrokerRecord.features.max_supported_version": Sent(lambda v: feature(0, v), LOW_LEVEL),
    "RegisterBrokerRecord.rack": _registration_refused(lambda v: register(rack=v)),
    "RegisterBrokerRecord.log_dirs": Sent(lambda v: register(log_dirs=[UUID] * v), TOO_MANY_OF_A_NODE),
    "RegisterBrokerRecord.cordoned_log_dirs": "told by heartbeats, and kept by BrokerRegistrationChangeRecord",
    "UnregisterBrokerRecord.broker_id": number(unregister, NO_SUCH_BROKER, NO_SUCH_BROKER),
    "UnregisterBrokerRecord.broker_epoch": "the epoch of the registration, which is an offset",
    "BrokerRegistrationChangeRecord.broker_id": number(
        lambda v: heartbeat(broker_id=v, want_fence=True), STALE_EPOCH, STALE_EPOCH
    ),
    "BrokerRegistrationChangeRecord.broker_epoch": number(
        lambda v: heartbeat(broker_epoch=v, want_fence=True), STALE_EPOCH, STALE_EPOCH
    ),
    "BrokerRegistrationChangeRecord.fenced": "one of three constants",
    "BrokerRegistrationChangeRecord.in_controlled_shutdown": "one of two constants",
    "BrokerRegistrationChangeRecord.log_dirs": "told by registrations, whose lists are bounded",
    "BrokerRegistrationChangeRecord.cordoned_log_dirs": Sent(
        lambda v: heartbeat(cordoned_log_dirs=[UUID] * v), (WRITTEN,) * 3
    ),
    "RegisterControllerRecord.controller_id": number(
        lambda v: register_controller(controller_id=v), INVALID_REGISTRATION, WRITTEN
    ),
    "RegisterControllerRecord.end_points": Sent(
        lambda v: register_controller(listeners=[ControllerListener("C", "h", 1, 0)] * v), TOO_MANY_OF_A_NODE
    ),
    "RegisterControllerRecord.end_points.name": _registration_refused(lambda v: controller_listener(name=v)),
    "RegisterControllerRecord.end_points.host": _registration_refused(lambda v: controller_listener(host=v)),
    "RegisterControllerRecord.end_points.port": Sent(lambda v: controller_listener(port=v), PORT),
    "RegisterControllerRecord.end_points.security_protocol": number(
        lambda v: controller_listener(security_protocol=v), INVALID_REGISTRATION, INVALID_REGISTRATION
    ),
    "RegisterControllerRecord.features": Sent(
        lambda v: register_controller(features=[ControllerFeature("x", 0, 1)] * v), TOO_MANY_OF_A_NODE
    ),
    "RegisterControllerRecord.features.name": _registration_refused(lambda v: controller_feature(0, 1, v)),
    "RegisterControllerRecord.features.min_supported_version": Sent(
        lambda v: controller_feature(v, (1 << 15) - 1), LOW_LEVEL
    ),
    "RegisterControllerRecord.features.max_supported_version": Sent(
        lambda v: controller_feature(0, v), LOW_LEVEL
    ),
}


# -- topics and partitions --------------------------------------------------------------------------------------------


def create(name: str = "new", index: int = 0, replicas: Sequence[int] = (1,)) -> list[Any]:
    assignment = CreatableReplicaAssignment(index, list(replicas))
    return [CreateTopicsRequest([CreatableTopic(name, -1, -1, [assignment])], 1000)]


def reassign(index: int = 0, replicas: Sequence[int] = (1,), name: str = "t") -> list[Any]:
    topic = ReassignableTopic(name, [ReassignablePartition(index, list(replicas))])
    return [AlterPartitionReassignmentsRequest(1000, True, [topic])]


def alter_partition(isr: Sequence[int] = (1, 2), recovery: int = 0) -> list[Any]:
    partition = AlterPartitionRequestPartitionData(
        0, 0, [], [BrokerState(each, EPOCH) for each in isr], recovery, 0
    )
    return [AlterPartitionRequest(1, EPOCH, [AlterPartitionRequestTopicData(TOPIC_ID, [partition])])]


BAD_ASSIGNMENT = ErrorCode.INVALID_REPLICA_ASSIGNMENT.name
OF_REPLICAS = "a part of the partition's replicas, which have a row"

_PARTITIONS: dict[str, Row] = {
    "TopicRecord.name": refused(ErrorCode.INVALID_TOPIC_EXCEPTION, lambda v: create(v)),
    "PartitionRecord.partition_id": number(lambda v: create(index=v), BAD_ASSIGNMENT, BAD_ASSIGNMENT),
    "PartitionRecord.replicas": Sent(lambda v: create(replicas=range(v)), (BAD_ASSIGNMENT,) * 3),
    "PartitionRecord.replicas[]": number(lambda v: create(replicas=[v]), BAD_ASSIGNMENT, BAD_ASSIGNMENT),
    "PartitionRecord.isr": OF_REPLICAS,
    "PartitionRecord.isr[]": OF_REPLICAS,
    "PartitionRecord.removing_replicas": "empty in a new partition",
    "PartitionRecord.removing_replicas[]": "empty in a new partition",
    "PartitionRecord.adding_replicas": "empty in a new partition",
    "PartitionRecord.adding_replicas[]": "empty in a new partition",
    "PartitionRecord.leader": OF_REPLICAS,
    "PartitionRecord.leader_recovery_state": "a constant",
    "PartitionRecord.leader_epoch": "0 in a new partition; 2^31 elections are out of reach",
    "PartitionRecord.partition_epoch": "0 in a new partition; 2^31 changes are out of reach",
    "PartitionRecord.directories": "one for each replica",
    "PartitionRecord.eligible_leader_replicas": "none in a new partition",
    "PartitionRecord.eligible_leader_replicas[]": "none in a new partition",
    "PartitionRecord.last_known_elr": "none in a new partition",
    "PartitionRecord.last_known_elr[]": "none in a new partition",
    "PartitionChangeRecord.partition_id": number(
        lambda v: reassign(index=v),
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION.name,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION.name,
    ),
    "PartitionChangeRecord.isr": Sent(lambda v: alter_partition(isr=range(v)), (INVALID_REQUEST,) * 3),
    "PartitionChangeRecord.isr[]": number(
        lambda v: alter_partition(isr=[1, v]), INVALID_REQUEST, INVALID_REQUEST
    ),
    "PartitionChangeRecord.leader": OF_REPLICAS,
    "PartitionChangeRecord.replicas": Sent(lambda v: reassign(replicas=range(v)), (BAD_ASSIGNMENT,) * 3),
    "PartitionChangeRecord.replicas[]": number(
        lambda v: reassign(replicas=[v]), BAD_ASSIGNMENT, BAD_ASSIGNMENT
    ),
    "PartitionChangeRecord.removing_replicas": OF_REPLICAS,
    "PartitionChangeRecord.removing_replicas[]": OF_REPLICAS,
    "PartitionChangeRecord.adding_replicas": OF_REPLICAS,
    "PartitionChangeRecord.adding_replicas[]": OF_REPLICAS,
    "PartitionChangeRecord.leader_recovery_state": number(
        lambda v: alter_partition(isr=[1], recovery=v), INVALID_REQUEST, INVALID_REQUEST
    ),
    "PartitionChangeRecord.directories": "one for each replica",
    "PartitionChangeRecord.eligible_leader_replicas": OF_REPLICAS,
    "PartitionChangeRecord.eligible_leader_replicas[]": OF_REPLICAS,
    "PartitionChangeRecord.last_known_elr": OF_REPLICAS,
    "PartitionChangeRecord.last_known_elr[]": OF_REPLICAS,
    "ClearElrRecord.topic_name": "this controller writes none; `eligible.leader.replicas.version` stays",
}


# -- configurations, features, producer ids ---------------------------------------------------------------------------


def configure(kind: int, name: str, key: str, value: str, operation: int = Operation.SET) -> list[Any]:
    config = AlterableConfig(key, operation, value)
    return [IncrementalAlterConfigsRequest([AlterConfigsResource(kind, name, [config])])]


def update_feature(name: str, level: int) -> list[Any]:
    return [UpdateFeaturesRequest(1000, [FeatureUpdateKey(name, level, False, 1)])]


def append(value: str) -> list[Any]:
    """Set and append a value in two requests, each of which is within the bound."""
    return [
        *configure(BROKER, "", RETIRING, value[:3]),
        *configure(BROKER, "", RETIRING, value[4:], Operation.APPEND),
    ]


def appended(value: str) -> str:
    """Return the value that `append` stores. The comma between the two parts replaces one letter of the value."""
    return value[:3] + "," + value[4:]


_SINGLES: dict[str, Row] = {
    "ConfigRecord.resource_type": number(
        lambda v: configure(v, "x", "k", "1"), INVALID_REQUEST, INVALID_REQUEST
    ),
    "ConfigRecord.resource_name": freely(
        lambda v: configure(GROUP, v, "consumer.session.timeout.ms", "45000")
    ),
    "ConfigRecord.name": freely(lambda v: configure(BROKER, "", v, "1")),
    "ConfigRecord.value": Sent(append, (WRITTEN, WRITTEN, ErrorCode.INVALID_CONFIG.name), appended),
    "FeatureLevelRecord.name": refused(ErrorCode.INVALID_UPDATE_VERSION, lambda v: update_feature(v, 1)),
    "FeatureLevelRecord.feature_level": number(
        lambda v: update_feature("transaction.version", v),
        ErrorCode.INVALID_UPDATE_VERSION.name,
        ErrorCode.INVALID_UPDATE_VERSION.name,
    ),
    "ProducerIdsRecord.broker_id": number(
        lambda v: [AllocateProducerIdsRequest(v, EPOCH)], STALE_EPOCH, STALE_EPOCH
    ),
    "ProducerIdsRecord.broker_epoch": number(
        lambda v: [AllocateProducerIdsRequest(1, v)], STALE_EPOCH, STALE_EPOCH
    ),
    "ProducerIdsRecord.next_producer_id": Sent(
        lambda v: [AllocateProducerIdsRequest(1, EPOCH)],
        (UNSENDABLE, UNSENDABLE, UNSENDABLE, WRITTEN, WRITTEN, UNKNOWN_SERVER_ERROR),
        before=lambda v: [ProducerIdsRecord(-1, -1, v - PRODUCER_IDS)],
    ),
}


# -- who may do what --------------------------------------------------------------------------------------------------


def user(value: str) -> str:
    """Return a principal that has as many bytes as `value`."""
    return "User:" + value[5:]


def token(requester: str = "User:a", **fields: Any) -> list[Any]:
    known: dict[str, Any] = {
        "owner_principal_type": None,
        "owner_principal_name": None,
        "renewers": [],
        "max_lifetime_ms": -1,
    }
    return [
        TokenRequest(CreateDelegationTokenRequest(**{**known, **fields}), requester, Moment.agreed(NOW_MS))
    ]


def renewers(names: Sequence[str]) -> list[Any]:
    return token(renewers=[CreatableRenewers("User", name) for name in names])


def expire_token(period_ms: int) -> list[Any]:
    request = ExpireDelegationTokenRequest(SECRETS.hmac(TOKEN_ID), period_ms)
    return [*token(), TokenRequest(request, "User:a", Moment.agreed(NOW_MS))]


def scram(name: str = "u", mechanism: int = 1, iterations: int = 4096) -> list[Any]:
    upsertion = ScramCredentialUpsertion(name, mechanism, iterations, b"salt", b"p" * 32)
    return [AlterUserScramCredentialsRequest([], [upsertion])]


def without_scram(name: str, mechanism: int = 1) -> list[Any]:
    return [
        *scram(name),
        AlterUserScramCredentialsRequest([ScramCredentialDeletion(name, mechanism)], []),
    ]


def quota(
    entities: Sequence[EntityData], key: str = "producer_byte_rate", *, remove: bool = False
) -> list[Any]:
    entry = AlterClientQuotasRequestEntryData(list(entities), [OpData(key, 1.0, remove)])
    return [AlterClientQuotasRequest([entry])]


def rule(**fields: Any) -> list[Any]:
    known: dict[str, Any] = {
        "resource_type": 2,
        "resource_name": "t",
        "resource_pattern_type": 3,
        "principal": "User:a",
        "host": "*",
        "operation": 3,
        "permission_type": 3,
    }
    return [CreateAclsRequest([AclCreation(**{**known, **fields})])]


COMPOSED = (WRITTEN, WRITTEN, INVALID_REQUEST)
NO_MECHANISM = ErrorCode.UNSUPPORTED_SASL_MECHANISM.name
UNACCEPTABLE = ErrorCode.UNACCEPTABLE_CREDENTIAL.name
TOO_MUCH = ErrorCode.POLICY_VIOLATION.name
_LAST_MS = NOW_MS + SETTINGS.token_max_lifetime_ms

_ACCESS: dict[str, Row] = {
    "DelegationTokenRecord.owner": Sent(
        lambda v: token(owner_principal_type="User", owner_principal_name=v[5:]), COMPOSED, user
    ),
    "DelegationTokenRecord.requester": Sent(lambda v: token(user(v)), COMPOSED, user),
    "DelegationTokenRecord.renewers": Sent(lambda v: renewers(["r"] * v), (WRITTEN,) * 3),
    "DelegationTokenRecord.renewers[]": Sent(lambda v: renewers([v[5:]]), COMPOSED, user),
    "DelegationTokenRecord.issue_timestamp": "the clock's",
    "DelegationTokenRecord.max_timestamp": Sent(
        lambda v: token(max_lifetime_ms=v),
        (UNSENDABLE, WRITTEN, WRITTEN, WRITTEN, WRITTEN, UNSENDABLE),
        lambda v: _LAST_MS,
    ),
    "DelegationTokenRecord.expiration_timestamp": Sent(
        expire_token, (UNSENDABLE, NOTHING, NOTHING, WRITTEN, WRITTEN, UNSENDABLE), lambda v: _LAST_MS
    ),
    "DelegationTokenRecord.token_id": "made by the controller",
    "RemoveDelegationTokenRecord.token_id": "made by the controller",
    "UserScramCredentialRecord.name": freely(lambda v: scram(v)),
    "UserScramCredentialRecord.mechanism": number(lambda v: scram(mechanism=v), NO_MECHANISM, NO_MECHANISM),
    "UserScramCredentialRecord.iterations": number(lambda v: scram(iterations=v), UNACCEPTABLE, UNACCEPTABLE),
    "RemoveUserScramCredentialRecord.name": freely(without_scram),
    "RemoveUserScramCredentialRecord.mechanism": number(
        lambda v: without_scram("u", v), NO_MECHANISM, NO_MECHANISM
    ),
    "ClientQuotaRecord.entity": Sent(lambda v: quota([EntityData("user", "u")] * v), (TOO_MUCH,) * 3),
    "ClientQuotaRecord.entity.entity_type": refused(
        ErrorCode.INVALID_REQUEST, lambda v: quota([EntityData(v, "u")])
    ),
    "ClientQuotaRecord.entity.entity_name": freely(lambda v: quota([EntityData("user", v)])),
    "ClientQuotaRecord.key": refused(
        ErrorCode.INVALID_REQUEST, lambda v: quota([EntityData("user", "u")], v)
    ),
    "AccessControlEntryRecord.resource_type": number(
        lambda v: rule(resource_type=v), INVALID_REQUEST, INVALID_REQUEST
    ),
    "AccessControlEntryRecord.resource_name": freely(lambda v: rule(resource_name=v)),
    "AccessControlEntryRecord.pattern_type": number(
        lambda v: rule(resource_pattern_type=v), INVALID_REQUEST, INVALID_REQUEST
    ),
    "AccessControlEntryRecord.principal": Sent(
        lambda v: rule(principal=user(v)), (WRITTEN, WRITTEN, UNSENDABLE), user
    ),
    "AccessControlEntryRecord.host": freely(lambda v: rule(host=v)),
    "AccessControlEntryRecord.operation": number(
        lambda v: rule(operation=v), INVALID_REQUEST, INVALID_REQUEST
    ),
    "AccessControlEntryRecord.permission_type": number(
        lambda v: rule(permission_type=v), INVALID_REQUEST, INVALID_REQUEST
    ),
}


_OTHERS: dict[str, Row] = {
    "FenceBrokerRecord.id": "older than BrokerRegistrationChangeRecord: this controller writes none",
    "FenceBrokerRecord.epoch": "older than BrokerRegistrationChangeRecord: this controller writes none",
    "UnfenceBrokerRecord.id": "older than BrokerRegistrationChangeRecord: this controller writes none",
    "UnfenceBrokerRecord.epoch": "older than BrokerRegistrationChangeRecord: this controller writes none",
    "ZkMigrationStateRecord.zk_migration_state": "of migrations from ZooKeeper: this controller writes none",
    "BeginTransactionRecord.name": "this controller begins no metadata transaction",
    "AbortTransactionRecord.reason": "a constant",
}

ROWS: dict[str, Row] = {**_NODES, **_PARTITIONS, **_SINGLES, **_ACCESS, **_OTHERS}
