"""For each record type of a node's logs, an administrator sends values at the bounds of its fields or just beyond."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, TypeAlias

from odradek.metadata_quorum.config.config_resources import Operation
from odradek.wire.errors import ErrorCode
from odradek.wire.messages.alter_client_quotas import EntityData
from odradek.wire.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
)
from odradek.wire.messages.create_delegation_token import CreatableRenewers, CreateDelegationTokenRequest
from odradek.wire.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from odradek.wire.messages.delete_groups import DeleteGroupsRequest
from odradek.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from odradek.wire.messages.expire_delegation_token import ExpireDelegationTokenRequest
from odradek.wire.messages.find_coordinator import FindCoordinatorRequest
from odradek.wire.messages.init_producer_id import InitProducerIdRequest
from odradek.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from odradek.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from tests.attacks.coordinators import GROUP, TRANSACTION, answered
from tests.attacks.outcome import Outcome
from tests.attacks.place import Place
from tests.attacks.raw import HOST, Conn
from tests.bounds import controller_rows as rows
from tests.bounds.rows import NOTHING, first_error

WHO = "administrator"
LONG = "x" * 32_767
TWO_BYTES = "x" + "\u00e9" * 16_383
INT32_MAX = (1 << 31) - 1
TOPIC = "record-types"
VERSIONS: dict[type, int] = {OffsetCommitRequest: 9, InitProducerIdRequest: 5}
"""Versions for requests that cannot use their newest one: it is unstable, or it knows topics by ids alone."""
Case: TypeAlias = tuple[str, Sequence[Any], tuple[ErrorCode | str, ...]]
"""A record type, the requests to send one after the other, and the errors that the last request may get."""


def attack(place: Place, scale: float) -> Iterator[Outcome]:
    """Send the requests for each record type once, whatever the scale."""
    before = _not_encoded(place)
    with place.admin() as admin:
        admin.call(rows.create(TOPIC)[0])
        yield from (_told(admin, case) for case in _of_the_controller())
        yield from (_told(admin, case) for case in _of_tokens(admin))
    with Conn(place.ports.CONTROLLER, tls=True, certificate=place.certificate("node"), source=HOST) as node:
        yield from (_told(node, case) for case in _of_nodes())
    yield from (_coordinated(place, kind, key, case) for kind, key, case in _of_coordinators())
    with place.admin() as admin:
        admin.call(DeleteTopicsRequest([DeleteTopicState(TOPIC)], [], 20_000))
    after = _not_encoded(place)
    yield Outcome("each value has an answer of its own", after == before, f"{after - before} were bugs")


def _not_encoded(place: Place) -> float:
    return sum(node.metric("odradek_decisions_not_encoded_total") for node in place.nodes)


def _told(conn: Conn, case: Case) -> Outcome:
    name, requests, wanted = case
    rule = f"a {name} is written, or refused with an answer"
    try:
        for request in requests:
            version = VERSIONS.get(type(request))
            code = first_error(answered(partial(conn.call, request, version), _any_code))
    except OSError as error:
        return Outcome(rule, False, str(error))
    return Outcome(rule, code in [str(getattr(each, "name", each)) for each in wanted], code)


def _of_the_controller() -> Iterator[Case]:
    """Yield the requests that any listener takes, since brokers forward them to the controller."""
    yield "UnregisterBrokerRecord", rows.unregister(INT32_MAX), (ErrorCode.BROKER_ID_NOT_REGISTERED,)
    yield "TopicRecord", rows.create(LONG), (ErrorCode.INVALID_TOPIC_EXCEPTION,)
    yield "PartitionRecord", rows.create("y", replicas=[INT32_MAX]), (ErrorCode.INVALID_REPLICA_ASSIGNMENT,)
    yield (
        "PartitionChangeRecord",
        rows.reassign(INT32_MAX, name=TOPIC),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,),
    )
    gone = DeleteTopicsRequest([DeleteTopicState(LONG)], [], 20_000)
    yield "RemoveTopicRecord", [gone], (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,)
    yield "ConfigRecord", rows.append("x" * 32_768), (ErrorCode.INVALID_CONFIG,)
    yield "ConfigRecord of a long name", rows.configure(rows.BROKER, "", LONG, "1"), (NOTHING,)
    for key in (LONG, rows.RETIRING):
        taken = rows.configure(rows.BROKER, "", key, "", Operation.DELETE)
        yield f"ConfigRecord without a value ({key[:8]})", taken, (NOTHING,)
    yield "FeatureLevelRecord", rows.update_feature(LONG, 1), (ErrorCode.INVALID_UPDATE_VERSION,)
    yield "UserScramCredentialRecord", rows.scram(TWO_BYTES), (NOTHING,)
    removal = AlterUserScramCredentialsRequest([ScramCredentialDeletion(TWO_BYTES, 1)], [])
    yield "RemoveUserScramCredentialRecord", [removal], (NOTHING,)
    entity = [EntityData("user", TWO_BYTES)]
    yield "ClientQuotaRecord", [*rows.quota(entity), *rows.quota(entity, remove=True)], (NOTHING,)
    rule = rows.rule(resource_name=LONG, host=TWO_BYTES)
    yield "AccessControlEntryRecord", rule, (NOTHING,)
    rules = DeleteAclsRequest([DeleteAclsFilter(1, LONG, 1, None, None, 1, 1)])
    yield "RemoveAccessControlEntryRecord", [rules], (NOTHING,)
    yield "ProducerIdsRecord", [InitProducerIdRequest(None, INT32_MAX)], (NOTHING,)


def _of_tokens(admin: Conn) -> Iterator[Case]:
    long = CreateDelegationTokenRequest("User", LONG, [], -1)
    yield "DelegationTokenRecord of an owner", [long], (ErrorCode.POLICY_VIOLATION,)
    renewed = CreateDelegationTokenRequest(None, None, [CreatableRenewers("User", LONG)], -1)
    yield "DelegationTokenRecord of a renewer", [renewed], (ErrorCode.POLICY_VIOLATION,)
    made = admin.call(CreateDelegationTokenRequest(None, None, [], (1 << 63) - 1))
    ended = [
        ExpireDelegationTokenRequest(made.hmac, (1 << 63) - 1),
        ExpireDelegationTokenRequest(made.hmac, -1),
    ]
    yield "RemoveDelegationTokenRecord", ended, (NOTHING,)


def _of_nodes() -> Iterator[Case]:
    """Yield the requests that only nodes may send, for the controller's listener."""
    refused = (ErrorCode.INVALID_REGISTRATION, ErrorCode.INCONSISTENT_CLUSTER_ID, ErrorCode.NOT_CONTROLLER)
    yield "RegisterBrokerRecord", rows.register(rack=TWO_BYTES), refused
    yield "RegisterControllerRecord", rows.controller_listener(host=TWO_BYTES), refused
    stale = (ErrorCode.STALE_BROKER_EPOCH, ErrorCode.BROKER_ID_NOT_REGISTERED, ErrorCode.NOT_CONTROLLER)
    yield "BrokerRegistrationChangeRecord", rows.heartbeat(broker_id=INT32_MAX, want_fence=True), stale
    yield "ClearElrRecord", rows.alter_partition(isr=[INT32_MAX]), stale


