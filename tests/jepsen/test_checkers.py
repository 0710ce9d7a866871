"""The checkers on handmade histories: legal histories pass them all, and each anomaly is found by its name.

The definitions are those of Jepsen's Kafka workload. Each history below is the smallest that shows its anomaly.
"""

from __future__ import annotations

import ast
import inspect
import random
from types import ModuleType

import attrs
import pytest

from jepsen_tests import checkers, history, schedule
from jepsen_tests.checkers import CHECKERS, check, excused_duplicates, observe, version_orders
from jepsen_tests.history import CORRUPT, Assign, Commit, Fault, History, Own, Poll, Record, Restart, Send
from tests.colours import findings, is_async

KEY = "t-0"


@attrs.define
class Script:
    """Builds a history operation by operation, with one second for each."""

    history: History = attrs.field(factory=History)
    now: float = 0.0

    def _tick(self) -> float:
        self.now += 1.0
        return self.now

    def send(
        self,
        value: int,
        offset: int | None = None,
        *,
        outcome: str = "ok",
        process: str = "p",
        key: str = KEY,
        txn: int | None = None,
    ) -> Script:
        started = self._tick()
        self.history.operations.append(
            Send(process, started, key, value, started + 0.5, outcome, offset, "", txn)  # type: ignore[arg-type] # a literal
        )
        return self

    def poll(
        self,
        *records: Record,
        process: str = "c",
        key: str = KEY,
        rebalanced: bool = False,
        final: bool = False,
        outcome: str = "ok",
        txn: int | None = None,
    ) -> Script:
        started = self._tick()
        self.history.operations.append(
            Poll(
                process,
                started,
                started + 0.5,
                outcome,  # type: ignore[arg-type] # a literal
                {key: list(records)},
                [key] if rebalanced else [],
                final,
                txn,
            )
        )
        return self

    def assign(self, process: str = "c") -> Script:
        self.history.operations.append(Assign(process, self._tick(), [KEY]))
        return self

    def restart(self, process: str = "p") -> Script:
        self.history.operations.append(Restart(process, self.now + 0.25, "bumped epoch"))
        return self

    def own(self, process: str) -> Script:
        self.history.operations.append(Own(process, self._tick(), "g", [KEY]))
        return self

    def commit(self, offset: int, *, outcome: str = "ok", process: str = "m1", lasts: float = 0.5) -> Script:
        started = self._tick()
        self.history.operations.append(
            Commit(process, started, "g", {KEY: offset}, started + lasts, outcome)  # type: ignore[arg-type] # a literal
        )
        return self

    def names(self) -> list[str]:
        return sorted({anomaly.name for anomaly in check(self.history)})


def three() -> Script:
    """Begin a history in which the values 1, 2 and 3 are acknowledged at the offsets 0, 1 and 2."""
    return Script().send(1, 0).send(2, 1).send(3, 2)


LEGAL = {
    "nothing happened": Script(),
    "everything is read": three().assign().poll((0, 1), (1, 2)).poll((2, 3)).poll((0, 1), (1, 2), (2, 3), process="f", final=True),
    "gaps in the offsets hold control records": Script().send(1, 0).send(2, 4).assign().poll((0, 1), (4, 2)),
    "an unknown send may appear": Script().send(1, 0).send(2, outcome="info").poll((0, 1), (1, 2)),
    "an unknown send may be missing": Script().send(1, 0).send(2, outcome="info").poll((0, 1), final=True),
    "a failed send is missing": Script().send(1, 0).send(2, outcome="fail").poll((0, 1)),
    "a consumer assigned anew starts anew": three().assign().poll((0, 1), (1, 2), (2, 3)).assign().poll((0, 1)),
    "a group may go back between calls": three().own("m1").poll((0, 1), (1, 2), (2, 3), process="m1").poll((0, 1), process="m1"),
    "a rebalance within a call may jump": three().own("m").poll((0, 1), (2, 3), (1, 2), process="m", rebalanced=True),
    "two producers in any order": Script().send(1, 1, process="p").send(2, 0, process="q").poll((0, 2), (1, 1)),
    "a producer that restarts its sequence may send again": Script().send(1, 0).restart().poll((0, 1), (1, 1)),
    "a group goes on at its commit": three().own("m1").poll((0, 1), (1, 2), process="m1").commit(2).own("m2").poll((2, 3), process="m2"),
    "what was not committed is read again": three().own("m1").poll((0, 1), (1, 2), (2, 3), process="m1").commit(1).own("m2").poll((1, 2), (2, 3), process="m2"),
    "a failed commit promises nothing": three().poll((0, 1), (1, 2), (2, 3)).commit(3, outcome="fail").own("m2").poll((0, 1), process="m2"),
    "a commit of unknown outcome may take effect late": three().poll((0, 1), (1, 2), (2, 3)).commit(1, outcome="info").commit(3).own("m2").poll((1, 2), process="m2"),
    "a commit that ends after the handing over promises nothing": three().poll((0, 1), (1, 2), (2, 3)).commit(3, lasts=10).own("m2").poll((0, 1), process="m2"),
}  # fmt: skip

