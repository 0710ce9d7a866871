"""The questions that are asked with and without rights: at least one for each API, and the rights that matter to it.

A question names the topics `known` and `other`, which exist, and `absent`, which does not; a group and a transactional id.
Each case asks with names of its own where the question changes something.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs

from odradek.security.acls.rules import Operation, ResourceType
from tests.conformance.batches import batch
from wire.api import ApiKey
from wire.messages import add_partitions_to_txn as adding
from wire.messages import alter_configs as absolute
from wire.messages import alter_partition as isr
from wire.messages import alter_partition_reassignments as moving
from wire.messages import alter_replica_log_dirs as dirs
from wire.messages import assign_replicas_to_dirs as assigning
from wire.messages import describe_configs as configs
from wire.messages import describe_quorum as quorum
from wire.messages import elect_leaders as electing
from wire.messages import fetch, list_offsets, metadata
from wire.messages import incremental_alter_configs as incremental
from wire.messages import list_partition_reassignments as listing_moves
from wire.messages import offset_commit as committing
from wire.messages import offset_delete as deleting
from wire.messages import offset_fetch as fetching
from wire.messages import offset_for_leader_epoch as epochs
from wire.messages import produce as producing
from wire.messages import txn_offset_commit as txn_committing
from wire.messages import write_txn_markers as markers
from wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from wire.messages.add_raft_voter import AddRaftVoterRequest
from wire.messages.allocate_producer_ids import AllocateProducerIdsRequest
from wire.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasRequestEntryData,
    OpData,
)
from wire.messages.alter_client_quotas import EntityData as QuotaEntity
from wire.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
)
from wire.messages.api_versions import ApiVersionsRequest
from wire.messages.broker_heartbeat import BrokerHeartbeatRequest
from wire.messages.broker_registration import BrokerRegistrationRequest
from wire.messages.controller_registration import ControllerRegistrationRequest
from wire.messages.create_acls import AclCreation, CreateAclsRequest
from wire.messages.create_delegation_token import CreatableRenewers, CreateDelegationTokenRequest
from wire.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from wire.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from wire.messages.delete_groups import DeleteGroupsRequest
from wire.messages.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from wire.messages.describe_acls import DescribeAclsRequest
from wire.messages.describe_client_quotas import ComponentData, DescribeClientQuotasRequest
from wire.messages.describe_cluster import DescribeClusterRequest
from wire.messages.describe_delegation_token import (
    DescribeDelegationTokenOwner,
    DescribeDelegationTokenRequest,
)
from wire.messages.describe_groups import DescribeGroupsRequest
from wire.messages.describe_log_dirs import DescribableLogDirTopic, DescribeLogDirsRequest
from wire.messages.describe_producers import DescribeProducersRequest, TopicRequest
from wire.messages.describe_topic_partitions import DescribeTopicPartitionsRequest
from wire.messages.describe_topic_partitions import TopicRequest as PagedTopic
from wire.messages.describe_transactions import DescribeTransactionsRequest
from wire.messages.describe_user_scram_credentials import DescribeUserScramCredentialsRequest, UserName
from wire.messages.end_txn import EndTxnRequest
from wire.messages.expire_delegation_token import ExpireDelegationTokenRequest
from wire.messages.find_coordinator import FindCoordinatorRequest
from wire.messages.heartbeat import HeartbeatRequest
from wire.messages.init_producer_id import InitProducerIdRequest
from wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from wire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from wire.messages.list_config_resources import ListConfigResourcesRequest
from wire.messages.list_groups import ListGroupsRequest
from wire.messages.list_transactions import ListTransactionsRequest
from wire.messages.remove_raft_voter import RemoveRaftVoterRequest
from wire.messages.renew_delegation_token import RenewDelegationTokenRequest
from wire.messages.sasl_authenticate import SaslAuthenticateRequest
from wire.messages.sasl_handshake import SaslHandshakeRequest
from wire.messages.sync_group import SyncGroupRequest
from wire.messages.unregister_broker import UnregisterBrokerRequest
from wire.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from wire.messages.update_raft_voter import UpdateRaftVoterRequest
from wire.messages.vote import VoteRequest
from wire.structure import ZERO_UUID

NOBODYS = bytes(range(16))
TOPIC = int(ResourceType.TOPIC)


@attrs.frozen
class Names:
    """The things that one case asks about."""

    known: str
    known_id: bytes
    other: str
    other_id: bytes
    absent: str
    group: str
    transactional_id: str
    owner: str
    """Owns the token `token`, as does `User:another`."""
    token: str
    hmac: bytes


@attrs.frozen
class Right:
    """An operation on one of the things of a question; `on` names a field of `Names`, or is "cluster" or "*"."""

    operation: Operation
    on: str

    @property
    def resource_type(self) -> ResourceType:
        kinds = {
            "group": ResourceType.GROUP,
            "transactional_id": ResourceType.TRANSACTIONAL_ID,
            "cluster": ResourceType.CLUSTER,
            "owner": ResourceType.USER,
            "token": ResourceType.DELEGATION_TOKEN,
        }
        return kinds.get(self.on, ResourceType.TOPIC)


@attrs.frozen
class Question:
    """One request in one version, and the rights that Kafka looks at for it."""

    name: str
    version: int
    build: Callable[[Names], Any]
    rights: tuple[Right, ...]
    changes: bool = False
    """True if a case needs a topic of its own."""
    on_controller: bool = False
    """True if the controller's listener is asked."""
    logs_in: bool = False
    """True if the asker logs in: tokens are not for the anonymous."""


