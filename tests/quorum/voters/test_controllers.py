"""Controllers over a simulated network: elections, commits, deaths and cut links.

The drivers of the quorum are at work.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
import trio

from odradek.metadata_quorum.replica.metadata_batches import read_batches
from odradek.metadata_quorum.replica.peers import PeerConnections
from odradek.metadata_quorum.replica.snapshots import SnapshotSettings
from odradek.metadata_quorum.replica.wire_messages import METADATA_TOPIC_ID
from odradek.wire.config_resources import RESOURCE_GROUP
from odradek.wire.errors import ErrorCode
from odradek.wire.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumRequestPartitionData,
    DescribeQuorumRequestTopicData,
)
from odradek.wire.messages.end_quorum_epoch import EndQuorumEpochRequest
from odradek.wire.messages.end_quorum_epoch import EndQuorumEpochRequestPartitionData as EndPartition
from odradek.wire.messages.end_quorum_epoch import EndQuorumEpochRequestTopicData as EndTopic
from odradek.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from odradek.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from odradek.wire.messages.vote import VoteRequest
from odradek.wire.messages.vote import VoteRequestPartitionData as VotePartition
from odradek.wire.messages.vote import VoteRequestTopicData as VoteTopic
from odradek.wire.structure import ZERO_UUID
from sim.machine.weather import Weather
from sim.machine.world import World
from tests.quorum.voters.controllers import (
    PORT,
    Controllers,
    add,
    directory_of,
    host_of,
    play,
    register,
    remove,
)
from tests.quorum.voters.node_parts import CLUSTER_ID
from tests.schedule import seeds


def logs_are_equal(controllers: Controllers, node_ids: tuple[int, ...] = (1, 2, 3)) -> None:
    """Check that the logs on all disks are equal, batch by batch."""
    first, *others = (controllers.log_of(each) for each in node_ids)
    assert first
    assert all(each == first for each in others)


@pytest.mark.parametrize("static", [False, True])
def test_three_voters_elect_a_leader_and_commit(static: bool) -> None:
    """One of three voters leads, and its decisions are on every disk in equal batches.

    The voters are in the log or in the configuration.
    """

    async def script(world: World, controllers: Controllers) -> None:
        assert (await controllers.ask(register(100))).error_code == 0
        await controllers.agree()
        assert all(100 in each.service.committed_image.brokers for each in controllers.members.values())
        assert sum(each.is_active for each in controllers.members.values()) == 1
        logs_are_equal(controllers)

    play(script, static=static)


def test_an_observer_finds_the_leader_by_the_bootstrap_servers() -> None:
    """An observer that knows no voters finds the leader through the bootstrap servers, and follows the log."""

    async def script(world: World, controllers: Controllers) -> None:
        await controllers.ask(register(100))
        observer = await controllers.until(lambda: controllers.members.get(4))
        await observer.service.caught_up()
        assert 100 in observer.service.committed_image.brokers
        assert observer.service.submit(register(101)).response.error_code == ErrorCode.NOT_CONTROLLER
        await controllers.ask(register(102))
        await controllers.agree()
        logs_are_equal(controllers, (1, 4))

    play(script, observers=(4,))


def test_a_new_leader_takes_over_when_the_old_one_dies() -> None:
    """A leader dies.

    Its peers see the broken connections and elect another one within a second. Committed records remain, and the old
    leader follows.
    """

    async def script(world: World, controllers: Controllers) -> None:
        await controllers.ask(register(100))
        old = (await controllers.leader()).node_id
        died_at = world.now
        controllers.crash(old)
        new = await controllers.leader()
        assert world.now - died_at < 1.0
        assert new.node_id != old
        assert 100 in new.service.committed_image.brokers
        await controllers.ask(register(101))
        controllers.start(old)
        await controllers.until(lambda: old in controllers.members)
        await controllers.agree()
        logs_are_equal(controllers)

    play(script)


def test_an_election_is_counted_with_its_time() -> None:
    """Kafka's election-latency counts an election only on the node that was elected."""

    async def script(world: World, controllers: Controllers) -> None:
        old = await controllers.leader()
        quorum = old.service.quorum
        assert quorum.elections == 1
        assert 0 < quorum.election_seconds < world.now
        before = {node: each.service.quorum.elections for node, each in controllers.members.items()}
        died_at = world.now
        controllers.crash(old.node_id)
        new = (await controllers.leader()).service.quorum
        assert new.elections == before[new.settings.me.node_id] + 1
        await controllers.agree()
        assert (
            sum(each.service.quorum.elections for each in controllers.members.values())
            <= sum(before.values()) + 1
        )
        assert 0 < new.election_seconds < world.now - died_at + quorum.election_seconds

    play(script)


