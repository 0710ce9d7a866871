"""The ledger of transactions over several partitions: what it accepts, and each violation that it must find."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sim.history import SafetyViolation
from sim.load.joint.joint_ledger import Found, Joint, JointLedger, Outcome
from sim.load.joint.joint_plan import TOPIC_LENGTH, WORKLOADS, JointPlan

KEY = b"key"


def whole() -> JointLedger:
    """Make a ledger for a topic that is not compacted."""
    return JointLedger("wide", is_compacted=False)


def compacted() -> JointLedger:
    return JointLedger("tally", is_compacted=True)


def joint(ledger: JointLedger, name: str, outcome: Outcome, *partitions: int) -> Joint:
    """Make a transaction with one record in each of these partitions."""
    made = ledger.begin(name, is_explicit=False)
    for partition in partitions or (0,):
        ledger.send(made, partition, KEY, b"")
    if outcome is Outcome.COMMITTED:
        ledger.committed(made)
    made.outcome = outcome
    return made


def content(*joints: Joint) -> dict[int, list[Found]]:
    """Make the content of partition 0 from these transactions, in order."""
    values = [value for each in joints for _, _, value in each.records[0]]
    return {0: [Found(offset, KEY, value) for offset, value in enumerate(values)]}


def commit(ledger: JointLedger, of: Joint | None = None, *, times: int = 1) -> int:
    """Commit an offset of partition 0; return the offset."""
    asked = ledger.ask([0], of)
    ledger.answer(asked, times=times)
    return asked[0].offset


def test_transactions_that_count_are_right() -> None:
    """Records of committed transactions must be in the log. Those of unanswered transactions may be there, and others
    must not."""
    ledger = whole()
    first = joint(ledger, "a.1", Outcome.COMMITTED)
    joint(ledger, "a.2", Outcome.ABORTED)
    joint(ledger, "a.3", Outcome.TRIED)
    joint(ledger, "a.4", Outcome.OPEN)
    last = joint(ledger, "a.5", Outcome.TRIED)
    there = content(first, last)
    ledger.see("reader", 0, there[0][:1])
    ledger.check(there)


def test_compaction_leaves_the_newest_committed_record_of_a_key() -> None:
    """Compaction may remove all but the newest committed record of a key, even if older ones were read. Aborted records
    do not count."""
    ledger = compacted()
    first, last = (joint(ledger, name, Outcome.COMMITTED) for name in ("a.1", "a.2"))
    aborted = joint(ledger, "a.3", Outcome.ABORTED)
    both = content(first, last)[0]
    ledger.see("reader", 0, both)
    ledger.check({0: both[1:]})
    ledger.check_replica("a replica", 0, [*both[1:], *content(aborted)[0]])


def test_the_log_orders_offset_commits_of_both_kinds() -> None:
    """The later request of two offset commits wins, plain or transactional. An unanswered commit may take effect at
    any time."""
    ledger = whole()
    writer = ledger.begin("a.1", is_explicit=False)
    commit(ledger, writer)
    inside = commit(ledger, writer)
    plain = commit(ledger)
    ledger.check_offset(0, plain, ledger.tick(), "reader")
    ledger.committed(writer)
    ledger.check_offset(0, plain, ledger.tick(), "reader")
    late = ledger.ask([0], None)
    commit(ledger)
    ledger.check_offset(0, late[0].offset, ledger.tick(), "reader")
    assert inside < plain


def test_a_commit_that_was_sent_twice_may_come_again() -> None:
    """A commit that was sent twice may take effect again after a later commit."""
    ledger = whole()
    twice = commit(ledger, times=2)
    commit(ledger)
    ledger.check_offset(0, twice, ledger.tick(), "reader")


def aborted_seen() -> None:
    ledger = whole()
    ledger.see("reader", 0, content(joint(ledger, "a.1", Outcome.ABORTED))[0])


def sent_elsewhere() -> None:
    ledger = whole()
    ledger.see("reader", 1, content(joint(ledger, "a.1", Outcome.COMMITTED))[0])


def committed_and_gone() -> None:
    ledger = whole()
    joint(ledger, "a.1", Outcome.COMMITTED)
    ledger.check({0: []})


def torn() -> None:
    ledger = whole()
    one = joint(ledger, "a.1", Outcome.TRIED, 0, 1)
    ledger.check({**content(one), 1: []})


def there_twice() -> None:
    ledger = whole()
    one = joint(ledger, "a.1", Outcome.COMMITTED)
    ledger.check(content(one, one))


def out_of_order() -> None:
    ledger = whole()
    first, second = (joint(ledger, name, Outcome.COMMITTED) for name in ("a.1", "a.2"))
    ledger.check(content(second, first))


def left_out() -> None:
    ledger = whole()
    there = content(*(joint(ledger, name, Outcome.COMMITTED) for name in ("a.1", "a.2")))
    ledger.see("reader", 0, there[0][1:])
    ledger.check(there)


def seen_and_gone() -> None:
    ledger = compacted()
    ledger.see("reader", 0, content(joint(ledger, "a.1", Outcome.TRIED))[0])
    ledger.check({0: []})


def newest_compacted_away() -> None:
    ledger = compacted()
    first = joint(ledger, "a.1", Outcome.COMMITTED)
    joint(ledger, "a.2", Outcome.COMMITTED)
    ledger.check(content(first))


def aborted_in_its_place() -> None:
    ledger = compacted()
    first = joint(ledger, "a.1", Outcome.COMMITTED)
    aborted = joint(ledger, "a.2", Outcome.ABORTED)
    ledger.check(content(first))
    ledger.check_replica("a replica", 0, content(aborted)[0])


def first_of_two_commits() -> None:
    ledger = whole()
    writer = ledger.begin("a.1", is_explicit=False)
    first = commit(ledger, writer)
    commit(ledger, writer)
    ledger.committed(writer)
    ledger.check_offset(0, first, ledger.tick(), "reader")


def transaction_over_a_later_plain_one() -> None:
    ledger = whole()
    writer = ledger.begin("a.1", is_explicit=False)
    first = commit(ledger, writer)
    commit(ledger)
    ledger.committed(writer)
    ledger.check_offset(0, first, ledger.tick(), "reader")


def offset_of_an_open_transaction() -> None:
    ledger = whole()
    offset = commit(ledger, ledger.begin("a.1", is_explicit=False))
    ledger.check_offset(0, offset, ledger.tick(), "reader")


def offset_of_nobody() -> None:
    ledger = whole()
    ledger.check_offset(0, 5, ledger.tick(), "reader")


def offset_lost() -> None:
    ledger = whole()
    commit(ledger)
    ledger.check_offset(0, None, ledger.tick(), "reader")


def prepared_and_gone() -> None:
    ledger = whole()
    prepared = joint(ledger, "a.1", Outcome.OPEN)
    prepared.prepared = "1:0"
    ledger.resumed(prepared, "1:0")
    ledger.resumed(prepared, None)


@pytest.mark.parametrize(
    ("breach", "complaint"),
    [
        (aborted_seen, "reader: partition 0 offset 0: transaction a.1 was aborted"),
        (sent_elsewhere, "reader: partition 1 offset 0: nobody has sent"),
        (committed_and_gone, "of a transaction that counts is not in partition 0"),
        (torn, "of a transaction that counts is not in partition 1"),
        (there_twice, "comes after a later record"),
        (out_of_order, "comes after a later record"),
        (left_out, "the reader has left out records of partition 0"),
        (seen_and_gone, "the reader had .* which is not there at the end"),
        (newest_compacted_away, "the newest committed record of key b'key', is not in partition 0"),
        (aborted_in_its_place, "the newest committed record of key b'key', is not in a replica"),
        (first_of_two_commits, "offset 1 of partition 0: .* a.1, .*; offset 2 is of a.1"),
        (transaction_over_a_later_plain_one, "offset 1 of partition 0: .* a.1, .*; offset 2 is of a plain"),
        (offset_of_an_open_transaction, "offset 1 is of a.1, which was never ended"),
        (offset_of_nobody, "offset 5 of partition 0: nobody has committed it"),
        (offset_lost, "offset None of partition 0, and offset 1 is of a plain commit"),
        (prepared_and_gone, "a.1 was prepared as 1:0, and its successor finds None"),
    ],
)
def test_a_broken_promise_is_found(breach: Callable[[], None], complaint: str) -> None:
    """A violation of each rule of the ledger is found."""
    with pytest.raises(SafetyViolation, match=complaint):
        breach()


def test_names_are_legal_and_reach_their_bounds() -> None:
    """Drawn topic names have Kafka's characters and all lengths. Group names and transactional ids may have any
    characters."""
    plans = [JointPlan.draw(seed, "names", two_phase=False) for seed in range(200)]
    assert {1, TOPIC_LENGTH} <= {len(plan.topic) for plan in plans}
    assert not {".", "..", ""} & {plan.topic for plan in plans}
    assert all(set(plan.topic) <= set("abyzABYZ0189._-") for plan in plans)
    assert any(not plan.group.isascii() for plan in plans)
    for workload in WORKLOADS:
        plan = JointPlan.draw(1, workload, two_phase=True)
        assert plan.is_two_phase == (workload == "prepare")
        assert len(set(plan.transactional_ids.values())) == len(plan.slots)
