"""Voters that listen at other addresses than the log says (KIP-853), in controllers over a simulated network."""

from __future__ import annotations

import pytest

from odradek.metadata_quorum.features import KRAFT_VERSION_LEVEL
from odradek.metadata_quorum.raft.core_state import RaftConfig
from odradek.metadata_quorum.replica import wire_messages
from odradek.wire.errors import ErrorCode, KafkaError
from odradek.wire.messages import begin_quorum_epoch, vote
from odradek.wire.messages.update_raft_voter import (
    KRaftVersionFeature,
    Listener,
    UpdateRaftVoterRequest,
)
from sim.machine.network import SimNetwork
from sim.machine.world import World
from tests.quorum.voters.controllers import (
    PORT,
    Controllers,
    calm_world,
    directory_of,
    host_of,
    play,
    register,
)
from tests.quorum.voters.node_parts import CLUSTER_ID

NEW_PORT = 9193
VOTERS = (1, 2, 3)


def move(controllers: Controllers, *node_ids: int) -> None:
    """Move these nodes to another port at their next start. Bootstrap servers of later starts are correct."""
    for node_id in node_ids:
        controllers.ports[node_id] = NEW_PORT
    controllers.bootstrap = tuple((host_of(each), controllers.port_of(each)) for each in VOTERS)


def crash_all(controllers: Controllers) -> None:
    for node_id in VOTERS:
        if node_id in controllers.members:
            controllers.crash(node_id)


def addresses(controllers: Controllers) -> list[set[tuple[str, int]]]:
    """Return the voters' addresses as each node's log has them."""
    return [
        {voter.endpoints[0][1:] for voter in member.service.quorum.voters.voters}
        for member in controllers.members.values()
    ]


async def all_entries_are_new(controllers: Controllers) -> None:
    expected = {(host_of(each), controllers.port_of(each)) for each in VOTERS}
    await controllers.until(lambda: addresses(controllers) == [expected] * len(VOTERS), 60.0)


def test_all_voters_move_at_once() -> None:
    """All voters move at once. Within a minute a leader is elected, and the log has the new addresses of all.

    Then the log alone is enough, so the nodes can start again with useless bootstrap servers.
    """

    async def script(world: World, controllers: Controllers) -> None:
        await controllers.ask(register(100))
        await controllers.agree()
        crash_all(controllers)
        move(controllers, *VOTERS)
        controllers.start_all()
        await controllers.ask(register(101), 60.0)
        await all_entries_are_new(controllers)
        crash_all(controllers)
        controllers.bootstrap = (("nowhere", 1),)
        controllers.start_all()
        await controllers.ask(register(102), 30.0)
        await controllers.agree()
        assert {100, 101, 102} <= set(controllers.members[1].service.committed_image.brokers)

    play(script)


@pytest.mark.parametrize("dead", [(), (3,)], ids=["all", "a majority"])
def test_old_addresses_are_silent(dead: tuple[int, ...]) -> None:
    """A network is renumbered, and nothing answers at old addresses.

    The voters find each other, even if one of them is dead.
    """
    world = calm_world()
    world.machine("renumbered").host.up = False

    async def script(world: World, controllers: Controllers) -> None:
        for node_id in dead:
            controllers.crash(node_id, "synced")
        await controllers.ask(register(100), 60.0)
        if not dead:
            await all_entries_are_new(controllers)

    play(script, world=world, logged_host="renumbered")


def test_an_observer_follows_voters_that_have_moved() -> None:
    """All voters move. An observer with an old log finds the leader through correct bootstrap servers."""

    async def script(world: World, controllers: Controllers) -> None:
        await controllers.ask(register(100))
        await controllers.agree()
        await controllers.until(lambda: 4 in controllers.members)
        controllers.crash(4)
        for node_id in VOTERS:
            await controllers.stop(node_id)
        move(controllers, *VOTERS)
        controllers.start_all()
        await controllers.ask(register(101), 60.0)
        await controllers.until(lambda: 4 in controllers.members)
        await controllers.members[4].service.caught_up()
        await controllers.until(lambda: 101 in controllers.members[4].service.committed_image.brokers)

    play(script, observers=(4,))


def test_voters_move_one_by_one() -> None:
    """Voters move one by one, while the others run with old bootstrap servers."""

    async def script(world: World, controllers: Controllers) -> None:
        for count, node_id in enumerate(VOTERS):
            await controllers.ask(register(100 + count))
            await controllers.stop(node_id)
            move(controllers, node_id)
            controllers.start(node_id)
            await controllers.until(lambda: len(controllers.members) == len(VOTERS))
            await all_entries_are_new(controllers)
        await controllers.agree()

    play(script)


def test_addresses_that_were_exchanged() -> None:
    """Voters exchange their addresses, so another voter answers at each address.

    The error INVALID_VOTER_KEY is neither counted as a vote nor logged as a refusal.
    """

    async def script(world: World, controllers: Controllers) -> None:
        await controllers.ask(register(100))
        crash_all(controllers)
        disks = {each: world.machine(host_of(each)).disk for each in VOTERS}
        for here, there in ((1, 2), (2, 3), (3, 1)):
            world.machine(host_of(there)).disk = disks[here]
        controllers.start_all()
        await controllers.ask(register(101), 60.0)
        await controllers.until(lambda: len(controllers.members) == len(VOTERS))
        expected = {
            host_of(each): member.service.quorum.settings.me.node_id
            for each, member in controllers.members.items()
        }
        leader = await controllers.leader()
        await controllers.until(
            lambda: (
                {voter.endpoints[0][1]: voter.key.node_id for voter in leader.service.quorum.voters.voters}
                == expected
            ),
            60.0,
        )
        for member in controllers.members.values():
            assert "quorum.request_refused" not in member.journal.events

    play(script)