def test_a_leader_that_is_cut_off_resigns_and_its_decisions_are_taken_back() -> None:
    """A leader is cut off and resigns (check quorum; thesis, 6.2).

    When the network is healed, it learns of the new epoch and truncates its log.
    """

    async def script(world: World, controllers: Controllers) -> None:
        await controllers.ask(register(100))
        old = await controllers.leader()
        others = [each for each in (1, 2, 3) if each != old.node_id]
        for each in others:
            world.partition(host_of(old.node_id), host_of(each))
        answers: list[Any] = []
        old.service.submit(register(666)).on_release(answers.append)
        await controllers.until(lambda: not old.is_active)
        assert [each.error_code for each in answers] == [ErrorCode.NOT_CONTROLLER]
        new = await controllers.leader()
        assert new is not old
        await controllers.ask(register(101))
        for each in others:
            world.heal(host_of(old.node_id), host_of(each))
        await controllers.agree()
        assert 666 not in old.service.committed_image.brokers
        assert "metadata.truncated" in old.journal.events
        logs_are_equal(controllers)

    play(script)


def test_a_minority_decides_nothing() -> None:
    """Two of three voters are dead, and nothing is committed. When one returns, requests are answered again."""

    async def script(world: World, controllers: Controllers) -> None:
        await controllers.ask(register(100))
        leader = await controllers.leader()
        others = [each for each in (1, 2, 3) if each != leader.node_id]
        for each in others:
            controllers.crash(each)
        answers: list[Any] = []
        leader.service.submit(register(101)).on_release(answers.append)
        await controllers.until(lambda: not leader.is_active)
        assert [each.error_code for each in answers] == [ErrorCode.NOT_CONTROLLER]
        await world.sleep(10.0)
        assert controllers.active() is None
        controllers.start(others[0])
        await controllers.ask(register(102))

    play(script)


def test_a_clean_stop_hands_over() -> None:
    """A leader stops cleanly. Its EndQuorumEpoch names the preferred successor, which leads within 0.2 seconds."""

    async def script(world: World, controllers: Controllers) -> None:
        await controllers.ask(register(100))
        old = (await controllers.leader()).node_id
        stopped_at = world.now
        await controllers.stop(old)
        new = await controllers.leader()
        assert new.node_id != old
        assert world.now - stopped_at < 0.2

    play(script)


@pytest.mark.long
def test_followers_that_lag_fetch_many_batches_at_once() -> None:
    """A follower that lags fetches hundreds of batches in a few answers. It syncs each answer before the next fetch."""

    async def script(world: World, controllers: Controllers) -> None:
        leader = await controllers.leader()
        behind = next(each for each in (1, 2, 3) if each != leader.node_id)
        controllers.crash(behind)
        for number in range(200):
            await controllers.ask(register(1000 + number))
        controllers.start(behind)
        await controllers.until(lambda: behind in controllers.members)
        await controllers.agree()
        logs_are_equal(controllers)

    play(script)


def test_a_follower_that_is_too_far_behind_loads_a_snapshot() -> None:
    """The leader's log begins above a follower's end.

    The follower fetches a snapshot, and then the later log (KIP-630).
    """

    async def script(world: World, controllers: Controllers) -> None:
        leader = await controllers.leader()
        behind = next(each for each in (1, 2, 3) if each != leader.node_id)
        controllers.crash(behind)
        for number in range(120):
            await controllers.ask(register(1000 + number))
        await controllers.until(lambda: leader.log.log_start_offset > 0)
        controllers.start(behind)
        await controllers.until(lambda: behind in controllers.members)
        await controllers.agree()
        member = controllers.members[behind]
        assert "metadata.snapshot_installed" in member.journal.events
        assert 1119 in member.service.committed_image.brokers
        await controllers.ask(register(2000))
        await controllers.agree()
        controllers.crash(behind, "synced")
        controllers.start(behind)
        await controllers.until(lambda: behind in controllers.members)
        await controllers.agree()
        await controllers.stop(leader.node_id)
        await controllers.ask(register(2001))

    play(script, snapshots=SnapshotSettings(bytes_between_max=4000), segment_bytes=3000)


