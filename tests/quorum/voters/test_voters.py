"""Voters of a quorum are added, removed and moved (KIP-853), in controllers over a simulated network."""

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
    """An observer with the whole log is added, and voters are removed, even the leader.

    Refusals have Kafka's codes (KIP-853).
    """

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
    """A voter is added with a wrong port. The request fails with REQUEST_TIMED_OUT, and a correct one succeeds.

    As Kafka's AddVoterHandler, the leader sends ApiVersions to the endpoint first. Else the wrong port would be in the
    log, and the voter would count for majorities.
    """

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
    """A new voter does not support kraft.version 1, which it needs to read the voters.

    It is refused with INVALID_REQUEST.
    """

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
    """A new voter's endpoint answers with an unknown error code. The voter is refused, and the controller goes on."""
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
    """Static voters cannot be changed (kraft.version 0)."""

    async def script(world: World, controllers: Controllers) -> None:
        leader = await controllers.leader()
        answer = await controllers.ask_quorum(leader.node_id, remove(1))
        assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION

    play(script, static=True)


def test_a_voter_that_moved_tells_the_leader() -> None:
    """A voter restarts with other endpoints. It sends UpdateRaftVoter, and the leader writes them to the log."""

    async def script(world: World, controllers: Controllers) -> None:
        await controllers.ask(register(100))
        leader = await controllers.leader()
        moved = next(each for each in (1, 2, 3) if each != leader.node_id)
        await controllers.stop(moved)
        controllers.more_endpoints[moved] = (("OTHER", "elsewhere", 9094),)
        controllers.start(moved)
        quorum = leader.service.quorum
        await controllers.until(lambda: len(quorum.voters.get(moved).endpoints) == 2)
        # A leader does not send UpdateRaftVoter: it writes its own endpoints at the beginning of its epoch.
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