def test_a_name_that_leads_to_all_controllers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bootstrap name has the addresses of all controllers. Each address is asked for each voter."""
    found = SimNetwork.addresses_of

    async def addresses_of(network: SimNetwork, host: str, port: int) -> tuple[str, ...]:
        if host == "controllers":
            return tuple(map(host_of, VOTERS))
        return await found(network, host, port)

    monkeypatch.setattr(SimNetwork, "addresses_of", addresses_of)

    async def script(world: World, controllers: Controllers) -> None:
        await controllers.ask(register(100))
        crash_all(controllers)
        move(controllers, *VOTERS)
        controllers.bootstrap = (("controllers", NEW_PORT),)
        controllers.start_all()
        await controllers.ask(register(101), 60.0)
        await all_entries_are_new(controllers)

    play(script)


def test_static_voters_are_looked_for_nowhere() -> None:
    """Static voters have moved (kraft.version 0).

    The nodes do not search for them, since the configuration names their addresses.
    """

    async def script(world: World, controllers: Controllers) -> None:
        await controllers.ask(register(100))
        crash_all(controllers)
        move(controllers, *VOTERS)
        controllers.start_all()
        await controllers.until(lambda: len(controllers.members) == len(VOTERS))
        await world.sleep(30.0)
        assert controllers.active() is None

    play(script, static=True)


def update(node_id: int, port: int, epoch: int) -> UpdateRaftVoterRequest:
    return UpdateRaftVoterRequest(
        CLUSTER_ID,
        epoch,
        node_id,
        directory_of(node_id),
        [Listener("CONTROLLER", host_of(node_id), port)],
        KRaftVersionFeature(0, KRAFT_VERSION_LEVEL),
    )


def test_the_leader_reaches_a_new_address_before_the_log_names_it() -> None:
    """A voter reports an address that leads nowhere, or to another voter.

    The leader refuses it, and the log is not changed (KAFKA-20661).
    """

    async def script(world: World, controllers: Controllers) -> None:
        await controllers.ask(register(100))
        await controllers.agree()
        leader = await controllers.leader()
        quorum = leader.service.quorum
        other = next(each for each in VOTERS if each != leader.node_id)
        before = quorum.voters
        nowhere = await controllers.ask_quorum(leader.node_id, update(other, 9999, quorum.leader_epoch))
        assert nowhere.error_code == ErrorCode.REQUEST_TIMED_OUT
        third = next(each for each in VOTERS if each not in (other, leader.node_id))
        wrong = update(other, PORT, quorum.leader_epoch)
        wrong.listeners[0].host = host_of(third)
        refused = await controllers.ask_quorum(leader.node_id, wrong)
        assert refused.error_code == ErrorCode.REQUEST_TIMED_OUT
        assert quorum.voters == before
        assert leader.journal.events.count("quorum.voter_not_reached") == 2

    play(script)


@pytest.mark.parametrize("is_vote", [True, False])
def test_another_cluster_teaches_nothing(is_vote: bool) -> None:
    """A node of another cluster answers INCONSISTENT_CLUSTER_ID, which may be the partition's error code.

    The epoch and the leader in the answer are ignored.
    """
    answer: vote.VoteResponse | begin_quorum_epoch.BeginQuorumEpochResponse
    if is_vote:
        voted = vote.VoteResponsePartitionData(0, ErrorCode.INCONSISTENT_CLUSTER_ID, 7, 99, False)
        answer = vote.VoteResponse(0, [vote.VoteResponseTopicData(wire_messages.METADATA_TOPIC, [voted])])
    else:
        of = begin_quorum_epoch
        begun = of.BeginQuorumEpochResponsePartitionData(0, ErrorCode.INCONSISTENT_CLUSTER_ID, 7, 99)
        answer = of.BeginQuorumEpochResponse(
            0, [of.BeginQuorumEpochResponseTopicData(wire_messages.METADATA_TOPIC, [begun])]
        )
    with pytest.raises(KafkaError) as refused:
        wire_messages.decode_response(answer)
    assert refused.value.code is ErrorCode.INCONSISTENT_CLUSTER_ID


def test_a_short_patience_finds_moved_voters_too() -> None:
    """Voters have moved, and `controller.quorum.fetch.timeout.ms` is long compared to the request timeout.

    The voters are still found.
    """

    async def script(world: World, controllers: Controllers) -> None:
        await controllers.ask(register(100))
        crash_all(controllers)
        move(controllers, *VOTERS)
        controllers.start_all()
        await controllers.ask(register(101), 60.0)

    play(script, config=RaftConfig(fetch_timeout_seconds=8.0, request_timeout_seconds=1.0))


def test_an_address_in_the_log_that_leads_to_the_voter_itself_is_no_doubt() -> None:
    """The log has another name of this node's address, `localhost`.

    The node recognizes its own request, and elects without a delay.
    """
    patience = 60.0

    async def script(world: World, controllers: Controllers) -> None:
        began = world.now
        await controllers.leader(patience)
        assert world.now - began < patience / 2
        await controllers.ask(register(100))
        await controllers.agree()

    play(
        script,
        logged_host="localhost",
        config=RaftConfig(fetch_timeout_seconds=patience, request_timeout_seconds=1.0),
    )
