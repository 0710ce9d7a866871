"""The tables of `__consumer_offsets` and `__transaction_state`: which request to a coordinator leads to each field."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any, TypeAlias

import attrs

from odradek.data_plane.coordination.asking import Ask, TimePasses
from odradek.data_plane.coordination.records import CoordinatorRecord
from odradek.data_plane.groups.group_settings import GroupSettings
from odradek.data_plane.groups.machine import GroupMachine
from odradek.data_plane.groups.offsets import CommitOffsets, PartitionCommit
from odradek.data_plane.groups.records import group_metadata_record
from odradek.data_plane.transactions.counts import TransactionCounts
from odradek.data_plane.transactions.machine import TransactionMachine
from odradek.data_plane.transactions.requests import (
    AbortTimedOut,
    AddPartitions,
    EndTransaction,
    InitProducer,
)
from odradek.data_plane.transactions.state import (
    EPOCH_MAX,
    TIMELESS,
    Transaction,
    TransactionStatus,
    record_of,
)
from odradek.data_plane.transactions.transactions_topic import TransactionSettings
from odradek.metadata_quorum.state_machine import ReplicatedStateMachine
from odradek.wire.errors import ErrorCode
from odradek.wire.messages.coordinator_records import GroupMetadataValue
from odradek.wire.messages.heartbeat import HeartbeatRequest
from odradek.wire.messages.init_producer_id import InitProducerIdRequest
from odradek.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from odradek.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from odradek.wire.messages.sync_group import SyncGroupRequest
from odradek.wire.primitives import INT32_MAX, INT64_MAX
from odradek.wire.structure import Message
from testkit.coordinating import HeldLog, KeptReply
from tests.bounds.rows import UNSENDABLE, WRITTEN, Sent, freely, number, refused, sent
from tests.groups.group_script import read_groups
from tests.transactions.transaction_script import read_transactions

WALL_MS = 1_700_000_000_000
FAR_MS = 2 * WALL_MS
UUID = b"\x11" * 16
SUFFIX = "-11111111-1111-1111-1111-111111111111"
"""The end of each member id in these tests, where a real coordinator puts a random UUID."""
CLIENT_ID_BYTES_MAX = 32_767
UNKNOWN_SERVER_ERROR = ErrorCode.UNKNOWN_SERVER_ERROR.name
PRODUCER_FENCED = ErrorCode.PRODUCER_FENCED.name


@attrs.frozen
class Step:
    """A request, as its handler gives it to a coordinator. `message` is the client's message, or None if a
    timer asks."""

    request: Any
    message: Message | None = None
    version: int = 0
    client_id: str = "c"

    @property
    def arrives(self) -> bool:
        """True if the message and the client id can be encoded."""
        is_message = self.message is None or sent(self.message, self.version) is not None
        return is_message and len(self.client_id.encode()) <= CLIENT_ID_BYTES_MAX


class Coordinator:
    """A coordinator's state machine over a log. Each request comes a second after the one before."""

    def __init__(
        self,
        log: HeldLog[Any],
        before: Sequence[CoordinatorRecord],
        new_machine: Callable[[Any], Any],
    ) -> None:
        self.log = log
        log.append_batch(log.encode_batch(before))
        log.catch_up()
        state = log.state()
        self.now_ms = 0
        self.failed: list[BaseException] = []
        self.not_encoded: list[Exception] = []
        self.member_id = ""
        self.generation = 0
        self.machine = new_machine(state)
        self.runtime: ReplicatedStateMachine[Any, Any] = ReplicatedStateMachine(
            self.machine,
            log,
            state,
            random=Random(1),
            new_uuid=lambda: UUID,
            fail=self.failed.append,
            not_encoded=lambda request, error: self.not_encoded.append(error),
        )

    def ask(self, step: Step) -> tuple[list[Any], KeptReply]:
        """Submit a request. Return the records of the decision, and a reply that gets the answer now or later."""
        self.now_ms += 1000
        reply = KeptReply()
        before = len(self.log.records)
        ask = Ask(step.request, step.version, reply, WALL_MS + self.now_ms, step.client_id, "/h")
        deferred = self.runtime.submit(ask, self.now_ms)
        deferred.on_release(self._deliver)
        self.log.catch_up()
        return self.log.records[before:], reply

    def _deliver(self, answers: Any) -> None:
        for reply, response in answers:
            reply.complete(response)
            if isinstance(response, JoinGroupResponse) and not response.error_code:
                self.member_id, self.generation = response.member_id, response.generation_id


