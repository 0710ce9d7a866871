"""A leader dies, and clients ask at once who leads now: they hear of its successor, and of the dead broker once more."""

from __future__ import annotations

import pytest

from odradek.data_plane.replication.following.departures import (
    HELD_SECONDS_MAX,
    MENTIONED_SECONDS,
    Departures,
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
        assert leaders["t"] != [1]
        assert case.world.now - began < HELD_SECONDS_MAX
        assert case.world.states.get(HELD, 0) == 1
        assert [each.node_id for each in answer.brokers] == [1, 2, 3]
        await case.world.sleep(MENTIONED_SECONDS)
        assert [each.node_id for each in (await asked(case)).brokers] == [2, 3]

    Troubled(settings=LONG_SESSION).play(script)


def test_an_answer_about_other_leaders_is_not_held() -> None:
    """A topic whose leader lives is described at once, although another leader has just died."""

    async def script(case: Troubled) -> None:
        await acquainted(case)
        await asked(case)
        await case.member(1).kill("all")
        await case.world.sleep(NOTICED_SECONDS)
        answer = await asked(case, ["missing"])
        assert [each.node_id for each in answer.brokers] == [1, 2, 3]
        assert case.world.states.get(HELD, 0) == 0

    Troubled(settings=LONG_SESSION).play(script)


def test_a_leader_that_only_lost_its_connections_is_named_again() -> None:
    """The connections of a living leader end. Answers wait until followers fetch from it again, which is soon."""

    async def script(case: Troubled) -> None:
        await acquainted(case)
        departures = case.broker(2).replication.departures
        departures.lost(1)
        assert departures.misses({1})
        began = case.world.now
        answer = await asked(case, ["t"])
        assert [part.leader_id for part in answer.topics[0].partitions] == [1]
        assert case.world.now - began < 2 * HELD_SECONDS_MAX
        assert not departures.misses()

    Troubled(settings=LONG_SESSION).play(script)


def test_nobody_is_missed_for_long() -> None:
    """A paused leader stays unfenced for a while. Answers are held back for `HELD_SECONDS_MAX` in all."""

    async def script(case: Troubled) -> None:
        await acquainted(case)
        case.world.pause(case.member(1).name)
        departures = case.broker(2).replication.departures
        departures.lost(1)
        began = case.world.now
        await departures.settled()
        assert case.world.now - began == pytest.approx(HELD_SECONDS_MAX)
        assert not departures.misses()
        case.world.resume(case.member(1).name)

    Troubled(settings=LONG_SESSION).play(script)


def test_coordinators_are_told_when_it_is_known_who_leads() -> None:
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


def test_a_question_finds_a_connection_that_has_ended() -> None:
    """A client asks before the broker has received the end of its own connection. Only named leaders are looked at."""
    world, looked_at = World(1, Weather()), []

    def has_ended(leader: int) -> bool:
        looked_at.append(leader)
        return leader == 3

    departures = Departures(world.node_env("a"), has_ended, lambda: (2, 3))
    assert not departures.misses({2})
    assert looked_at == [2]
    assert departures.misses()
    assert looked_at == [2, 2, 3]
    assert departures.misses({3})
    assert looked_at == [2, 2, 3]
    departures.found(3)
    assert not departures.misses({2})
