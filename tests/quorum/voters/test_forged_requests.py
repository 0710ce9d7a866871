"""Forged requests to a controller's listener.

None of them ends a node, fills its memory, or disturbs elections for long.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from odradek.metadata_quorum.raft.core import EPOCHS_AHEAD_MAX
from odradek.metadata_quorum.raft.replication import WAIT_MS_MAX
from odradek.metadata_quorum.replica.wire_messages import METADATA_TOPIC_ID
from odradek.wire.errors import ErrorCode
from odradek.wire.messages.begin_quorum_epoch import BeginQuorumEpochRequest, LeaderEndpoint
from odradek.wire.messages.begin_quorum_epoch import BeginQuorumEpochRequestPartitionData as BeginPartition
from odradek.wire.messages.begin_quorum_epoch import BeginQuorumEpochRequestTopicData as BeginTopic
from odradek.wire.messages.end_quorum_epoch import EndQuorumEpochRequest
from odradek.wire.messages.end_quorum_epoch import EndQuorumEpochRequestPartitionData as EndPartition
from odradek.wire.messages.end_quorum_epoch import EndQuorumEpochRequestTopicData as EndTopic
from odradek.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ReplicaState
from odradek.wire.messages.fetch_snapshot import (
    FetchSnapshotRequest,
    FetchSnapshotRequestPartitionSnapshot,
    FetchSnapshotRequestTopicSnapshot,
    SnapshotId,
)
from odradek.wire.messages.vote import VoteRequest
from odradek.wire.messages.vote import VoteRequestPartitionData as VotePartition
from odradek.wire.messages.vote import VoteRequestTopicData as VoteTopic
from sim.machine.world import World
from testkit.by_hand import KeptLog
from tests.quorum.voters.controllers import Controllers, Member, directory_of, host_of, play, register, remove
from tests.quorum.voters.node_parts import CLUSTER_ID
from tests.quorum.voters.test_controllers import read

TOPIC = "__cluster_metadata"
INT32_MAX = (1 << 31) - 1


def begin(leader_id: int, epoch: int, *hosts: str) -> BeginQuorumEpochRequest:
    partition = BeginPartition(0, bytes(16), leader_id, epoch)
    endpoints = [LeaderEndpoint("CONTROLLER", host, 9093) for host in hosts]
    return BeginQuorumEpochRequest(CLUSTER_ID, -1, [BeginTopic(TOPIC, [partition])], endpoints)


def end(leader_id: int, epoch: int) -> EndQuorumEpochRequest:
    return EndQuorumEpochRequest(CLUSTER_ID, [EndTopic(TOPIC, [EndPartition(0, leader_id, epoch)])])


def vote(candidate: int, epoch: int) -> VoteRequest:
    partition = VotePartition(0, epoch, candidate, bytes(16), bytes(16), epoch, 1 << 40)
    return VoteRequest(CLUSTER_ID, -1, [VoteTopic(TOPIC, [partition])])


def fetch(
    node_id: int, epoch: int, offset: int, last_epoch: int, *, directory: bytes, wait_ms: int = INT32_MAX
) -> FetchRequest:
    partition = FetchPartition(0, epoch, offset, last_epoch, -1, 1 << 20, directory)
    return FetchRequest(
        CLUSTER_ID,
        replica_state=ReplicaState(node_id),
        max_wait_ms=wait_ms,
        topics=[FetchTopic(topic_id=METADATA_TOPIC_ID, partitions=[partition])],
    )


def error_of(answer: Any) -> int:
    return int(answer.error_code or answer.topics[0].partitions[0].error_code)


def follower_of(controllers: Controllers, leader: Member) -> Member:
    return next(each for each in controllers.members.values() if each is not leader)


@pytest.mark.reaches("raft.second_leader_refused")
def test_an_epoch_has_one_leader_whatever_is_said() -> None:
    """BeginQuorumEpoch names another leader of an epoch whose leader is known. It is refused, and all nodes go on."""

    async def script(world: World, controllers: Controllers) -> None:
        await controllers.ask(register(100))
        await controllers.agree()
        leader = await controllers.leader()
        epoch = leader.service.quorum.leader_epoch
        for node_id in (1, 2, 3):
            answer = await controllers.ask_quorum(node_id, begin(77, epoch, "nowhere"))
            assert error_of(answer) == ErrorCode.INVALID_REQUEST
        assert len(controllers.members) == 3
        assert (await controllers.ask(register(101))).error_code == 0
        assert (await controllers.leader()) is leader
        assert leader.service.quorum.peers.address_of(77) is None

    play(script)


def test_leaders_that_do_not_exist_are_got_over() -> None:
    """Each node gets a BeginQuorumEpoch of a different leader that does not exist.

    After failed fetches, the nodes elect a real leader.
    """

    async def script(world: World, controllers: Controllers) -> None:
        await controllers.ask(register(100))
        await controllers.agree()
        epoch = (await controllers.leader()).service.quorum.leader_epoch
        for node_id in (1, 2, 3):
            await controllers.ask_quorum(node_id, begin(70 + node_id, epoch + 1, "nowhere"))
        await controllers.ask(register(101), 60.0)
        await controllers.agree(60.0)
        assert len(controllers.members) == 3
        for member in controllers.members.values():
            assert all(member.service.quorum.peers.said_address_of(each) is None for each in (72, 73, 74))

    play(script)


@pytest.mark.parametrize("kind", ["vote", "begin", "end"])
@pytest.mark.reaches("raft.epoch_far_ahead_refused")
def test_one_packet_does_not_use_up_the_epochs(kind: str) -> None:
    """A request with an epoch near 2^31 - 1 is refused.

    If it were accepted, no epochs would be left, and Kafka's controllers end at such an epoch.
    """

    async def script(world: World, controllers: Controllers) -> None:
        await controllers.ask(register(100))
        leader = await controllers.leader()
        kinds: dict[str, Callable[[int, int], Any]] = {"vote": vote, "begin": begin, "end": end}
        make = kinds[kind]
        for node_id in (1, 2, 3):
            for epoch in (INT32_MAX, INT32_MAX - 1, EPOCHS_AHEAD_MAX + 100):
                answer = await controllers.ask_quorum(node_id, make(7, epoch))
                assert error_of(answer) == ErrorCode.INVALID_REQUEST
            answer = await controllers.ask_quorum(node_id, make(-2, 5))
            assert error_of(answer) == ErrorCode.INVALID_REQUEST
        assert (await controllers.leader()) is leader
        assert leader.service.quorum.leader_epoch == 1
        await controllers.ask_quorum(leader.node_id, make(7, 1000))
        assert (await controllers.ask(register(101), 60.0)).error_code == 0
        assert (await controllers.leader()).service.quorum.leader_epoch >= 1000

    play(script)


def test_addresses_of_leaders_that_are_none_are_forgotten() -> None:
    """BeginQuorumEpoch requests announce addresses of leaders that do not exist.

    They are neither kept in memory nor passed on.
    """

    async def script(world: World, controllers: Controllers) -> None:
        await controllers.ask(register(100))
        await controllers.agree()
        leader = await controllers.leader()
        member = follower_of(controllers, leader)
        epoch = leader.service.quorum.leader_epoch
        quorum = member.service.quorum
        for number in range(50):
            await controllers.ask_quorum(member.node_id, begin(1000 + number, epoch - 1, "nowhere"))
            await controllers.ask_quorum(member.node_id, begin(1000 + number, epoch, "nowhere"))
        await controllers.ask_quorum(member.node_id, begin(leader.node_id, epoch - 1, "nowhere"))
        assert all(quorum.peers.said_address_of(1000 + number) is None for number in range(50))
        assert quorum.leader_address() == (host_of(leader.node_id), 9093)

    play(script)


def test_a_replica_with_the_id_of_a_voter_does_not_stand_in_for_it() -> None:
    """A stranger fetches under a voter's node id, but from another disk (KIP-853).

    The leader does not count the stranger's fetches, and goes on leading.
    """

    async def script(world: World, controllers: Controllers) -> None:
        await controllers.ask(register(100))
        leader = await controllers.leader()
        others = [each for each in (1, 2, 3) if each != leader.node_id]
        controllers.crash(others[0])
        epoch = leader.service.quorum.leader_epoch
        until = world.now + 8.0
        while world.now < until:
            stranger = fetch(others[1], epoch, 0, -1, directory=b"another disk   1", wait_ms=0)
            leader.service.quorum.receive(stranger, 17, lambda answer: None)
            await world.sleep(0.03)
        assert leader.is_active
        assert (await controllers.ask(register(101), 2.0)).error_code == 0
        assert leader.service.quorum.leader_epoch == epoch
        controllers.crash(others[1])
        answers: list[Any] = []
        leader.service.submit(register(102)).on_release(answers.append)
        end_offset = leader.service.quorum.decisions.log_end_offset
        for _ in range(20):
            stranger = fetch(others[1], epoch, end_offset, epoch, directory=b"another disk   1", wait_ms=0)
            leader.service.quorum.receive(stranger, 17, lambda answer: None)
            await world.sleep(0.03)
        assert not answers

    play(script)


@pytest.mark.reaches("raft.observer_forgotten")
def test_fetches_that_would_wait_for_ever_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many fetches wait for data, and their connections may be gone.

    Only a limited number is kept, for half a minute at most.
    """
    monkeypatch.setattr("odradek.metadata_quorum.raft.replication.REPLICAS_MAX", 20)
    monkeypatch.setattr("odradek.metadata_quorum.replica.quorum_requests.READERS_MAX", 30)

    async def script(world: World, controllers: Controllers) -> None:
        await controllers.ask(register(100))
        leader = await controllers.leader()
        quorum = leader.service.quorum
        offset, epoch = quorum.decisions.high_watermark, quorum.leader_epoch
        answers: list[Any] = []
        for number in range(100):
            request = fetch(900 + number % 10, epoch, offset, epoch, directory=b"%016d" % number)
            request.topics[0].partitions[0].high_watermark = offset
            quorum.receive(request, 17, answers.append)
        assert len(answers) == 80
        for _ in range(100):
            quorum.receive(read(offset, wait_ms=INT32_MAX), 17, answers.append)
        await controllers.until(lambda: len(answers) == 150)
        await world.sleep(WAIT_MS_MAX / 1000 - 1.0)
        assert len(answers) == 150
        await controllers.until(lambda: len(answers) == 200)
        assert leader.is_active

    play(script, voters=(1,))


