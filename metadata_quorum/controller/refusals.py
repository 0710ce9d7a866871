"""The response that tells of one error for the whole of a request: what a controller answers that does not lead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from odradek.metadata_quorum.controller import configs, topics
from odradek.metadata_quorum.controller.access import acls
from odradek.metadata_quorum.controller.access.client_quotas import refuse_alter_quotas
from odradek.metadata_quorum.controller.access.scram_users import refuse_alter_users
from odradek.metadata_quorum.controller.access.tokens import TokenRequest
from odradek.metadata_quorum.controller.partitions import create_partitions as partitions
from odradek.metadata_quorum.controller.partitions import elect_leaders as elections
from odradek.metadata_quorum.controller.partitions import reassignment
from odradek.security.doors.token_doors import refuse_token_request
from odradek.wire.errors import ErrorCode
from odradek.wire.messages.allocate_producer_ids import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
)
from odradek.wire.messages.alter_client_quotas import AlterClientQuotasRequest
from odradek.wire.messages.alter_configs import AlterConfigsRequest
from odradek.wire.messages.alter_partition import AlterPartitionRequest, AlterPartitionResponse
from odradek.wire.messages.alter_partition_reassignments import AlterPartitionReassignmentsRequest
from odradek.wire.messages.alter_user_scram_credentials import AlterUserScramCredentialsRequest
from odradek.wire.messages.assign_replicas_to_dirs import (
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsResponse,
)
from odradek.wire.messages.broker_heartbeat import BrokerHeartbeatRequest, BrokerHeartbeatResponse
from odradek.wire.messages.broker_registration import BrokerRegistrationRequest, BrokerRegistrationResponse
from odradek.wire.messages.controller_registration import (
    ControllerRegistrationRequest,
    ControllerRegistrationResponse,
)
from odradek.wire.messages.create_acls import CreateAclsRequest
from odradek.wire.messages.create_delegation_token import CreateDelegationTokenRequest
from odradek.wire.messages.create_partitions import CreatePartitionsRequest
from odradek.wire.messages.create_topics import CreateTopicsRequest
from odradek.wire.messages.delete_acls import DeleteAclsRequest
from odradek.wire.messages.delete_topics import DeleteTopicsRequest
from odradek.wire.messages.elect_leaders import ElectLeadersRequest
from odradek.wire.messages.expire_delegation_token import ExpireDelegationTokenRequest
from odradek.wire.messages.incremental_alter_configs import IncrementalAlterConfigsRequest
from odradek.wire.messages.list_partition_reassignments import ListPartitionReassignmentsRequest
from odradek.wire.messages.renew_delegation_token import RenewDelegationTokenRequest
from odradek.wire.messages.unregister_broker import UnregisterBrokerRequest, UnregisterBrokerResponse
from odradek.wire.messages.update_features import UpdateFeaturesRequest, UpdateFeaturesResponse
from odradek.wire.structure import Message

_REFUSALS: dict[type, Callable[[Any, ErrorCode, str], Message]] = {
    CreateAclsRequest: acls.refuse_create_acls,
    DeleteAclsRequest: acls.refuse_delete_acls,
    CreateTopicsRequest: topics.refuse_create_topics,
    DeleteTopicsRequest: topics.refuse_delete_topics,
    CreatePartitionsRequest: partitions.refuse_create_partitions,
    IncrementalAlterConfigsRequest: configs.INCREMENTAL.refuse,
    AlterConfigsRequest: configs.ABSOLUTE.refuse,
    AlterPartitionReassignmentsRequest: reassignment.refuse_alter,
    ListPartitionReassignmentsRequest: reassignment.refuse_list,
    AlterUserScramCredentialsRequest: refuse_alter_users,
    **dict.fromkeys(
        (CreateDelegationTokenRequest, RenewDelegationTokenRequest, ExpireDelegationTokenRequest),
        lambda request, code, _: refuse_token_request(request, code),
    ),
    TokenRequest: lambda asked, code, _: refuse_token_request(asked.message, code, asked.requester),
    AlterClientQuotasRequest: refuse_alter_quotas,
    ElectLeadersRequest: elections.refuse_elect_leaders,
    UnregisterBrokerRequest: lambda _, code, text: UnregisterBrokerResponse(0, code, text),
    ControllerRegistrationRequest: lambda _, code, text: ControllerRegistrationResponse(0, code, text),
    UpdateFeaturesRequest: lambda _, code, text: UpdateFeaturesResponse(0, code, text, []),
    BrokerRegistrationRequest: lambda _, code, text: BrokerRegistrationResponse(0, code, -1),
    BrokerHeartbeatRequest: lambda _, code, text: BrokerHeartbeatResponse(0, code),
    AlterPartitionRequest: lambda _, code, text: AlterPartitionResponse(0, code, []),
    AssignReplicasToDirsRequest: lambda _, code, text: AssignReplicasToDirsResponse(0, code, []),
    AllocateProducerIdsRequest: lambda _, code, text: AllocateProducerIdsResponse(0, code, 0, 0),
}


def refusal(request: Any, code: ErrorCode, message: str | None = None) -> Any:
    """The response of a request's kind; None for what no peer has asked."""
    refuse = _REFUSALS.get(type(request))
    return None if refuse is None else refuse(request, code, code.message if message is None else message)
