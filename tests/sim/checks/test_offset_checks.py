"""The checks of group coordinators' offsets: a correct history passes, and each wrong answer is found."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from odradek.data_plane.groups.records import OffsetCommitKey, OffsetCommitValue
from odradek.wire.api_keys import ApiKey
from odradek.wire.batches.batch_header import parse_header
from odradek.wire.batches.records import RecordBatchBuilder
from odradek.wire.batches.transaction_markers import build_marker
from odradek.wire.errors import ErrorCode
from odradek.wire.messages.delete_groups import DeleteGroupsRequest
from odradek.wire.messages.join_group import JoinGroupRequest, JoinGroupResponse
from odradek.wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from odradek.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from odradek.wire.metadata_frames import encode_coordinator_key, encode_coordinator_value
from sim.checks.groups.fenced_members import FencedMembers
from sim.checks.groups.removed_offsets import RemovedOffsets
from sim.checks.groups.told_offsets import OffsetsBook
from sim.checks.watched import Processes
from sim.checks.wiretap import Exchange
from sim.history import SafetyViolation
from tests.mutants.patching import patched
from tests.sim.runs.copy_runs import quiet_copy

KEY = ("g", "t", 0)


class Log:
    """A group's log, whose batches are read one by one."""

    def __init__(self) -> None:
        self.book = OffsetsBook()

    def offset(self, offset: int | None, producer_id: int = -1) -> None:
        """Append an offset commit, or a tombstone for None. With a producer id it is transactional."""
        builder = RecordBatchBuilder(
            base_offset=self.book.end, producer_id=producer_id, is_transactional=producer_id >= 0
        )
        value = None if offset is None else encode_coordinator_value(OffsetCommitValue(offset, -1, "", 0, -1))
        builder.append(0, encode_coordinator_key(OffsetCommitKey(*KEY)), value)
        self._take(builder.build())

    def marker(self, producer_id: int, *, is_commit: bool) -> None:
        batch = build_marker(producer_id, 0, 0, is_commit=is_commit, timestamp_ms=0)
        batch[:8] = self.book.end.to_bytes(8, "big")
        self._take(batch)

    def _take(self, batch: bytearray) -> None:
        self.book.take(parse_header(batch), bytes(batch))


def test_a_transactions_offset_counts_from_its_marker_on() -> None:
    """A transactional offset is unstable until its marker. An abort keeps the previous offset."""
    log = Log()
    log.offset(3)
    log.offset(5, producer_id=1)
    assert (log.book.offset_of(KEY), log.book.is_unstable(KEY)) == (3, True)
    log.marker(1, is_commit=True)
    assert (log.book.offset_of(KEY), log.book.is_unstable(KEY)) == (5, False)
    log.offset(9, producer_id=1)
    log.marker(1, is_commit=False)
    assert (log.book.offset_of(KEY), log.book.is_unstable(KEY)) == (5, False)


def test_a_later_record_of_the_key_overtakes_a_transaction() -> None:
    """A later commit of the same key replaces the pending commit of a transaction. A tombstone removes a pending
    commit, too."""
    log = Log()
    log.offset(5, producer_id=1)
    log.offset(7)
    log.marker(1, is_commit=True)
    assert log.book.offset_of(KEY) == 7
    log.offset(8, producer_id=1)
    log.offset(None)
    assert (log.book.offset_of(KEY), log.book.is_unstable(KEY)) == (-1, False)
    log.marker(1, is_commit=True)
    assert log.book.offset_of(KEY) == -1


def test_offsets_that_are_told_are_the_committed_ones() -> None:
    """A sound run passes. A run fails if the coordinator returns a wrong offset, or returns an offset as stable beside
    an open transaction."""
    sound = quiet_copy()
    assert sound.verdict == "ok", sound.message
    with patched(
        "odradek.data_plane.groups.offsets:OffsetStore.fetch",
        "turn.state.pending_of(request.group_id) if turn.state.pending else NONE_PENDING",
        "NONE_PENDING",
    ):
        unstable = quiet_copy()
    assert "right would have been nothing, since a transaction is open" in unstable.message
    with patched(
        "odradek.data_plane.groups.state:GroupsState._ended",
        "if not end.is_commit:",
        "if end.is_commit is not None:",
    ):
        # In this run an answer is checked before the coordinators' states are compared, which differ as well.
        older = quiet_copy(3)
    assert "that group copiers is at -1 in copy-source" in older.message


class Loaded:
    """A stub of a coordinator's shard that has finished loading."""

    is_loading = False

    def __init__(self) -> None:
        self.newest_state = SimpleNamespace(consumers={})

    def becomes_consumer_group(self, epoch: int) -> None:
        """Let the group have this epoch."""
        self.newest_state.consumers["g"] = SimpleNamespace(epoch=epoch)

    def becomes_classic(self) -> None:
        """Let the group have generations again."""
        del self.newest_state.consumers["g"]


