"""The end of a planned move: which answers of brokers count as success, as failure, or as not yet known."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from odradek.client.admin.admin_topics import ClusterDescription
from odradek.client.admin.moves import moving
from odradek.client.admin.moves.placement import Move
from odradek.client.core.client_core import ClientCore
from odradek.client.core.known_cluster import Broker, Partition, Topic
from odradek.client.core.operation import Wait
from odradek.client.errors import RequestTimedOut
from odradek.wire.errors import ErrorCode, KafkaError

_KEY = ("orders", 6)


def _outcome(monkeypatch: pytest.MonkeyPatch, *answers: tuple[int, ...]) -> tuple[dict[Any, KafkaError], int]:
    """Run `_checked` for a finished move from 3, 2, 1 to 3, 1, 4.

    Return its result and the number of times that brokers were asked.
    """
    asked = 0

    def describe_topics(core: ClientCore) -> Iterator[Wait]:
        nonlocal asked
        replicas = answers[min(asked, len(answers) - 1)]
        asked += 1
        yield from ()
        return [Topic("orders", bytes(16), False, {6: Partition(6, 3, 0, replicas, replicas)})]

    monkeypatch.setattr(moving, "describe_topics", describe_topics)
    core = SimpleNamespace(now=100.0)
    move = Move("orders", 6, (3, 2, 1), (3, 1, 4), 0)
    running = moving._checked(cast(ClientCore, core), [move], {_KEY: None})
    while True:
        try:
            wait = next(running)
        except StopIteration as ended:
            return ended.value, asked
        assert wait.until is not None
        core.now = wait.until


def test_a_broker_whose_image_is_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """The controller reports the end of a move, but a broker still shows the old and the new replicas.

    This broker is asked again.
    """
    assert _outcome(monkeypatch, (3, 1, 4, 2), (3, 1, 4, 2), (3, 1, 4)) == ({}, 3)


def test_a_move_that_was_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    """The old replicas are back, so somebody has cancelled the move. This is reported after the first answer."""
    wrong, asked = _outcome(monkeypatch, (3, 2, 1))
    assert wrong[_KEY].code == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert asked == 1


def test_an_image_that_never_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker never catches up with the controller. The check gives up after some time."""
    wrong, asked = _outcome(monkeypatch, (3, 1, 4, 2))
    assert _KEY in wrong
    assert asked > 2


def test_room_for_a_plan() -> None:
    """A plan fits if the net gain of each broker fits its free space. Without a report of free space, any gain fits."""
    cluster = ClusterDescription("c", 1, tuple(Broker(node, "h", 9092, None) for node in (1, 2, 3, 4)))
    survey = moving.ClusterSurvey(cluster, (), {}, {}, (), {1: 50, 2: 100, 3: 100})
    taken, given = Move("a", 0, (4,), (1,), 80), Move("b", 0, (1,), (2,), 40)
    assert survey.too_full([taken]) == {1: (80, 50)}
    assert survey.too_full([taken, given]) == {}
    assert survey.too_full([Move("c", 0, (1,), (4,), 1 << 40)]) == {}
    assert survey.too_full([given, Move("d", 0, (3,), (2,), 61)]) == {2: (101, 100)}


def _carried_out(monkeypatch: pytest.MonkeyPatch, timeout: float | None, seconds: float) -> dict[Any, Any]:
    """Carry out a plan of two moves, one at a time, of `seconds` each. Return the outcomes."""
    core = SimpleNamespace(now=100.0)
    begun: dict[tuple[str, int], float] = {}

    def alter(core: Any, wanted: dict[tuple[str, int], Any], timeout: float | None = None) -> Iterator[Wait]:
        begun.update(dict.fromkeys(wanted, core.now))
        yield from ()
        return dict.fromkeys(wanted)

    def under_way(core: Any, keys: list[tuple[str, int]], timeout: float | None = None) -> Iterator[Wait]:
        yield from ()
        return {key: None for key in keys if core.now < begun[key] + seconds}

    def nothing(*_: Any, **__: Any) -> Iterator[Wait]:
        yield from ()
        return {}

    monkeypatch.setattr(moving, "alter_partition_reassignments", alter)
    monkeypatch.setattr(moving, "list_partition_reassignments", under_way)
    for name in ("_checked", "elect_preferred", "_copied"):
        monkeypatch.setattr(moving, name, nothing)
    moves = [Move("orders", index, (1,), (2,), 0) for index in (0, 1)]
    running = moving.move_partitions(cast(ClientCore, core), moves, at_once=1, timeout=timeout)
    for _ in range(1000):
        try:
            wait = next(running)
        except StopIteration as ended:
            assert timeout is None or core.now <= 100.0 + timeout
            return cast("dict[Any, Any]", ended.value)
        assert wait.until is not None
        core.now = wait.until
    raise AssertionError(f"the plan has not ended after 1000 steps, at time {core.now}")


def test_a_plan_with_a_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the deadline each unfinished move gets an error that says whether it had begun.

    Without a deadline the plan runs to its end.
    """
    first, second = _carried_out(monkeypatch, 5.0, 7.0).values()
    assert isinstance(first, RequestTimedOut)
    assert str(first) == "orders-0 has not moved within 5 s"
    assert str(second) == "the brokers did not begin to move orders-1 within 5 s"
    first, second = _carried_out(monkeypatch, 10.0, 7.0).values()
    assert (first, str(second)) == (None, "orders-1 has not moved within 10 s")
    assert list(_carried_out(monkeypatch, None, 7.0).values()) == [None, None]