def _rights(*pairs: str) -> tuple[Right, ...]:
    found = []
    for pair in pairs:
        operation, _, on = pair.partition(" ")
        found.append(Right(Operation[operation], on))
    return tuple(found)


QUESTIONS: list[Question] = []


def ask(
    name: str,
    versions: tuple[int, ...],
    build: Callable[[Names], Any],
    *rights: str,
    changes: bool = False,
    on_controller: bool = False,
    logs_in: bool = False,
) -> None:
    """Enter a question, once for each version."""
    for version in versions:
        QUESTIONS.append(
            Question(f"{name} v{version}", version, build, _rights(*rights), changes, on_controller, logs_in)
        )


def _produce(n: Names, named: str | None, by_id: bool) -> Any:
    def data(name: str, topic_id: bytes) -> Any:
        part = [producing.PartitionProduceData(0, batch(1))]
        return producing.TopicProduceData("" if by_id else name, topic_id if by_id else ZERO_UUID, part)

    return producing.ProduceRequest(
        named, -1, 5_000, [data(n.known, n.known_id), data(n.other, n.other_id), data(n.absent, NOBODYS)]
    )


ask("produce", (9,), lambda n: _produce(n, None, False), "WRITE known", "WRITE absent", "READ other")
ask("produce", (13,), lambda n: _produce(n, None, True), "WRITE known", "WRITE other", "DESCRIBE other")


def _fetch(n: Names, by_id: bool, replica: int) -> Any:
    def topic(name: str, topic_id: bytes) -> Any:
        parts = [fetch.FetchPartition(0, -1, 0, -1, -1, 1_000)]
        return fetch.FetchTopic("" if by_id else name, topic_id if by_id else ZERO_UUID, parts)

    topics = [topic(n.known, n.known_id), topic(n.other, n.other_id), topic(n.absent, NOBODYS)]
    state = fetch.ReplicaState(replica, -1)
    return fetch.FetchRequest(None, replica, state, 0, 0, 100_000, 0, 0, -1, topics, [], "")


ask("fetch", (12,), lambda n: _fetch(n, False, -1), "READ known", "READ absent", "DESCRIBE other")
ask("fetch", (17,), lambda n: _fetch(n, True, -1), "READ known", "READ other", "WRITE other")
ask("fetch as a follower", (12,), lambda n: _fetch(n, False, 7), "READ known")
ask("fetch as a follower", (17,), lambda n: _fetch(n, True, 7), "READ known")


def _offsets(n: Names) -> Any:
    parts = [list_offsets.ListOffsetsPartition(0, -1, -1)]
    topics = [list_offsets.ListOffsetsTopic(name, parts) for name in (n.known, n.other, n.absent)]
    return list_offsets.ListOffsetsRequest(-1, 0, topics)


ask(
    "list_offsets", (1, 7), _offsets, "DESCRIBE known", "READ other", "ALTER_CONFIGS known", "DESCRIBE absent"
)


