"""A producer's transactions against a fake coordinator: both protocols, and failures in each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from odradek.client.consumer.consumer_types import judged_offsets
from odradek.client.errors import (
    IllegalTransactionCall,
    ProducerFencedError,
    RequestTimedOut,
    TransactionAbortableError,
    TransactionAborted,
    TransactionFatalError,
)
from odradek.client.producer.transaction_state import TransactionState
from odradek.wire.api import ApiKey
from odradek.wire.errors import ErrorCode, KafkaError
from odradek.wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from odradek.wire.messages.add_partitions_to_txn import AddPartitionsToTxnRequest
from odradek.wire.messages.end_txn import EndTxnRequest
from odradek.wire.messages.find_coordinator import FindCoordinatorRequest
from odradek.wire.messages.init_producer_id import InitProducerIdRequest
from tests.client.producer.fake_coordinator import GROUP, HANG_UP, SILENCE, FakeProducer

INT_MAX = (1 << 31) - 1
LEVELS = pytest.mark.parametrize("level", [1, 2])


@pytest.fixture
def open_producer() -> Any:
    """A function that makes producers which are ready for transactions.

    At the end it checks that their brokers saw no wrong request.
    """
    opened: list[FakeProducer] = []

    def open_one(level: int, **keys: Any) -> FakeProducer:
        producer = FakeProducer(level, **keys)
        opened.append(producer)
        producer.init()
        return producer

    yield open_one
    for producer in opened:
        assert producer.broker.wrong == []


Opener = Callable[..., FakeProducer]


def asked(producer: FakeProducer, kind: type) -> list[Any]:
    return [message for message in producer.broker.requests if isinstance(message, kind)]


@LEVELS
def test_what_is_committed_is_seen_and_what_is_aborted_is_not(open_producer: Opener, level: int) -> None:
    """Values and offsets of committed transactions are visible, those of aborted ones are not."""
    producer = open_producer(level)
    for number in range(4):
        producer.begin()
        producer.send(b"%d" % number, partition=number % 2)
        producer.flush()
        producer.send(b"%d+" % number, partition=1)
        producer.send_offset(number + 1)
        if number == 2:
            producer.abort()
        else:
            producer.commit()
    assert sorted(producer.broker.committed) == [b"0", b"0+", b"1", b"1+", b"3", b"3+"]
    assert producer.broker.offsets == {("g", "in", 0): 4}
    assert producer.broker.outcomes == [True, True, False, True]


def test_the_level_decides_who_adds_partitions_and_who_gives_epochs(open_producer: Opener) -> None:
    """At level 2 a producer omits AddPartitionsToTxn and AddOffsetsToTxn. Each end returns a new epoch (KIP-890)."""
    for level, requests, epoch in ((1, 1, 0), (2, 0, 2)):
        producer = open_producer(level)
        for _ in range(2):
            producer.begin()
            producer.send(b"v")
            producer.send_offset(1)
            producer.commit()
        assert len(asked(producer, AddPartitionsToTxnRequest)) == 2 * requests
        assert len(asked(producer, AddOffsetsToTxnRequest)) == 2 * requests
        assert producer.transactions.current is not None
        assert producer.transactions.current.producer_epoch == epoch


def test_a_producer_can_work_by_an_older_level(open_producer: Opener) -> None:
    """With `level_max` of 1, a producer uses the requests and versions of level 1 on a cluster of level 2."""
    producer = open_producer(2)
    producer.transactions.level_max = 1
    producer.broker.level = 1  # the fake broker checks versions against this level
    producer.begin()
    producer.send(b"v")
    producer.send_offset(1)
    producer.commit()
    assert producer.core.cluster.features["transaction.version"] == 2
    assert len(asked(producer, AddPartitionsToTxnRequest)) == 1
    assert len(asked(producer, AddOffsetsToTxnRequest)) == 1
    assert producer.broker.committed == [b"v"]


def test_a_raised_level_holds_from_a_new_epoch_on(open_producer: Opener) -> None:
    """The level is raised to 2 during a transaction. Its end takes a new epoch, and only then level 2 is used.

    Kafka's client does the same. EndTxn of level 1 keeps the epoch, and is answered before the markers are written. So
    offsets of level 2 under the old epoch could count for the earlier transaction (seed 440164).
    """
    producer = open_producer(1)
    features = producer.core.cluster.features
    producer.begin()
    producer.send(b"one")
    producer.send_offset(1)
    features["transaction.version"] = 2
    producer.commit()
    assert producer.transactions.current is not None
    assert producer.transactions.current.producer_epoch == 1
    producer.broker.level = 2
    producer.begin()
    producer.send(b"two")
    producer.send_offset(2)
    producer.commit()
    assert len(asked(producer, AddOffsetsToTxnRequest)) == 1
    assert producer.broker.offsets == {("g", "in", 0): 2}


def test_a_level_that_is_raised_between_transactions_waits_for_a_new_epoch(open_producer: Opener) -> None:
    """The level is raised between transactions.

    The next transaction still has the old epoch and uses level 1; the one after it uses level 2.
    """
    producer = open_producer(1)
    for level, adds in ((1, 1), (2, 2), (2, 2)):
        producer.core.cluster.features["transaction.version"] = level
        producer.broker.level = 1 if adds > len(asked(producer, AddOffsetsToTxnRequest)) else 2
        producer.begin()
        producer.send(b"v")
        producer.send_offset(1)
        producer.commit()
        assert len(asked(producer, AddOffsetsToTxnRequest)) == adds


@LEVELS
def test_an_empty_transaction_asks_for_nothing(open_producer: Opener, level: int) -> None:
    """The end of an empty transaction sends no EndTxn. The coordinator has yet to hear of the transaction."""
    producer = open_producer(level)
    for end in (producer.commit, producer.abort):
        producer.begin()
        end()
    assert asked(producer, EndTxnRequest) == []


@LEVELS
@pytest.mark.parametrize(
    "key",
    [ApiKey.INIT_PRODUCER_ID, ApiKey.ADD_PARTITIONS_TO_TXN, ApiKey.TXN_OFFSET_COMMIT, ApiKey.END_TXN],
)
@pytest.mark.parametrize(
    "trouble",
    [
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        HANG_UP,
        SILENCE,
    ],
    ids=["concurrent", "loading", "moved", "unavailable", "hang up", "silence"],
)
@pytest.mark.parametrize("done_before", [False, True], ids=["not done", "done, no answer"])
def test_trouble_that_passes_is_waited_out(
    open_producer: Opener, level: int, key: ApiKey, trouble: Any, done_before: bool
) -> None:
    """A request fails with a retriable error, or its answer is lost.

    It is repeated, even if the coordinator has already performed it.
    """
    if key is ApiKey.INIT_PRODUCER_ID:
        producer = FakeProducer(level)
    else:
        producer = open_producer(level)
    producer.broker.append_before_trouble = done_before
    producer.broker.trouble[key] += [trouble, trouble]
    if key is ApiKey.INIT_PRODUCER_ID:
        producer.init()
    for _ in range(2):
        producer.begin()
        producer.send(b"v")
        producer.send_offset(7)
        producer.commit()
    assert producer.broker.committed == [b"v", b"v"]
    assert producer.broker.offsets == {("g", "in", 0): 7}
    assert producer.broker.wrong == []


@LEVELS
def test_a_record_that_failed_is_never_committed(open_producer: Opener, level: int) -> None:
    """A record fails. The commit raises, only an abort is possible, and the next transaction succeeds (KIP-360)."""
    producer = open_producer(level)
    producer.begin()
    (good,) = producer.send(b"good")
    producer.flush()
    producer.broker.trouble[ApiKey.PRODUCE].append(int(ErrorCode.MESSAGE_TOO_LARGE))
    (bad,) = producer.send(b"bad")
    producer.flush()
    assert good.error is None
    assert isinstance(bad.error, KafkaError)
    with pytest.raises(TransactionAbortableError) as caught:
        producer.send(b"more")
    assert caught.value.__cause__ is bad.error
    for call in (producer.commit, producer.begin, lambda: producer.send_offset(1)):
        with pytest.raises(TransactionAbortableError):
            call()
    producer.abort()
    producer.begin()
    producer.send(b"next")
    producer.commit()
    assert producer.broker.committed == [b"next"]
    # The failed record had a sequence number. Level 1 asks for a new epoch, and level 2 gets one from EndTxn.
    assert [(each.producer_id, each.producer_epoch) for each in asked(producer, InitProducerIdRequest)] == (
        [(-1, -1), (77, 0)] if level == 1 else [(-1, -1)]
    )


def test_an_abort_without_lost_numbers_keeps_the_epoch(open_producer: Opener) -> None:
    """All records are acknowledged or have no sequence number yet.

    An abort keeps the epoch, since no number is missing (KIP-360).
    """
    producer = open_producer(1)
    producer.begin()
    producer.send(b"written")
    producer.flush()
    (waiting,) = producer.send(b"waiting")
    producer.abort()
    assert isinstance(waiting.error, TransactionAborted)
    producer.begin()
    producer.send(b"next")
    producer.commit()
    assert producer.broker.committed == [b"next"]
    assert len(asked(producer, InitProducerIdRequest)) == 1


@LEVELS
def test_a_record_whose_time_is_up_fails_the_transaction(open_producer: Opener, level: int) -> None:
    """The commit waits until a record expires by `delivery.timeout.ms`. Then it raises."""
    producer = open_producer(level)
    producer.begin()
    producer.broker.trouble[ApiKey.PRODUCE] += [int(ErrorCode.NOT_ENOUGH_REPLICAS)] * 1000
    (late,) = producer.send(b"late")
    with pytest.raises(TransactionAbortableError):
        producer.commit()
    assert late.done
    producer.broker.trouble[ApiKey.PRODUCE].clear()
    producer.abort()
    producer.begin()
    producer.send(b"next")
    producer.commit()
    assert producer.broker.committed == [b"next"]


@LEVELS
def test_the_abort_waits_for_what_is_in_flight(open_producer: Opener, level: int) -> None:
    """An abort waits until Produce is answered or times out.

    A batch written after the marker would leave a hanging transaction.
    """
    producer = open_producer(level)
    producer.begin()
    producer.send(b"first")
    producer.flush()
    producer.broker.append_before_trouble = True
    producer.broker.trouble[ApiKey.PRODUCE].append(SILENCE)
    (late,) = producer.send(b"late")
    producer.flush()
    before = producer.wire.now
    producer.abort()
    assert producer.wire.now >= before + 3
    assert isinstance(late.error, Exception)
    producer.begin()
    producer.send(b"next")
    producer.commit()
    assert producer.broker.committed == [b"next"]


@LEVELS
def test_a_commit_that_timed_out_is_called_again(open_producer: Opener, level: int) -> None:
    """A commit times out. Only a commit is allowed then, and the second EndTxn is answered like the first."""
    producer = open_producer(level)
    producer.begin()
    producer.send(b"v")
    producer.flush()
    producer.broker.append_before_trouble = True
    producer.broker.trouble[ApiKey.END_TXN].append(SILENCE)
    with pytest.raises(RequestTimedOut):
        producer.commit(timeout=1)
    for call in (producer.abort, producer.begin, lambda: producer.send(b"w")):
        with pytest.raises(IllegalTransactionCall):
            call()
    producer.commit()
    assert producer.broker.committed == [b"v"]


@LEVELS
def test_a_fenced_producer_can_only_be_closed(open_producer: Opener, level: int) -> None:
    """Another producer has taken the id.

    A batch is refused (abortable), the abort is refused (fatal), and only `close` is left.
    """
    producer = open_producer(level)
    producer.begin()
    producer.send(b"v")
    producer.flush()
    producer.broker.epoch += 5
    (zombie,) = producer.send(b"zombie")
    producer.flush()
    assert isinstance(zombie.error, KafkaError)
    assert zombie.error.code is ErrorCode.INVALID_PRODUCER_EPOCH
    with pytest.raises(TransactionAbortableError):
        producer.commit()
    with pytest.raises(ProducerFencedError):
        producer.abort()
    for call in (producer.init, producer.begin, producer.commit, producer.abort):
        with pytest.raises(ProducerFencedError):
            call()
    assert producer.broker.committed == []


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (ErrorCode.ILLEGAL_GENERATION, TransactionAbortableError),
        (ErrorCode.UNKNOWN_MEMBER_ID, TransactionAbortableError),
        (ErrorCode.GROUP_AUTHORIZATION_FAILED, TransactionAbortableError),
        (ErrorCode.TRANSACTION_ABORTABLE, TransactionAbortableError),
        (ErrorCode.INVALID_PRODUCER_EPOCH, ProducerFencedError),
        (ErrorCode.INVALID_TXN_STATE, TransactionFatalError),
    ],
)
@LEVELS
def test_refused_offsets_end_the_transaction(
    open_producer: Opener, level: int, code: ErrorCode, kind: type[Exception]
) -> None:
    """A refusal because of the group's state fails the transaction (KIP-447).

    A refusal because of the producer's state fails the producer.
    """
    producer = open_producer(level)
    producer.begin()
    producer.broker.trouble[ApiKey.TXN_OFFSET_COMMIT].append(int(code))
    with pytest.raises(kind) as caught:
        producer.send_offset(1)
    assert isinstance(caught.value.__cause__, KafkaError)
    assert caught.value.__cause__.code is code
    with pytest.raises(kind):
        producer.commit()
    if kind is TransactionAbortableError:
        producer.abort()
        producer.begin()
        producer.send_offset(2)
        producer.commit()
        assert producer.broker.offsets == {("g", "in", 0): 2}


@LEVELS
def test_offsets_without_an_answer_are_never_left_out(open_producer: Opener, level: int) -> None:
    """A call that sends offsets times out. Only an abort is allowed, since a commit might lack the offsets."""
    producer = open_producer(level)
    producer.begin()
    producer.broker.trouble[ApiKey.ADD_OFFSETS_TO_TXN if level == 1 else ApiKey.TXN_OFFSET_COMMIT] += [
        SILENCE
    ] * 50
    with pytest.raises(TransactionAbortableError, match=r"call again|no answer"):
        producer.send_offset(1)
    producer.broker.trouble.clear()
    with pytest.raises(TransactionAbortableError):
        producer.commit()
    producer.abort()
    producer.begin()
    producer.send_offset(2)
    producer.commit()
    assert producer.broker.offsets == {("g", "in", 0): 2}


def test_a_partition_that_is_refused_fails_the_transaction(open_producer: Opener) -> None:
    """AddPartitionsToTxn is refused for one partition.

    The coordinator then adds none of the request's partitions. The abort sends no EndTxn.
    """
    producer = open_producer(1)
    producer.begin()
    producer.broker.trouble[ApiKey.ADD_PARTITIONS_TO_TXN].append(int(ErrorCode.TOPIC_AUTHORIZATION_FAILED))
    (refused,) = producer.send(b"refused")
    with pytest.raises(TransactionAbortableError):
        producer.commit()
    assert isinstance(refused.error, TransactionAbortableError)
    producer.abort()
    assert asked(producer, EndTxnRequest) == []
    producer.begin()
    producer.send(b"next")
    producer.commit()
    assert producer.broker.committed == [b"next"]


def test_a_producer_id_that_is_forgotten_is_replaced_after_the_abort(open_producer: Opener) -> None:
    """After INVALID_PRODUCER_ID_MAPPING the abort sends no EndTxn. InitProducerId returns the next epoch."""
    producer = open_producer(1)
    producer.begin()
    producer.broker.trouble[ApiKey.ADD_PARTITIONS_TO_TXN].append(int(ErrorCode.INVALID_PRODUCER_ID_MAPPING))
    producer.send(b"v")
    with pytest.raises(TransactionAbortableError):
        producer.commit()
    producer.abort()
    assert asked(producer, EndTxnRequest) == []
    assert len(asked(producer, InitProducerIdRequest)) == 2
    producer.begin()
    producer.send(b"next")
    producer.commit()
    assert producer.broker.committed == [b"next"]


@pytest.mark.parametrize("code", [ErrorCode.PRODUCER_FENCED, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED])
@LEVELS
def test_an_id_that_is_refused_ends_the_producer(level: int, code: ErrorCode) -> None:
    """The transactional id is refused. `init_transactions` raises, and so does every later call."""
    producer = FakeProducer(level)
    producer.broker.trouble[ApiKey.INIT_PRODUCER_ID].append(int(code))
    with pytest.raises(TransactionFatalError):
        producer.init()
    with pytest.raises(TransactionFatalError):
        producer.begin()


@LEVELS
def test_calls_in_the_wrong_order_are_refused(level: int) -> None:
    """A call in the wrong order raises an error that says why."""
    producer = FakeProducer(level)
    with pytest.raises(IllegalTransactionCall, match="init_transactions was not called"):
        producer.begin()
    producer.init()
    for call in (
        producer.commit,
        producer.abort,
        lambda: producer.send(b"v"),
        lambda: producer.send_offset(1),
    ):
        with pytest.raises(IllegalTransactionCall, match="no transaction is open"):
            call()
    producer.begin()
    for again in (producer.begin, producer.init):
        with pytest.raises(IllegalTransactionCall, match="a transaction is open"):
            again()


@LEVELS
def test_two_calls_at_a_time_are_refused(open_producer: Opener, level: int) -> None:
    """A second call during a commit is refused, since the two could report different outcomes."""
    producer = open_producer(level)
    producer.begin()
    producer.send(b"v")
    producer.broker.trouble[ApiKey.END_TXN].append(int(ErrorCode.CONCURRENT_TRANSACTIONS))
    task = producer.core.start(producer.transactions.end(commit=True, timeout=60), producer.wire.now)
    producer.wire.settle()
    with pytest.raises(IllegalTransactionCall, match="commit_transaction has not ended yet"):
        producer.abort()
    producer.wire.finish(task)
    assert producer.broker.committed == [b"v"]


@LEVELS
def test_a_batch_that_is_too_large_is_split_within_its_transaction(open_producer: Opener, level: int) -> None:
    """A batch is too large and is split. Both halves belong to the transaction, and are committed."""
    producer = open_producer(level)
    producer.broker.max_batch_bytes = 600
    producer.begin()
    producer.send(*[b"%d" % number * 100 for number in range(8)])
    producer.commit()
    assert producer.broker.committed == [b"%d" % number * 100 for number in range(8)]


def test_an_abort_of_what_is_being_repeated_asks_for_an_epoch(open_producer: Opener) -> None:
    """A batch is being repeated when the transaction is aborted.

    Its sequence number may be missing, so a new epoch is needed (KIP-360).
    """
    producer = open_producer(1)
    producer.begin()
    producer.send(b"first")
    producer.commit()
    producer.begin()
    producer.broker.trouble[ApiKey.PRODUCE].append(int(ErrorCode.NOT_ENOUGH_REPLICAS))
    (repeated,) = producer.send(b"repeated")
    producer.flush()
    assert not repeated.done
    producer.abort()
    assert isinstance(repeated.error, TransactionAborted)
    producer.begin()
    producer.send(b"next")
    producer.commit()
    assert producer.broker.committed == [b"first", b"next"]


@LEVELS
def test_a_record_that_expires_in_flight_fails_the_transaction_at_once(
    open_producer: Opener, level: int
) -> None:
    """A record expires while its request is in flight.

    The transaction fails at once, and the abort waits for the answer.
    """
    producer = open_producer(level, delivery_timeout_ms=3005)
    producer.begin()
    producer.broker.trouble[ApiKey.PRODUCE] += [int(ErrorCode.NOT_ENOUGH_REPLICAS), SILENCE]
    (late,) = producer.send(b"late")
    producer.flush()
    while not late.done:
        due = producer.core.next_deadline()
        assert due is not None
        producer.wire.now = due
        producer.core.tick(due)
        producer.wire.settle()
    assert late.lane.in_flight
    assert producer.transactions.machine.state is TransactionState.ABORTABLE_ERROR
    producer.abort()
    assert not late.lane.in_flight


def test_an_epoch_whose_answer_was_lost_is_asked_for_again(open_producer: Opener) -> None:
    """The answer with a new epoch is lost, and the abort times out.

    The second abort repeats only InitProducerId, since EndTxn was answered.
    """
    producer = open_producer(1)
    producer.begin()
    producer.send(b"good")
    producer.flush()
    producer.broker.trouble[ApiKey.PRODUCE].append(int(ErrorCode.MESSAGE_TOO_LARGE))
    producer.send(b"bad")
    producer.flush()
    producer.broker.append_before_trouble = True
    producer.broker.trouble[ApiKey.INIT_PRODUCER_ID].append(SILENCE)
    with pytest.raises(RequestTimedOut):
        producer.abort(timeout=1)
    producer.abort()
    assert len(asked(producer, EndTxnRequest)) == 1
    producer.begin()
    producer.send(b"next")
    producer.commit()
    assert producer.broker.committed == [b"next"]


@LEVELS
def test_a_coordinator_that_moved_is_looked_for(open_producer: Opener, level: int) -> None:
    """After NOT_COORDINATOR the coordinator is looked up again.

    After COORDINATOR_LOAD_IN_PROGRESS the request is only repeated.
    """
    producer = open_producer(level)
    for code, more in ((ErrorCode.NOT_COORDINATOR, 1), (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, 0)):
        before = len(asked(producer, FindCoordinatorRequest))
        producer.begin()
        producer.send(b"v")
        producer.broker.trouble[ApiKey.END_TXN].append(int(code))
        producer.commit()
        assert len(asked(producer, FindCoordinatorRequest)) == before + more


@LEVELS
def test_a_gap_in_the_numbers_costs_the_transaction(open_producer: Opener, level: int) -> None:
    """The first batch is refused with OUT_OF_ORDER_SEQUENCE_NUMBER.

    The transaction fails, since a commit would lack this batch.
    """
    producer = open_producer(level)
    producer.begin()
    producer.broker.trouble[ApiKey.PRODUCE].append(int(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER))
    producer.send(b"v")
    with pytest.raises(TransactionAbortableError) as caught:
        producer.commit()
    assert isinstance(caught.value.__cause__, KafkaError)
    assert caught.value.__cause__.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    producer.abort()
    producer.begin()
    producer.send(b"next")
    producer.commit()
    assert producer.broker.committed == [b"next"]


@LEVELS
def test_offsets_that_were_given_up_are_never_left_out(open_producer: Opener, level: int) -> None:
    """KeyboardInterrupt or a cancelled task ends a call that sends offsets. Only an abort is allowed then."""
    producer = open_producer(level)
    producer.begin()
    producer.broker.trouble[ApiKey.TXN_OFFSET_COMMIT].append(SILENCE)
    sending = producer.transactions.send_offsets(judged_offsets("offsets", {("in", 0): 1}), GROUP, 60)
    task = producer.core.start(sending, producer.wire.now)
    producer.wire.settle()
    producer.core.abandon(task)
    with pytest.raises(TransactionAbortableError):
        producer.commit()
    producer.abort()


def two_phase(level: int = 2) -> FakeProducer:
    return FakeProducer(level, transaction_two_phase_commit_enable=True)


@pytest.mark.parametrize("commit", [True, False])
def test_a_prepared_transaction_outlives_its_producer(commit: bool) -> None:
    """A transaction is prepared, and its producer ends (KIP-939).

    `resume` of a new producer finds it, and commits or aborts it.
    """
    first = two_phase()
    first.init()
    (message,) = asked(first, InitProducerIdRequest)
    assert (message.enable2_pc, message.keep_prepared_txn, message.transaction_timeout_ms) == (
        True,
        False,
        INT_MAX,
    )
    first.begin()
    first.send(b"v")
    state = first.run(first.transactions.prepare(60))
    assert state == "77:0"
    with pytest.raises(IllegalTransactionCall, match="prepared: commit or abort it"):
        first.send(b"more")
    heir = two_phase()
    heir.take_over(first)
    assert heir.run(heir.transactions.resume(60)) == state
    assert heir.transactions.machine.state is TransactionState.PREPARED
    (heir.commit if commit else heir.abort)()
    assert heir.broker.committed == ([b"v"] if commit else [])
    with pytest.raises(ProducerFencedError):
        first.commit()
    heir.begin()
    heir.send(b"next")
    heir.commit()
    assert heir.broker.committed[-1] == b"next"
    assert heir.broker.wrong == []


def test_resume_without_a_prepared_transaction_is_init_transactions() -> None:
    """Without a prepared transaction, `resume` does as `init_transactions`, and returns None."""
    producer = two_phase()
    assert producer.run(producer.transactions.resume(60)) is None
    producer.begin()


def test_a_record_that_failed_is_never_prepared() -> None:
    """A record fails. `prepare` raises, and only an abort is possible."""
    producer = two_phase()
    producer.init()
    producer.begin()
    producer.broker.trouble[ApiKey.PRODUCE].append(int(ErrorCode.MESSAGE_TOO_LARGE))
    producer.send(b"v")
    with pytest.raises(TransactionAbortableError):
        producer.run(producer.transactions.prepare(60))
    producer.abort()


def test_two_phases_need_their_setting_and_a_broker_that_has_them(open_producer: Opener) -> None:
    """Two-phase commit needs its configuration key and InitProducerId 6.

    An older version would abort a prepared transaction, so it is not sent.
    """
    producer = open_producer(2)
    producer.begin()
    with pytest.raises(IllegalTransactionCall, match=r"transaction\.two\.phase\.commit\.enable"):
        producer.run(producer.transactions.prepare(60))
    old = two_phase()
    old.broker.versions[ApiKey.INIT_PRODUCER_ID] = (0, 5)
    with pytest.raises(TransactionFatalError, match="INIT_PRODUCER_ID"):
        old.run(old.transactions.resume(60))
    assert asked(old, InitProducerIdRequest) == []
