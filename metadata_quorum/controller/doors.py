"""The doors of all APIs that a controller decides or answers. A door checks the client's rights to a request.
PURE.

A client sends a request directly to the controller, or a broker forwards it (in an Envelope, or within one
process). In both cases `ControllerDoors.admit` gets the client's own principal and address (KIP-590,
KIP-801).
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping
from typing import Any

from odradek.metadata_quorum.topic_names import CLUSTER_METADATA_TOPIC
from odradek.security.acls.authorizer import Authorizer, Rights
from odradek.security.acls.rules import CLUSTER_NAME, Operation, ResourceType
from odradek.security.doors.config_doors import alter_configs_door, describe_configs_door
from odradek.security.doors.door import (
    PASSES,
    Admitted,
    Asked,
    Door,
    Topics,
    operations_of,
)
from odradek.security.doors.needing import for_cluster, refusing
from odradek.security.doors.token_doors import create_token_door, describe_tokens_door, own_token_door
from odradek.security.doors.user_doors import refuse_describe_users
from odradek.serving.contract import ClientRights, Outcome
from odradek.wire.api_keys import ApiKey
from odradek.wire.errors import ErrorCode
from odradek.wire.messages.create_partitions import CreatePartitionsRequest
from odradek.wire.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from odradek.wire.messages.delete_topics import DeletableTopicResult, DeleteTopicsRequest
from odradek.wire.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from odradek.wire.messages.list_partition_reassignments import (
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
)
from odradek.wire.schema.anatomy import anatomy_of, refuse
from odradek.wire.structure import ZERO_UUID, Message

__all__ = ["CONTROLLER_DOORS", "OF_NODES", "ControllerDoors"]

_DENIED = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
_TOPIC_DENIED = ErrorCode.TOPIC_AUTHORIZATION_FAILED


def create_topics_door(asked: Asked, request: CreateTopicsRequest) -> Admitted:
    """Require CREATE on the cluster or the topic.

    To get a new topic's configuration, a client needs DESCRIBE_CONFIGS on the topic.
    """
    counts = Counter(each.name for each in request.topics)
    may_all = asked.would(Operation.CREATE, ResourceType.CLUSTER, CLUSTER_NAME)

    def refused_code(name: str) -> ErrorCode:
        # The decision refuses duplicate names and the reserved name, so they are not checked here.
        is_judged = counts[name] == 1 and name != CLUSTER_METADATA_TOPIC
        passes = may_all or not is_judged or asked.may(Operation.CREATE, name)
        return ErrorCode.NONE if passes else _TOPIC_DENIED

    codes = [refused_code(each.name) for each in request.topics]
    inner, add = anatomy_of(request).without(request, codes, lambda *_: "Authorization failed.")

    def merge(response: CreateTopicsResponse) -> CreateTopicsResponse:
        for each in response.topics:
            if not each.error_code and not asked.would(
                Operation.DESCRIBE_CONFIGS, ResourceType.TOPIC, each.name
            ):
                each.topic_config_error_code = _TOPIC_DENIED
                each.num_partitions = each.replication_factor = -1
                each.configs = []
        added: CreateTopicsResponse = add(response)
        return added

    return Admitted(inner, merge)


def create_partitions_door(asked: Asked, request: CreatePartitionsRequest) -> Admitted | None:
    """Require ALTER on each topic."""
    counts = Counter(each.name for each in request.topics)
    codes = [
        ErrorCode.NONE if counts[each.name] > 1 or asked.may(Operation.ALTER, each.name) else _TOPIC_DENIED
        for each in request.topics
    ]
    return refusing(anatomy_of(request), request, codes)


def delete_topics_door(asked: Asked, request: DeleteTopicsRequest) -> Admitted | None:
    """Require DELETE on each topic.

    The refusal reveals a topic's existence only to clients that may DESCRIBE the topic.
    """
    # A refused entry is not passed to the decision. The decision uses a newer image, and might find a topic
    # that this image does not have yet.
    named = Counter(request.topic_names)
    named.update(each.name for each in request.topics if each.name is not None and each.topic_id == ZERO_UUID)
    ids = Counter(each.topic_id for each in request.topics if each.name is None)
    answers: dict[tuple[str | None, bytes], DeletableTopicResult] = {}
    """The refusals: one result for each name and each id."""

    def passes(name: str | None, topic_id: bytes) -> bool:
        if name is None and topic_id != ZERO_UUID:
            refused = _refused_id(asked, topic_id, ids[topic_id])
        elif name is not None and topic_id == ZERO_UUID:
            refused = _refused_name(asked, name, named[name])
        else:
            return (
                True  # The decision refuses an entry that has both a name and an id, or neither of the two.
            )
        if refused is not None:
            answers[name, topic_id] = refused
        return refused is None

    kept = [passes(name, ZERO_UUID) for name in request.topic_names]
    kept += [passes(topic.name, topic.topic_id) for topic in request.topics]
    if all(kept):
        return None
    anatomy = anatomy_of(request)
    return Admitted(anatomy.only(request, kept), anatomy.adding(kept, list(answers.values())))


def _refused_id(asked: Asked, topic_id: bytes, times: int) -> DeletableTopicResult | None:
    """Make the refusal of one topic id, because the topic does not exist or the client may not delete it.
    Returns None if the entry is allowed.
    """
    name = asked.name_of(topic_id)
    if times > 1:
        code, text, name = ErrorCode.INVALID_REQUEST, "Duplicate topic id.", None
    elif name is None:
        code = ErrorCode.UNKNOWN_TOPIC_ID
        text = code.message
    elif asked.may(Operation.DELETE, name):
        return None
    else:
        code, text = _TOPIC_DENIED, _TOPIC_DENIED.message
        name = name if asked.would(Operation.DESCRIBE, ResourceType.TOPIC, name) else None
    return DeletableTopicResult(name, topic_id, code, text)


def _refused_name(asked: Asked, name: str, times: int) -> DeletableTopicResult | None:
    """Make the refusal of one topic name that the client may not delete, whether or not the topic exists.
    Returns None if the entry is allowed.
    """
    if times > 1:
        return DeletableTopicResult(name, ZERO_UUID, ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
    code = ErrorCode.NONE
    if not asked.may(Operation.DESCRIBE, name):
        code = _TOPIC_DENIED
    elif not asked.would(Operation.DELETE, ResourceType.TOPIC, name):
        is_there = name in asked.topics.topics
        code = _TOPIC_DENIED if is_there else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if is_there:
            asked.may(Operation.DELETE, name)  # Repeat the check with `may`, which logs the refusal.
    return DeletableTopicResult(name, ZERO_UUID, code, code.message) if code else None


def describe_cluster_door(asked: Asked, request: DescribeClusterRequest) -> Admitted | Any | None:
    """Require ALTER on the cluster, since a controller shows its peers' addresses to administrators only (KIP-919)."""
    if not asked.may_cluster(Operation.ALTER):
        return refuse(request, _DENIED, _DENIED.message)
    if not request.include_cluster_authorized_operations:
        return None

    def merge(response: DescribeClusterResponse) -> DescribeClusterResponse:
        if not response.error_code:
            response.cluster_authorized_operations = operations_of(
                asked.rights, ResourceType.CLUSTER, CLUSTER_NAME
            )
        return response

    return Admitted(request, merge)


