"""Questions about tokens, ACLs, configurations, partitions and nodes. An import of this module registers them."""

from __future__ import annotations

from typing import Any

import attrs

from odradek.security.acls.rules import ResourceType
from odradek.wire.messages import alter_configs as absolute
from odradek.wire.messages import alter_partition as isr
from odradek.wire.messages import alter_partition_reassignments as moving
from odradek.wire.messages import alter_replica_log_dirs as dirs
from odradek.wire.messages import assign_replicas_to_dirs as assigning
from odradek.wire.messages import describe_configs as configs
from odradek.wire.messages import describe_quorum as quorum
from odradek.wire.messages import elect_leaders as electing
from odradek.wire.messages import incremental_alter_configs as incremental
from odradek.wire.messages import list_partition_reassignments as listing_moves
from odradek.wire.messages import offset_delete as deleting
from odradek.wire.messages.add_raft_voter import AddRaftVoterRequest
from odradek.wire.messages.allocate_producer_ids import AllocateProducerIdsRequest
from odradek.wire.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasRequestEntryData,
    OpData,
)
from odradek.wire.messages.alter_client_quotas import EntityData as QuotaEntity
from odradek.wire.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
)
from odradek.wire.messages.broker_heartbeat import BrokerHeartbeatRequest
from odradek.wire.messages.broker_registration import BrokerRegistrationRequest
from odradek.wire.messages.controller_registration import ControllerRegistrationRequest
from odradek.wire.messages.create_acls import AclCreation, CreateAclsRequest
from odradek.wire.messages.create_delegation_token import CreatableRenewers, CreateDelegationTokenRequest
from odradek.wire.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from odradek.wire.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from odradek.wire.messages.delete_groups import DeleteGroupsRequest
from odradek.wire.messages.describe_acls import DescribeAclsRequest
from odradek.wire.messages.describe_client_quotas import ComponentData, DescribeClientQuotasRequest
from odradek.wire.messages.describe_cluster import DescribeClusterRequest
from odradek.wire.messages.describe_delegation_token import (
    DescribeDelegationTokenOwner,
    DescribeDelegationTokenRequest,
)
from odradek.wire.messages.describe_log_dirs import DescribableLogDirTopic, DescribeLogDirsRequest
from odradek.wire.messages.describe_producers import DescribeProducersRequest, TopicRequest
from odradek.wire.messages.describe_topic_partitions import DescribeTopicPartitionsRequest
from odradek.wire.messages.describe_topic_partitions import TopicRequest as PagedTopic
from odradek.wire.messages.describe_transactions import DescribeTransactionsRequest
from odradek.wire.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    UserName,
)
from odradek.wire.messages.expire_delegation_token import ExpireDelegationTokenRequest
from odradek.wire.messages.list_config_resources import ListConfigResourcesRequest
from odradek.wire.messages.list_transactions import ListTransactionsRequest
from odradek.wire.messages.remove_raft_voter import RemoveRaftVoterRequest
from odradek.wire.messages.renew_delegation_token import RenewDelegationTokenRequest
from odradek.wire.messages.sasl_authenticate import SaslAuthenticateRequest
from odradek.wire.messages.sasl_handshake import SaslHandshakeRequest
from odradek.wire.messages.unregister_broker import UnregisterBrokerRequest
from odradek.wire.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from odradek.wire.messages.update_raft_voter import UpdateRaftVoterRequest
from odradek.wire.messages.vote import VoteRequest
from tests.conformance.acls.question import NOBODYS, QUESTIONS, TOPIC, Names, ask


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