def _metadata(n: Names, creates: bool, operations: bool = False) -> Any:
    named = [metadata.MetadataRequestTopic(ZERO_UUID, name) for name in (n.known, n.other, n.absent)]
    return metadata.MetadataRequest(named, creates, operations, operations)


ask("metadata", (1, 9), lambda n: _metadata(n, False), "DESCRIBE known", "READ other", "DESCRIBE absent")
ask(
    "metadata with operations",
    (8, 12),
    lambda n: _metadata(n, False, True),
    *("DESCRIBE known", "ALTER other", "DESCRIBE cluster", "DESCRIBE absent"),
)
ask(
    "metadata that creates",
    (12,),
    lambda n: _metadata(n, True, True),
    *("DESCRIBE absent", "CREATE absent", "CREATE cluster"),
    changes=True,
)


def _metadata_by_id(n: Names) -> Any:
    ids = [metadata.MetadataRequestTopic(each, None) for each in (n.known_id, n.other_id, NOBODYS)]
    return metadata.MetadataRequest(ids, False)


ask("metadata by id", (12,), _metadata_by_id, "DESCRIBE known", "WRITE other")


def _commit(n: Names, by_id: bool) -> Any:
    part = [committing.OffsetCommitRequestPartition(0, 5, -1, "")]
    topics = [
        committing.OffsetCommitRequestTopic("" if by_id else name, topic_id if by_id else ZERO_UUID, part)
        for name, topic_id in ((n.known, n.known_id), (n.other, n.other_id), (n.absent, NOBODYS))
    ]
    return committing.OffsetCommitRequest(n.group, -1, "", None, -1, topics)


ask("offset_commit", (2, 8), lambda n: _commit(n, False), "READ group", "READ known", "WRITE other")
ask("offset_commit", (10,), lambda n: _commit(n, True), "READ group", "READ known", "DESCRIBE group")


def _fetch_offsets(n: Names, every: bool = False) -> Any:
    named = [n.known, n.other, n.absent]
    topics = [fetching.OffsetFetchRequestTopic(name, [0]) for name in named]
    many = [fetching.OffsetFetchRequestTopics(name, ZERO_UUID, [0]) for name in named]
    groups = [
        fetching.OffsetFetchRequestGroup(group, None, -1, None if every else many)
        for group in (n.group, n.group + "-2")
    ]
    return fetching.OffsetFetchRequest(n.group, None if every else topics, groups)


ask("offset_fetch", (1, 7, 9), _fetch_offsets, "DESCRIBE group", "DESCRIBE known", "READ group")
ask("offset_fetch of all", (7, 9), lambda n: _fetch_offsets(n, True), "DESCRIBE group", "DESCRIBE known")
ask(
    "find_coordinator of a share group",
    (6,),
    lambda n: FindCoordinatorRequest("", 2, ["x:AAAAAAAAAAAAAAAAAAAAAA:0"]),
    *("DESCRIBE group", "READ group"),
)
for _kind, _of in ((0, "group"), (1, "transactional_id"), (2, "cluster")):
    _op = "CLUSTER_ACTION" if _kind == 2 else "DESCRIBE"
    ask(
        f"find_coordinator of kind {_kind}",
        (3, 4),
        lambda n, kind=_kind, of=_of: FindCoordinatorRequest(
            getattr(n, of, "x:AAAAAAAAAAAAAAAAAAAAAA:0"),
            kind,
            [getattr(n, of, "x:AAAAAAAAAAAAAAAAAAAAAA:0"), "another"],
        ),
        f"{_op} {_of}",
        "DESCRIBE cluster",
    )
ask(
    "join_group",
    (4, 9),
    lambda n: JoinGroupRequest(
        n.group, 10_000, 10_000, "stranger", None, "consumer", [JoinGroupRequestProtocol("range", b"")]
    ),
    *("READ group", "DESCRIBE group"),
)
ask("heartbeat", (0, 4), lambda n: HeartbeatRequest(n.group, 1, "m"), "READ group", "DESCRIBE group")
ask(
    "leave_group",
    (0, 5),
    lambda n: LeaveGroupRequest(n.group, "m", [MemberIdentity("m", None)]),
    *("READ group", "DELETE group"),
)
ask(
    "sync_group",
    (0, 5),
    lambda n: SyncGroupRequest(n.group, 1, "m", None, "consumer", "range", []),
    *("READ group", "DESCRIBE group"),
)
ask(
    "describe_groups",
    (0, 6),
    lambda n: DescribeGroupsRequest([n.group, n.group + "-2"], True),
    *("DESCRIBE group", "READ group", "DELETE group"),
)
ask("list_groups", (0, 5), lambda n: ListGroupsRequest(), "DESCRIBE group", "DESCRIBE cluster")
ask("api_versions", (3,), lambda n: ApiVersionsRequest("s", "1"), "DESCRIBE cluster")


