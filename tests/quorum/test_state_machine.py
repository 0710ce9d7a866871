"""The replicated state machine: decide, replay, and answer only after the log has committed the decision."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odradek.metadata_quorum.state_machine import (
    RECORDS_PER_BATCH_MAX,
    Decision,
    DecisionContext,
    Deferred,
    ReplicatedStateMachine,
)
from odradek.wire.errors import ErrorCode, LocalProtocolError
from tests.schedule import examples

ENCODES_NOT = 1 << 63
"""A number that `SlowLog` refuses to encode."""


class SlowLog:
    """A decision log that commits when the test says so."""

    def __init__(self) -> None:
        self.records: list[Any] = []
        self.encoded = 0
        self.high_watermark = 0
        self.epoch = 3
        self.has_room = True
        self._listeners: list[Callable[[int], None]] = []

    @property
    def log_end_offset(self) -> int:
        return len(self.records)

    def encode_batch(self, records: Sequence[Any]) -> tuple[Any, ...]:
        if ENCODES_NOT in records:
            raise LocalProtocolError("too large for a record")
        self.encoded += len(records)
        return tuple(records)

    def append_batch(self, batch: tuple[Any, ...]) -> int:
        assert type(batch) is tuple, f"a batch was appended without being encoded: {batch!r}"
        self.records += batch
        return len(self.records) - 1

    def subscribe(self, listener: Callable[[int], None]) -> None:
        self._listeners.append(listener)

    def commit(self, high_watermark: int) -> None:
        self.high_watermark = high_watermark
        for listener in self._listeners:
            listener(high_watermark)


@attrs.frozen
class Add:
    numbers: tuple[int, ...]


class Sum:
    """A model whose state is a tuple of numbers. Negative numbers are refused, and an empty request reads the state."""

    def decide(self, state: tuple[int, ...], request: Add, context: DecisionContext) -> Decision:
        assert context.next_offset >= len(state)
        if any(number < 0 for number in request.numbers):
            return Decision([], ("refused", state))
        return Decision(list(request.numbers), ("ok", state + request.numbers))

    def replay(
        self, state: tuple[int, ...], base_offset: int, epoch: int, records: Sequence[int]
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return state + tuple(records), tuple(records)

    def refuse(self, request: Add, code: ErrorCode) -> Any:
        return code.name, ()

    def withdraw(
        self, state: tuple[int, ...], request: Add, decision: Decision, context: DecisionContext
    ) -> Any:
        return "withdrawn", state


def make(log: SlowLog) -> ReplicatedStateMachine[Any, Any]:
    return ReplicatedStateMachine(Sum(), log, (), random=Random(1), new_uuid=lambda: bytes(16))


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("submit"), st.lists(st.integers(-1, 5), max_size=3)),
        st.tuples(st.just("commit"), st.integers(0, 4)),
        st.tuples(st.just("resign"), st.none()),
    ),
    max_size=40,
)


@given(STEPS)
@settings(max_examples=examples(200), deadline=None)
def test_no_answer_tells_of_what_is_not_committed(steps: list[tuple[str, Any]]) -> None:
    """Every answer, even an error or a read, is released when the high watermark reaches the state on which the answer
    depends.

    Answers are released in the order in which they were made.
    """
    log = SlowLog()
    machine = make(log)
    asked: list[Deferred] = []
    released: list[int] = []
    observed: list[int] = []
    machine.subscribe(lambda state, delta: observed.extend(delta))

    def note(number: int) -> Callable[[Any], None]:
        def on_release(response: tuple[str, tuple[int, ...]]) -> None:
            word, told = response
            released.append(number)
            assert list(told) == log.records[: len(told)]
            assert len(told) <= log.high_watermark
            assert word in ("ok", "refused", "NOT_CONTROLLER")

        return on_release

    for verb, value in steps:
        if verb == "submit":
            deferred = machine.submit(Add(tuple(value)), 0)
            asked.append(deferred)
            deferred.on_release(note(len(asked) - 1))
        elif verb == "commit":
            log.commit(min(log.high_watermark + value, log.log_end_offset))
        else:
            machine.resign()
            assert machine.state == machine.committed_state
        assert observed == log.records[: len(observed)]
        assert len(machine.committed_state) <= log.high_watermark
    assert released == list(range(len(released)))
    for number, deferred in enumerate(asked):
        assert deferred.is_released == (number < len(released))


def test_a_decision_sees_what_was_decided_before_it_is_committed() -> None:
    """A decision is replayed when it is appended, so the next decision sees it before it is committed."""
    log = SlowLog()
    machine = make(log)
    machine.submit(Add((1, 2)), 0)
    second = machine.submit(Add((3,)), 0)
    assert not second.is_released
    assert machine.state == (1, 2, 3)
    assert machine.committed_state == ()
    log.commit(3)
    assert second.response == ("ok", (1, 2, 3))


def test_a_batch_commits_as_a_whole() -> None:
    """The high watermark is within a decision's records. None of these records is visible yet."""
    log = SlowLog()
    machine = make(log)
    deferred = machine.submit(Add((1, 2, 3)), 0)
    log.commit(2)
    assert (machine.committed_state, deferred.is_released) == ((), False)
    log.commit(3)
    assert (machine.committed_state, deferred.is_released) == ((1, 2, 3), True)


