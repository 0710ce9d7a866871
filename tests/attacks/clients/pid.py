"""A client with a right to write to the topic, and with its own transactional id, uses the producer id of another
client."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TypeVar

import attrs

from odradek.wire.batches.batch_header import iter_batches
from odradek.wire.batches.records import records
from odradek.wire.errors import ErrorCode
from odradek.wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from odradek.wire.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from odradek.wire.messages.create_acls import AclCreation, CreateAclsRequest
from odradek.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from odradek.wire.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from odradek.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from odradek.wire.messages.end_txn import EndTxnRequest
from odradek.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from odradek.wire.messages.find_coordinator import FindCoordinatorRequest
from odradek.wire.messages.init_producer_id import InitProducerIdRequest
from odradek.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from odradek.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from odradek.wire.record_batch import RecordBatchBuilder
from tests.attacks.outcome import Outcome
from tests.attacks.place import Place
from tests.attacks.raw import Conn

WHO = "client"
ONE_NODE = True
GROUP, MINE = "attack-pid", "attack-pid-mine"
ROUNDS = 40
OLDER, ABORTABLE, NEWER = 9, 11, 12
"""Versions of Produce. In the last one the leader itself adds the partition to the transaction."""
TRY_AGAIN = frozenset(
    (
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    )
)
"""Temporary errors: the coordinator is starting, the previous transaction is still ending, or the broker does not know
the topic and its rules yet."""
PATIENCE_SECONDS = 60.0
T = TypeVar("T")


@attrs.define
class _Victim:
    """An honest transactional producer on a connection of its own."""

    conn: Conn
    topic: str
    name: str
    version: int
    producer_id: int = -1
    epoch: int = -1
    sequence: int = 0

    @property
    def is_newer(self) -> bool:
        """True if each transaction has an epoch of its own (KIP-890)."""
        return self.version >= NEWER

    def start(self) -> None:
        """Get a producer id, or a new epoch of it."""
        asked = InitProducerIdRequest(self.name, 60_000, -1, -1)
        answer = _patiently(lambda: self.conn.call(asked, 4), lambda found: found.error_code)
        self.producer_id, self.epoch, self.sequence = answer.producer_id, answer.producer_epoch, 0

    def begin(self) -> None:
        """Add the partition to the transaction at the coordinator, if the leader does not do it."""
        if not self.is_newer:
            topics = [AddPartitionsToTxnTopic(self.topic, [0])]
            added = AddPartitionsToTxnRequest([], self.name, self.producer_id, self.epoch, topics)
            _patiently(lambda: self.conn.call(added, 3), lambda found: _first_code(found))

    def write(self) -> tuple[ErrorCode, int]:
        """Write the next record. Return its error and offset."""
        found = _written(self.conn, self, self.name, self.sequence, b"victim")
        self.sequence += found[0] == ErrorCode.NONE
        return found

    def end(self) -> None:
        """Commit the transaction. The next one may have another epoch."""
        asked = EndTxnRequest(self.name, self.producer_id, self.epoch, True)
        version = 5 if self.is_newer else 3
        answer = _patiently(lambda: self.conn.call(asked, version), lambda found: found.error_code)
        if self.is_newer and not answer.error_code:
            self.producer_id, self.epoch, self.sequence = answer.producer_id, answer.producer_epoch, 0


def attack(place: Place, scale: float) -> Iterator[Outcome]:
    """Write under the victim's producer id: into its open transactions, before they begin, and outside of them. Do so
    in each form of the protocol."""
    topic = f"attack-pid-{time.time_ns()}"
    with place.admin() as admin, place.client() as client:
        _prepare(admin, topic)
        try:
            for version in (OLDER, ABORTABLE, NEWER):
                victim = _Victim(admin, topic, f"{topic}-{version}", version)
                victim.start()
                yield from _write_into(victim, client, max(2, int(ROUNDS * scale)))
                yield from _join_offsets(victim, client)
                yield from _write_before(victim, client)
        finally:
            _clean_up(admin, topic)


def _write_into(victim: _Victim, client: Conn, rounds: int) -> Iterator[Outcome]:
    """Try to use the next sequence number of each open transaction, under another transactional id and under none."""
    told: list[ErrorCode] = []
    kept: list[tuple[ErrorCode, int]] = []
    before = _read(victim)[0]
    for _ in range(rounds):
        victim.begin()
        kept.append(victim.write())
        told += [
            _written(client, victim, name, victim.sequence, b"intruder")[0] for name in (MINE, MINE, None)
        ]
        kept.append(victim.write())
        victim.end()
    who = f"another transactional id in an open transaction, Produce {victim.version}"
    codes = ", ".join(sorted({each.name for each in told}))
    yield Outcome(f"{who}: each batch is refused", ErrorCode.NONE not in told, codes)
    offsets = [offset for _, offset in kept]
    held = not any(code for code, _ in kept) and offsets == sorted(set(offsets))
    yield Outcome(
        f"{who}: each of the victim's records has an offset of its own", held, f"{len(kept)} records"
    )
    values = _read(victim, before)[1]
    held = values == [b"victim"] * len(kept)
    yield Outcome(
        f"{who}: a committed reader sees the victim's records alone", held, f"{len(values)} records"
    )


def _join_offsets(victim: _Victim, client: Conn) -> Iterator[Outcome]:
    """Try to commit offsets in the victim's open transaction, for a partition whose offset the victim has just
    committed there."""
    if not victim.is_newer:
        asked = AddOffsetsToTxnRequest(victim.name, victim.producer_id, victim.epoch, GROUP)
        _patiently(lambda: victim.conn.call(asked, 3), lambda found: found.error_code)

    def commit(conn: Conn, name: str) -> ErrorCode:
        topic = TxnOffsetCommitRequestTopic(victim.topic, [TxnOffsetCommitRequestPartition(0, 1)])
        asked = TxnOffsetCommitRequest(name, GROUP, victim.producer_id, victim.epoch, topics=[topic])
        found = conn.call(asked, 5 if victim.is_newer else 3)
        return ErrorCode(found.topics[0].partitions[0].error_code)

    find = FindCoordinatorRequest(GROUP)
    _patiently(lambda: victim.conn.call(find, 3), lambda found: found.error_code)
    own = _patiently(lambda: commit(victim.conn, victim.name), lambda found: found)
    code = _patiently(lambda: commit(client, MINE), lambda found: found)
    victim.end()
    rule = f"offsets under another transactional id join no open transaction, Produce {victim.version}"
    yield Outcome(rule, own == ErrorCode.NONE != code, f"{own.name}, {code.name}")


def _write_before(victim: _Victim, client: Conn) -> Iterator[Outcome]:
    """Send batches under the victim's producer id before its transaction has reached the partition."""
    victim.begin()
    victim.write()
    victim.end()
    for _ in range(3):
        _written(client, victim, MINE, 0, b"intruder")
    victim.begin()
    code, _ = victim.write()
    victim.end()
    rule = f"verifications in vain do not hold up the victim's first batch, Produce {victim.version}"
    yield Outcome(rule, code == ErrorCode.NONE, code.name)
    victim.start()
    _, taken = _written(client, victim, None, 0, b"intruder", is_transactional=False)
    victim.begin()
    code, offset = victim.write()
    victim.end()
    rule = f"a batch outside of transactions never passes for the victim's, Produce {victim.version}"
    yield Outcome(rule, offset != taken >= 0, f"{code.name} at {offset}, the stranger's at {taken}")