def _create(n: Names, version_one: bool = False) -> Any:
    topics = [CreatableTopic(name, 1, 1, [], []) for name in (n.absent, n.known, "__cluster_metadata")]
    return CreateTopicsRequest(topics, 10_000, False)


ask(
    "create_topics",
    (4, 7),
    _create,
    *("CREATE absent", "CREATE cluster", "DESCRIBE_CONFIGS absent", "CREATE known"),
    changes=True,
)


def _twice(n: Names) -> Any:
    return CreateTopicsRequest([CreatableTopic(n.absent, 1, 1, [], [])] * 2, 10_000, True)


ask("create_topics names one twice", (7,), _twice, "CREATE absent")
ask(
    "delete_topics",
    (4, 5),
    lambda n: DeleteTopicsRequest([], [n.known, n.absent], 10_000),
    *("DELETE known", "DESCRIBE known", "DESCRIBE absent"),
    changes=True,
)
ask(
    "delete_topics",
    (6,),
    lambda n: DeleteTopicsRequest(
        [DeleteTopicState(n.known, ZERO_UUID), DeleteTopicState(n.absent, ZERO_UUID)], [], 10_000
    ),
    *("DELETE known", "DESCRIBE known", "DELETE absent"),
    changes=True,
)
ask(
    "delete_topics by id",
    (6,),
    lambda n: DeleteTopicsRequest(
        [DeleteTopicState(None, n.known_id), DeleteTopicState(None, NOBODYS)], [], 10_000
    ),
    *("DELETE known", "DESCRIBE known"),
    changes=True,
)
ask(
    "delete_records",
    (0, 2),
    lambda n: DeleteRecordsRequest(
        [DeleteRecordsTopic(name, [DeleteRecordsPartition(0, 0)]) for name in (n.known, n.other, n.absent)],
        1_000,
    ),
    *("DELETE known", "WRITE other", "DELETE absent"),
)
ask(
    "init_producer_id",
    (2, 4),
    lambda n: InitProducerIdRequest(None, 10_000),
    *("IDEMPOTENT_WRITE cluster", "WRITE known", "READ known"),
)
ask(
    "init_producer_id of a transaction",
    (2, 5),
    lambda n: InitProducerIdRequest(n.transactional_id, 10_000),
    *("WRITE transactional_id", "DESCRIBE transactional_id", "IDEMPOTENT_WRITE cluster"),
)
ask(
    "offset_for_leader_epoch",
    (2, 4),
    lambda n: epochs.OffsetForLeaderEpochRequest(
        -1,
        [
            epochs.OffsetForLeaderTopic(name, [epochs.OffsetForLeaderPartition(0, -1, 0)])
            for name in (n.known, n.other, n.absent)
        ],
    ),
    *("DESCRIBE known", "CLUSTER_ACTION cluster", "DESCRIBE absent"),
)


def _add(n: Names, named: tuple[str, ...] = ("known", "other")) -> Any:
    topics = [adding.AddPartitionsToTxnTopic(getattr(n, each), [0]) for each in named]
    many = [adding.AddPartitionsToTxnTransaction(n.transactional_id, 1, 0, True, topics)]
    return adding.AddPartitionsToTxnRequest(many, n.transactional_id, 1, 0, topics)