def test_resigning_goes_back_to_the_committed_state() -> None:
    """A leader that resigns returns to the committed state. Waiting requests get NOT_CONTROLLER."""
    log = SlowLog()
    machine = make(log)
    first = machine.submit(Add((1,)), 0)
    log.commit(1)
    second = machine.submit(Add((2,)), 0)
    machine.resign()
    assert machine.state == (1,)
    assert first.response == ("ok", (1,))
    assert second.response == ("NOT_CONTROLLER", ())
    assert machine.submit(Add((3,)), 0).response == ("NOT_CONTROLLER", ())
    assert log.records == [1, 2]


@pytest.mark.reaches("decisions.refused_for_slow_log")
def test_a_log_without_room_refuses() -> None:
    """The log has no room for more uncommitted decisions. A request is refused with REQUEST_TIMED_OUT."""
    log = SlowLog()
    machine = make(log)
    log.has_room = False
    assert machine.submit(Add((1,)), 0).response == ("REQUEST_TIMED_OUT", ())
    assert log.records == []


def test_reading_a_response_early_is_a_bug() -> None:
    """A response is read before its decision is committed. This is a bug, which raises AssertionError."""
    machine = make(SlowLog())
    deferred = machine.submit(Add((1,)), 0)
    with pytest.raises(AssertionError, match="before the records"):
        _ = deferred.response


def test_an_answer_may_lead_to_the_next_request() -> None:
    """A callback of an answer may submit the next request."""
    log = SlowLog()
    machine = make(log)
    told: list[Any] = []
    machine.submit(Add((1,)), 0).on_release(
        lambda _: machine.submit(Add((2,)), 0).on_release(lambda response: told.append(response))
    )
    log.commit(1)
    assert told == []
    log.commit(2)
    assert told == [("ok", (1, 2))]


def test_a_large_decision_is_several_batches_and_one_answer() -> None:
    """A decision of more than 10,000 records is written in several batches, as in Kafka.

    The answer waits for the last one.
    """
    sizes: list[int] = []

    class CountingLog(SlowLog):
        def append_batch(self, batch: tuple[Any, ...]) -> int:
            sizes.append(len(batch))
            return super().append_batch(batch)

    log = CountingLog()
    machine: ReplicatedStateMachine[Any, Any] = ReplicatedStateMachine(
        Sum(), log, (), random=Random(1), new_uuid=lambda: bytes(16)
    )
    count = 2 * RECORDS_PER_BATCH_MAX + 1
    deferred = machine.submit(Add(tuple(range(count))), 0)
    assert sizes == [RECORDS_PER_BATCH_MAX, RECORDS_PER_BATCH_MAX, 1]
    log.commit(count - 1)
    assert not deferred.is_released
    assert len(machine.committed_state) == 2 * RECORDS_PER_BATCH_MAX
    log.commit(count)
    assert deferred.is_released
    assert machine.committed_state == tuple(range(count))


