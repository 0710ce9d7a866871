"""A client reads hidden topics, writes into another's transaction, and uses the tokens of other users."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import attrs

from odradek.wire.errors import ErrorCode
from odradek.wire.messages.create_acls import AclCreation, CreateAclsRequest
from odradek.wire.messages.create_delegation_token import CreateDelegationTokenRequest
from odradek.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from odradek.wire.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from odradek.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from odradek.wire.messages.describe_delegation_token import DescribeDelegationTokenRequest
from odradek.wire.messages.end_txn import EndTxnRequest
from odradek.wire.messages.expire_delegation_token import ExpireDelegationTokenRequest
from odradek.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ReplicaState
from odradek.wire.messages.find_coordinator import FindCoordinatorRequest
from odradek.wire.messages.init_producer_id import InitProducerIdRequest
from odradek.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from odradek.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from odradek.wire.messages.renew_delegation_token import RenewDelegationTokenRequest
from tests.attacks.outcome import Outcome
from tests.attacks.place import Place
from tests.attacks.raw import Conn
from tests.conformance.asking.batches import batch, patched

WHO = "client"
ONE_NODE = True
CLIENT = "User:client"
VICTIM = "attack-victim"
"""A transactional id of the administrator. It is always the same, since ids are remembered for days."""
TOPIC, TRANSACTIONAL_ID, LITERAL, READ, WRITE, ALLOW, ANY = 2, 5, 3, 3, 4, 3, 1
ATTRIBUTES_AT = 21
TRANSACTIONAL, CONTROL = 16, 32
IDS_SINCE, REPLICA_STATE_SINCE = 13, 15
COORDINATOR_SECONDS = 60.0
TRANSACTION_KEY = 1
PARKED_MS = 30_000


@attrs.frozen
class Scene:
    """Two topics with one record each. The client may read and write `shared`, and must not learn that `hidden`
    exists."""

    admin: Conn
    client: Conn
    hidden: str
    shared: str
    own_id: str
    """A transactional id that the client may use."""
    ids: dict[str, bytes]


def attack(place: Place, scale: float) -> Iterator[Outcome]:
    """Make the topics, try all ways in, and remove the topics. The scale makes no difference."""
    run = uuid4().hex[:8]
    hidden, shared, own_id = f"hidden-{run}", f"shared-{run}", "attack-own"
    with place.admin() as admin, place.client() as client:
        for name in (hidden, shared):
            created = admin.call(CreateTopicsRequest([CreatableTopic(name, 1, 1, [], [])], 5000, False))
            assert not created.topics[0].error_code, created
        _allow(admin, TOPIC, shared, READ, WRITE)
        _allow(admin, TRANSACTIONAL_ID, own_id, WRITE)
        named = [MetadataRequestTopic(bytes(16), name) for name in (hidden, shared)]
        told = admin.call(MetadataRequest(named, False, False, False), 12)
        scene = Scene(
            admin, client, hidden, shared, own_id, {each.name: each.topic_id for each in told.topics}
        )
        try:
            for name in (hidden, shared):
                assert not _produce(scene, admin, name, bytes(batch(1)))
            yield from _hidden_fetches(scene)
            yield from _sessions_of_others(place, scene)
            yield from _parked_fetch(scene)
            yield from _control_batches(scene)
            yield from _transactions_of_others(place, scene)
            yield from _tokens_of_others(scene)
        finally:
            for kind, name in ((TOPIC, shared), (TRANSACTIONAL_ID, own_id)):
                _forbid(admin, kind, name)
            admin.call(DeleteTopicsRequest([DeleteTopicState(name) for name in (hidden, shared)], [], 5000))


# -- reading ------------------------------------------------------------------------------------------------------


def _fetch(
    scene: Scene, name: str, version: int, replica_id: int = -1, *, session: tuple[int, int] = (0, -1)
) -> FetchRequest:
    request = FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=1 << 20)
    request.session_id, request.session_epoch = session
    by_id = version >= IDS_SINCE
    partition = FetchPartition(0, -1, 0, -1, -1, 1 << 20)
    if not session[0]:
        request.topics = [
            FetchTopic("" if by_id else name, scene.ids[name] if by_id else bytes(16), [partition])
        ]
    if version >= REPLICA_STATE_SINCE:
        request.replica_state = ReplicaState(replica_id, -1)
    else:
        request.replica_id = replica_id
    return request


def _bytes_of(answer: Any) -> int:
    return sum(len(each.records or b"") for topic in answer.responses for each in topic.partitions)


def _hidden_fetches(scene: Scene) -> Iterator[Outcome]:
    got, refused, asked = 0, 0, 0
    for version in (4, 7, 11, 12, 13, 15, 16, 17, 18):
        for replica_id in (-1, -2, -3, 0, 1, 7):
            answer = scene.client.call(_fetch(scene, scene.hidden, version, replica_id), version)
            codes = {each.error_code for topic in answer.responses for each in topic.partitions}
            got, asked = got + _bytes_of(answer), asked + 1
            refused += ErrorCode.TOPIC_AUTHORIZATION_FAILED in codes
    note = f"{refused} of {asked} refused, {got} bytes"
    yield Outcome("a hidden topic is fetched by nobody", not got and refused == asked, note)
    versions = (12, 13, 17)
    answers = [scene.client.call(_fetch(scene, scene.shared, each, 1), each) for each in versions]
    yield Outcome("a reader is no follower", not any(map(_bytes_of, answers)))


def _sessions_of_others(place: Place, scene: Scene) -> Iterator[Outcome]:
    got = 0
    for version in (7, 12, 13, 17):
        opened = scene.admin.call(_fetch(scene, scene.hidden, version, session=(0, 0)), version)
        with place.client() as other:
            got += _bytes_of(
                other.call(_fetch(scene, scene.hidden, version, session=(opened.session_id, 1)), version)
            )
    yield Outcome("a fetch session serves whose it is", not got, f"{got} bytes")


def _parked_fetch(scene: Scene) -> Iterator[Outcome]:
    """Let a fetch wait for records, withdraw the client's right to read, then write a record."""
    version = 12
    request = _fetch(scene, scene.shared, version)
    end = scene.client.call(request, version).responses[0].partitions[0].high_watermark
    request.max_wait_ms, request.min_bytes = PARKED_MS, 1
    request.topics[0].partitions[0].fetch_offset = end
    scene.client.send(request, version)
    _forbid(scene.admin, TOPIC, scene.shared)
    assert not _produce(scene, scene.admin, scene.shared, bytes(batch(1)))
    answer = scene.client.receive(1, version)
    _allow(scene.admin, TOPIC, scene.shared, READ, WRITE)
    yield Outcome("a fetch that waits ends with its right", not _bytes_of(answer))