Steps: TypeAlias = list[Step | Callable[[Coordinator], Step]]
"""Requests to send in turn. A function makes the request from the coordinator's earlier answers."""


def groups(before: Sequence[CoordinatorRecord] = ()) -> Coordinator:
    settings = GroupSettings(initial_rebalance_delay_ms=0)

    def new_machine(state: Any) -> GroupMachine:
        machine = GroupMachine(settings)
        machine.restore(state, 0, lambda: UUID)
        return machine

    return Coordinator(HeldLog(read_groups), before, new_machine)


def transactions(before: Sequence[CoordinatorRecord] = ()) -> Coordinator:
    ids = iter(range(100, 200))
    return Coordinator(
        HeldLog(read_transactions),
        before,
        lambda state: TransactionMachine(
            TransactionSettings(), lambda: next(ids), lambda: 1, TransactionCounts()
        ),
    )


# -- groups -----------------------------------------------------------------------------------------------------------


def commit(group: str = "g", offset: int = 1, leader_epoch: int = -1, metadata: str = "") -> Steps:
    message = OffsetCommitRequest(
        group,
        topics=[
            OffsetCommitRequestTopic(
                "t", partitions=[OffsetCommitRequestPartition(0, offset, leader_epoch, metadata)]
            )
        ],
    )
    commits = (PartitionCommit("t", bytes(16), 0, offset, leader_epoch, metadata),)
    return [Step(CommitOffsets(group, "", None, -1, -1, commits), message, 9)]


def commit_for(retention_ms: int) -> Steps:
    message = OffsetCommitRequest(
        "g",
        retention_time_ms=retention_ms,
        topics=[OffsetCommitRequestTopic("t", partitions=[OffsetCommitRequestPartition(0, 1)])],
    )
    commits = (PartitionCommit("t", bytes(16), 0, 1, -1, ""),)
    return [Step(CommitOffsets("g", "", None, -1, retention_ms, commits), message, 4)]


def expiry(retention_ms: int) -> int:
    return -1 if retention_ms < 0 else min(WALL_MS + 1000 + retention_ms, INT64_MAX)


def join(client_id: str = "c", version: int = 9, protocol: str = "range", **fields: Any) -> Step:
    known: dict[str, Any] = {
        "group_id": "g",
        "session_timeout_ms": 30_000,
        "rebalance_timeout_ms": 60_000,
        "group_instance_id": "i" if version >= 5 else None,
        "protocol_type": "consumer",
        "protocols": [JoinGroupRequestProtocol(protocol, b"m")],
    }
    request = JoinGroupRequest(**{**known, **fields})
    return Step(request, request, version, client_id)


def sync(coordinator: Coordinator) -> Step:
    request = SyncGroupRequest("g", coordinator.generation, coordinator.member_id)
    return Step(request, request, 5)


def stable(joined: Step) -> Steps:
    """Let the member join, lead the group and hand in its assignment."""
    return [joined, Step(TimePasses()), sync]


def other_leads(joined: Step) -> Steps:
    """Let another member lead the group. It joins again when the new member has joined, and hands in the assignment."""
    leader = "leader"
    known = f"{leader}{SUFFIX}"
    return [
        join(group_instance_id=leader),
        joined,
        join(group_instance_id=leader, member_id=known),
        sync_leader,
    ]


def sync_leader(coordinator: Coordinator) -> Step:
    request = SyncGroupRequest("g", coordinator.generation, f"leader{SUFFIX}")
    return Step(request, request, 5)


def member_id(value: str) -> str:
    return value[len(SUFFIX) :] + SUFFIX


def with_generation(value: int) -> list[CoordinatorRecord]:
    return [group_metadata_record("g", GroupMetadataValue("", value, None, None, WALL_MS, []))]


TOO_LONG = (WRITTEN, WRITTEN, UNKNOWN_SERVER_ERROR)
"""Outcomes of a value that the coordinator composes of parts: each part fits a request, but the whole may be
too long."""
NO_ID_OF_IT = (UNKNOWN_SERVER_ERROR, UNKNOWN_SERVER_ERROR, UNSENDABLE)
"""Outcomes of a name that fits into a request. The member id made from it would be too long."""
NO_TIME_TO_SYNC = ErrorCode.UNKNOWN_MEMBER_ID.name
BAD_SESSION = ErrorCode.INVALID_SESSION_TIMEOUT.name

