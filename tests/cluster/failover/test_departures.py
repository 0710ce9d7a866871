"""A leader dies, and clients ask at once who leads now: they hear of its successor, and of the dead broker once more."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from odradek.data_plane.replication.following.departures import (
    DOUBT_SECONDS_MAX,
    LOOK_SECONDS_MIN,
    MENTIONED_SECONDS,
    Departures,
)
from odradek.wire.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreateTopicsRequest,
)
from odradek.wire.messages.find_coordinator import FindCoordinatorRequest
from odradek.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from sim.machine.weather import Weather
from sim.machine.world import World
from tests.cluster.disks.test_troubled_disks import Troubled
from tests.cluster.failover.test_dead_processes import LONG_SESSION, acquainted

NOTICED_SECONDS = 0.001
"""A simulated connection ends within this time, and the controller needs longer for its decision."""
HELD = "broker.answer_held_for_successors"


async def asked(case: Troubled, topics: list[str] | None = None) -> MetadataResponse:
    """Ask broker 2 for metadata of some topics (None: of all)."""
    named = None if topics is None else [MetadataRequestTopic(name=each) for each in topics]
    answer = await case.cluster.observer.request(MetadataRequest(named), node=2)
    assert isinstance(answer, MetadataResponse)
    return answer


@pytest.mark.parametrize("topics", [["t"], None, ["t", "missing"]])
def test_the_first_answer_names_the_new_leader(topics: list[str] | None) -> None:
    """A client asks just after the death. The answer waits until another replica leads. It mentions the dead broker,
    whose partitions librdkafka would drop otherwise. Later answers do not mention it."""

    async def script(case: Troubled) -> None:
        await acquainted(case)
        await asked(case)
        await case.member(1).kill("all")
        await case.world.sleep(NOTICED_SECONDS)
        began = case.world.now
        answer = await asked(case, topics)
        leaders = {each.name: [part.leader_id for part in each.partitions] for each in answer.topics}
        assert leaders["t"] in ([2], [3])
        assert case.world.now - began < DOUBT_SECONDS_MAX
        assert case.world.states.get(HELD, 0) == 1
        assert [each.node_id for each in answer.brokers] == [1, 2, 3]
        await case.world.sleep(MENTIONED_SECONDS)
        assert [each.node_id for each in (await asked(case)).brokers] == [2, 3]

    Troubled(settings=LONG_SESSION).play(script)


def test_an_answer_about_other_leaders_is_not_held() -> None:
    """A topic whose leader lives is described at once, although another leader has just died. So is no topic at all."""

    async def script(case: Troubled) -> None:
        await acquainted(case)
        topic = CreatableTopic("lives", -1, -1, [CreatableReplicaAssignment(0, [3, 2])], [])
        await case.cluster.observer.request(CreateTopicsRequest([topic], 10_000, False))
        await case.world.sleep(2.0)
        await asked(case)
        await case.member(1).kill("all")
        await case.world.sleep(NOTICED_SECONDS)
        for topics in (["lives"], ["missing"], []):
            answer = await asked(case, topics)
            assert [each.node_id for each in answer.brokers] == [1, 2, 3]
        assert case.world.states.get(HELD, 0) == 0

    Troubled(settings=LONG_SESSION).play(script)


def test_a_broker_that_stopped_in_order_is_mentioned_longer() -> None:
    """A leader's node stops in order. Clients have to leave it for the new leader before it is missing in answers."""

    async def script(case: Troubled) -> None:
        await acquainted(case)
        case.member(1).ask_to_stop()
        while not case.broker(2).image.brokers[1].fenced:
            await case.world.sleep(0.001)
        answer = await asked(case, ["t"])
        assert [part.leader_id for part in answer.topics[0].partitions] in ([2], [3])
        assert [each.node_id for each in answer.brokers] == [1, 2, 3]
        await case.world.sleep(MENTIONED_SECONDS)
        assert [each.node_id for each in (await asked(case)).brokers] == [2, 3]

    Troubled(settings=LONG_SESSION).play(script)


def test_a_host_that_is_silent_is_not_mentioned_longer() -> None:
    """A leader is paused until it is fenced. Its connections have not ended, and clients would wait for it."""

    async def script(case: Troubled) -> None:
        await acquainted(case)
        case.world.pause(case.member(1).name)
        while not case.broker(2).image.brokers[1].fenced:
            await case.world.sleep(0.01)
        assert [each.node_id for each in (await asked(case)).brokers] == [2, 3]
        case.world.resume(case.member(1).name)

    Troubled(settings=LONG_SESSION).play(script)


