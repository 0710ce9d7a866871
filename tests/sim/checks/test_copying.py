"""The ledger of copying transactions: what it accepts, and each violation that it must find."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from sim.history import SafetyViolation
from sim.load.copying.copy_ledger import Copy, CopyLedger, Found, Outcome, copy_value
from sim.load.copying.copy_plan import CopyPlan

SINK = 0


def value(name: str, number: int) -> bytes:
    """Make the copy of the record at offset `number` of the only source partition."""
    return copy_value(name, number, 0, number, b"")


def copied(ledger: CopyLedger, name: str, offsets: range, outcome: Outcome) -> Copy:
    """Make a transaction that has copied these records of the source."""
    copy = ledger.begin(name)
    copy.records = [(SINK, value(name, offset)) for offset in offsets]
    copy.offsets = {0: offsets.stop}
    copy.outcome = outcome
    return copy


def content(*copies: Copy) -> dict[int, list[Found]]:
    """Make the content of the sink from these transactions, in order."""
    values = [each for copy in copies for _, each in copy.records]
    return {SINK: list(enumerate(values))}


def source(end: int) -> dict[int, list[Found]]:
    return {0: [(offset, b"v") for offset in range(end)]}


def test_transactions_that_count_whole_are_right() -> None:
    """Records of committed transactions must be in the sink. Those of unanswered transactions may be there, and others
    must not."""
    ledger = CopyLedger()
    first = copied(ledger, "a.1", range(2), Outcome.COMMITTED)
    copied(ledger, "a.2", range(2, 3), Outcome.ABORTED)
    copied(ledger, "a.3", range(2, 3), Outcome.TRIED)
    copied(ledger, "a.4", range(2, 3), Outcome.OPEN)
    last = copied(ledger, "a.5", range(2, 4), Outcome.TRIED)
    sink = content(first, last)
    ledger.see("reader", SINK, sink[SINK][:3])
    ledger.check(sink, source(4), {0: 4})


def test_the_copy_is_done_when_the_group_is_at_the_end() -> None:
    """The group's progress never decreases, even if a member reports an older offset."""
    ledger = CopyLedger()
    ledger.advance({0: 5})
    assert not ledger.is_done
    ledger.ends = {0: 5}
    ledger.advance({0: 3})
    assert ledger.is_done


def aborted_seen(ledger: CopyLedger) -> None:
    copy = copied(ledger, "a.1", range(1), Outcome.ABORTED)
    ledger.see("reader", SINK, content(copy)[SINK])


def open_seen(ledger: CopyLedger) -> None:
    copy = copied(ledger, "a.1", range(1), Outcome.OPEN)
    ledger.see("reader", SINK, content(copy)[SINK])


def seen_twice(ledger: CopyLedger) -> None:
    copy = copied(ledger, "a.1", range(1), Outcome.COMMITTED)
    ledger.see("reader", SINK, content(copy)[SINK] * 2)


def seen_and_gone(ledger: CopyLedger) -> None:
    copy = copied(ledger, "a.1", range(1), Outcome.TRIED)
    ledger.see("reader", SINK, content(copy)[SINK])
    ledger.check({SINK: []}, source(1), {0: 0})


def committed_and_gone(ledger: CopyLedger) -> None:
    copied(ledger, "a.1", range(1), Outcome.COMMITTED)
    ledger.check({SINK: []}, source(1), {0: 0})


def aborted_and_there(ledger: CopyLedger) -> None:
    copy = copied(ledger, "a.1", range(1), Outcome.ABORTED)
    ledger.check(content(copy), source(1), {0: 1})


def torn(ledger: CopyLedger) -> None:
    copy = copied(ledger, "a.1", range(3), Outcome.COMMITTED)
    ledger.check({SINK: content(copy)[SINK][:2]}, source(3), {0: 3})


def out_of_order(ledger: CopyLedger) -> None:
    copy = copied(ledger, "a.1", range(2), Outcome.COMMITTED)
    first, second = copy.records
    ledger.check({SINK: [(0, second[1]), (1, first[1])]}, source(2), {0: 2})


def nobody_made_it(ledger: CopyLedger) -> None:
    ledger.check({SINK: [(0, value("b.1", 0))]}, source(1), {0: 1})


def copied_twice(ledger: CopyLedger) -> None:
    copies = [copied(ledger, name, range(1), Outcome.COMMITTED) for name in ("a.1", "b.1")]
    ledger.check(content(*copies), source(1), {0: 1})


def passed_over(ledger: CopyLedger) -> None:
    copy = copied(ledger, "a.1", range(1), Outcome.COMMITTED)
    ledger.check(content(copy), source(2), {0: 2})


def offset_of_no_transaction(ledger: CopyLedger) -> None:
    copy = copied(ledger, "a.1", range(2), Outcome.COMMITTED)
    ledger.check(content(copy), source(2), {0: 1})


@pytest.mark.parametrize(
    ("breach", "complaint"),
    [
        (aborted_seen, "reader: sink 0 offset 0 .* whose transaction was aborted"),
        (open_seen, "reader: sink 0 offset 0 .* whose transaction was never ended"),
        (seen_twice, "reader: sink 0 offset 0 follows 0"),
        (seen_and_gone, "reader: sink 0 had .* which is not there at the end"),
        (committed_and_gone, "a.1 was committed, and none of its records is there"),
        (aborted_and_there, "a.1 was aborted, and its records are there"),
        (torn, "a.1 was committed and is torn: sink 0 has 2 of its 3"),
        (out_of_order, "a.1 was committed and is torn: .* or another order"),
        (nobody_made_it, "b.1 is in the sink, and nobody has made it"),
        (copied_twice, "source 0 offset 0 is copied twice: by transaction a.1 and by b.1"),
        (passed_over, "source 0 offset 1 is lost"),
        (offset_of_no_transaction, "group offset of source 0: 1, .* have committed 2"),
    ],
)
def test_a_broken_promise_is_told(breach: Callable[[CopyLedger], None], complaint: str) -> None:
    """A violation of each rule is found."""
    with pytest.raises(SafetyViolation, match=complaint):
        breach(CopyLedger())


def test_plans_have_all_ends_and_naps_keep_their_transactions() -> None:
    """Plans include all ways to end. If a copier naps longer than its session, its transaction timeout is even
    longer."""
    plans = [CopyPlan.draw(Random(seed)) for seed in range(200)]
    assert {each.end for each in plans} == {"close", "die", "zombie", "freeze", "nap"}
    assert {each.is_explicit for each in plans} == {True, False}
    assert {each.timeout_ms for each in plans if each.end == "nap"} == {20_000}