def test_odd_numbers_are_answered() -> None:
    """Fetches with extreme positions, sizes and offsets are answered, and the node goes on."""

    async def script(world: World, controllers: Controllers) -> None:
        await controllers.ask(register(100))
        leader = await controllers.leader()
        quorum = leader.service.quorum
        epoch = quorum.leader_epoch
        extremes = (-(1 << 31), -1, 0, 1, INT32_MAX)
        for size in extremes:
            for offset in (0, 1, quorum.decisions.high_watermark, 1 << 62):
                for last_epoch in (-1, 0, epoch, INT32_MAX):
                    request = fetch(9, epoch, offset, last_epoch, directory=bytes(16), wait_ms=0)
                    request.max_bytes = request.topics[0].partitions[0].partition_max_bytes = size
                    await controllers.ask_quorum(leader.node_id, request)
            reader = read(0)
            reader.max_bytes = size
            await controllers.ask_quorum(leader.node_id, reader)
            for snapshot in (SnapshotId(-1, -1), SnapshotId(0, 0), SnapshotId(1 << 62, INT32_MAX)):
                for position in (-(1 << 63), -1, 1 << 62):
                    asked = FetchSnapshotRequestPartitionSnapshot(0, epoch, snapshot, position, bytes(16))
                    topic = FetchSnapshotRequestTopicSnapshot(TOPIC, [asked])
                    answer = await controllers.ask_quorum(
                        leader.node_id, FetchSnapshotRequest(CLUSTER_ID, 9, size, [topic])
                    )
                    assert error_of(answer) in (
                        ErrorCode.SNAPSHOT_NOT_FOUND,
                        ErrorCode.POSITION_OUT_OF_RANGE,
                    )
        assert (await controllers.ask_quorum(leader.node_id, remove(-1))).error_code
        assert leader.is_active
        assert isinstance(leader.journal, KeptLog)
        assert "connection.bug" not in leader.journal.events
        assert (await controllers.ask(register(101))).error_code == 0

    play(script)


def test_a_leader_that_hears_of_the_next_one_stops_deciding() -> None:
    """A leader gets BeginQuorumEpoch of its successor. It answers requests with NOT_CONTROLLER from then on."""

    async def script(world: World, controllers: Controllers) -> None:
        await controllers.ask(register(100))
        old = await controllers.leader()
        others = [each for each in (1, 2, 3) if each != old.node_id]
        epoch = old.service.quorum.leader_epoch
        for each in others:
            controllers.crash(each)
        await controllers.ask_quorum(old.node_id, begin(others[0], epoch + 1, host_of(others[0])))
        await world.sleep(0.1)
        assert not old.is_active
        answers: list[Any] = []
        old.service.submit(register(101)).on_release(answers.append)
        assert [each.error_code for each in answers] == [ErrorCode.NOT_CONTROLLER]
        assert directory_of(old.node_id) == old.service.quorum.settings.me.directory_id

    play(script)