def test_snapshots_bound_the_log() -> None:
    """A new snapshot removes the part of the log that the previous one covers, on every node.

    The log stays short though segments are 1 GiB.
    """

    async def script(world: World, controllers: Controllers) -> None:
        for number in range(150):
            await controllers.ask(register(1000 + number))
        await controllers.agree()
        for node_id, member in controllers.members.items():
            await controllers.until(lambda member=member: member.log.log_start_offset > 100)
            names = [name for name in member.log.directory.list() if name.endswith(".log")]
            assert sum(member.log.directory.file_size(name) for name in names) < 3 * 4000, node_id
            assert sum(name.endswith(".checkpoint") for name in member.log.directory.list()) == 1

    play(script, snapshots=SnapshotSettings(bytes_between_max=4000))


def test_an_observer_with_an_empty_disk_begins_with_a_snapshot() -> None:
    """An observer with an empty disk fetches a snapshot first, as brokers do."""

    async def script(world: World, controllers: Controllers) -> None:
        controllers.crash(4)
        for number in range(120):
            await controllers.ask(register(1000 + number))
        leader = await controllers.leader()
        await controllers.until(lambda: leader.log.log_start_offset > 0)
        controllers.start(4)
        observer = await controllers.until(lambda: controllers.members.get(4))
        await observer.service.caught_up()
        assert 1119 in observer.service.committed_image.brokers
        assert observer.service.quorum.voters == controllers.voters

    options = {"snapshots": SnapshotSettings(bytes_between_max=4000), "segment_bytes": 3000}
    play(script, observers=(4,), **options)


def describe() -> DescribeQuorumRequest:
    partition = DescribeQuorumRequestPartitionData(0)
    return DescribeQuorumRequest([DescribeQuorumRequestTopicData("__cluster_metadata", [partition])])


def test_the_leader_describes_the_quorum() -> None:
    """DescribeQuorum at the leader returns voters and observers with offsets and times, and the voters' endpoints.

    Other nodes refuse it.
    """

    async def script(world: World, controllers: Controllers) -> None:
        leader = await controllers.leader()
        await controllers.until(lambda: 4 in controllers.members)
        await controllers.members[4].service.caught_up()
        await controllers.agree()
        await world.sleep(1.0)
        response = await controllers.ask_quorum(leader.node_id, describe())
        partition = response.topics[0].partitions[0]
        end_offset = leader.service.quorum.decisions.log_end_offset
        assert (partition.error_code, partition.leader_id, partition.leader_epoch) == (0, leader.node_id, 1)
        assert partition.high_watermark == end_offset
        assert [each.replica_id for each in partition.current_voters] == [1, 2, 3]
        assert [each.replica_directory_id for each in partition.current_voters] == [
            directory_of(each) for each in (1, 2, 3)
        ]
        assert [each.replica_id for each in partition.observers] == [4]
        now_ms = leader.env.clock.wall_ms()
        for each in [*partition.current_voters, *partition.observers]:
            assert each.log_end_offset == end_offset
            assert now_ms - 1000 < each.last_caught_up_timestamp <= each.last_fetch_timestamp <= now_ms
        assert [(each.node_id, each.listeners[0].host) for each in response.nodes] == [
            (1, "c1"),
            (2, "c2"),
            (3, "c3"),
        ]
        other = next(each for each in (1, 2, 3) if each != leader.node_id)
        refused = (await controllers.ask_quorum(other, describe())).topics[0].partitions[0]
        assert (refused.error_code, refused.leader_id) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, leader.node_id)

    play(script, observers=(4,))


