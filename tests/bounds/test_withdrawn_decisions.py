"""A decision that cannot be encoded as records: each waiting client gets an error, and the state machine goes on as
before.

No known request leads to such a decision, as the other tests of this folder show. So these tests use a log that refuses
some records, or a state with a value that no record can hold.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import attrs
import pytest

from odradek.data_plane.coordination.asking import Ask, TimePasses
from odradek.data_plane.coordination.records import CoordinatorRecord
from odradek.data_plane.groups.group_settings import GroupSettings
from odradek.data_plane.groups.machine import GroupMachine
from odradek.data_plane.groups.offsets import CommitOffsets, PartitionCommit
from odradek.data_plane.groups.records import GroupMetadataValue
from odradek.data_plane.groups.state import GroupsState
from odradek.data_plane.transactions.counts import TransactionCounts
from odradek.data_plane.transactions.machine import TransactionMachine
from odradek.data_plane.transactions.requests import (
    AbortTimedOut,
    AddPartitions,
    EndTransaction,
    InitProducer,
)
from odradek.data_plane.transactions.state import Transaction, TransactionsState, TransactionStatus, record_of
from odradek.data_plane.transactions.transactions_topic import TransactionSettings
from odradek.metadata_quorum.controller.controller import Controller
from odradek.metadata_quorum.controller.controller_settings import ControllerSettings
from odradek.metadata_quorum.state_machine import ReplicatedStateMachine
from odradek.wire.errors import ErrorCode, LocalProtocolError
from odradek.wire.messages.heartbeat import HeartbeatRequest
from odradek.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from sim.machine.world import World
from testkit.by_hand import KeptLog
from testkit.coordinating import HeldLog, KeptReply, deliver
from tests.bounds.controller_rows import Cluster, configure, rule
from tests.bounds.coordinator_rows import join
from tests.groups.group_script import read_groups
from tests.groups.test_shard import Case
from tests.groups.test_shard import run as run_now
from tests.quorum.voters.node_parts import ask, create, make_world, run, running_controller
from tests.quorum.voters.node_parts import join as join_broker
from tests.transactions.transaction_script import read_transactions

UNKNOWN = ErrorCode.UNKNOWN_SERVER_ERROR
MINUTE_MS = 60_000
NOW_MS = 1_000_000


class RefusingLog(HeldLog[GroupsState]):
    """A log that fails to encode the records for which `refuses` is true."""

    refuses: Callable[[CoordinatorRecord], bool] = staticmethod(lambda record: False)

    def encode_batch(self, records: Sequence[CoordinatorRecord]) -> Sequence[CoordinatorRecord]:
        if any(map(self.refuses, records)):
            raise LocalProtocolError("too long")
        return super().encode_batch(records)


class Groups:
    """A coordinator of groups over a log that refuses some records."""

    def __init__(self) -> None:
        self.log = RefusingLog(read_groups)
        self.now_ms = 0
        uuids = Random(1)
        self.runtime: ReplicatedStateMachine[Any, Any] = ReplicatedStateMachine(
            GroupMachine(GroupSettings(initial_rebalance_delay_ms=0)),
            self.log,
            GroupsState(),
            random=Random(1),
            new_uuid=lambda: uuids.randbytes(16),
            fail=lambda error: pytest.fail(f"the coordinator failed, which would end the node: {error}"),
        )

    def ask(self, request: Any, version: int = 5) -> KeptReply:
        reply = KeptReply()
        deferred = self.runtime.submit(Ask(request, version, reply, self.now_ms, "c", "/h"), self.now_ms)
        deferred.on_release(deliver)
        self.log.catch_up()
        return reply

    def pass_ms(self, ms: int) -> None:
        self.now_ms += ms
        self.ask(TimePasses())

    def joined(self, group: str, *instances: str) -> list[Any]:
        """Let members join a group and complete the rebalance. Return their answers, the leader's first."""
        first = self.ask(join(group_id=group, group_instance_id=instances[0]).request, 9)
        self.pass_ms(1)
        replies = [first]
        for instance in instances[1:]:
            replies.append(self.ask(join(group_id=group, group_instance_id=instance).request, 9))
        if len(instances) > 1:
            again = join(group_id=group, group_instance_id=instances[0], member_id=first.answers[0].member_id)
            replies[0] = self.ask(again.request, 9)
        return [reply.answers[0] for reply in replies]

    def sync(self, group: str, member: Any, *assigned: Any) -> KeptReply:
        given = [SyncGroupRequestAssignment(each.member_id, b"a") for each in assigned]
        return self.ask(SyncGroupRequest(group, member.generation_id, member.member_id, assignments=given))

    def heartbeat(self, group: str, member: Any) -> ErrorCode:
        request = HeartbeatRequest(group, member.generation_id, member.member_id)
        return ErrorCode(self.ask(request, 4).answers[0].error_code)


