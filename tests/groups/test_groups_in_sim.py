"""A group in the simulator: its members have unreliable connections, and its node is killed again and again."""

from __future__ import annotations

from random import Random
from typing import Any

import attrs
import pytest

from odradek.data_plane.coordination import shard
from odradek.data_plane.coordination.decision_log import Latest
from odradek.env.ports import ConnectionLost, Env
from odradek.node.run_node import run_node
from odradek.wire.api import response_class, response_header_version
from odradek.wire.codec import decode
from odradek.wire.errors import ErrorCode
from odradek.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from odradek.wire.messages.find_coordinator import FindCoordinatorRequest
from odradek.wire.messages.heartbeat import HeartbeatRequest
from odradek.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from odradek.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from odradek.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from odradek.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from sim.machine.members import TraceLog
from sim.machine.world import World
from sim.scenarios.lone_node_scenario import NODE, PORT, format_node, node_config
from testkit.raw_requests import frame
from testkit.virtual import Client
from tests.schedule import seeds

MEMBERS = 3
KILLS = 4
REQUEST_SECONDS = 30.0
REBALANCE_MS = 8_000
SETTINGS = {
    "offsets_topic_replication_factor": "1",
    "offsets_topic_num_partitions": "2",
    "group_initial_rebalance_delay_ms": "500",
}


class Lost(Exception):
    """The connection is lost, or no answer came in time."""


@attrs.define
class Seen:
    """All answers to members, and the check that they agree."""

    assigned: dict[tuple[int, str], bytes] = attrs.field(factory=dict)
    """Each assignment by generation and member."""
    holders: dict[tuple[int, bytes], str] = attrs.field(factory=dict)
    """The member that has an assignment, by generation and assignment."""
    committed: dict[int, int] = attrs.field(factory=dict)
    """The newest acknowledged offset of each partition. Each member has a partition of its own."""
    adrift: dict[int, list[int]] = attrs.field(factory=dict)
    """The offsets of commits that were never answered. Such a commit may still arrive, even after later commits."""
    stable: dict[str, int] = attrs.field(factory=dict)
    """The generation of each member's last successful heartbeat."""
    over: bool = False

    def check(self, found: dict[int, int], acknowledged: dict[int, int]) -> None:
        """Check that each partition has the acknowledged offset, a later one, or an offset without an answer."""
        for partition, offset in acknowledged.items():
            assert found[partition] >= offset or found[partition] in self.adrift.get(partition, ())

    def assignment(self, generation: int, member: str, given: bytes) -> None:
        """Check that each share of a generation has one owner, and each member one share."""
        assert given, "a member without a share, although the leader gave one to each"
        assert self.assigned.setdefault((generation, member), given) == given
        assert self.holders.setdefault((generation, given), member) == member