def _no_list(request: Any) -> Any:
    """Refuse a ListPartitionReassignments as Kafka does: the answer has the requested partitions, with empty
    lists.
    """
    response = refuse(request, _DENIED, _DENIED.message)
    response.topics = [
        OngoingTopicReassignment(
            topic.name, [OngoingPartitionReassignment(index, [], [], []) for index in topic.partition_indexes]
        )
        for topic in request.topics or ()
    ]
    return response


_ACTS = Operation.CLUSTER_ACTION
OF_NODES = (
    ApiKey.FETCH,
    ApiKey.VOTE,
    ApiKey.BEGIN_QUORUM_EPOCH,
    ApiKey.END_QUORUM_EPOCH,
    ApiKey.FETCH_SNAPSHOT,
    ApiKey.UPDATE_RAFT_VOTER,
    ApiKey.ALTER_PARTITION,
    ApiKey.BROKER_REGISTRATION,
    ApiKey.BROKER_HEARTBEAT,
    ApiKey.ALLOCATE_PRODUCER_IDS,
    ApiKey.CONTROLLER_REGISTRATION,
    ApiKey.ASSIGN_REPLICAS_TO_DIRS,
    ApiKey.ENVELOPE,
)
"""APIs that only nodes use."""

CONTROLLER_DOORS: Mapping[ApiKey, Door] = {
    **{key: for_cluster(_ACTS) for key in OF_NODES},
    ApiKey.API_VERSIONS: PASSES,
    ApiKey.SASL_HANDSHAKE: PASSES,
    ApiKey.SASL_AUTHENTICATE: PASSES,
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: for_cluster(Operation.DESCRIBE, refuse=refuse_describe_users),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: for_cluster(Operation.ALTER),
    ApiKey.CREATE_DELEGATION_TOKEN: create_token_door,
    ApiKey.RENEW_DELEGATION_TOKEN: own_token_door,
    ApiKey.EXPIRE_DELEGATION_TOKEN: own_token_door,
    ApiKey.DESCRIBE_DELEGATION_TOKEN: describe_tokens_door,
    ApiKey.ALTER_CLIENT_QUOTAS: for_cluster(Operation.ALTER_CONFIGS),
    ApiKey.CREATE_TOPICS: create_topics_door,
    ApiKey.DELETE_TOPICS: delete_topics_door,
    ApiKey.CREATE_PARTITIONS: create_partitions_door,
    ApiKey.ALTER_CONFIGS: alter_configs_door(),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: alter_configs_door(),
    ApiKey.DESCRIBE_CONFIGS: describe_configs_door,
    ApiKey.DESCRIBE_CLUSTER: describe_cluster_door,
    ApiKey.DESCRIBE_ACLS: PASSES,
    ApiKey.CREATE_ACLS: for_cluster(Operation.ALTER),
    ApiKey.DELETE_ACLS: for_cluster(Operation.ALTER),
    ApiKey.ELECT_LEADERS: for_cluster(Operation.ALTER),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: for_cluster(Operation.ALTER),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: for_cluster(Operation.DESCRIBE, refuse=_no_list),
    ApiKey.DESCRIBE_QUORUM: for_cluster(Operation.DESCRIBE),
    ApiKey.UPDATE_FEATURES: for_cluster(Operation.ALTER),
    ApiKey.UNREGISTER_BROKER: for_cluster(Operation.ALTER),
    ApiKey.ADD_RAFT_VOTER: for_cluster(Operation.ALTER),
    ApiKey.REMOVE_RAFT_VOTER: for_cluster(Operation.ALTER),
}
"""The doors by API, for a controller's listener and for forwarded requests. The handlers of DescribeAcls and
of the requests about delegation tokens check rights themselves.
"""


