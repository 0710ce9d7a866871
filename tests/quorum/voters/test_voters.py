"""Voters of a quorum come, go and move (KIP-853): controllers over a simulated network."""

from __future__ import annotations

import pytest

from odradek.env.ports import Env
from odradek.metadata_quorum.features import SUPPORTED_FEATURES
from odradek.wire.errors import ErrorCode
from odradek.wire.framing.connection import RequestReceived, ServerConnection
from odradek.wire.messages.api_versions import ApiVersionsResponse
from sim.machine.world import World
from tests.quorum.voters.controllers import Controllers, add, host_of, play, register, remove


def test_voters_come_and_go_one_at_a_time() -> None:
    """KIP-853: an observer that has the log joins, a voter leaves, the leader too; refusals have Kafka's codes."""

    async def script(world: World, controllers: Controllers) -> None:
        leader = await controllers.leader()
        await controllers.until(lambda: 4 in controllers.members)
        await controllers.members[4].service.caught_up()
        answer = await controllers.ask_quorum(leader.node_id, add(4))
        assert answer.error_code == 0, answer
        assert leader.service.quorum.voters.node_ids == (1, 2, 3, 4)
        assert (await controllers.ask_quorum(leader.node_id, add(4))).error_code == ErrorCode.DUPLICATE_VOTER
        assert (
            await controllers.ask_quorum(leader.node_id, remove(5))
        ).error_code == ErrorCode.VOTER_NOT_FOUND
        wrong = add(5)
        wrong.cluster_id = "another"
        assert (
            await controllers.ask_quorum(leader.node_id, wrong)
        ).error_code == ErrorCode.INCONSISTENT_CLUSTER_ID
        answer = await controllers.ask_quorum(leader.node_id, add(5))
        assert answer.error_code == ErrorCode.REQUEST_TIMED_OUT
        answer = await controllers.ask_quorum(leader.node_id, remove(leader.node_id))
        assert answer.error_code == 0
        new = await controllers.until(lambda: (found := controllers.active()) is not leader and found)
        assert leader.node_id not in new.service.quorum.voters.node_ids
        answer = await controllers.ask_quorum(leader.node_id, add(4))
        assert answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        await controllers.ask(register(100))
        await controllers.agree()

    play(script, voters=(1, 2, 3), observers=(4,), more_controllers=(4,))


def test_a_voter_that_cannot_be_reached_is_not_added() -> None:
    """Kafka's AddVoterHandler asks the new voter ApiVersions under the endpoints given: a wrong port would stand in the log,
    and count for majorities. REQUEST_TIMED_OUT; the next request may be right."""

    async def script(world: World, controllers: Controllers) -> None:
        leader = await controllers.leader()
        await controllers.until(lambda: 4 in controllers.members)
        await controllers.members[4].service.caught_up()
        wrong = add(4)
        wrong.listeners[0].port = 9999
        answer = await controllers.ask_quorum(leader.node_id, wrong)
        assert answer.error_code == ErrorCode.REQUEST_TIMED_OUT
        assert "does not answer at" in answer.error_message
        assert leader.service.quorum.voters.node_ids == (1, 2, 3)
        assert (await controllers.ask_quorum(leader.node_id, add(4))).error_code == 0
        assert leader.service.quorum.voters.node_ids == (1, 2, 3, 4)

    play(script, voters=(1, 2, 3), observers=(4,), more_controllers=(4,))


def test_a_voter_that_speaks_another_level_is_not_added(monkeypatch: pytest.MonkeyPatch) -> None:
    """A voter must support kraft.version 1 to read who votes; INVALID_REQUEST is the answer for any other."""

    async def script(world: World, controllers: Controllers) -> None:
        leader = await controllers.leader()
        await controllers.until(lambda: 4 in controllers.members)
        await controllers.members[4].service.caught_up()
        answer = await controllers.ask_quorum(leader.node_id, add(4))
        assert answer.error_code == ErrorCode.INVALID_REQUEST
        assert "supports kraft.version 0 to 0" in answer.error_message
        assert leader.service.quorum.voters.node_ids == (1, 2, 3)

    monkeypatch.setitem(SUPPORTED_FEATURES, "kraft.version", (0, 0))
    play(script, voters=(1, 2, 3), observers=(4,), more_controllers=(4,))


def test_a_voter_that_answers_with_a_number_of_its_own_is_not_added() -> None:
    """A request for a voter says where it listens, so anything may answer there: no number ends the controller."""
    strange = 9999

    async def answer(env: Env) -> None:
        listener = env.network.listen("", strange)
        conn, wire, buffer = await listener.accept(), ServerConnection(), memoryview(bytearray(4096))
        while True:
            await conn.readable()
            count = conn.recv_into(buffer)
            if count is None:
                continue
            wire.receive_data(buffer[:count])
            while isinstance(wire.next_event(), RequestReceived):
                conn.send(wire.send(ApiVersionsResponse(error_code=strange)))

    async def script(world: World, controllers: Controllers) -> None:
        leader = await controllers.leader()
        await controllers.until(lambda: 4 in controllers.members)
        await controllers.members[4].service.caught_up()
        world.start(host_of(9), answer)
        asked = add(4)
        asked.listeners[0].host, asked.listeners[0].port = host_of(9), strange
        answered = await controllers.ask_quorum(leader.node_id, asked)
        assert answered.error_code == ErrorCode.REQUEST_TIMED_OUT
        assert leader.service.quorum.voters.node_ids == (1, 2, 3)
        assert (await controllers.ask_quorum(leader.node_id, add(4))).error_code == 0

    play(script, voters=(1, 2, 3), observers=(4,), more_controllers=(4,))


def test_static_voters_cannot_be_changed() -> None:
    """kraft.version 0."""

    async def script(world: World, controllers: Controllers) -> None:
        leader = await controllers.leader()
        answer = await controllers.ask_quorum(leader.node_id, remove(1))
        assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION

    play(script, static=True)


def test_a_voter_that_moved_tells_the_leader() -> None:
    """UpdateRaftVoter: the voters in the log say how to reach each; a node with another address has it changed."""

    async def script(world: World, controllers: Controllers) -> None:
        await controllers.ask(register(100))
        leader = await controllers.leader()
        moved = next(each for each in (1, 2, 3) if each != leader.node_id)
        await controllers.stop(moved)
        controllers.more_endpoints[moved] = (("OTHER", "elsewhere", 9094),)
        controllers.start(moved)
        quorum = leader.service.quorum
        await controllers.until(lambda: len(quorum.voters.get(moved).endpoints) == 2)
        # A leader sends its endpoints to no leader: it writes them with the first records of its epoch.
        await controllers.stop(leader.node_id)
        controllers.more_endpoints[leader.node_id] = (("OTHER", "elsewhere", 9094),)
        for node_id in (1, 2, 3):
            if node_id in controllers.members:
                controllers.crash(node_id)
        controllers.start(leader.node_id)
        controllers.start(moved)
        again = await controllers.leader()
        await controllers.until(lambda: len(again.service.quorum.voters.get(leader.node_id).endpoints) == 2)

    play(script)