def test_static_voters_are_described_without_directories() -> None:
    """With static voters, DescribeQuorum shows no directory ids of voters, as Kafka does at kraft.version 0.

    It shows the directory ids of observers.
    """

    async def script(world: World, controllers: Controllers) -> None:
        leader = await controllers.leader()
        await controllers.until(lambda: 4 in controllers.members)
        await controllers.members[4].service.caught_up()
        await controllers.agree()
        partition = (await controllers.ask_quorum(leader.node_id, describe())).topics[0].partitions[0]
        assert [(each.replica_id, each.replica_directory_id) for each in partition.current_voters] == [
            (1, ZERO_UUID),
            (2, ZERO_UUID),
            (3, ZERO_UUID),
        ]
        assert all(each.log_end_offset > 0 for each in partition.current_voters)
        assert [each.replica_directory_id for each in partition.observers] == [directory_of(4)]

    play(script, observers=(4,), static=True)


def group_timeouts(groups: Iterable[int], timeout_ms: int) -> IncrementalAlterConfigsRequest:
    return IncrementalAlterConfigsRequest(
        [
            AlterConfigsResource(
                RESOURCE_GROUP,
                f"g{number}",
                [AlterableConfig("consumer.session.timeout.ms", 0, f"{timeout_ms}")],
            )
            for number in groups
        ]
    )


def test_a_long_request_and_the_next_of_its_connection_keep_their_order() -> None:
    """A connection sends a long request and then a short one.

    The short one is decided after all parts of the long one.
    """

    async def script(world: World, controllers: Controllers) -> None:
        leader = await controllers.leader()
        asking = world.node_env("client")
        peers = PeerConnections(asking, world.tasks, client_id="test", log=leader.journal)
        channel = peers.channel(host_of(leader.node_id), PORT)
        calls = [
            channel.send(group_timeouts(range(1000), 50_000), 1),
            channel.send(group_timeouts([999], 55_000), 1),
        ]
        answers = [await channel.answer(call, asking.clock.monotonic() + 10) for call in calls]
        peers.close()
        assert [len(answer.responses) for answer in answers] == [1000, 1]
        assert {each.error_code for answer in answers for each in answer.responses} == {ErrorCode.NONE}
        configs = leader.service.committed_image.configs
        assert sum(kind == RESOURCE_GROUP for kind, _ in configs) == 1000
        assert configs[RESOURCE_GROUP, "g999"] == {"consumer.session.timeout.ms": "55000"}

    play(script)


def test_a_leader_that_is_lost_halfway_says_so_for_all_that_is_not_committed() -> None:
    """The leader is deposed in the middle of a long request.

    The answer is complete, and has NOT_CONTROLLER for everything uncommitted.
    """

    async def script(world: World, controllers: Controllers) -> None:
        leader = await controllers.leader()
        decided: list[Any] = []
        submit = leader.service.submit

        def submit_and_cut(request: Any, *asked: Any) -> Any:
            decided.append(submit(request, *asked))
            if len(decided) == 2:
                for each in {1, 2, 3} - {leader.node_id}:
                    world.partition(host_of(leader.node_id), host_of(each))
            return decided[-1]

        leader.service.submit = submit_and_cut  # type: ignore[method-assign]
        asking = world.node_env("client")
        peers = PeerConnections(asking, world.tasks, client_id="test", log=leader.journal)
        channel = peers.channel(host_of(leader.node_id), PORT)
        response = await channel.request(
            group_timeouts(range(1000), 50_000), asking.clock.monotonic() + 30, version=1
        )
        peers.close()
        assert len(decided) > 2
        assert [each.resource_name for each in response.responses] == [f"g{number}" for number in range(1000)]
        assert {each.error_code for each in response.responses} == {ErrorCode.NOT_CONTROLLER}

    play(script)


@pytest.mark.parametrize("seed", [20166, 20346])
def test_storms_that_found_something(seed: int) -> None:
    """Random histories that found bugs.

    A removed voter knew only an old leader, and a disk filled up between two segments of one write.
    """
    options = {"snapshots": SnapshotSettings(bytes_between_max=2000), "segment_bytes": 1500}
    storm(seed, observers=(4, 5), more_controllers=(4,), **options)