def _written(
    conn: Conn,
    victim: _Victim,
    name: str | None,
    sequence: int,
    value: bytes,
    *,
    is_transactional: bool = True,
) -> tuple[ErrorCode, int]:
    """Write one record under the victim's producer id. Return the error and offset of the answer."""
    builder = RecordBatchBuilder(
        producer_id=victim.producer_id,
        producer_epoch=victim.epoch,
        base_sequence=sequence,
        is_transactional=is_transactional,
    )
    builder.append(int(time.time() * 1000), None, value)
    data = TopicProduceData(victim.topic, bytes(16), [PartitionProduceData(0, bytes(builder.build()))])

    def ask() -> tuple[ErrorCode, int]:
        answer = conn.call(ProduceRequest(name, -1, 5000, [data]), victim.version)
        found = answer.responses[0].partition_responses[0]
        return ErrorCode(found.error_code), found.base_offset

    return _patiently(ask, lambda found: found[0])


def _read(victim: _Victim, offset: int = 0) -> tuple[int, list[bytes]]:
    """Read committed records once no transaction is open. Return the end offset, and the values from `offset` on."""
    partition = FetchPartition(0, fetch_offset=offset, partition_max_bytes=1 << 24)
    asked = FetchRequest(isolation_level=1, topics=[FetchTopic(victim.topic, partitions=[partition])])

    def fetch() -> tuple[ErrorCode, int, bytes]:
        found = victim.conn.call(asked, 12).responses[0].partitions[0]
        is_open = found.last_stable_offset < found.high_watermark
        code = ErrorCode.CONCURRENT_TRANSACTIONS if is_open else ErrorCode(found.error_code)
        return code, found.high_watermark, bytes(found.records or b"")

    _, end, data = _patiently(fetch, lambda found: found[0])
    values = [
        bytes(each.value or b"")
        for at, header in iter_batches(data)
        if not header.is_control
        for each in records(data, at, decompressed_bytes_max=1 << 20)
    ]
    return end, values


def _first_code(answer: object) -> int:
    (topic,) = answer.results_by_topic_v3_and_below  # type: ignore[attr-defined]  # an answer before version 4
    return int(topic.results_by_partition[0].partition_error_code)


def _patiently(ask: Callable[[], T], code_of: Callable[[T], int]) -> T:
    """Repeat a request while its error is one of `TRY_AGAIN`. Return the last answer."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        found = ask()
        if code_of(found) not in TRY_AGAIN or time.monotonic() > deadline:
            return found
        time.sleep(0.02)


def _rights(topic: str) -> list[tuple[int, str, int]]:
    """Return rights as (type, name, operation): READ and WRITE on the topic, READ on the group, WRITE on a
    transactional id."""
    return [(2, topic, 3), (2, topic, 4), (3, GROUP, 3), (5, MINE, 4)]


def _prepare(admin: Conn, topic: str) -> None:
    admin.call(CreateTopicsRequest([CreatableTopic(topic, 1, -1, [], [])], 10_000, False), 7)
    rules = [AclCreation(kind, name, 3, "User:client", "*", act, 3) for kind, name, act in _rights(topic)]
    admin.call(CreateAclsRequest(rules))
    asked = FindCoordinatorRequest("", 1, [MINE])
    _patiently(lambda: admin.call(asked, 4), lambda found: found.coordinators[0].error_code)


def _clean_up(admin: Conn, topic: str) -> None:
    filters = [
        DeleteAclsFilter(kind, name, 3, "User:client", "*", act, 3) for kind, name, act in _rights(topic)
    ]
    admin.call(DeleteAclsRequest(filters))
    admin.call(DeleteTopicsRequest([DeleteTopicState(topic)], [], 10_000), 6)
