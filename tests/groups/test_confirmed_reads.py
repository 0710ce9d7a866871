"""OffsetFetch with `require_stable`: a coordinator answers only if it still led the partition when it was asked."""

from __future__ import annotations

from typing import Any

import attrs

from odradek.data_plane.groups.offsets import FetchedOffsets, FetchOffsets
from odradek.metadata_quorum.image.metadata_image import PartitionImage
from odradek.wire.errors import ErrorCode
from testkit.coordinating import KeptReply
from tests.groups.test_shard import ALONE, Case, run

THREE = PartitionImage(1, 3, 0, (1, 2, 3), (1, 2, 3))
TWO = PartitionImage(1, 3, 1, (1, 2, 3), (1, 3))
DEPOSED = PartitionImage(2, 4, 2, (1, 2, 3), (2, 3))
READ = FetchOffsets("g", is_confirmed=True)


@attrs.define(eq=False)
class Cursor:
    """A follower's fetch position that counts how often it is woken."""

    calls: int = 0
    is_stirred: bool = False
    fetched_at_ms: int = 0

    def mark_dirty(self, *, wakes: bool) -> None:
        """Do nothing: this session is only counted."""

    def call_back(self) -> None:
        self.calls += 1


class Replicated(Case):
    """A coordinator with two followers in the ISR."""

    def __init__(self) -> None:
        super().__init__(THREE)
        run(self.shard.load())
        self.cursors = {each: Cursor() for each in (2, 3)}
        for each, cursor in self.cursors.items():
            self.partition.followers.sender(each, True).follow_with(cursor)

    def read(self) -> KeptReply:
        told = self.ask(READ)
        self.broker.run_woken()
        return told

    def fetch(self, *followers: int) -> None:
        """Let these followers fetch at the end of the log."""
        partition = self.partition
        for each in followers:
            replica = partition.followers.sender(each, True)
            partition.note_fetch(replica, 0, partition.log.log_end_offset, 0, 0)
            partition.fetched(replica)
            self.broker.run_woken()


class Known:
    """A cluster in which brokers 2 and 3 are registered."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def registered_epoch(self, broker_id: int) -> int:
        return 0


def replicated() -> Replicated:
    case = Replicated()
    case.partition._cluster = Known(case.partition._cluster)
    return case


def test_each_follower_has_to_fetch_twice() -> None:
    """The coordinator answers after two fetches of each follower, since the first may have been sent before the
    read."""
    case = replicated()
    told = case.read()
    assert [each.calls for each in case.cursors.values()] == [1, 1]
    case.fetch(2, 2, 2, 3)
    assert told.answers == []
    case.fetch(3)
    (answer,) = told.answers
    assert isinstance(answer, FetchedOffsets)
    assert answer.code == ErrorCode.NONE


def test_fetches_of_two_sessions_prove_nothing() -> None:
    """Two fetches in different sessions prove nothing. A leader that was paused may find both in its sockets, although
    its successor leads already."""
    case = replicated()
    told = case.read()
    case.fetch(3, 3)
    for _ in range(3):
        case.partition.followers.sender(2, True).follow_with(Cursor())
        case.fetch(2)
    assert told.answers == []
    case.fetch(2)
    assert [each.code for each in told.answers] == [ErrorCode.NONE]


def test_the_successor_need_not_fetch_for_its_predecessor_to_be_silent() -> None:
    """If the coordinator has lost the leadership, fetches of the other followers prove nothing, and the read is
    refused."""
    case = replicated()
    told = case.read()
    case.fetch(3, 3)
    case.partition.apply(DEPOSED, 1)
    case.broker.run_woken()
    assert told.answers == []
    case.shard.stop()
    assert [each.code for each in told.answers] == [ErrorCode.NOT_COORDINATOR]


def test_a_plain_read_does_not_wait() -> None:
    case = replicated()
    assert len(case.ask(FetchOffsets("g")).answers) == 1


def test_reads_in_between_go_together_in_the_next_round() -> None:
    case = replicated()
    first = case.read()
    case.fetch(2, 3)
    second, third = case.read(), case.read()
    case.fetch(2, 3)
    assert [len(each.answers) for each in (first, second, third)] == [1, 0, 0]
    case.fetch(2, 3, 3, 2)
    assert [len(each.answers) for each in (first, second, third)] == [1, 1, 1]


def test_a_deposed_coordinator_does_not_answer() -> None:
    case = replicated()
    told = case.read()
    case.fetch(2)
    case.partition.apply(DEPOSED, 1)
    case.shard.stop()
    (answer,) = told.answers
    assert answer.code == ErrorCode.NOT_COORDINATOR
    case.pass_seconds(60)
    assert len(told.answers) == 1


def test_a_read_that_nobody_confirms_is_refused_in_time() -> None:
    """If the followers do not confirm a read in time, it gets NOT_COORDINATOR. A later read can succeed."""
    case = replicated()
    told = case.read()
    case.fetch(2, 2)
    case.pass_seconds(6)
    (answer,) = told.answers
    assert answer.code == ErrorCode.NOT_COORDINATOR
    again = case.read()
    case.fetch(2, 3, 2, 3)
    assert [each.code for each in again.answers] == [ErrorCode.NONE]
    assert len(told.answers) == 1


def test_a_follower_that_leaves_the_in_sync_replicas_is_not_waited_for() -> None:
    case = replicated()
    told = case.read()
    case.fetch(3, 3)
    assert told.answers == []
    case.partition.apply(TWO, 1)
    case.broker.run_woken()
    assert [each.code for each in told.answers] == [ErrorCode.NONE]


def test_a_leader_alone_answers_at_once() -> None:
    case = Case(ALONE)
    run(case.shard.load())
    assert [each.code for each in case.ask(READ).answers] == [ErrorCode.NONE]