def test_readers_that_are_no_replicas_see_what_is_committed() -> None:
    """A client fetches with replica id -1 from any controller.

    It gets only the committed log, and may wait for more.
    """

    async def script(world: World, controllers: Controllers) -> None:
        await controllers.ask(register(100))
        await controllers.agree()
        leader = await controllers.leader()
        for node_id in (1, 2, 3):
            response = await controllers.ask_quorum(node_id, read(0))
            partition = response.responses[0].partitions[0]
            batches = list(read_batches(partition.records, source="answer"))
            assert batches[0].base_offset == 0
            assert batches[-1].last_offset == leader.service.quorum.decisions.high_watermark - 1
            assert partition.current_leader.leader_id == leader.node_id
        end_offset = leader.service.quorum.decisions.high_watermark
        beyond = (await controllers.ask_quorum(1, read(end_offset + 1))).responses[0].partitions[0]
        assert beyond.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        answers: list[Any] = []

        async def wait() -> None:
            answers.append(await controllers.ask_quorum(leader.node_id, read(end_offset, wait_ms=5000)))

        waiting = world.spawn(wait)
        await world.sleep(0.3)
        assert not answers
        await controllers.ask(register(101))
        await waiting.wait()
        assert answers[0].responses[0].partitions[0].records
        assert world.now < 5.0

    play(script)


def test_requests_that_are_not_about_this_quorum_are_refused() -> None:
    """Requests for another cluster, another log or another voter are refused with Kafka's codes, and change nothing."""

    async def script(world: World, controllers: Controllers) -> None:
        leader = await controllers.leader()
        vote = VotePartition(0, 99, 7, bytes(16), directory_of(leader.node_id), 99, 99)

        def request(cluster_id: str = CLUSTER_ID, topic: str = "__cluster_metadata") -> VoteRequest:
            return VoteRequest(cluster_id, leader.node_id, [VoteTopic(topic, [vote])])

        node_id = leader.node_id
        answer = await controllers.ask_quorum(node_id, request("another"))
        assert answer.error_code == ErrorCode.INCONSISTENT_CLUSTER_ID
        answer = await controllers.ask_quorum(node_id, request(topic="t"))
        assert answer.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        answer = await controllers.ask_quorum(node_id, VoteRequest(CLUSTER_ID, node_id, []))
        assert answer.error_code == ErrorCode.INVALID_REQUEST
        vote.voter_directory_id = b"another replica!"
        answer = await controllers.ask_quorum(node_id, request())
        assert answer.topics[0].partitions[0].error_code == ErrorCode.INVALID_VOTER_KEY
        stale = EndQuorumEpochRequest(
            CLUSTER_ID, [EndTopic("__cluster_metadata", [EndPartition(0, node_id, 0)])]
        )
        answer = await controllers.ask_quorum(node_id, stale)
        assert answer.topics[0].partitions[0].error_code == ErrorCode.FENCED_LEADER_EPOCH
        fetch = read(0)
        fetch.replica_state.replica_id = 9
        fetch.topics[0].partitions[0].fetch_offset = -1
        answer = await controllers.ask_quorum(node_id, fetch)
        assert answer.error_code == ErrorCode.INVALID_REQUEST
        assert (leader.is_active, leader.service.quorum.leader_epoch) == (True, 1)

    play(script)


def read(offset: int, wait_ms: int = 0) -> FetchRequest:
    partition = FetchPartition(0, -1, offset, partition_max_bytes=1 << 20)
    return FetchRequest(
        CLUSTER_ID,
        max_wait_ms=wait_ms,
        min_bytes=1,
        topics=[FetchTopic(topic_id=METADATA_TOPIC_ID, partitions=[partition])],
    )


@pytest.mark.parametrize("seed", seeds(6))
def test_crashes_power_cuts_and_bad_weather_lose_no_answer(seed: int) -> None:
    """Nodes crash, lose power and have bad networks. Every answer remains valid, and in the end all logs are equal."""
    storm(seed)


@pytest.mark.parametrize("seed", seeds(6))
def test_storms_over_controllers_that_write_snapshots(seed: int) -> None:
    """Voters and observers crash while snapshots shorten their logs all the time. Every answer remains valid."""
    options = {"snapshots": SnapshotSettings(bytes_between_max=2000), "segment_bytes": 1500}
    storm(1000 + seed, observers=(4, 5), more_controllers=(4,), **options)