def test_a_leader_that_only_lost_its_connections_is_named_again() -> None:
    """The connections of a living, idle leader end. Its followers ask it again for an answer at once, so answers to
    clients wait only for that."""

    async def script(case: Troubled) -> None:
        await acquainted(case)
        (fetcher,) = (each for leader, each in case.broker(2).replication.fetchers.items() if leader == 1)
        conn = cast("Any", fetcher)._connection._conn
        conn.peer.close()
        departures = case.broker(2).replication.departures
        while not departures.doubtful({1}):
            await case.world.sleep(0.001)
        began = case.world.now
        while departures.doubtful({1}):
            assert case.world.now < began + DOUBT_SECONDS_MAX / 2
            await case.world.sleep(0.001)
        answer = await asked(case, ["t"])
        assert [part.leader_id for part in answer.topics[0].partitions] == [1]

    Troubled(settings=LONG_SESSION).play(script)


def test_coordinators_are_named_when_it_is_known_who_leads() -> None:
    """The coordinator of a group dies. A client that asks at once for the coordinator hears of the next one."""

    async def script(case: Troubled) -> None:
        await acquainted(case)
        request = FindCoordinatorRequest(key_type=0, coordinator_keys=["g"])

        async def coordinator() -> tuple[int, int]:
            (found,) = (await case.cluster.observer.request(request, node=2)).coordinators
            return found.error_code, found.node_id

        while (await coordinator())[0]:
            await case.world.sleep(0.1)
        await case.whole(60.0)
        _, first = await coordinator()
        asked_of = 2 if first != 2 else 3
        await case.member(first).kill("all")
        await case.world.sleep(NOTICED_SECONDS)
        (found,) = (await case.cluster.observer.request(request, node=asked_of)).coordinators
        assert found.node_id not in (first, -1)

    Troubled(settings=LONG_SESSION).play(script)


class Alone:
    """The object alone, in a world with a clock. Connections to the leaders in `ended` have ended."""

    def __init__(self) -> None:
        self.world = World(1, Weather())
        self.ended: set[int] = set()
        self.looked_at: list[int] = []
        self.departures = Departures(self.world.node_env("a"), self._has_ended, lambda: (2, 3))

    def _has_ended(self, leader: int) -> bool:
        self.looked_at.append(leader)
        return leader in self.ended

    def play(self, script: Callable[[], Awaitable[None]]) -> None:
        """Run a script on the world's clock."""
        self.world.run(script, virtual_seconds_max=60.0)


def test_a_question_finds_a_connection_that_has_ended() -> None:
    """A client asks before the broker has received the end of its own connection. Only named leaders are looked at, and
    all of them once in a millisecond at most."""
    alone = Alone()
    alone.ended = {3}

    async def script() -> None:
        departures = alone.departures
        assert departures.doubtful({2}) == set()
        assert alone.looked_at == [2]
        assert departures.doubtful() == {3}
        assert alone.looked_at == [2, 2, 3]
        assert departures.doubtful() == departures.doubtful({3}) == {3}
        assert alone.looked_at == [2, 2, 3]
        await alone.world.sleep(2 * LOOK_SECONDS_MIN)
        assert departures.doubtful() == {3}
        assert alone.looked_at == [2, 2, 3, 2]
        alone.ended = set()
        departures.answered(3)
        assert departures.doubtful({3}) == set()

    alone.play(script)


def test_each_loss_makes_answers_wait_once() -> None:
    """Nobody reads the end of a connection, for instance because the disk hangs. After `DOUBT_SECONDS_MAX` in all, the
    leader is named again, and a later question is not held."""
    alone = Alone()
    alone.ended = {3}

    async def script() -> None:
        departures, world = alone.departures, alone.world
        assert departures.doubtful({3}) == {3}
        await world.sleep(DOUBT_SECONDS_MAX / 2)
        assert departures.doubtful({3}) == {3}
        await departures.wait_for_successors({3})
        assert world.now == pytest.approx(DOUBT_SECONDS_MAX)
        await departures.wait_for_successors({2, 3})
        assert world.now == pytest.approx(DOUBT_SECONDS_MAX)
        assert departures.doubtful({3}) == departures.doubtful() == set()
        departures.answered(3)
        assert departures.doubtful({3}) == {3}

    alone.play(script)


def test_a_wait_ends_with_the_leaders_that_it_is_about() -> None:
    """Two leaders are lost. The wait for one of them ends when that one answers."""
    alone = Alone()

    async def script() -> None:
        departures, world = alone.departures, alone.world
        departures.connection_lost(2)
        departures.connection_lost(3)

        async def answer() -> None:
            await world.sleep(0.1)
            departures.answered(2)

        world.tasks.start_soon(answer)
        await departures.wait_for_successors({2})
        assert world.now == pytest.approx(0.1)
        assert departures.doubtful({2, 3}) == {3}

    alone.play(script)