ILLEGAL = {
    "lost-write": Script().send(1, 0).send(2, 1).send(3, 2).assign().poll((0, 1)).assign().poll((2, 3)),
    "unseen": three().assign().poll((0, 1), (1, 2)),
    "vanished": three().poll((0, 1), (1, 2), (2, 3), process="x").poll((0, 1), (1, 2), final=True),
    "inconsistent-offsets": three().poll((0, 1), (1, 2), (2, 3)).poll((2, 9), process="x"),
    "duplicate": three().poll((0, 1), (1, 2), (2, 3), (3, 1)),
    "wrong-bytes": three().poll((0, 1), (1, 2), (2, 3), (3, CORRUPT)),
    "G1a": Script().send(1, 0).send(2, outcome="fail").poll((0, 1), (1, 2)),
    "nonmonotonic-send": Script().send(1, 1).send(2, 0).poll((0, 2), (1, 1)),
    "int-poll-skip": three().poll((0, 1), (2, 3)).poll((1, 2), process="x"),
    "int-nonmonotonic-poll": three().poll((0, 1), (2, 3), (1, 2), rebalanced=True).poll((0, 1), (0, 1), process="x"),
    "poll-skip": three().assign().poll((0, 1)).poll((2, 3)).poll((1, 2), process="x"),
    "nonmonotonic-poll": three().assign().poll((0, 1), (1, 2), (2, 3)).poll((2, 3)),
    "int-nonmonotonic-send": Script().send(1, 1, txn=1).send(2, 0, txn=1).poll((0, 2), (1, 1)),
    "precommitted-read": Script().send(1, 0, process="t", txn=1).poll((0, 1), process="t", txn=1),
    "G1c": Script().send(1, 0, process="a", key="x", txn=1).send(2, 0, process="b", key="y", txn=1).poll((0, 2), process="a", key="y", txn=1).poll((0, 1), process="b", key="x", txn=1),
    "lost-commit": three().own("m1").poll((0, 1), (1, 2), (2, 3), process="m1").commit(3).own("m2").poll((1, 2), process="m2"),
}  # fmt: skip


@pytest.mark.parametrize("name", LEGAL)
def test_legal_history_passes(name: str) -> None:
    """A history that Kafka allows has no anomaly."""
    assert check(LEGAL[name].history) == []


@pytest.mark.parametrize("name", ILLEGAL)
def test_anomaly_is_found_and_nothing_else(name: str) -> None:
    """The smallest history of an anomaly shows that anomaly and no other."""
    assert ILLEGAL[name].names() == [name]


def test_every_checker_has_a_history_that_it_rejects() -> None:
    """Each checker rejects at least one history, so each can fail."""
    for checker in CHECKERS:
        found = [
            anomaly
            for script in ILLEGAL.values()
            for anomaly in checker(script.history, version_orders(script.history))
        ]
        assert found, checker.__name__


def test_a_restart_excuses_only_what_was_under_way() -> None:
    """A value that was acknowledged before its producer restarted still counts as a duplicate if it is read twice."""
    assert Script().send(1, 0).send(2, 1).restart().poll((0, 1), (1, 2), (2, 1)).names() == ["duplicate"]