CoordinatorRow: TypeAlias = Sent | tuple[Sent, ...] | str

GROUP_ROWS: dict[str, CoordinatorRow] = {
    "OffsetCommitKey.group": freely(lambda v: commit(v)),
    "OffsetCommitKey.topic": "the name of a topic that exists",
    "OffsetCommitKey.partition": "a partition that exists",
    "OffsetCommitValue.offset": number(lambda v: commit(offset=v), WRITTEN, WRITTEN),
    "OffsetCommitValue.leader_epoch": number(lambda v: commit(leader_epoch=v), WRITTEN, WRITTEN),
    "OffsetCommitValue.metadata": refused(ErrorCode.OFFSET_METADATA_TOO_LARGE, lambda v: commit(metadata=v)),
    "OffsetCommitValue.commit_timestamp": "the clock's",
    "OffsetCommitValue.expire_timestamp": Sent(
        commit_for, (UNSENDABLE, WRITTEN, WRITTEN, WRITTEN, WRITTEN, UNSENDABLE), expiry
    ),
    "GroupMetadataKey.group": freely(lambda v: [join(group_id=v)]),
    "GroupMetadataValue.protocol_type": freely(lambda v: stable(join(protocol_type=v))),
    "GroupMetadataValue.generation": Sent(
        lambda v: stable(join()),
        (UNSENDABLE, UNSENDABLE, WRITTEN, WRITTEN, WRITTEN, WRITTEN),
        stored=lambda v: (v - 1) % INT32_MAX + 1,
        before=lambda v: with_generation(v - 1),
    ),
    "GroupMetadataValue.protocol": freely(lambda v: stable(join(protocol=v))),
    "GroupMetadataValue.leader": (
        Sent(lambda v: stable(join(v[len(SUFFIX) :], 3)), TOO_LONG, member_id),
        Sent(lambda v: stable(join(group_instance_id=v[len(SUFFIX) :])), TOO_LONG, member_id),
    ),
    "GroupMetadataValue.current_state_timestamp": "the clock's",
    "GroupMetadataValue.members": "bounded by the bytes of a batch: test_a_groups_record_is_no_larger_than_was_asked",
    "GroupMetadataValue.members.member_id": (
        Sent(lambda v: other_leads(join(v[len(SUFFIX) :], 3)), TOO_LONG, member_id),
        Sent(lambda v: other_leads(join(group_instance_id=v[len(SUFFIX) :])), TOO_LONG, member_id),
    ),
    "GroupMetadataValue.members.group_instance_id": Sent(
        lambda v: stable(join(group_instance_id=v)), NO_ID_OF_IT
    ),
    "GroupMetadataValue.members.client_id": (
        Sent(lambda v: stable(join(v, 3)), NO_ID_OF_IT),
        freely(lambda v: stable(join(v, group_instance_id="i"))),
    ),
    "GroupMetadataValue.members.client_host": "the address of a connection",
    "GroupMetadataValue.members.rebalance_timeout": number(
        lambda v: stable(join(rebalance_timeout_ms=v)), NO_TIME_TO_SYNC, WRITTEN
    ),
    "GroupMetadataValue.members.session_timeout": number(
        lambda v: stable(join(session_timeout_ms=v)), BAD_SESSION, BAD_SESSION
    ),
}
GROUP_TYPES_NEVER_WRITTEN = {
    "Legacy": "read only: the key of offsets before Kafka 0.9",
    "ConsumerGroup": "of the protocol of KIP-848, which no coordinator here speaks",
    "Share": "of share groups (KIP-932), which no coordinator here speaks",
    "Streams": "of streams groups (KIP-1071), which no coordinator here speaks",
}
"""Record types that other brokers write and ours leaves out, by the beginning of their names, with the reason."""

GROUP_PROBE = Step(HeartbeatRequest("unknown", 1, "m"), HeartbeatRequest("unknown", 1, "m"), 4)


# -- transactions -----------------------------------------------------------------------------------------------------


def init(transactional_id: str = "t", timeout_ms: int = 60_000, *, keep: bool = False) -> Steps:
    message = InitProducerIdRequest(transactional_id, timeout_ms)
    return [Step(InitProducer(transactional_id, timeout_ms, keep_prepared=keep), message, 5)]