# -- writing ------------------------------------------------------------------------------------------------------


def _produce(
    scene: Scene, conn: Conn, name: str, data: bytes, txn: str | None = None, version: int = 9
) -> int:
    topic = TopicProduceData(name, scene.ids[name], [PartitionProduceData(0, data)])
    try:
        answer = conn.call(ProduceRequest(txn, -1, 5000, [topic]), version)
    except ConnectionError:
        return ErrorCode.UNKNOWN_SERVER_ERROR
    return int(answer.responses[0].partition_responses[0].error_code)


def _control_batches(scene: Scene) -> Iterator[Outcome]:
    codes = [
        _produce(scene, scene.client, scene.shared, bytes(patched(ATTRIBUTES_AT, ">h", attributes)))
        for attributes in (CONTROL, CONTROL | TRANSACTIONAL)
    ]
    yield Outcome("control records are the coordinators'", all(codes), f"codes {codes}")


def _transactions_of_others(place: Place, scene: Scene) -> Iterator[Outcome]:
    begun = _began(scene.admin, VICTIM)
    pid, epoch = begun.producer_id, begun.producer_epoch
    ways = {
        "EndTxn of another's id": EndTxnRequest(VICTIM, pid, epoch, True),
        "InitProducerId of another's id": InitProducerIdRequest(VICTIM, 60_000, -1, -1),
        "InitProducerId of another's id and producer": InitProducerIdRequest(VICTIM, 60_000, pid, epoch),
    }
    for what, request in ways.items():
        code = scene.client.call(request, 3).error_code
        denied = code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        yield Outcome(f"{what} is refused", denied, f"code {code}")
    _began(scene.client, scene.own_id)
    code = scene.client.call(EndTxnRequest(scene.own_id, pid, epoch, True), 3).error_code
    yield Outcome("EndTxn of one's own id with another's producer is refused", bool(code), f"code {code}")
    data = batch(1, producer_id=pid, producer_epoch=epoch, base_sequence=0, is_transactional=True)
    with place.client() as other:
        code = _produce(scene, other, scene.shared, bytes(data))
    yield Outcome("a transactional batch without its id is refused", bool(code), f"code {code}")
    with place.client() as other:
        code = _produce(scene, other, scene.shared, bytes(data), VICTIM)
    yield Outcome("a batch under another's id is refused", bool(code), f"code {code}")


def _began(conn: Conn, transactional_id: str) -> Any:
    """Ask for a producer id until there is a coordinator. The first request makes the topic that a coordinator
    needs."""
    until = time.monotonic() + COORDINATOR_SECONDS
    while True:
        conn.call(FindCoordinatorRequest("", TRANSACTION_KEY, [transactional_id]), 4)
        answer = conn.call(InitProducerIdRequest(transactional_id, 60_000, -1, -1), 3)
        if not answer.error_code:
            return answer
        assert time.monotonic() < until, f"there is no coordinator: {answer}"
        time.sleep(0.05)


# -- tokens -------------------------------------------------------------------------------------------------------


def _tokens_of_others(scene: Scene) -> Iterator[Outcome]:
    made = scene.admin.call(CreateDelegationTokenRequest(None, None, [], -1))
    assert not made.error_code, made
    try:
        for what, request in {
            "renewed": RenewDelegationTokenRequest(made.hmac, 1_000),
            "ended": ExpireDelegationTokenRequest(made.hmac, -1),
        }.items():
            code = scene.client.call(request).error_code
            held = code == ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH
            yield Outcome(f"a token is {what} by its owner and renewers", held, f"code {code}")
        seen = scene.client.call(DescribeDelegationTokenRequest(None)).tokens
        yield Outcome("another's token stays unseen", made.token_id not in {each.token_id for each in seen})
        code = scene.client.call(CreateDelegationTokenRequest("User", "admin", [], -1), 3).error_code
        held = code == ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED
        yield Outcome("a token for somebody else needs the right", held, f"code {code}")
    finally:
        scene.admin.call(ExpireDelegationTokenRequest(made.hmac, -1))


# -- rights -------------------------------------------------------------------------------------------------------


def _allow(admin: Conn, kind: int, name: str, *operations: int) -> None:
    rules = [AclCreation(kind, name, LITERAL, CLIENT, "*", each, ALLOW) for each in operations]
    assert not any(each.error_code for each in admin.call(CreateAclsRequest(rules)).results)


def _forbid(admin: Conn, kind: int, name: str) -> None:
    answer = admin.call(DeleteAclsRequest([DeleteAclsFilter(kind, name, LITERAL, CLIENT, None, ANY, ANY)]))
    assert not answer.filter_results[0].error_code, answer