def storm(seed: int, **options: Any) -> None:
    """Make decisions while nodes die with or without their power, links are cut, and disks are full."""
    world = World(seed, Weather.draw(World(seed)._stream("weather")))
    random = world.random

    async def trouble(controllers: Controllers) -> None:
        while True:
            await world.sleep(random.expovariate(1.0))
            one, other = random.sample((1, 2, 3), 2)
            match random.randrange(8):
                case 0 | 1:
                    machine = world.machine(host_of(one))
                    if machine.env is not None and machine.env.alive:
                        controllers.crash(one, random.choice(["all", "synced", "random"]))
                    await world.sleep(random.random() * 3)
                    controllers.start_all()
                case 2:
                    world.fabric.cut(host_of(one), host_of(other))
                    await world.sleep(random.random() * 5)
                    world.fabric.heal(host_of(one), host_of(other))
                case 3:
                    world.partition(host_of(one), host_of(other))
                    await world.sleep(random.random() * 5)
                    world.heal(host_of(one), host_of(other))
                case 4:
                    for each in (1, 2, 3):
                        machine = world.machine(host_of(each))
                        if machine.env is not None and machine.env.alive:
                            controllers.crash(each, random.choice(["synced", "random"]))
                    controllers.start_all()
                case 5:
                    if one in controllers.members and world.machine(host_of(one)).disk.capacity_bytes is None:
                        await controllers.stop(one)
                        controllers.start(one)
                case 6:
                    await change_voters(controllers, random.choice(controllers.node_ids))
                case _:
                    disk = world.machine(host_of(one)).disk
                    disk.capacity_bytes = disk.used_bytes + random.randrange(500)
                    await world.sleep(random.random() * 3)
                    disk.capacity_bytes = None

    async def script(world: World, controllers: Controllers) -> None:
        told: list[int] = []
        scope = trio.CancelScope()

        async def run_trouble() -> None:
            with scope:
                await trouble(controllers)

        over = world.spawn(run_trouble)
        for number in range(25):
            answer = await controllers.ask(register(100 + number), 120.0)
            if answer.error_code == 0:
                told.append(100 + number)
            await world.sleep(random.random())
        scope.cancel()
        await over.wait()
        for one, other in ((1, 2), (1, 3), (2, 3)):
            world.heal(host_of(one), host_of(other))
        for each in (1, 2, 3):
            world.machine(host_of(each)).disk.capacity_bytes = None
        await controllers.until(lambda: not any(each.stop.is_set() for each in controllers.members.values()))
        controllers.start_all()
        await controllers.until(lambda: len(controllers.members) == len(controllers.node_ids))
        await controllers.ask(register(1000), 120.0)
        await controllers.agree(60.0)
        assert len(told) > 12
        for member in controllers.members.values():
            assert set(told) <= set(member.service.committed_image.brokers)
        logs_agree(controllers)

    play(script, world, **options)


async def change_voters(controllers: Controllers, node_id: int) -> None:
    """Add a node as a voter, or remove a voter. The request may fail."""
    leader = controllers.active()
    if leader is None or node_id not in controllers.controllers:
        return
    is_voter = leader.service.quorum.voters.get(node_id) is not None
    request = remove(node_id) if is_voter else add(node_id)
    leader.service.quorum.receive(request, 0, lambda answer: None)


def logs_agree(controllers: Controllers) -> None:
    """Check that logs have equal batches where they overlap, and equal ends."""
    known: dict[int, Any] = {}
    ends = set()
    for node_id in controllers.node_ids:
        batches = controllers.log_of(node_id)
        for batch in batches:
            assert known.setdefault(batch.base_offset, batch) == batch
        ends.add(controllers.members[node_id].service.quorum.decisions.log_end_offset)
    assert len(ends) == 1


async def restart(world: World, controllers: Controllers, node_id: int) -> None:
    """Restart stopped nodes after a while."""
    await world.sleep(world.random.random() * 3)
    controllers.start_all()