def known(
    epoch: int, status: TransactionStatus = TransactionStatus.ONGOING, **fields: Any
) -> list[CoordinatorRecord]:
    values = {"timeout_ms": 10, "partitions": frozenset({("t", 0)}), "start_ms": WALL_MS - 1000, **fields}
    return [record_of(Transaction("t", 7, epoch, status=status, client_version=2, **values), 1)]


def end(epoch: int, producer_id: int = 7) -> Steps:
    return [Step(EndTransaction("t", producer_id, epoch, is_commit=True, client_version=2))]


def add(partitions: Sequence[tuple[str, int]]) -> Steps:
    return [*init(), Step(AddPartitions("t", 100, 0, frozenset(partitions), 2))]


OF_AN_EPOCH = (UNSENDABLE, UNSENDABLE, WRITTEN, WRITTEN, WRITTEN, WRITTEN)
"""Outcomes of an epoch that is one above the epoch in the log. The lowest epoch can follow no other."""
ENDED = (UNSENDABLE, UNSENDABLE, WRITTEN, WRITTEN, WRITTEN, PRODUCER_FENCED)

TRANSACTION_ROWS: dict[str, CoordinatorRow] = {
    "TransactionLogKey.transactional_id": freely(lambda v: init(v)),
    "TransactionLogValue.producer_id": "given out by the controller: ProducerIdsRecord.next_producer_id",
    "TransactionLogValue.previous_producer_id": "given out by the controller",
    "TransactionLogValue.next_producer_id": "given out by the controller",
    "TransactionLogValue.producer_epoch": (
        Sent(
            lambda v: init(),
            OF_AN_EPOCH,
            stored=lambda v: v if v < EPOCH_MAX else 0,
            before=lambda v: known(v - 1, TransactionStatus.EMPTY, partitions=frozenset()),
        ),
        Sent(lambda v: end(v - 1), ENDED, before=lambda v: known(v - 1)),
        Sent(
            lambda v: [Step(AbortTimedOut(FAR_MS))],
            OF_AN_EPOCH,
            stored=lambda v: min(v, EPOCH_MAX),
            before=lambda v: known(v - 1),
        ),
    ),
    "TransactionLogValue.next_producer_epoch": (
        Sent(
            lambda v: init(keep=True),
            OF_AN_EPOCH,
            stored=lambda v: v if v < EPOCH_MAX - 1 else 0,
            before=lambda v: known(v - 1, timeout_ms=TIMELESS),
        ),
        Sent(
            lambda v: end(v - 1),
            (UNSENDABLE, UNSENDABLE, PRODUCER_FENCED, WRITTEN, WRITTEN, PRODUCER_FENCED),
            stored=lambda v: v if v < EPOCH_MAX else 0,
            before=lambda v: known(5, next_producer_id=7, next_producer_epoch=v - 1),
        ),
        Sent(
            lambda v: [Step(AbortTimedOut(FAR_MS))],
            (UNSENDABLE, UNSENDABLE, WRITTEN, WRITTEN, WRITTEN, WRITTEN),
            stored=lambda v: -1 if v <= 0 else v if v < EPOCH_MAX else 0,
            before=lambda v: known(5, next_producer_id=7, next_producer_epoch=v - 1),
        ),
    ),
    "TransactionLogValue.transaction_timeout_ms": number(lambda v: init(timeout_ms=v), WRITTEN, WRITTEN),
    "TransactionLogValue.transaction_status": "one of eight constants",
    "TransactionLogValue.transaction_partitions": Sent(
        lambda v: add([(f"t{index}", 0) for index in range(v)]), (WRITTEN,) * 3
    ),
    "TransactionLogValue.transaction_partitions.topic": "the name of a topic that exists",
    "TransactionLogValue.transaction_partitions.partition_ids": Sent(
        lambda v: add([("t", index) for index in range(v)]), (WRITTEN,) * 3
    ),
    "TransactionLogValue.transaction_partitions.partition_ids[]": "a partition that exists",
    "TransactionLogValue.transaction_last_update_timestamp_ms": "the clock's",
    "TransactionLogValue.transaction_start_timestamp_ms": "the clock's",
    "TransactionLogValue.client_transaction_version": "one of three constants",
}
TRANSACTION_PROBE = Step(InitProducer("another", 1000), InitProducerIdRequest("another", 1000), 5)