ask("add_partitions_to_txn", (0, 3), _add, "WRITE transactional_id", "WRITE known", "WRITE other")
ask(
    "add_partitions_to_txn with an absent one",
    (3,),
    lambda n: _add(n, ("known", "absent")),
    *("WRITE transactional_id", "WRITE known", "WRITE absent"),
)
ask("add_partitions_to_txn of brokers", (5,), _add, "CLUSTER_ACTION cluster", "WRITE transactional_id")
ask(
    "add_offsets_to_txn",
    (0, 4),
    lambda n: AddOffsetsToTxnRequest(n.transactional_id, 1, 0, n.group),
    *("WRITE transactional_id", "READ group"),
)
ask(
    "end_txn",
    (0, 4),
    lambda n: EndTxnRequest(n.transactional_id, 1, 0, True),
    *("WRITE transactional_id", "DESCRIBE transactional_id"),
)


def _markers(n: Names) -> Any:
    topics = [markers.WritableTxnMarkerTopic(n.absent, [0])]
    return markers.WriteTxnMarkersRequest([markers.WritableTxnMarker(1, 0, True, topics, 0, 0)])


ask("write_txn_markers", (1,), _markers, "CLUSTER_ACTION cluster", "ALTER cluster", "DESCRIBE cluster")


def _txn_commit(n: Names) -> Any:
    part = [txn_committing.TxnOffsetCommitRequestPartition(0, 5, -1, "")]
    topics = [txn_committing.TxnOffsetCommitRequestTopic(name, part) for name in (n.known, n.other, n.absent)]
    return txn_committing.TxnOffsetCommitRequest(n.transactional_id, n.group, 1, 0, -1, "", None, topics)


ask("txn_offset_commit", (0, 3), _txn_commit, "WRITE transactional_id", "READ group", "READ known")


def _filter(n: Names) -> tuple[Any, ...]:
    return (ResourceType.TOPIC, n.absent, 3, None, None, 1, 1)


_CLUSTER_ONLY = ("ALTER cluster", "DESCRIBE cluster", "CLUSTER_ACTION cluster")
ask("describe_acls", (1, 3), lambda n: DescribeAclsRequest(*_filter(n)), *_CLUSTER_ONLY)
ask(
    "create_acls",
    (1, 3),
    lambda n: CreateAclsRequest([AclCreation(ResourceType.TOPIC, n.absent, 3, "User:nobody", "*", 3, 3)]),
    *_CLUSTER_ONLY,
    changes=True,
)
ask(
    "delete_acls",
    (1, 3),
    lambda n: DeleteAclsRequest([DeleteAclsFilter(*_filter(n))]),
    *_CLUSTER_ONLY,
)


ask(
    "describe_user_scram_credentials",
    (0,),
    lambda n: DescribeUserScramCredentialsRequest([UserName("nobody"), UserName("nobody else")]),
    *_CLUSTER_ONLY,
)
ask(
    "alter_user_scram_credentials",
    (0,),
    lambda n: AlterUserScramCredentialsRequest([ScramCredentialDeletion("nobody", 1)], []),
    *_CLUSTER_ONLY,
)
ask(
    "describe_client_quotas",
    (0, 1),
    lambda n: DescribeClientQuotasRequest([ComponentData("user", 0, "nobody")], True),
    "DESCRIBE_CONFIGS cluster",
    *_CLUSTER_ONLY,
)
ask(
    "alter_client_quotas",
    (0, 1),
    lambda n: AlterClientQuotasRequest(
        [
            AlterClientQuotasRequestEntryData(
                [QuotaEntity("user", "nobody")], [OpData("producer_byte_rate", 0.0, True)]
            )
        ],
        True,
    ),
    "ALTER_CONFIGS cluster",
    *_CLUSTER_ONLY,
)
ask("sasl_handshake", (0, 1), lambda n: SaslHandshakeRequest("PLAIN"), "DESCRIBE cluster")
ask("sasl_authenticate", (0, 2), lambda n: SaslAuthenticateRequest(b"token"), "DESCRIBE cluster")


_TOKENS = ("CREATE_TOKENS owner", "DESCRIBE_TOKENS owner", "DESCRIBE token")


def _for_owner(n: Names) -> Any:
    kind, _, name = n.owner.partition(":")
    return CreateDelegationTokenRequest(kind, name, [CreatableRenewers("User", "nobody")], -1)