def _of_coordinators() -> Iterator[tuple[int, str, Case]]:
    partition = OffsetCommitRequestPartition(0, (1 << 63) - 1, INT32_MAX, "\u00e9" * 4096)
    commit = OffsetCommitRequest(LONG, topics=[OffsetCommitRequestTopic(TOPIC, partitions=[partition])])
    yield GROUP, LONG, ("OffsetCommitValue", [commit], (NOTHING,))
    protocols = [JoinGroupRequestProtocol(LONG, b"m")]
    join = JoinGroupRequest(LONG, 6_000, INT32_MAX, "", LONG, LONG, protocols)
    yield GROUP, LONG, ("GroupMetadataValue", [join], (ErrorCode.UNKNOWN_SERVER_ERROR,))
    yield GROUP, LONG, ("GroupMetadataKey without a value", [DeleteGroupsRequest([LONG])], (NOTHING,))
    yield (
        TRANSACTION,
        TWO_BYTES,
        ("TransactionLogValue", [InitProducerIdRequest(TWO_BYTES, 1_000)], (NOTHING,)),
    )


def _coordinated(place: Place, kind: int, key: str, case: Case) -> Outcome:
    """Send the requests of a case to the coordinator of `key`, which any node may be. Return the outcome."""
    with place.admin() as admin:
        found = answered(
            lambda: admin.call(FindCoordinatorRequest(key_type=kind, coordinator_keys=[key]), 4),
            lambda answer: int(answer.coordinators[0].error_code),
        ).coordinators[0]
    with Conn(found.port, source=HOST, client_id="admin").login("admin", place.password("admin")) as conn:
        return _told(conn, case)


def _any_code(answer: Any) -> int:
    code = first_error(answer)
    return 0 if code == NOTHING else int(ErrorCode[code])