class ControllerDoors:
    """All doors of one node's controller, with its authorizer."""

    def __init__(self, authorizer: Authorizer, topics: Callable[[], Topics]) -> None:
        self.authorizer = authorizer
        self.topics = topics
        self._judged: deque[tuple[ClientRights, int]] = deque()

    def admit(self, principal: str, host: str, message: Message, version: int) -> Admitted | Message:
        """Check a client's rights.

        Returns the part of the request that these rights allow, or the refusal of the whole request. This
        method may run in a worker. Afterwards the caller must call `log_denials` on the event loop.
        """
        request: Any = message
        """The request, as an object of the class that the API's door expects."""
        assert message.API_KEY is not None
        asked = Asked(Rights(self.authorizer, principal, host), version, self.topics())
        admitted = CONTROLLER_DOORS[ApiKey(message.API_KEY)](asked, request)
        assert not isinstance(admitted, Outcome), (
            "a check before a controller's handler must not close the connection"
        )
        self._judged.append((asked.rights, message.API_KEY))
        return Admitted(message, _as_it_is) if admitted is None else admitted

    def log_denials(self) -> None:
        """Write the refusals since the last call to the audit log."""
        while self._judged:
            rights, api_key = self._judged.popleft()
            rights.log_denials(api_key)


def _as_it_is(response: Any) -> Any:
    return response