def of_group(group: str) -> Callable[[CoordinatorRecord], bool]:
    """Match a group's records that list at least one member."""
    return lambda record: (
        getattr(record.key, "group", "") == group
        and isinstance(record.value, GroupMetadataValue)
        and bool(record.value.members)
    )


def test_every_member_that_waits_for_an_assignment_hears_that_it_was_not_written() -> None:
    """If an assignment cannot be written, all its members get UNKNOWN_SERVER_ERROR. Other groups go on."""
    groups = Groups()
    (bystander,) = groups.joined("other", "x")
    groups.sync("other", bystander, bystander)
    leader, member = groups.joined("g", "a", "b")
    groups.log.refuses = of_group("g")
    waiting = groups.sync("g", member)
    assert not waiting.answers
    written = len(groups.log.records)
    refused = groups.sync("g", leader, leader, member)
    assert [each.error_code for each in (*refused.answers, *waiting.answers)] == [UNKNOWN, UNKNOWN]
    assert len(groups.log.records) == written
    assert groups.heartbeat("g", leader) == ErrorCode.UNKNOWN_MEMBER_ID
    assert groups.heartbeat("other", bystander) == ErrorCode.NONE
    groups.log.refuses = lambda record: False
    leader, member = groups.joined("g", "a", "b")
    waiting = groups.sync("g", member)
    assert groups.sync("g", leader, leader, member).answers[0].assignment == b"a"
    assert waiting.answers[0].assignment == b"a"
    assert groups.heartbeat("g", member) == ErrorCode.NONE


def test_a_stable_group_stays_as_the_log_has_it() -> None:
    """If the next generation cannot be written, the group goes on in the last written one, as on a new coordinator."""
    groups = Groups()
    (member,) = groups.joined("g", "a")
    groups.sync("g", member, member)
    groups.log.refuses = of_group("g")
    again = join(group_id="g", group_instance_id="a", member_id=member.member_id)
    joined = groups.ask(again.request, 9).answers[0]
    assert joined.generation_id == member.generation_id + 1
    assert groups.sync("g", joined, joined).answers[0].error_code == UNKNOWN
    assert groups.heartbeat("g", member) == ErrorCode.NONE
    assert groups.heartbeat("g", joined) == ErrorCode.ILLEGAL_GENERATION
    groups.pass_ms(10 * MINUTE_MS)
    assert groups.heartbeat("g", member) == ErrorCode.UNKNOWN_MEMBER_ID, "its session never ends"


class RefusingTransactionLog(HeldLog[TransactionsState]):
    """A log that fails to encode the records of some transactional ids."""

    refused: tuple[str, ...] = ()

    def encode_batch(self, records: Sequence[CoordinatorRecord]) -> Sequence[CoordinatorRecord]:
        if any(getattr(each, "transactional_id", "") in self.refused for each in records):
            raise LocalProtocolError("too long")
        return super().encode_batch(records)


class Transactions:
    """A coordinator of transactions over a `RefusingTransactionLog`. The transactions `open_ids` have been open for
    long."""

    def __init__(self, *open_ids: str) -> None:
        self.log = RefusingTransactionLog(read_transactions)
        for number, name in enumerate(open_ids):
            begun = Transaction(name, number, 0, 10, TransactionStatus.ONGOING, frozenset({("t", 0)}), 1, 1)
            self.log.append_batch([record_of(begun, 1)])
        self.log.catch_up()
        ids = iter(range(1_000, 2_000))
        self.counts = TransactionCounts()
        self.not_encoded = 0
        self.machine = TransactionMachine(TransactionSettings(), lambda: next(ids), lambda: 1, self.counts)
        self.runtime: ReplicatedStateMachine[TransactionsState, Any] = ReplicatedStateMachine(
            self.machine,
            self.log,
            self.log.state() if open_ids else TransactionsState(),
            random=Random(1),
            new_uuid=lambda: bytes(16),
            fail=lambda error: pytest.fail(f"the coordinator failed, which would end the node: {error}"),
            not_encoded=self._count,
        )

    def _count(self, request: Any, error: Exception) -> None:
        self.not_encoded += 1

    def ask(self, request: Any) -> KeptReply:
        reply = KeptReply()
        deferred = self.runtime.submit(Ask(request, 0, reply, NOW_MS), 0)
        deferred.on_release(deliver)
        self.log.catch_up()
        return reply

    def status(self, name: str) -> TransactionStatus:
        return TransactionStatus(self.runtime.state.transactions[name].status)