ask(
    "describe_delegation_token",
    (1, 3),
    lambda n: DescribeDelegationTokenRequest([DescribeDelegationTokenOwner(*n.owner.split(":"))]),
    *_TOKENS,
    logs_in=True,
)
ask(
    "describe_delegation_token of all",
    (3,),
    lambda n: DescribeDelegationTokenRequest(None),
    *_TOKENS,
    logs_in=True,
)
ask("renew_delegation_token", (2,), lambda n: RenewDelegationTokenRequest(n.hmac, -1), *_TOKENS, logs_in=True)
ask(
    "expire_delegation_token",
    (2,),
    lambda n: ExpireDelegationTokenRequest(n.hmac, -1),
    *_TOKENS,
    logs_in=True,
)
ask("create_delegation_token", (3,), _for_owner, *_TOKENS, logs_in=True)
ask(
    "create_delegation_token for oneself",
    (1, 3),
    lambda n: CreateDelegationTokenRequest("", "", [], -1),
    "CREATE_TOKENS owner",
    logs_in=True,
)
ask("create_delegation_token of the anonymous", (3,), _for_owner, "CREATE_TOKENS owner")
ask("create_delegation_token at the controller", (3,), _for_owner, "CREATE_TOKENS owner", on_controller=True)


_EVERYBODY = ("User:nobody", "*", 3, 3)
for _number, _acls in enumerate(
    (
        [(1, "a", 3, *_EVERYBODY)],
        [(99, "a", 3, *_EVERYBODY)],
        [(4, "a", 3, *_EVERYBODY)],
        [(TOPIC, "", 3, *_EVERYBODY)],
        [(TOPIC, "a", 1, *_EVERYBODY)],
        [(TOPIC, "a", 2, *_EVERYBODY)],
        [(TOPIC, "a", 99, *_EVERYBODY)],
        [(TOPIC, "a", 3, "", "*", 3, 3)],
        [(TOPIC, "a", 3, "nobody", "*", 3, 3)],
        [(TOPIC, "a", 3, ":", "", 3, 3)],
        [(TOPIC, "a", 3, "User:nobody", "*", 1, 3)],
        [(TOPIC, "a", 3, "User:nobody", "*", 99, 3)],
        [(TOPIC, "a", 3, "User:nobody", "*", 3, 1)],
        [(TOPIC, "a", 3, "User:nobody", "*", 3, 99)],
        [(TOPIC, "a", 3, "User:nobody", "*", 15, 3)],
        [(TOPIC, "a", 3, *_EVERYBODY)] * 2,
        [(1, "a", 3, *_EVERYBODY), (4, "a", 3, *_EVERYBODY), (TOPIC, "b", 3, *_EVERYBODY)],
    )
):
    ask(
        f"create_acls of kind {_number}",
        (3,),
        lambda n, acls=_acls: CreateAclsRequest([AclCreation(*each) for each in acls]),
        "ALTER cluster",
    )


def _deletions(n: Names, *numbers: tuple[int, str | None, int, str | None, int, int]) -> Any:
    return DeleteAclsRequest(
        [
            DeleteAclsFilter(kind, name, pattern, principal, None, operation, permission)
            for kind, name, pattern, principal, operation, permission in numbers
        ]
    )


for _number, _numbers in enumerate(
    (
        (99, None, 1, None, 1, 1),
        (1, None, 99, None, 1, 1),
        (1, None, 1, None, 99, 1),
        (1, None, 1, None, 1, 99),
        (1, "no such", 2, "User:nowhere", 1, 1),
        (1, "", 3, "", 1, 1),
    )
):
    ask(
        f"delete_acls by filter {_number}",
        (3,),
        lambda n, numbers=_numbers: _deletions(n, numbers),
        "ALTER cluster",
    )
    ask(
        f"describe_acls by filter {_number}",
        (3,),
        lambda n, numbers=_numbers: DescribeAclsRequest(*numbers[:4], None, *numbers[4:]),
        "DESCRIBE cluster",
    )


def _describe_configs(n: Names) -> Any:
    named = ((2, n.known), (2, n.absent), (32, n.group), (4, "1"), (8, "1"), (16, "m"))
    resources = [configs.DescribeConfigsResource(kind, name, ["min.insync.replicas"]) for kind, name in named]
    return configs.DescribeConfigsRequest(resources)


ask(
    "describe_configs",
    (1, 4),
    _describe_configs,
    *("DESCRIBE_CONFIGS known", "ALTER_CONFIGS absent", "DESCRIBE_CONFIGS group", "DESCRIBE_CONFIGS cluster"),
)
_ALTERED = (
    "ALTER_CONFIGS known",
    "ALTER_CONFIGS absent",
    "ALTER_CONFIGS cluster",
    "DESCRIBE_CONFIGS cluster",
)