class Broken(Sum):
    """Decides the number 13, but cannot replay it."""

    def replay(
        self, state: tuple[int, ...], base_offset: int, epoch: int, records: Sequence[int]
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        if 13 in records:
            raise ValueError("no thirteen")
        return super().replay(state, base_offset, epoch, records)


def test_what_cannot_be_replayed_is_never_in_the_log() -> None:
    """A decision contains a record that cannot be replayed.

    The controller fails, as Kafka's QuorumController does, and nothing of the decision is written.
    """
    log = SlowLog()
    failures: list[BaseException] = []
    machine: ReplicatedStateMachine[Any, Any] = ReplicatedStateMachine(
        Broken(), log, (), random=Random(1), new_uuid=lambda: bytes(16), fail=failures.append
    )
    machine.submit(Add((1, 2)), 0)
    with pytest.raises(AssertionError, match="no thirteen"):
        machine.submit(Add((*range(20, 20 + RECORDS_PER_BATCH_MAX), 13)), 0)
    assert log.records == [1, 2]
    assert machine.state == (1, 2)
    assert len(failures) == 1
    refused = machine.submit(Add((3,)), 0)
    assert refused.response == ("NOT_CONTROLLER", ())
    assert log.records == [1, 2]


@pytest.mark.reaches("decisions.withdrawn")
def test_a_decision_that_fits_no_record_is_an_answer_and_changes_nothing() -> None:
    """A decision contains a record that cannot be encoded.

    The request gets an error, state and log do not change, and the next request is decided.
    """
    log = SlowLog()
    failures: list[BaseException] = []
    told: list[tuple[Any, str]] = []
    machine: ReplicatedStateMachine[Any, Any] = ReplicatedStateMachine(
        Sum(),
        log,
        (),
        random=Random(1),
        new_uuid=lambda: bytes(16),
        fail=failures.append,
        not_encoded=lambda request, error: told.append((request, str(error))),
    )
    machine.submit(Add((1, 2)), 0)
    request = Add((*range(RECORDS_PER_BATCH_MAX), ENCODES_NOT))
    refused = machine.submit(request, 0)
    assert log.records == [1, 2]
    assert machine.state == (1, 2)
    assert told == [(request, "too large for a record")]
    assert not refused.is_released, "an answer was released before the state that it has seen was committed"
    log.commit(2)
    assert refused.response == ("withdrawn", (1, 2))
    later = machine.submit(Add((3,)), 0)
    log.commit(3)
    assert later.response == ("ok", (1, 2, 3))
    assert not failures


def test_a_decision_is_encoded_once() -> None:
    """A decision's records are encoded once, for the check of the size and for the log."""
    log = SlowLog()
    make(log).submit(Add((1, 2, 3)), 0)
    assert (log.encoded, log.records) == (3, [1, 2, 3])


def test_nothing_is_in_the_state_that_the_log_did_not_take() -> None:
    """Appending to the log fails by a bug. The node ends, and the state is as before."""

    class FailingLog(SlowLog):
        def append_batch(self, batch: tuple[Any, ...]) -> int:
            raise TypeError("cannot be appended")

    failures: list[BaseException] = []
    machine: ReplicatedStateMachine[Any, Any] = ReplicatedStateMachine(
        Sum(), FailingLog(), (), random=Random(1), new_uuid=lambda: bytes(16), fail=failures.append
    )
    with pytest.raises(TypeError):
        machine.submit(Add((1,)), 0)
    assert machine.state == ()
    assert [type(each) for each in failures] == [TypeError]