class Asked:
    """A stub coordinator whose requests and answers are passed to the check."""

    def __init__(self) -> None:
        self.shards: dict[int, object] = {0: Loaded()}
        groups = SimpleNamespace(partition_for=lambda key: 0, shards=self.shards)
        node = SimpleNamespace(broker=SimpleNamespace(groups=groups))
        processes = SimpleNamespace(at=lambda conn: (None, node))
        self.check = FencedMembers(cast("Processes", processes))

    def ask_to_join(self) -> Exchange:
        """Record the request of a member to join."""
        conn = SimpleNamespace(peer=SimpleNamespace(host_name="node-1"))
        exchange = Exchange(cast("Any", conn), ApiKey.JOIN_GROUP, 5, JoinGroupRequest("g"))
        assert self.check.asked(exchange)
        return exchange

    def _exchange(self, api: ApiKey, request: Any, answer: Any) -> None:
        conn = SimpleNamespace(peer=SimpleNamespace(host_name="node-1"))
        exchange = Exchange(cast("Any", conn), api, 5, request)
        if self.check.asked(exchange):
            self.check.answered(exchange, answer)

    def join(self, generation: int) -> None:
        """Record that a member has joined this generation."""
        self._exchange(ApiKey.JOIN_GROUP, JoinGroupRequest("g"), JoinGroupResponse(generation_id=generation))

    def commit(self, generation: int, code: ErrorCode) -> None:
        """Record a transactional commit of a member, with its answer."""
        request = TxnOffsetCommitRequest(group_id="g", member_id="m", generation_id=generation)
        topic = TxnOffsetCommitResponseTopic("t", [TxnOffsetCommitResponsePartition(0, code)])
        self._exchange(ApiKey.TXN_OFFSET_COMMIT, request, TxnOffsetCommitResponse(topics=[topic]))


def test_a_member_of_an_older_generation_is_refused() -> None:
    """Members of the newest generation may commit, and so may clients without a generation. Refused commits are
    counted."""
    asked = Asked()
    asked.join(3)
    asked.commit(3, ErrorCode.NONE)
    asked.commit(-1, ErrorCode.NONE)
    asked.join(4)
    asked.commit(3, ErrorCode.ILLEGAL_GENERATION)
    assert asked.check.late_commits == 1
    with pytest.raises(SafetyViolation, match="takes offsets of m of generation 3, and group g was at 4"):
        asked.commit(3, ErrorCode.NONE)


def test_an_answer_of_a_group_that_is_gone_announces_nothing() -> None:
    """A delayed JoinGroup answer of a deleted group does not count for the new group."""
    asked = Asked()
    asked.join(4)
    slow = asked.ask_to_join()
    asked.join(1)
    asked.check.answered(slow, JoinGroupResponse(generation_id=5))
    asked.commit(1, ErrorCode.NONE)
    asked.join(2)
    with pytest.raises(SafetyViolation, match="takes offsets of m of generation 1, and group g was at 2"):
        asked.commit(1, ErrorCode.NONE)


def test_generations_count_for_the_coordinator_that_announced_them() -> None:
    """A generation counts only for the coordinator that announced it. A new group restarts at generation 1."""
    asked = Asked()
    asked.join(4)
    asked.shards[0] = Loaded()
    asked.commit(3, ErrorCode.NONE)
    asked.join(4)
    asked.join(1)
    asked.commit(1, ErrorCode.NONE)


@pytest.mark.parametrize(("epoch", "is_the_same"), [(13, True), (6, False)])
def test_a_group_that_was_a_consumer_group_goes_on(epoch: int, is_the_same: bool) -> None:
    """A converted group goes on with its epoch as its next generation. A lower epoch belongs to a new group."""
    asked, shard = Asked(), Loaded()
    asked.shards[0] = shard
    asked.join(12)
    shard.becomes_consumer_group(epoch)
    asked.commit(epoch, ErrorCode.NONE)
    shard.becomes_classic()
    if is_the_same:
        with pytest.raises(SafetyViolation, match="of generation 11, and group g was at 12"):
            asked.commit(11, ErrorCode.NONE)
    else:
        asked.join(epoch)
        asked.commit(epoch, ErrorCode.NONE)
        with pytest.raises(SafetyViolation, match="of generation 5, and group g was at 6"):
            asked.commit(5, ErrorCode.NONE)


def test_only_offsets_that_a_client_deletes_may_go() -> None:
    """An offset may be removed at any time once its deletion or that of its group was asked for, or its topic is gone."""
    removed = RemovedOffsets()
    partitions = [OffsetDeleteRequestPartition(0)]
    asked = OffsetDeleteRequest("g", [OffsetDeleteRequestTopic("t", partitions)])
    conn = cast("Any", None)
    assert not removed.asked(Exchange(conn, ApiKey.OFFSET_DELETE, 0, asked))
    assert removed.may_go(("g", "t", 0))
    assert not removed.may_go(("g", "t", 1))
    assert not removed.asked(Exchange(conn, ApiKey.DELETE_GROUPS, 2, DeleteGroupsRequest(["h"])))
    assert removed.may_go(("h", "u", 1))
    removed.topics.add("u")
    assert removed.may_go(("g", "u", 1))
