"""Groups on a node that is killed: after kill -9 their state is restored from `__consumer_offsets`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from odradek.wire.errors import ErrorCode
from odradek.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from odradek.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from odradek.wire.messages.describe_groups import DescribedGroup, DescribeGroupsRequest
from odradek.wire.messages.find_coordinator import FindCoordinatorRequest
from odradek.wire.messages.heartbeat import HeartbeatRequest
from odradek.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from odradek.wire.messages.list_groups import ListGroupsRequest
from odradek.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from odradek.wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from odradek.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from testkit.odradek_server import launch_odradek, prepare_odradek
from testkit.processes import ServerProcess
from testkit.raw_requests import RawClient

pytestmark = pytest.mark.long
"""These tests start servers of their own, so `make quick` leaves them out."""

WAIT_SECONDS = 20.0
RETRIABLE = (
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
)


def until(ask: Callable[[], Any], done: Callable[[Any], bool]) -> Any:
    """Repeat a request until its answer is the expected one."""
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        answer = ask()
        if done(answer):
            return answer
        assert time.monotonic() < deadline, answer
        time.sleep(0.02)


class Groups:
    """A node with groups that can be killed and restarted."""

    def __init__(self, properties: Path) -> None:
        self._properties = properties
        self.server: ServerProcess = launch_odradek(properties)
        self.client = RawClient(self.server.bootstrap)

    def restart(self, *, clean: bool) -> None:
        self.client.socket.close()
        if clean:
            self.server.stop()
        else:
            self.server.kill()
        self.server = launch_odradek(self._properties)
        self.client = RawClient(self.server.bootstrap)

    def find(self) -> None:
        """Wait for the coordinator. The first request creates the topic that the coordinator needs."""
        request = FindCoordinatorRequest("g", 0, ["g"])
        until(lambda: self.client.request(request, 4), lambda answer: not answer.coordinators[0].error_code)

    def describe(self, group: str = "g") -> DescribedGroup:
        answer = until(
            lambda: self.client.request(DescribeGroupsRequest([group]), 6),
            lambda answer: answer.groups[0].error_code not in RETRIABLE,
        )
        found: DescribedGroup = answer.groups[0]
        return found

    def join(self) -> str:
        """Join group g as its only member, with the assignment `x`. Return the member id."""
        protocols = [JoinGroupRequestProtocol("range", b"m")]
        join = JoinGroupRequest("g", 30_000, 30_000, "", "one", "consumer", protocols)
        joined = until(
            lambda: self.client.request(join, 5), lambda answer: answer.error_code not in RETRIABLE
        )
        assert joined.error_code == ErrorCode.NONE
        given = [SyncGroupRequestAssignment(joined.member_id, b"x")]
        sync = SyncGroupRequest("g", joined.generation_id, joined.member_id, "one", None, None, given)
        assert self.client.request(sync, 3).assignment == b"x"
        member_id: str = joined.member_id
        return member_id

    def commit(self, topic: str, offset: int, member_id: str = "", generation: int = -1) -> ErrorCode:
        partition = OffsetCommitRequestPartition(0, offset, -1, "note")
        request = OffsetCommitRequest(
            "g", generation, member_id, None, -1, [OffsetCommitRequestTopic(topic, bytes(16), [partition])]
        )
        return ErrorCode(self.client.request(request, 9).topics[0].partitions[0].error_code)

    def offsets(self) -> dict[str, tuple[int, str]]:
        request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup("g", None, -1, None)])
        answer = until(
            lambda: self.client.request(request, 8),
            lambda answer: answer.groups[0].error_code not in RETRIABLE,
        )
        return {
            topic.name: (topic.partitions[0].committed_offset, topic.partitions[0].metadata)
            for topic in answer.groups[0].topics
        }

    def create(self, topic: str) -> None:
        assert (
            self.client.request(CreateTopicsRequest([CreatableTopic(topic, 1, 1)], 10_000), 5)
            .topics[0]
            .error_code
            == 0
        )


@pytest.fixture
def groups(tmp_path: Path) -> Iterator[Groups]:
    """Start a node for these tests."""
    found = Groups(prepare_odradek(tmp_path, settings={"offsets.topic.num.partitions": "3"}))
    found.create("t")
    found.find()
    yield found
    found.server.kill()


@pytest.mark.parametrize("clean", [True, False], ids=["stop", "kill -9"])
def test_a_group_survives_its_node(groups: Groups, clean: bool) -> None:
    """After kill -9, members, generation, assignments and offsets are restored, and the member goes on without
    joining."""
    member_id = groups.join()
    assert groups.commit("t", 7, member_id, 1) is ErrorCode.NONE
    before = groups.describe()
    groups.restart(clean=clean)
    assert groups.describe() == before
    assert before.group_state == "Stable"
    assert [member.member_assignment for member in before.members] == [b"x"]
    assert groups.offsets() == {"t": (7, "note")}
    beat = HeartbeatRequest("g", 1, member_id, "one")
    assert groups.client.request(beat, 4).error_code == ErrorCode.NONE
    assert groups.commit("t", 8, member_id, 1) is ErrorCode.NONE
    assert groups.offsets() == {"t": (8, "note")}


def test_a_deleted_topics_offsets_go_with_it(groups: Groups) -> None:
    """Deleting a topic removes its committed offsets. A new topic of that name has none, even after a restart."""
    groups.create("u")
    assert groups.commit("t", 7) is ErrorCode.NONE
    assert groups.commit("u", 9) is ErrorCode.NONE
    groups.client.request(DeleteTopicsRequest([DeleteTopicState("u")], [], 10_000), 6)
    assert until(groups.offsets, lambda offsets: len(offsets) == 1) == {"t": (7, "note")}
    groups.create("u")
    assert groups.offsets() == {"t": (7, "note")}
    groups.restart(clean=False)
    assert groups.offsets() == {"t": (7, "note")}


def test_a_group_without_a_coordinator_is_refused(groups: Groups) -> None:
    """If `__consumer_offsets` was deleted, a group gets NOT_COORDINATOR until a client looks for its coordinator."""
    assert groups.commit("t", 7) is ErrorCode.NONE
    groups.client.request(DeleteTopicsRequest([DeleteTopicState("__consumer_offsets")], [], 10_000), 6)
    until(lambda: groups.commit("t", 7), lambda code: code is ErrorCode.NOT_COORDINATOR)
    assert groups.client.request(ListGroupsRequest(), 4).groups == []
    groups.find()
    assert until(lambda: groups.commit("t", 8), lambda code: code not in RETRIABLE) is ErrorCode.NONE
    assert groups.offsets() == {"t": (8, "note")}