def test_what_a_restart_excuses_is_counted() -> None:
    """Duplicates that a client's restart excuses are counted, so that the report still shows them."""
    assert excused_duplicates(LEGAL["a producer that restarts its sequence may send again"].history) == 1
    assert excused_duplicates(ILLEGAL["duplicate"].history) == 0


def test_a_seeded_loss_is_found_in_a_long_history() -> None:
    """If one record is cut from a history of ten thousand, the checker finds exactly its value."""
    generator = random.Random(7)
    for _ in range(5):
        script = Script()
        lost = generator.randrange(10_000)
        for value in range(10_000):
            script.send(value, value)
        records = [(value, value) for value in range(10_000) if value != lost]
        script.poll(*records, final=True, rebalanced=True)
        anomalies = check(script.history)
        assert [each.name for each in anomalies] == ["lost-write" if lost < 9_999 else "unseen"]
        assert f"value {lost} " in anomalies[0].detail


def test_a_member_begins_within_the_poll_that_tells_it_of_its_partitions() -> None:
    """If a poll reports a rebalance, its records count as read after it. The member may then read earlier records
    again."""
    script = (
        three().own("m1").poll((0, 1), (1, 2), process="m1").commit(2).poll((2, 3), process="m2").own("m2")
    )
    *_, poll, own = script.history.operations
    assert isinstance(poll, Poll)
    assert isinstance(own, Own)
    poll.completed = own.invoked + 0.5
    assert check(script.poll((0, 1), process="m2", rebalanced=True).history) == []


def test_history_survives_its_file() -> None:
    """A history that is written as lines of JSON is read back unchanged."""
    kept = ILLEGAL["lost-commit"].history
    kept.operations.append(Fault(3.5, "kill", "node 1"))
    assert History.from_lines(list(kept.to_lines())) == kept


@pytest.mark.parametrize("module", [history, checkers, schedule])
def test_judges_and_plans_are_pure(module: ModuleType) -> None:
    """Checkers and plans depend only on their input: a history gives one verdict, and a seed gives one plan, in any
    process."""
    tree = ast.parse(inspect.getsource(module))
    assert list(findings(tree)) == []
    assert not is_async(tree)


def test_unknown_lines_are_refused() -> None:
    """A file whose lines are no operations is refused."""
    with pytest.raises(ValueError, match="unknown kind"):
        History.from_lines(['{"kind": "elephant"}'])


def test_who_reads_what_is_sent_later_is_in_a_circle() -> None:
    """A value that is read before it is sent is an anomaly: G1c-realtime by time, G1c-process within one process."""
    early = Script().poll((0, 1), process="a").send(1, 0, process="b")
    assert early.names() == ["G1c-realtime"]
    own = Script().poll((0, 1), process="a").send(1, 0, process="a")
    assert own.names() == ["G1c-process"]
    unknown = Script().poll((0, 1), process="a").send(1, 0, process="b", outcome="info")
    assert unknown.names() == ["G1c-realtime"]
    at_once = Script().send(1, 0, process="b").poll((0, 1), process="a")
    assert at_once.names() == []


def test_what_kafka_allows_is_told_and_no_anomaly() -> None:
    """G0 and int-send-skip are reported as observations, not as anomalies, since Kafka allows them."""
    mixed = Script().send(1, 0, process="a", key="x", txn=1).send(2, 0, process="b", key="y", txn=1)
    mixed.send(3, 1, process="a", key="y", txn=1).send(4, 1, process="b", key="x", txn=1)
    mixed.poll((0, 1), (1, 4), key="x").poll((0, 2), (1, 3), key="y")
    assert mixed.names() == []
    assert {found.name for found in observe(mixed.history)} == {"G0"}
    apart = Script().send(1, 0, txn=1).send(9, 1, process="q").send(2, 2, txn=1).poll((0, 1), (1, 9), (2, 2))
    assert apart.names() == []
    assert "int-send-skip" in {found.name for found in observe(apart.history)}
