"""The two-phase protocol in every order of drivers, attempts and their deaths, with a model of the coordinators."""

from __future__ import annotations

import attrs
import pytest

from odradek.spark.delivery.completion import Completion
from odradek.spark.delivery.markers import MarkerLog, decision_key, decision_value
from odradek.spark.delivery.task_protocol import Marker, ProgressError, RowSummary, TaskProtocol, check_topics
from odradek.spark.delivery.two_phase import (
    AttemptProtocol,
    Decision,
    DriverProtocol,
    DriverStep,
    Prepared,
    check_mode,
    judge_decision,
    last_of,
    sum_of,
)
from odradek.wire.record_batch import RecordBatchBuilder
from tests.spark.delivery.two_phase_world import Rules, Sizes, fault

ROWS = RowSummary(3, 17)
ONE = Sizes(batches=1)
TWO = Sizes(batches=2, aborts=False, first_ends=True)
BEGUN = tuple(Sizes(batches=1, tasks=2, aborts=False, begun=tasks) for tasks in ((0,), (1,)))
"""Batch 0 has begun with delivery=exactly-once, and one of its two tasks has committed."""
WHOLE = (
    Sizes(batches=2),
    Sizes(batches=1, attempts=2, aborts=False, slots=3),
    Sizes(batches=1, tasks=2, aborts=False),
)
"""The sizes that are searched with --matrix."""


def test_no_order_of_events_loses_or_doubles_rows(pytestconfig: pytest.Config) -> None:
    """In every order of events, with two drivers and failing batches, the rows of each task are there once. No
    transaction stays open."""
    whole = WHOLE if pytestconfig.getoption("--matrix") else ()
    sizes = (ONE, TWO, *BEGUN, *whole)
    assert [fault(Rules(), each)[0] for each in sizes] == [""] * len(sizes)


@pytest.mark.parametrize("rule", [each.name for each in attrs.fields(Rules)])
def test_each_rule_is_needed(rule: str) -> None:
    """If one rule is switched off, the search finds lost or duplicated rows, or a transaction that stays open."""
    sizes = ONE if rule.startswith("abort_") else TWO
    worlds = BEGUN if rule == "asks_each_task" else (sizes,)
    assert any(fault(Rules(**{rule: False}), each)[0] for each in worlds)


@pytest.mark.parametrize(("last", "batch", "is_open"), [(None, 0, True), (4, 5, True), (5, 5, False)])
def test_batches_that_follow_their_decision(last: int | None, batch: int, is_open: bool) -> None:
    """The batch of the last decision is decided already, and the next batch is open."""
    decision = None if last is None else Decision(last, ROWS, is_complete=True)
    assert judge_decision("query q", batch, decision) is is_open
    assert AttemptProtocol("query q", 0, batch).looked(decision) is is_open


@pytest.mark.parametrize(
    ("last", "batch", "sentence"),
    [
        (7, 5, "the checkpoint is older than the topic"),
        (3, 5, "the topic has a decision about batch 3 of query q, and batch 5 is next"),
        (None, 5, "the topic has no decision of query q, and batch 5 is next"),
    ],
)
def test_batches_that_contradict_their_decision(last: int | None, batch: int, sentence: str) -> None:
    """A batch that does not follow the last decision is refused with one sentence. Gaps are allowed for a job's
    versions and for an adopted checkpoint."""
    decision = None if last is None else Decision(last, ROWS, is_complete=True)
    with pytest.raises(ProgressError, match=sentence):
        judge_decision("query q", batch, decision)
    if last is None or last < batch:
        assert judge_decision("query q", batch, decision, consecutive=False)
        assert judge_decision("query q", batch, decision, adopt=True)
    with pytest.raises(ProgressError, match="txnVersion must only grow"):
        judge_decision("job j", 5, Decision(7, ROWS), consecutive=False)


def test_an_attempt_waits_for_the_batch_before() -> None:
    """An attempt at the next batch fails until the last decision is complete. The driver may still be aborting
    transactions."""
    with pytest.raises(ProgressError, match="is decided but not complete"):
        AttemptProtocol("q", 0, 6).looked(Decision(5, ROWS))