class Member:
    """A member that joins again after any error. Each of its commits has the next number."""

    def __init__(self, world: World, name: str, seen: Seen, number: int = 0) -> None:
        self._env = world.node_env(name)
        self._name = name
        self._number = number
        self._serial = -1
        self._seen = seen
        self._random = Random(f"{world.seed}/{name}")
        self._client: Client | None = None
        self.member_id = ""
        self.generation = -1

    async def ask(self, request: Any, version: int) -> Any:
        """Send a request and return its answer. Raises `Lost`."""
        clock = self._env.clock
        try:
            with clock.timeout_at(clock.monotonic() + REQUEST_SECONDS) as scope:
                if self._client is None:
                    self._client = Client(await self._env.network.connect(NODE, PORT))
                await self._client.send(bytes(frame(request, version)))
                body = await self._client.answer()
        except ConnectionLost as error:
            self._client = None
            raise Lost from error
        if scope.expired:
            self._client = None
            raise Lost
        offset = 1 if response_header_version(request.API_KEY, version) >= 1 else 0
        return decode(response_class(request.API_KEY), version, body, offset)

    async def run(self, name: str) -> None:
        while not self._seen.over:
            try:
                await self._take_part()
            except Lost:
                await self._pause(1.0)

    async def _pause(self, seconds: float) -> None:
        clock = self._env.clock
        await clock.sleep_until(clock.monotonic() + self._random.uniform(0.0, seconds))

    async def _take_part(self) -> None:
        code = await self._join()
        if code is ErrorCode.UNKNOWN_MEMBER_ID:
            self.member_id = ""
        if code:
            return await self._pause(0.5)
        while not self._seen.over:
            await self._pause(1.0)
            beat = HeartbeatRequest("g", self.generation, self.member_id)
            code = ErrorCode((await self.ask(beat, 4)).error_code)
            if code is ErrorCode.UNKNOWN_MEMBER_ID:
                self.member_id = ""
            if code:
                return None
            self._seen.stable[self._name] = self.generation
            await self._commit()
        return None

    async def _join(self) -> ErrorCode:
        answer = await self.ask(FindCoordinatorRequest("g", 0, ["g"]), 4)
        if answer.coordinators[0].error_code:
            return ErrorCode(answer.coordinators[0].error_code)
        protocols = [JoinGroupRequestProtocol("range", b"m")]
        join = JoinGroupRequest("g", 10_000, REBALANCE_MS, self.member_id, None, "consumer", protocols)
        answer = await self.ask(join, 9)
        if answer.error_code in (ErrorCode.NONE, ErrorCode.MEMBER_ID_REQUIRED):
            self.member_id = answer.member_id
        if answer.error_code:
            return ErrorCode(answer.error_code)
        self.generation = answer.generation_id
        given = [
            SyncGroupRequestAssignment(each.member_id, b"share %d" % at)
            for at, each in enumerate(answer.members)
        ]
        sync = SyncGroupRequest("g", self.generation, self.member_id, None, None, None, given)
        answer = await self.ask(sync, 3)
        if not answer.error_code:
            self._seen.assignment(self.generation, self.member_id, answer.assignment)
        return ErrorCode(answer.error_code)

    async def _commit(self) -> None:
        seen = self._seen
        self._serial += 1
        partition = OffsetCommitRequestPartition(self._number, self._serial, -1, "")
        topic = OffsetCommitRequestTopic("t", bytes(16), [partition])
        request = OffsetCommitRequest("g", self.generation, self.member_id, None, -1, [topic])
        try:
            answer = await self.ask(request, 9)
        except Lost:
            seen.adrift.setdefault(self._number, []).append(self._serial)
            raise
        if not answer.topics[0].partitions[0].error_code:
            seen.committed[self._number] = self._serial

    async def committed(self) -> dict[int, int]:
        """Return the offsets that OffsetFetch reports, once there is a coordinator."""
        topics = [OffsetFetchRequestTopics("t", bytes(16), list(range(MEMBERS)))]
        request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup("g", None, -1, topics)])
        while True:
            try:
                group = (await self.ask(request, 8)).groups[0]
            except Lost:
                continue
            if not group.error_code:
                return {each.partition_index: each.committed_offset for each in group.topics[0].partitions}
            await self._pause(0.2)


@pytest.mark.parametrize("seed", seeds(6))
def test_a_group_outlives_a_node_that_is_killed(seed: int) -> None:
    """In each generation a share has one owner, no acknowledged commit is lost, and in the end all members agree."""
    storm(seed)


def test_a_coordinator_that_does_not_read_its_log_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """A coordinator that skips reading its log fails the check, so the check can find bugs."""
    monkeypatch.setattr(shard, "read_latest", lambda log, skipped: Latest())
    with pytest.raises(AssertionError):
        storm(0)


def storm(seed: int) -> None:
    """Run members and a node that is killed, with the faults of the seed. Raises `AssertionError` if a rule is
    broken."""
    world = World(seed)
    seen = Seen()
    random = Random(f"{seed}/kills")

    async def serve(env: Env) -> None:
        await run_node(node_config(**SETTINGS), env, log=TraceLog(world, NODE), poison=True)

    async def main() -> None:
        format_node(world, node_config(**SETTINGS))
        world.crash(NODE, "synced")
        world.start(NODE, serve)
        observer = Member(world, "observer", seen)
        while True:
            try:
                created = await observer.ask(
                    CreateTopicsRequest([CreatableTopic("t", MEMBERS, 1)], 10_000), 5
                )
            except Lost:
                continue
            if created.topics[0].error_code in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
                break
        members = [Member(world, f"member-{number}", seen, number) for number in range(MEMBERS)]
        tasks = [world.spawn(member.run, f"member-{at}") for at, member in enumerate(members)]
        for _ in range(KILLS):
            await world.sleep(random.uniform(2.0, 25.0))
            acknowledged = dict(seen.committed)
            world.crash(NODE, "all")
            world.start(NODE, serve)
            seen.check(await observer.committed(), acknowledged)
        began = max((generation for generation, _ in seen.assigned), default=0)
        while len(set(seen.stable.values())) != 1 or len(seen.committed) < MEMBERS:
            await world.sleep(1.0)
        seen.over = True
        for task in tasks:
            await task.wait()
        assert max(generation for generation, _ in seen.assigned) >= began

    world.run(main, virtual_seconds_max=900.0)
    assert all(offset >= 0 for offset in seen.committed.values())