def _altered(n: Names) -> tuple[tuple[int, str, str, str], ...]:
    return (
        (2, n.known, "retention.ms", "7"),
        (2, n.absent, "retention.ms", "7"),
        (4, "1", "log.cleaner.threads", "1"),
        (16, "m", "interval.ms", "1000"),
    )


ask(
    "alter_configs",
    (0, 2),
    lambda n: absolute.AlterConfigsRequest(
        [
            absolute.AlterConfigsResource(kind, name, [absolute.AlterableConfig(key, value)])
            for kind, name, key, value in _altered(n)
        ],
        True,
    ),
    *_ALTERED,
)
ask(
    "incremental_alter_configs",
    (0, 1),
    lambda n: incremental.IncrementalAlterConfigsRequest(
        [
            incremental.AlterConfigsResource(kind, name, [incremental.AlterableConfig(key, 0, value)])
            for kind, name, key, value in (
                *_altered(n),
                (32, n.group, "consumer.session.timeout.ms", "46000"),
                (8, "1", "org.apache.kafka", "INFO"),
            )
        ],
        True,
    ),
    *(*_ALTERED, "ALTER_CONFIGS group"),
)
ask(
    "alter_replica_log_dirs",
    (1, 2),
    lambda n: dirs.AlterReplicaLogDirsRequest(
        [dirs.AlterReplicaLogDir("/nowhere", [dirs.AlterReplicaLogDirTopic(n.known, [0])])]
    ),
    *("ALTER cluster", "DESCRIBE cluster"),
)
ask(
    "describe_log_dirs",
    (1, 4),
    lambda n: DescribeLogDirsRequest([DescribableLogDirTopic(n.absent, [0])]),
    *("DESCRIBE cluster", "CLUSTER_ACTION cluster"),
)
ask(
    "create_partitions",
    (0, 3),
    lambda n: CreatePartitionsRequest(
        [CreatePartitionsTopic(name, 2, None) for name in (n.known, n.absent)], 10_000, True
    ),
    *("ALTER known", "ALTER absent", "CREATE known"),
)
ask("delete_groups", (0, 2), lambda n: DeleteGroupsRequest([n.group, "else"]), "DELETE group", "READ group")
ask(
    "elect_leaders",
    (0, 2),
    lambda n: electing.ElectLeadersRequest(0, [electing.TopicPartitions(n.known, [0])], 10_000),
    *("ALTER cluster", "DESCRIBE cluster"),
)
ask(
    "alter_partition_reassignments",
    (0, 1),
    lambda n: moving.AlterPartitionReassignmentsRequest(
        10_000, True, [moving.ReassignableTopic(n.known, [moving.ReassignablePartition(0, None)])]
    ),
    *("ALTER cluster", "DESCRIBE cluster"),
)
ask(
    "list_partition_reassignments",
    (0,),
    lambda n: listing_moves.ListPartitionReassignmentsRequest(
        10_000, [listing_moves.ListPartitionReassignmentsTopics(n.known, [0])]
    ),
    *("DESCRIBE cluster", "ALTER cluster"),
)


def _delete_offsets(n: Names) -> Any:
    part = [deleting.OffsetDeleteRequestPartition(0)]
    topics = [deleting.OffsetDeleteRequestTopic(name, part) for name in (n.known, n.absent)]
    return deleting.OffsetDeleteRequest(n.group, topics)