def test_other_rows_than_those_decided() -> None:
    """If a batch was decided with other rows, in number or content, the run fails. `adoptCheckpoint` accepts the
    decided rows."""
    for found, words in (
        (RowSummary(4, 17), "this run has 4\\."),
        (RowSummary(3, 18), "as many rows with other contents"),
    ):
        driver = DriverProtocol("q", 5, (), found, step=DriverStep.READ)
        driver.read(Decision(5, ROWS, is_complete=True))
        assert driver.step is DriverStep.DONE
        with pytest.raises(ProgressError, match=words):
            driver.check_rows()
        attrs.evolve(driver, adopt=True).check_rows()
    assert sum_of([ROWS, RowSummary(1, (1 << 64) - 1)]) == RowSummary(4, 16)


def test_a_query_changes_its_delivery_between_batches_only() -> None:
    """A batch must end with the delivery with which it began. The next batch may use the other."""
    markers = {0: Marker(4, ROWS), 1: Marker(5, ROWS)}
    assert last_of("q", 6, None, markers) == Decision(5, ROWS, is_complete=True)
    for begun in (markers, {1: Marker(5, ROWS)}, {2: Marker(5, ROWS), 3: Marker(4, ROWS)}):
        with pytest.raises(ProgressError, match="batch 5 of q began with delivery=exactly-once"):
            last_of("q", 5, None, begun)
        assert last_of("q", 5, Decision(5, ROWS), begun) == Decision(5, ROWS)
    with pytest.raises(ProgressError, match="the checkpoint is older than the topic"):
        judge_decision("q", 4, last_of("q", 4, None, markers))
    later = Decision(6, ROWS, is_complete=True)
    assert last_of("q", 7, later, markers) == later
    check_mode(TaskProtocol("q", 0, 7), later)
    with pytest.raises(ProgressError, match="delivery=two-phase has begun batch"):
        check_mode(TaskProtocol("q", 0, 7), attrs.evolve(later, is_complete=False))
    finished = Completion(5, ROWS, 2)
    assert last_of("q", 5, None, markers, finished) == Decision(5, ROWS, is_complete=True)
    begun = {0: Marker(4, ROWS, run="a"), 1: Marker(5, ROWS, run="a")}
    with pytest.raises(ProgressError, match="batch 5 of q has begun and was not finished"):
        last_of("q", 6, None, begun, Completion(4, ROWS))


def test_a_topic_made_anew_is_told() -> None:
    """A topic whose id has changed since the last batch is refused. A new topic, or one without a known id, is
    accepted."""
    before = (("t", b"\1" * 16), ("old", bytes(16)))
    check_topics("q", 3, before, (("t", b"\1" * 16), ("old", b"\2" * 16), ("new", b"\3" * 16)))
    with pytest.raises(ProgressError, match="the topic 't' was deleted and created again since batch 3 of q"):
        check_topics("q", 3, before, (("t", b"\2" * 16),))


def test_decisions_as_records() -> None:
    """A decision is read back as it was written. A complete decision is stored without its winners."""
    winners = (Prepared(0, 2, 71, 5), Prepared(12, 0, 72, 0))
    decision = Decision(7, ROWS, winners, topics=(("t", b"\1" * 16),))
    log = MarkerLog("q")
    for offset, each in enumerate((decision, attrs.evolve(decision, is_complete=True))):
        builder = RecordBatchBuilder(base_offset=offset)
        builder.append(1, decision_key("q"), decision_value(each))
        log.add_stable(memoryview(builder.build()), [])
        assert log.decision == attrs.evolve(each, winners=() if each.is_complete else winners)
    assert log.copy().decision == log.decision
    builder = RecordBatchBuilder(base_offset=2)
    builder.append(
        1, decision_key("q"), b'{"batch":1,"rows":2,"rowHash":"0","winners":[[1]],"complete":true}'
    )
    with pytest.raises(ProgressError, match="the decision of q cannot be read"):
        log.add_stable(memoryview(builder.build()), [])


def test_steps_have_one_order() -> None:
    """A step out of order raises `AssertionError`."""
    with pytest.raises(AssertionError):
        AttemptProtocol("q", 0, 0).prepared()
    with pytest.raises(AssertionError):
        DriverProtocol("q", 0, (), ROWS).decided()