def test_transactions_behind_one_that_cannot_be_aborted_are_timed_out() -> None:
    """If the abort of a timed-out transaction cannot be encoded, the check leaves it out and aborts all others."""
    names = [f"t{number:02}" for number in range(40)]
    transactions = Transactions(*names)
    transactions.log.refused = ("t07", "t23")
    checks = 0
    while transactions.ask(AbortTimedOut(NOW_MS)).answers == [True]:
        checks += 1
        assert checks < 100, "the check never ends"
    left = [name for name in names if transactions.status(name) is TransactionStatus.ONGOING]
    assert left == ["t07", "t23"]
    assert transactions.counts.timed_out == 38
    told = transactions.not_encoded
    assert transactions.ask(AbortTimedOut(NOW_MS)).answers == [False]
    assert transactions.not_encoded == told, "it is tried again and again"


def test_one_that_was_left_out_is_tried_again_when_it_has_changed() -> None:
    """A transaction whose abort could not be encoded is tried again once its state has changed."""
    transactions = Transactions("a")
    transactions.log.refused = ("a",)
    assert [transactions.ask(AbortTimedOut(NOW_MS)).answers for _ in range(2)] == [[True], [False]]
    transactions.log.refused = ()
    assert transactions.ask(AddPartitions("a", 0, 0, frozenset({("t", 1)}), 2)).answers == [ErrorCode.NONE]
    transactions.ask(AbortTimedOut(NOW_MS))
    assert transactions.status("a") is TransactionStatus.PREPARE_ABORT


def test_a_request_that_was_held_for_records_is_answered_without_them() -> None:
    """InitProducerId waits for the abort of an open transaction. If the abort cannot be encoded, the request fails at
    once."""
    transactions = Transactions("a")
    transactions.log.refused = ("a",)
    assert [each.code for each in transactions.ask(InitProducer("a", 1_000)).answers] == [UNKNOWN]
    assert [each.code for each in transactions.ask(EndTransaction("a", 0, 0, True, 2)).answers] == [UNKNOWN]
    assert transactions.ask(AddPartitions("a", 0, 0, frozenset({("t", 1)}), 2)).answers == [UNKNOWN]
    assert transactions.machine.statistics() == {"held": 0}
    assert transactions.status("a") is TransactionStatus.ONGOING
    assert [each.code for each in transactions.ask(InitProducer("b", 1_000)).answers] == [ErrorCode.NONE]


def test_a_shard_goes_on_and_tells_of_the_decision() -> None:
    """If a commit of offsets cannot be encoded, the shard writes one log line, leaves the log as it is, and goes on."""
    case = Case()
    case.follower_fetches()
    run_now(case.shard.load())
    poisoned = CommitOffsets("g", "", None, -1, -1, (PartitionCommit("t", bytes(16), 0, 1 << 63, -1, ""),))
    end = case.partition.log.log_end_offset
    assert case.ask(poisoned).answers == [[UNKNOWN]]
    assert case.ask(poisoned).answers == [[UNKNOWN]]
    assert case.partition.log.log_end_offset == end
    assert case.broker.log.events.count("decision.not_encoded") == 1
    assert case.commit().answers == [[ErrorCode.NONE]]
    assert not case.failed


def test_a_controller_answers_every_request_that_it_decides() -> None:
    """For each type of request that a controller decides, it can make a response that contains only an error."""
    controller = Controller(ControllerSettings())
    for cls in controller.requests:
        assert controller.refuse(cls(), UNKNOWN) is not None, cls.__name__


def test_a_controller_goes_on_and_changes_nothing() -> None:
    """If one resource of a request cannot be encoded, the metadata stay as they are. The next request is decided."""
    cluster = Cluster()
    request = configure(4, "", "k", "x" * 100)[0]
    sound, poisoned = request.resources[0], configure(4, "1", "k" * 40_000, "1")[0].resources[0]
    records, response = cluster.decide(attrs.evolve(request, resources=[sound, poisoned]))
    assert not records
    assert [each.error_code for each in response.responses] == [UNKNOWN, UNKNOWN]
    assert len(cluster.not_encoded) == 1
    assert not cluster.failed
    records, _ = cluster.decide(request)
    assert len(records) == 1


def test_a_node_tells_of_a_decision_of_its_controller() -> None:
    """If a decision of the controller cannot be encoded, the node counts it and goes on with the next request."""
    world: World = make_world()
    journal = KeptLog()

    async def main(env: Any) -> None:
        async with running_controller(env, journal, has_authorizer=True) as service:
            await join_broker(service, env)
            for _ in range(3):
                response = await ask(service, env, rule(host="h" * 40_000)[0])
                assert [each.error_code for each in response.results] == [UNKNOWN]
            assert service.not_encoded.count == 3
            created = await ask(service, env, create("t"))
            assert created.topics[0].error_code == ErrorCode.NONE

    world.run(run, world, main)
    assert journal.events.count("decision.not_encoded") == 1