ask("offset_delete", (0,), _delete_offsets, "DELETE group", "READ known", "READ absent")
ask(
    "describe_quorum",
    (1, 2),
    lambda n: quorum.DescribeQuorumRequest(
        [quorum.DescribeQuorumRequestTopicData("absent", [quorum.DescribeQuorumRequestPartitionData(0)])]
    ),
    *("DESCRIBE cluster", "CLUSTER_ACTION cluster"),
)
ask(
    "update_features",
    (1, 2),
    lambda n: UpdateFeaturesRequest(10_000, [FeatureUpdateKey("nothing.such", 1, False, 1)], True),
    *("ALTER cluster", "DESCRIBE cluster"),
)
ask(
    "describe_cluster",
    (0, 2),
    lambda n: DescribeClusterRequest(True),
    *("DESCRIBE cluster", "ALTER cluster", "IDEMPOTENT_WRITE cluster"),
)
ask(
    "describe_producers",
    (0,),
    lambda n: DescribeProducersRequest([TopicRequest(name, [0]) for name in (n.known, n.other, n.absent)]),
    *("READ known", "DESCRIBE other", "READ absent"),
)
ask("unregister_broker", (0,), lambda n: UnregisterBrokerRequest(99), "ALTER cluster", "DESCRIBE cluster")
ask(
    "describe_transactions",
    (0,),
    lambda n: DescribeTransactionsRequest([n.transactional_id, "else"]),
    *("DESCRIBE transactional_id", "WRITE transactional_id"),
)
ask("list_transactions", (0, 1), lambda n: ListTransactionsRequest(), "DESCRIBE transactional_id")
ask(
    "list_config_resources",
    (0, 1),
    lambda n: ListConfigResourcesRequest([16]),
    *("DESCRIBE_CONFIGS cluster", "ALTER_CONFIGS cluster", "DESCRIBE cluster"),
)
ask(
    "describe_topic_partitions",
    (0,),
    lambda n: DescribeTopicPartitionsRequest([PagedTopic(name) for name in (n.known, n.other, n.absent)]),
    *("DESCRIBE known", "ALTER other", "DESCRIBE absent"),
)
ask(
    "add_raft_voter",
    (0,),
    lambda n: AddRaftVoterRequest("wrong", 1_000, 9, NOBODYS, []),
    *("ALTER cluster", "CLUSTER_ACTION cluster"),
)
ask(
    "remove_raft_voter",
    (0,),
    lambda n: RemoveRaftVoterRequest("wrong", 9, NOBODYS),
    *("ALTER cluster", "CLUSTER_ACTION cluster"),
)


def _alter_partition() -> Any:
    part = isr.AlterPartitionRequestPartitionData(0, 0, [], [isr.BrokerState(1, 5)], 0, 0)
    return isr.AlterPartitionRequest(99, 5, [isr.AlterPartitionRequestTopicData(NOBODYS, [part])])


_NODES = ("CLUSTER_ACTION cluster", "ALTER cluster")
ask("vote", (1,), lambda n: VoteRequest("wrong", 9, []), *_NODES, on_controller=True)
ask(
    "broker_registration",
    (4,),
    lambda n: BrokerRegistrationRequest(99, "wrong", NOBODYS),
    *_NODES,
    on_controller=True,
)
ask("broker_heartbeat", (1,), lambda n: BrokerHeartbeatRequest(99, 5, 1), *_NODES, on_controller=True)
ask("alter_partition", (3,), lambda n: _alter_partition(), *_NODES, on_controller=True)
ask("allocate_producer_ids", (0,), lambda n: AllocateProducerIdsRequest(99, 5), *_NODES, on_controller=True)
ask(
    "assign_replicas_to_dirs",
    (0,),
    lambda n: assigning.AssignReplicasToDirsRequest(99, 5, []),
    *_NODES,
    on_controller=True,
)
ask(
    "update_raft_voter",
    (0,),
    lambda n: UpdateRaftVoterRequest("wrong", 1, 9, NOBODYS, []),
    *_NODES,
    on_controller=True,
)
ask(
    "controller_registration",
    (0,),
    lambda n: ControllerRegistrationRequest(99, NOBODYS, False, [], []),
    "ALTER cluster",
    on_controller=True,
)
for _name in (
    "create_topics names one twice",
    "elect_leaders",
    "unregister_broker",
    "describe_acls",
    "create_partitions",
):
    _first = next(each for each in QUESTIONS if each.name.startswith(_name))
    QUESTIONS.append(attrs.evolve(_first, name=f"{_first.name} at the controller", on_controller=True))


ask(
    "describe_cluster at the controller",
    (0, 1, 2),
    lambda n: DescribeClusterRequest(True, 2),
    *("ALTER cluster", "DESCRIBE cluster"),
    on_controller=True,
)


def api_of(question: Question) -> ApiKey:
    """The API that a question asks."""
    return ApiKey[question.name.split(" ")[0].upper()]
